from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from corpora import ENGLISH, GERMAN, IDENTITY, sentences, tokenizer_options
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_kit.data.sentencepiece_tokenizer import SentencePieceTokenizer
from transformer_kit.data.symbol_tokenizers import ByteTokenizer, CharTokenizer, byte_model, char_model
from transformer_kit.data.text_rules import TextRule
from transformer_kit.data.tokenizer import Tokenizer, Tokenizers
from transformer_kit.data.tokenizer_kinds import KINDS, tokenizer_class
from transformer_kit.data.tokenizer_options import Kind
from transformer_kit.data.tokenizer_training import train_model
from transformer_kit.errors import DataError

PLAIN = TextRule("en", normalize=False, tokenize=False, lowercase=False)
LINES = sentences(200, ENGLISH + GERMAN, seed=3)
SYMBOLS: dict[str, Any] = {"byte_fallback": False, "vocab_size": None, "text": IDENTITY}
OPTIONS: dict[Kind, dict[str, Any]] = {Kind.unigram: {}, Kind.bpe: {}, Kind.char: SYMBOLS, Kind.byte: SYMBOLS}


def made(kind: Kind, tags: list[str] | None = None, **changes: Any) -> Tokenizer:
    options = tokenizer_options(kind=kind, **OPTIONS[kind] | changes)
    model = train_model(lambda: LINES, options, tags or [])
    return Tokenizers.of(kind.tokenizer, [model], PLAIN, PLAIN).source


def test_the_table_of_kinds_names_tokenizers() -> None:
    for kind in KINDS:
        found = tokenizer_class(kind)
        assert issubclass(found, Tokenizer)
        assert found.kind == kind
    with pytest.raises(DataError, match="no tokenizer of kind 'other'; the kinds are sentencepiece, char, byte"):
        tokenizer_class("other")


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=5))
def test_bytes_lose_nothing(lines: list[str]) -> None:
    tokenizer = ByteTokenizer(byte_model(["<mask>"]), PLAIN)
    rows = tokenizer.encode(lines)
    assert tokenizer.decode(rows) == lines
    assert [len(row) for row in rows] == [len(line.encode()) for line in lines]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=5))
def test_characters_of_the_alphabet_come_back_and_others_are_unknown(lines: list[str]) -> None:
    alphabet = "".join(sorted(set("".join(lines))))[::2]
    tokenizer = CharTokenizer(char_model(alphabet, []), PLAIN)
    rows = tokenizer.encode(lines)
    assert [len(row) for row in rows] == [len(line) for line in lines]
    expected = ["".join(one if one in alphabet else "\ufffd" for one in line) for line in lines]
    assert tokenizer.decode(rows) == expected
    flat = [(number, one) for row, line in zip(rows, lines, strict=True) for number, one in zip(row, line, strict=True)]
    assert all((number == tokenizer.unk_id) == (one not in alphabet) for number, one in flat)


def test_naughty_strings_come_back_from_bytes() -> None:
    if "TKIT_DATA" not in os.environ:
        pytest.skip("TKIT_DATA does not name the data folder")
    raw = (Path(os.environ["TKIT_DATA"]) / "robustness" / "blns.txt").read_bytes()
    tokenizer = ByteTokenizer(byte_model([]), PLAIN)
    assert tokenizer.decode(tokenizer.encode([raw.decode()])) == [raw.decode()]


@pytest.mark.parametrize("kind", [Kind.char, Kind.byte])
def test_a_lone_surrogate_is_read_as_a_question_mark(kind: Kind) -> None:
    tokenizer = made(kind)
    assert tokenizer.encode(["the\ud800dog"]) == tokenizer.encode(["the?dog"])


def test_the_alphabet_is_that_of_the_training_text_and_the_line_feed() -> None:
    tokenizer = made(Kind.char)
    alphabet = sorted({*"".join(LINES), "\n"})
    assert tokenizer.vocab_size == 4 + len(alphabet)
    assert tokenizer.pieces(range(4, tokenizer.vocab_size)) == alphabet
    assert tokenizer.specials.unk == 1
    (row,) = tokenizer.encode(["dog\ncat 7"])
    assert row[-1] == 1
    assert 1 not in row[:-1]
    assert tokenizer.decode([row]) == ["dog\ncat \ufffd"]


def test_a_vocabulary_size_keeps_the_most_frequent_characters() -> None:
    options = tokenizer_options(kind=Kind.char, **SYMBOLS | {"vocab_size": 8})
    model = train_model(lambda: ["aaaa", "bbb", "cc", "d", "\udc00"], options, [])
    assert CharTokenizer(model, PLAIN).pieces(range(4, 8)) == ["\n", "a", "b", "c"]
    with pytest.raises(DataError, match=r"no line to train a tokenizer on.*data\.train"):
        train_model(lambda: ["", ""], options, [])


@pytest.mark.parametrize("kind", list(Kind))
def test_control_ids_of_every_kind(kind: Kind) -> None:
    tokenizer = made(kind, ["<2de>", "<2fr>"], mask=True, sentinels=3, vocab_size=311 if not OPTIONS[kind] else None)
    own = tokenizer.specials
    assert own.vocab_size == tokenizer.vocab_size
    assert (own.pad, own.bos, own.eos) == (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id)
    assert own.start == own.bos
    assert own.mask is not None
    assert tokenizer.pieces([own.mask, *own.sentinels]) == ["<mask>", *(f"<extra_id_{n}>" for n in range(3))]
    tags = [tokenizer.tag_id(tag) for tag in ("<2de>", "<2fr>")]
    assert len({*own.all, *tags}) == 9
    for name in ("<mask>", "<extra_id_0>", "<s>", "dog"):
        with pytest.raises(DataError, match="knows no tag"):
            tokenizer.tag_id(name)
    lines = ["<mask>", "the <extra_id_0> dog", "<2de>", "</s>", "<pad>", "<s> <unk>"]
    rows = tokenizer.encode(lines)
    assert not {*own.all, *tags} & {number for row in rows for number in row}
    (plain,) = tokenizer.encode(["dog"])
    assert tokenizer.decode([[own.bos, own.mask, *own.sentinels, *tags, *plain, own.eos, own.pad]]) == ["dog"]
    assert made(kind).specials.mask is None
    assert made(kind).specials.sentinels == ()


@pytest.mark.parametrize("kind", list(Kind))
def test_every_kind_is_saved_and_travels(kind: Kind, tmp_path: Path) -> None:
    tokenizer = made(kind, ["<2de>"], sentinels=2).marked("<2de>", "go ")
    assert tokenizer.head_ids == [tokenizer.tag_id("<2de>")]
    assert tokenizer.encode(["a"])[0][1:] == made(kind, ["<2de>"], sentinels=2).encode(["go a"])[0]
    there = pickle.loads(pickle.dumps(tokenizer))
    assert there.encode(LINES[:3]) == tokenizer.encode(LINES[:3])
    one = Tokenizers.one(tokenizer.marked(None, ""))
    one.save(tmp_path)
    found = Tokenizers.load(tmp_path, one.fingerprint)
    assert found.source is found.target
    assert found.joint
    assert type(found.source) is type(tokenizer)
    assert found.source.specials == tokenizer.specials
    assert found.source.encode(LINES[:3]) == one.source.encode(LINES[:3])


def test_kinds_with_equal_models_are_told_apart() -> None:
    model = char_model("abc", [])
    assert ByteTokenizer(model, PLAIN).fingerprint != CharTokenizer(model, PLAIN).fingerprint
    lower = TextRule("en", normalize=False, tokenize=False, lowercase=True)
    assert CharTokenizer(model, lower).fingerprint != CharTokenizer(model, PLAIN).fingerprint


def test_folders_from_before_there_were_kinds_load(tmp_path: Path) -> None:
    tokenizer = made(Kind.bpe)
    now = Tokenizers.one(tokenizer)
    (tmp_path / "joint.model").write_bytes(tokenizer.model)
    side = {"model": "joint.model", "rule": vars(PLAIN)}
    old = {"format": 1, "fingerprint": now.fingerprint, "joint": True, "source": side, "target": side}
    (tmp_path / "tokenizer.json").write_text(json.dumps(old))
    found = Tokenizers.load(tmp_path)
    assert isinstance(found.source, SentencePieceTokenizer)
    assert found.source is found.target
    assert found.fingerprint == now.fingerprint


def test_a_kind_that_is_not_in_the_table_is_never_imported(tmp_path: Path) -> None:
    Tokenizers.one(made(Kind.byte)).save(tmp_path)
    about = json.loads((tmp_path / "tokenizer.json").read_text())
    about["source"]["kind"] = "os.system"
    (tmp_path / "tokenizer.json").write_text(json.dumps(about))
    with pytest.raises(DataError, match=r"no tokenizer of kind 'os\.system'"):
        Tokenizers.load(tmp_path)


@pytest.mark.parametrize("kind", [Kind.char, Kind.byte])
def test_symbols_have_one_segmentation(kind: Kind) -> None:
    with pytest.raises(DataError, match=r"knows no random segmentation; set tokenizer\.sampling\.alpha=0"):
        made(kind).sample(["a"], [1], 0.1)


@pytest.mark.parametrize("model", [b"", b"[]", b"\xff", b"{}"])
@pytest.mark.parametrize("made_by", [CharTokenizer, ByteTokenizer])
def test_a_damaged_model_is_named(model: bytes, made_by: type[CharTokenizer] | type[ByteTokenizer]) -> None:
    with pytest.raises(DataError, match="model is damaged"):
        made_by(model, PLAIN)


def test_the_rule_keeps_line_feeds() -> None:
    moses = TextRule("en", normalize=True, tokenize=True, lowercase=True)
    text = "The DOG, near.\n\nIt's “red”!"
    (cut,) = moses.apply([text])
    assert cut == 'the dog , near .\n\nit \'s " red " !'
    assert moses.undo([cut]) == ['the dog, near.\n\nit\'s "red"!']
