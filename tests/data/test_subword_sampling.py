from __future__ import annotations

import math
import multiprocessing
import os
import struct
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise, product
from pathlib import Path

import pytest
import sentencepiece
from corpora import ENGLISH, GERMAN, sentences, tokenizer_options
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_kit.data import subword_sampling
from transformer_kit.data.sentencepiece_tokenizer import ESCAPE, SPACE, SentencePieceTokenizer
from transformer_kit.data.subword_sampling import SubwordSampler, make_sampler
from transformer_kit.data.text_rules import TextRule
from transformer_kit.data.tokenizer_options import Kind
from transformer_kit.data.tokenizer_training import train_sentencepiece

SENTENCEPIECE = [Kind.unigram, Kind.bpe]
PLAIN = TextRule("en", normalize=False, tokenize=False, lowercase=False)
LINES = sentences(60, ENGLISH + GERMAN, seed=3)
ODD = [
    "",
    " ",
    "  two  spaces ",
    SPACE,
    f"{ESCAPE}u{SPACE}",
    "\x00\t\r\u2028",
    "\ufeffx",
    "</s> <0x0A> <unk>",
    "語" * 90,
]
SHARP = 5000.0  # an exponent that leaves the best segmentation only
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED = 1, 2, 3, 4, 5
UNIGRAM, BPE = 1, 2
DRAWS = 20_000


def field(number: int, value: bytes) -> bytes:
    size = len(value)
    assert size < 1 << 14
    return bytes([number << 3 | 2, *([size] if size < 128 else [size & 127 | 128, size >> 7])]) + value


def toy(kind: int, pieces: list[tuple[str, float, int]]) -> bytes:
    """A SentencePiece model of the four control pieces and the given ones (from id 4), that changes no text."""
    control = [("<pad>", 0.0, CONTROL), ("<unk>", 0.0, UNKNOWN), ("<s>", 0.0, CONTROL), ("</s>", 0.0, CONTROL)]
    parts = [
        field(1, field(1, text.encode()) + struct.pack("<Bf", 2 << 3 | 5, score) + bytes([3 << 3, type_]))
        for text, score, type_ in control + pieces
    ]
    special = ((40, 1), (41, 2), (42, 3), (43, 0))  # fields of the ids of unknown, BOS, EOS, padding
    trainer = bytes([3 << 3, kind]) + b"".join(bytes([key << 3 & 127 | 128, key >> 4, id_]) for key, id_ in special)
    normalizer = field(1, b"identity") + bytes([3 << 3, 0, 4 << 3, 0, 5 << 3, 1])  # spaces: none added, kept, escaped
    return b"".join(parts) + field(2, trainer) + field(3, normalizer)


LETTERS = [("a", -1.5, NORMAL), ("b", -2.0, NORMAL), ("c", -1.0, NORMAL), (SPACE, -2.5, NORMAL)]
WORDS = [("ab", -1.75, NORMAL), ("bc", -2.25, NORMAL), ("abc", -3.0, NORMAL), (f"{SPACE}a", -2.0, NORMAL)]
CROSSING = [(f"c{SPACE}a", -1.25, NORMAL)]
RARE = [("cab", -9.0, USER_DEFINED), ("bb", -0.5, UNUSED), ("bba", -0.75, NORMAL), ("cca", -9.0, USER_DEFINED)]
TEXTS = [
    "abc",
    "abcab",
    "a abcb",
    "axxbc",
    "ab" * 3,
    "abba cabb",
    "xabccab",
    "cabcab",
    "ccca",
    "bbab bbb",
    "abc abc",
    " ",
    "",
]


def encode(model: bytes, text: str) -> list[int]:
    ids: list[int] = sentencepiece.SentencePieceProcessor(model_proto=model).encode(text)
    return ids


def shares(sampler: SubwordSampler, text: str) -> dict[tuple[int, ...], float]:
    rows = sampler.sample([text] * DRAWS, range(DRAWS))
    return {row: count / DRAWS for row, count in Counter(map(tuple, rows)).items()}


def check(found: dict[tuple[int, ...], float], expected: dict[tuple[int, ...], float]) -> None:
    assert sum(expected.values()) == pytest.approx(1)
    assert found.keys() <= expected.keys()
    for row, share in expected.items():
        assert abs(found.get(row, 0) - share) < 4.5 * math.sqrt(share * (1 - share) / DRAWS) + 1e-4


def segmentations(text: str) -> Iterator[list[str]]:
    for cuts in product([False, True], repeat=len(text) - 1):
        ends = [place + 1 for place, cut in enumerate(cuts) if cut]
        yield [text[start:end] for start, end in pairwise([0, *ends, len(text)])]


@pytest.mark.parametrize("extra", [[], CROSSING])
@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_unigram_shares_are_those_of_all_segmentations(alpha: float, extra: list[tuple[str, float, int]]) -> None:
    pieces = LETTERS + WORDS + extra
    ids = {text: number for number, (text, _, _) in enumerate(pieces, 4)}
    scores = {text: score for text, score, _ in pieces} | {"x": -3.0 - 10}  # an unknown one: 10 below the worst
    weights: defaultdict[tuple[int, ...], float] = defaultdict(float)
    text = f"abcx{SPACE}abc{SPACE}ab"
    for parts in segmentations(text):
        if all(part in scores for part in parts):
            row = tuple(ids.get(part, 1) for part in parts)
            weights[row] += math.exp(alpha * sum(scores[part] for part in parts))
    assert len(weights) > 50
    total = sum(weights.values())
    check(
        shares(make_sampler(toy(UNIGRAM, pieces), alpha), text),
        {row: weight / total for row, weight in weights.items()},
    )


def dropout(symbols: tuple[str, ...], scores: dict[str, float], alpha: float) -> dict[tuple[str, ...], float]:
    """The exact distribution, by going through which merges stay at each step."""
    places = [place for place, pair in enumerate(pairwise(symbols)) if "".join(pair) in scores]
    result: defaultdict[tuple[str, ...], float] = defaultdict(float)
    for stay in product([False, True], repeat=len(places)):
        share = math.prod(1 - alpha if one else alpha for one in stay)
        left = [place for place, one in zip(places, stay, strict=True) if one]
        if not left:
            result[symbols] += share
            continue
        place = max(left, key=lambda place: (scores[symbols[place] + symbols[place + 1]], -place))
        merged = (*symbols[:place], symbols[place] + symbols[place + 1], *symbols[place + 2 :])
        for end, chance in dropout(merged, scores, alpha).items():
            result[end] += share * chance
    return result


@pytest.mark.parametrize("alpha", [0.1, 0.6])
def test_bpe_shares_are_those_of_the_algorithm(alpha: float) -> None:
    pieces = LETTERS + WORDS + [("ca", -0.5, NORMAL), ("aa", -4.0, NORMAL)]
    ids = {text: number for number, (text, _, _) in enumerate(pieces, 4)}
    scores = {text: score for text, score, _ in pieces if len(text) > 1}
    for text in ("abcab", f"{SPACE}abcaa"):
        expected = {
            tuple(ids[part] for part in parts): share for parts, share in dropout(tuple(text), scores, alpha).items()
        }
        check(shares(make_sampler(toy(BPE, pieces), alpha), text), expected)


@pytest.mark.parametrize("extra", [[], CROSSING, RARE, RARE + CROSSING])
@pytest.mark.parametrize(("kind", "alpha"), [(UNIGRAM, SHARP), (BPE, 0.0)])
def test_without_chance_all_kinds_of_pieces_come_as_in_sentencepiece(
    kind: int, alpha: float, extra: list[tuple[str, float, int]]
) -> None:
    model = toy(kind, LETTERS + WORDS + extra)
    lines = [text.replace(" ", SPACE) for text in TEXTS]
    rows = make_sampler(model, alpha).sample(lines, range(len(lines)))
    assert rows == [encode(model, text) for text in TEXTS]


def test_dropping_all_merges_leaves_the_characters() -> None:
    model = toy(BPE, LETTERS + WORDS)
    text = "abc" * 100 + "xx" + "c"
    assert make_sampler(model, 1.0).sample([text], [7]) == [[4, 5, 6] * 100 + [1, 6]]


@pytest.mark.parametrize("kind", SENTENCEPIECE)
@pytest.mark.parametrize("alpha", [0.1, 0.9])
def test_what_is_remembered_changes_nothing(kind: Kind, alpha: float, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = trained(kind)
    seeds = range(len(LINES))
    before = tokenizer.sample(LINES, seeds, alpha)
    assert tokenizer.sample(LINES, seeds, alpha) == before
    monkeypatch.setattr(subword_sampling, "LONGEST", 0)
    monkeypatch.setattr(subword_sampling, "BLOCK", 7)
    assert tokenizer.sample(LINES, seeds, alpha) == before


def trained(
    kind: Kind,
    byte_fallback: bool = True,
    made: dict[tuple[Kind, bool], SentencePieceTokenizer] = {},  # noqa: B006  (trained once for all tests)
) -> SentencePieceTokenizer:
    key = kind, byte_fallback
    if key not in made:
        options = tokenizer_options(kind=kind, byte_fallback=byte_fallback, vocab_size=311 if byte_fallback else 53)
        made[key] = SentencePieceTokenizer(train_sentencepiece(lambda: LINES, options, []), PLAIN)
    return made[key]


def check_text(tokenizer: SentencePieceTokenizer, kind: Kind, lines: list[str]) -> None:
    plain = tokenizer.cut(lines)
    seeds = range(len(lines))
    if kind is Kind.bpe:
        assert tokenizer.sample(lines, seeds, 0.0) == plain
    else:
        score = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model).get_score
        for row, best in zip(tokenizer.sample(lines, seeds, SHARP), plain, strict=True):
            # Not the rows: among segmentations of equal scores SentencePiece takes another.
            assert sum(map(score, row)) == pytest.approx(sum(map(score, best)), rel=1e-5)
    for alpha in (0.1, 0.5, 1.0):
        assert tokenizer.decode(tokenizer.sample(lines, seeds, alpha)) == tokenizer.decode(plain)


@pytest.mark.parametrize("byte_fallback", [True, False])
@pytest.mark.parametrize("kind", SENTENCEPIECE)
def test_samples_decode_to_the_same_text(kind: Kind, byte_fallback: bool) -> None:
    check_text(trained(kind, byte_fallback), kind, LINES + ODD)


@pytest.mark.parametrize("kind", SENTENCEPIECE)
def test_naughty_strings_are_cut_as_well(kind: Kind) -> None:
    if "TKIT_DATA" not in os.environ:
        pytest.skip("TKIT_DATA does not name the data folder")
    raw = (Path(os.environ["TKIT_DATA"]) / "robustness" / "blns.txt").read_bytes()
    check_text(trained(kind), kind, raw.decode().split("\n"))


@settings(max_examples=40, deadline=None)
@given(
    st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from([SPACE, ESCAPE, " ", "d", "o", "g"])),
    st.sampled_from(SENTENCEPIECE),
    st.booleans(),
)
def test_any_text_comes_back(text: str, kind: Kind, byte_fallback: bool) -> None:
    check_text(trained(kind, byte_fallback), kind, [text])


def sample_here(model: bytes, alpha: float) -> list[list[int]]:
    return SentencePieceTokenizer(model, PLAIN).sample(LINES, range(len(LINES)), alpha)


def test_fresh_processes_draw_equal_pieces() -> None:
    models = [trained(kind).model for kind in SENTENCEPIECE]
    here = [sample_here(model, 0.2) for model in models]
    assert here != [SentencePieceTokenizer(model, PLAIN).cut(LINES) for model in models]
    fresh = multiprocessing.get_context("spawn")
    for _ in range(2):
        with fresh.Pool(1) as pool:
            assert pool.starmap(sample_here, [(model, 0.2) for model in models]) == here
