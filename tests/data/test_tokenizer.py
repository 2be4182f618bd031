from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
from corpora import ENGLISH, GERMAN, MOSES, sentences, tokenizer_options
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_kit.data.sentencepiece_tokenizer import (
    BOS_ID,
    EOS_ID,
    ESCAPE,
    PAD_ID,
    SPACE,
    UNK_ID,
    SentencePieceTokenizer,
)
from transformer_kit.data.text_rules import TextRule
from transformer_kit.data.tokenizer import Tokenizer, Tokenizers
from transformer_kit.data.tokenizer_options import Kind, TextOptions, TokenizerOptions, Unicode
from transformer_kit.data.tokenizer_training import train_sentencepiece
from transformer_kit.errors import DataError

SENTENCEPIECE = [Kind.unigram, Kind.bpe]
LINES = sentences(200, ENGLISH + GERMAN, seed=3)
PLAIN = TextRule("en", normalize=False, tokenize=False, lowercase=False)


def train(lines: list[str] = LINES, tags: list[str] | None = None, **changes: Any) -> bytes:
    return train_sentencepiece(lambda: lines, tokenizer_options(**changes), tags or [])


@pytest.fixture(scope="module")
def lossless() -> Tokenizer:
    return SentencePieceTokenizer(train(), PLAIN)


@pytest.mark.parametrize("kind", SENTENCEPIECE)
def test_training_twice_gives_equal_bytes(kind: Kind) -> None:
    assert train(kind=kind) == train(kind=kind)


def test_training_does_not_depend_on_the_number_of_cores() -> None:
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("this system cannot restrict a process to one core")
    before = os.sched_getaffinity(0)
    free = train(kind=Kind.unigram)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert train(kind=Kind.unigram) == free
    finally:
        os.sched_setaffinity(0, before)


@settings(max_examples=60, deadline=None)
@given(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n") | st.sampled_from([SPACE, ESCAPE, "u"]))
)
def test_identity_and_byte_fallback_lose_nothing(text: str) -> None:
    tokenizer = SentencePieceTokenizer(_lossless_model(), PLAIN)
    assert tokenizer.decode(tokenizer.encode([text])) == [text]


def _lossless_model(made: list[bytes] = []) -> bytes:  # noqa: B006  (one model for all examples)
    if not made:
        made.append(train())
    return made[0]


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "  two  spaces ",
        SPACE,
        f"a {SPACE}b",
        ESCAPE,
        f"{ESCAPE}u{SPACE}{ESCAPE}e",
        "\x00\t\r\u2028",
        "\ufeffx",
    ],
)
def test_odd_text_comes_back(lossless: Tokenizer, text: str) -> None:
    assert lossless.decode(lossless.encode([text])) == [text]


def test_naughty_strings_come_back(lossless: Tokenizer) -> None:
    if "TKIT_DATA" not in os.environ:
        pytest.skip("TKIT_DATA does not name the data folder")
    raw = (Path(os.environ["TKIT_DATA"]) / "robustness" / "blns.txt").read_bytes()
    lines = raw.decode().split("\n")
    assert lossless.decode(lossless.encode(lines)) == lines


@pytest.mark.parametrize("byte_fallback", [True, False])
@pytest.mark.parametrize("kind", SENTENCEPIECE)
def test_control_pieces_never_come_from_text(kind: Kind, byte_fallback: bool) -> None:
    model = train(tags=["<2de>"], kind=kind, byte_fallback=byte_fallback, vocab_size=311 if byte_fallback else 53)
    tokenizer = SentencePieceTokenizer(model, PLAIN, tag="<2de>")
    assert tokenizer.head_ids == [4]
    lines = ["</s>", "<pad>", "<unk> x", "a <s> b", "<2de> go", "<0x0A>", "⁇"]
    for row in tokenizer.encode(lines):
        assert row[0] == 4  # the tag that the tokenizer was told to put there
        assert not {PAD_ID, BOS_ID, EOS_ID, 4} & set(row[1:])
        assert not (byte_fallback and UNK_ID in row)
    if byte_fallback:
        assert tokenizer.decode(tokenizer.encode(lines)) == lines


def test_decode_leaves_control_ids_out(lossless: Tokenizer) -> None:
    (row,) = lossless.encode(["the dog"])
    assert lossless.decode([[BOS_ID, *row, EOS_ID, PAD_ID], []]) == ["the dog", ""]


def test_a_lone_surrogate_is_replaced(lossless: Tokenizer) -> None:
    assert lossless.decode(lossless.encode(["a\ud800b"])) == ["a?b"]


def test_rule_is_applied_unasked_and_undone() -> None:
    text = TextOptions(normalize=True, tokenize=True, lowercase=True, unicode=Unicode.nmt_nfkc)
    rule = TextRule("en", normalize=True, tokenize=True, lowercase=True)
    tokenizer = SentencePieceTokenizer(train(rule.apply(LINES), text=text), rule)
    rows = tokenizer.encode(["The DOG, near “trees” sees."])
    assert tokenizer.decode(rows, detokenize=False) == ['the dog , near " trees " sees .']
    assert tokenizer.decode(rows) == ['the dog, near "trees" sees.']


def test_unicode_rule_is_stored_with_the_model() -> None:
    nfkc = SentencePieceTokenizer(train(text=TextOptions(False, False, False, Unicode.nfkc)), PLAIN)
    assert nfkc.decode(nfkc.encode(["ﬁne  ①"])) == ["fine 1"]


def test_prefix_stands_before_the_line(lossless: Tokenizer) -> None:
    prefixed = SentencePieceTokenizer(lossless.model, PLAIN, prefix="red ")
    assert prefixed.encode(["dog"]) == lossless.encode(["red dog"])


@pytest.mark.parametrize("kind", SENTENCEPIECE)
def test_sampling_depends_on_the_seed_of_its_line_alone(kind: Kind) -> None:
    tokenizer = SentencePieceTokenizer(train(kind=kind), PLAIN)
    lines = LINES[:40]
    seeds = list(range(40))
    together = tokenizer.sample(lines, seeds, alpha=0.3)
    alone = [tokenizer.sample([line], [seed], alpha=0.3)[0] for line, seed in zip(lines, seeds, strict=True)]
    assert together == alone
    assert together != tokenizer.sample(lines, [seed + 100 for seed in seeds], alpha=0.3)
    assert together != tokenizer.cut(lines)
    assert tokenizer.decode(together) == lines


@pytest.mark.parametrize("kind", SENTENCEPIECE)
def test_vocabulary_out_of_range_names_the_range_and_the_option(kind: Kind) -> None:
    with pytest.raises(DataError, match=r"tokenizer\.vocab_size=7 is too small: .* at least (\d+) pieces") as small:
        train(kind=kind, vocab_size=7)
    assert str(small.value).endswith(
        "and the 256 bytes; raise tokenizer.vocab_size, or set tokenizer.byte_fallback=false"
    )
    with pytest.raises(DataError, match=r"alphabet; .* or lower tokenizer\.character_coverage"):
        train(kind=kind, vocab_size=7, byte_fallback=False)
    least = int(str(small.value).split("at least ")[1].split()[0])
    with pytest.raises(
        DataError, match=r"tokenizer\.vocab_size=90000 is too large .* from (\d+) to (\d+) pieces"
    ) as large:
        train(kind=kind, vocab_size=90_000)
    low, high = (int(number.replace(",", "")) for number in str(large.value).split("from ")[1].split()[:3:2])
    assert low == least
    assert SentencePieceTokenizer(train(kind=kind, vocab_size=high), PLAIN).vocab_size == high
    with pytest.raises(DataError, match="too large"):
        train(kind=kind, vocab_size=high + 1)


@pytest.mark.parametrize("lines", [[], ["", ""], ["x" * 20_000]])
def test_nothing_to_train_on(lines: list[str]) -> None:
    with pytest.raises(DataError, match=r"no line to train a tokenizer on.*data\.train"):
        train(lines)


def test_odd_training_lines_are_survived() -> None:
    odd = ["\x00", "a\x00b", SPACE, "\u2585 reserved", "\t", " ", "é" * 999]
    assert SentencePieceTokenizer(train(LINES + odd), PLAIN).vocab_size == 311


def pair(**changes: Any) -> Tokenizers:
    options: TokenizerOptions = tokenizer_options(**changes)
    rules = [
        TextRule(language, options.text.normalize, options.text.tokenize, options.text.lowercase)
        for language in ("en", "de")
    ]
    return Tokenizers.of(
        "sentencepiece",
        [train(**changes)] if options.joint else [train(**changes), train(LINES[::-1], **changes)],
        *rules,
    )


@pytest.mark.parametrize("changes", [{}, {"joint": False}, {"text": MOSES}])
def test_saved_tokenizers_load_as_they_were(tmp_path: Path, changes: dict[str, Any]) -> None:
    made = pair(**changes)
    made.save(tmp_path)
    found = Tokenizers.load(tmp_path, made.fingerprint)
    assert found.fingerprint == made.fingerprint
    assert found.joint is ("joint" not in changes)
    for side in ("source", "target"):
        assert getattr(found, side).encode(LINES[:5]) == getattr(made, side).encode(LINES[:5])
    # One object where nothing differs; with Moses the languages have rules of their own.
    assert (found.source is found.target) is (changes == {})
    assert pickle.loads(pickle.dumps(found)).fingerprint == made.fingerprint


def test_another_tokenizer_of_equal_size_is_refused(tmp_path: Path) -> None:
    mine, other = pair(), pair(text=TextOptions(False, False, True, Unicode.identity))
    assert mine.source.vocab_size == other.source.vocab_size
    other.save(tmp_path)
    with pytest.raises(DataError, match="is not the one that the model or data were made with"):
        Tokenizers.load(tmp_path, mine.fingerprint)


def test_changed_or_missing_files_are_refused(tmp_path: Path) -> None:
    pair().save(tmp_path / "a")
    pair(kind=Kind.unigram).save(tmp_path / "b")
    shutil.copy(tmp_path / "b" / "joint.model", tmp_path / "a" / "joint.model")
    with pytest.raises(DataError, match="not those that were written"):
        Tokenizers.load(tmp_path / "a")
    (tmp_path / "b" / "joint.model").unlink()
    with pytest.raises(DataError, match="damaged"):
        Tokenizers.load(tmp_path / "b")
    with pytest.raises(DataError, match="no tokenizer there"):
        Tokenizers.load(tmp_path)
    with pytest.raises(DataError, match="SentencePiece model is damaged"):
        SentencePieceTokenizer(b"no model", PLAIN)


def test_saved_description_names_only_files_of_its_folder(tmp_path: Path) -> None:
    made = pair(joint=False)
    made.save(tmp_path)
    about = json.loads((tmp_path / "tokenizer.json").read_text())
    about["source"]["model"] = "../elsewhere.model"  # never followed: the names are fixed
    (tmp_path / "tokenizer.json").write_text(json.dumps(about))
    assert Tokenizers.load(tmp_path).fingerprint == made.fingerprint


def test_unknown_tag_is_refused(lossless: Tokenizer) -> None:
    for tag in ("<2fr>", "the", "</s>", "<s>", "<pad>", "<unk>"):
        with pytest.raises(DataError, match="the tokenizer knows no tag"):
            SentencePieceTokenizer(lossless.model, PLAIN, tag=tag)


def test_marks_are_no_part_of_the_fingerprint() -> None:
    plain = Tokenizers.of("sentencepiece", [train(tags=["<2de>"])], PLAIN, PLAIN)
    marked = plain.marked("<2de>", "go ")
    assert marked.fingerprint == plain.fingerprint
    assert marked.source.encode(["a"]) == [[4, *plain.source.encode(["go a"])[0]]]
    assert marked.target.encode(["a"]) == plain.target.encode(["a"])
    assert plain.marked(None, None) is plain
