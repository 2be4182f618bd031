from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from generation_toys import MASK, PIECES, Pieces, tiny_encoder
from toys import BOS, EOS, PAD, options

from transformer_kit.batch import pad
from transformer_kit.decoding.filling import Fill, MaskFiller
from transformer_kit.decoding.reading import Frame
from transformer_kit.errors import ConfigError

FRAME = Frame((BOS,), (EOS,), PAD, 24)
BARRED = frozenset({PAD, BOS, EOS, MASK})
SPACES = {piece for piece in PIECES if piece.startswith(b" ")}


def filler(fills: int = 4, mask: str = "<mask>", **changes: object) -> MaskFiller:
    return MaskFiller(tiny_encoder(), Pieces(), FRAME, MASK, BARRED, mask, fills, options(**changes))


def distribution(ids: list[int]) -> np.ndarray:
    """(masks, V) for a row of ids without its frame."""
    model = tiny_encoder()
    with torch.no_grad():
        logits = model.logits(model.read(pad([[BOS, *ids, EOS]], PAD)).hidden[0]).double()
    logits[:, sorted(BARRED)] = -torch.inf
    return logits.softmax(1)[[at + 1 for at, token in enumerate(ids) if token == MASK]].numpy()


def test_the_best_fills_of_one_mask() -> None:
    ids = [5, MASK, 8]
    (probabilities,) = distribution(ids)
    best = np.argsort(-probabilities, kind="stable")[:4]
    found = filler().fill(["a<mask>c"])[0]
    assert [fill.probability for fill in found] == pytest.approx(probabilities[best].tolist(), abs=1e-6)
    for fill, token in zip(found, best, strict=True):
        (text, line) = Pieces().decode([[int(token)], [5, int(token), 8]])
        assert (fill.text, fill.line) == (text.strip() or text, line)


def test_several_masks_give_the_best_combinations() -> None:
    ids = [MASK, 5, MASK, MASK]
    one, two, three = distribution(ids)
    every = one[:, None, None] * two[:, None] * three
    best = np.sort(every.ravel())[::-1][:9]
    found = filler(9).fill(["<mask>a<mask><mask>"])[0]
    assert [fill.probability for fill in found] == pytest.approx(best.tolist(), rel=1e-4)
    assert len({fill.line for fill in found}) > 5


def test_no_more_fills_than_there_are() -> None:
    found = filler(999).fill(["a<mask>"])[0]
    assert len(found) == 5 + len(PIECES) - len(BARRED)
    assert sum(fill.probability for fill in found) == pytest.approx(1)


def test_a_mask_takes_the_space_in_front_of_it_where_tokens_do() -> None:
    subject = filler()
    assert subject.encode("a <mask> b") == [5, MASK, PIECES.index(b" b") + 5]
    assert subject.encode("a<mask>b") == [5, MASK, PIECES.index(b"b") + 5]
    assert subject.encode("<mask>") == [MASK]
    assert subject.encode("<mask> <mask>") == [MASK, MASK]

    class Letters(Pieces):
        def encode(self, lines: list[str]) -> list[list[int]]:
            known = "abcx "  # others are unknown, as id 4
            return [[known.find(char) + 5 for char in line] for line in lines]

    subject = MaskFiller(tiny_encoder(), Letters(), FRAME, MASK, BARRED, "<mask>", 1, options())
    assert subject.encode("a <mask> b") == [5, 9, MASK, 9, 6]


def test_fills_do_not_depend_on_batch_or_order() -> None:
    rng = np.random.default_rng(4)
    lines = ["".join(rng.choice(["a", "b", " ", "c", "x", "<mask>"], rng.integers(0, 15))) for _ in range(29)]
    alone = filler(batch_tokens=1).fill(lines)
    order = rng.permutation(29)
    for changes in ({"batch_tokens": 90}, {"batch_tokens": 5000, "chunk": 100}, {"chunk": 7}):
        mixed = filler(**changes).fill([lines[i] for i in order])
        for place, index in enumerate(order):
            assert [fill.line for fill in mixed[place]] == [fill.line for fill in alone[index]]
            shares = [fill.probability for fill in alone[index]]
            assert [fill.probability for fill in mixed[place]] == pytest.approx(shares, abs=2e-6)


def test_a_line_without_a_mask_comes_back(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "transformer_kit"):
        found = filler().fill(["a<mask>", "", "a b"])
    assert found[1:] == [[Fill("", 1.0, "")], [Fill("", 1.0, "a b")]]
    assert "2 line(s) hold no <mask> and are given back as they are (first: line 2)" in caplog.text


def test_the_mask_may_be_written_otherwise() -> None:
    assert filler(mask="[MASK]").fill(["a[MASK]c"]) == filler().fill(["a<mask>c"])


def test_a_long_line_is_read_around_its_masks_and_comes_back_whole(caplog: pytest.LogCaptureFixture) -> None:
    lines = ["a<mask>", "<mask>" + "ab" * 30, "ab" * 30 + "<mask>", "ab" * 30 + "<mask>c<mask>" + "ab" * 30]
    with caplog.at_level(logging.WARNING, "transformer_kit"):
        found = filler(2).fill([*lines, "<mask>" + "a" * 21 + "<mask>"])
    assert "3 line(s) had more than 22 tokens, the model's limit, and were read around their masks" in caplog.text
    assert "(first: line 2)" in caplog.text
    assert "1 line(s) hold masks more than 22 tokens apart" in caplog.text
    assert found[4] == [Fill("", 1.0, "<mask>" + "a" * 21 + "<mask>")]
    alone = filler(2).fill(lines[:1])[0]
    assert [fill.line for fill in found[0]] == [fill.line for fill in alone], "a neighbour changed"
    for line, fills in zip(lines, found, strict=False):
        front, *_, behind = line.split("<mask>")
        assert all(fill.line.startswith(front) and fill.line.endswith(behind) for fill in fills)


@pytest.mark.parametrize(("changes", "says"), [({"fills": 0}, "fills is 0"), ({"mask": " "}, "white space")])
def test_bad_options_are_refused(changes: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        filler(**changes)
