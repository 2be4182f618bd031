"""Masked tokens, corrupted spans, infilling: properties of every draw, and rates over many."""

from __future__ import annotations

import math
from itertools import groupby
from typing import Any

import numpy as np
import pytest

from transformer_kit.data.noise import corrupt_spans, infill, mask_tokens
from transformer_kit.data.ragged import Ragged, beside, column, from_lists, offsets_of

VOCAB, MASK = 101, 7
SENTINELS = np.array([100, 99, 98, 97, 96, 95, 94])
ORDINARY = np.ones(VOCAB, bool)
ORDINARY[[0, 1, 2, 3, MASK, *SENTINELS]] = False
TEXT = np.flatnonzero(ORDINARY)
BERT: dict[str, Any] = {"rate": 0.15, "masked": 0.8, "replaced": 0.1, "mask": MASK, "ordinary": ORDINARY}
T5: dict[str, Any] = {"density": 0.15, "mean_length": 3.0, "sentinels": SENTINELS}
BART: dict[str, Any] = {"rate": 0.3, "mean_length": 3.0, "mask": MASK}


def text(*lengths: int, seed: int = 5) -> Ragged:
    """Rows of ordinary ids."""
    flat = np.random.default_rng(seed).choice(TEXT, sum(lengths)).astype(np.int32)
    return Ragged(flat, offsets_of(np.array(lengths, np.int64)))


def seeds(rows: int, first: int = 11) -> np.ndarray:
    return np.arange(first, first + rows)


def lists(rows: Ragged) -> list[list[int]]:
    return [rows[number].tolist() for number in range(len(rows))]


def halves_up(value: float) -> int:
    return math.floor(value + 0.5)


def within_chance(count: int, draws: int, p: float) -> bool:
    """Whether a binomial count is one that happens: each tail, summed exactly, holds more than 1e-6."""
    k = np.arange(draws + 1)
    logs = [math.lgamma(draws + 1) - math.lgamma(i + 1) - math.lgamma(draws - i + 1) for i in k]
    mass = np.exp(np.array(logs) + k * math.log(p) + (draws - k) * math.log1p(-p))
    return bool(mass[: count + 1].sum() > 1e-6 and mass[count:].sum() > 1e-6)


class TestBeside:
    def test_rows_stand_one_behind_the_other(self) -> None:
        left, right = from_lists([[1, 2], [], [3]]), from_lists([[], [4], [5, 6, 7]])
        joined = beside([column(np.array([8, 9, 10])), left, right])
        assert lists(joined) == [[8, 1, 2], [9, 4], [10, 3, 5, 6, 7]]

    def test_no_rows(self) -> None:
        assert len(beside([from_lists([]), column(np.zeros(0, np.int64))])) == 0


class TestMaskTokens:
    @pytest.mark.parametrize("rate", [0.0, 0.15, 0.5, 1.0])
    def test_the_share_of_each_row(self, rate: float) -> None:
        rows = text(*range(1, 60))
        _, labels, counted = mask_tokens(rows, seeds(59), **{**BERT, "rate": rate})
        chosen = [sum(row) for row in lists(Ragged(counted.astype(np.int8), rows.offsets))]
        assert chosen == [max(1, halves_up(rate * n)) for n in range(1, 60)]
        assert labels is rows

    def test_specials_are_neither_chosen_nor_counted_nor_drawn(self) -> None:
        """Rows of one ordinary token among specials: it is the one chosen, whatever the rate."""
        specials = np.flatnonzero(~ORDINARY).tolist()
        rows = from_lists([[*specials, 50 + i % 13, *specials] for i in range(500)])
        inputs, _, counted = mask_tokens(rows, seeds(500), **{**BERT, "rate": 0.04})
        assert np.array_equal(np.flatnonzero(counted), np.flatnonzero(ORDINARY[rows.flat]))
        assert np.array_equal(inputs.flat[~counted], rows.flat[~counted])
        new = inputs.flat[counted]
        assert ORDINARY[new[new != MASK]].all()

    def test_rows_without_candidates_stay(self) -> None:
        rows = from_lists([[0, 2, 3], [], [2]])
        inputs, _, counted = mask_tokens(rows, seeds(3), **{**BERT, "rate": 1.0})
        assert lists(inputs) == lists(rows)
        assert not counted.any()

    def test_80_10_10(self) -> None:
        """Of 6000 chosen tokens, and each ordinary id as often among those replaced."""
        rows = from_lists([[20] * 40] * 1000)
        inputs, _, counted = mask_tokens(rows, seeds(1000), **BERT)
        new = inputs.flat[counted]
        assert len(new) == 6000
        drawn = new[new != MASK]
        assert within_chance(int((new == MASK).sum()), 6000, 0.8)
        assert within_chance(int((drawn != 20).sum()), 6000, 0.1 * (1 - 1 / len(TEXT)))
        assert within_chance(int((drawn == 20).sum()), 6000, 0.1 * (1 + 1 / len(TEXT)))
        assert np.isin(drawn, TEXT).all()
        assert len(np.unique(drawn)) == len(TEXT)

    def test_every_place_as_often(self) -> None:
        """20 places, 3 chosen: each in 3 of 20 rows, and places are chosen together as often as chance has it."""
        rows = from_lists([[20] * 20] * 4000)
        chosen = mask_tokens(rows, seeds(4000), **BERT)[2].reshape(4000, 20)
        assert all(within_chance(int(count), 4000, 3 / 20) for count in chosen.sum(axis=0))
        assert within_chance(int((chosen[:, 3] & chosen[:, 4]).sum()), 4000, 3 * 2 / (20 * 19))


class TestCorruptSpans:
    @pytest.mark.parametrize("density", [0.15, 0.5, 0.9])
    @pytest.mark.parametrize("mean_length", [1.0, 3.0])
    def test_inputs_and_targets_restore_the_row(self, density: float, mean_length: float) -> None:
        rows = text(*range(70))
        noise: dict[str, Any] = {"density": density, "mean_length": mean_length, "sentinels": SENTINELS}
        inputs, targets = corrupt_spans(rows, seeds(70), **noise)
        marks = SENTINELS.tolist()
        for row, given, target in zip(lists(rows), lists(inputs), lists(targets), strict=True):
            spans = split(target, marks)
            assert restored(given, spans) == row
            length, count = len(row), sum(token in marks for token in given)
            assert [token for token in given if token in marks] == marks[:count]  # in order
            assert [token for token in target if token in marks] == marks[: count + 1]
            assert target[-1] == marks[count]
            if length < 2:
                assert count == 0
                continue
            wanted = min(max(halves_up(density * length), 1), length - 1)
            assert sum(map(len, spans.values())) == wanted
            most = min(wanted, length - wanted, len(marks) - 1)
            assert count == min(max(halves_up(wanted / mean_length), 1), most)
            assert all(spans[mark] for mark in marks[:count])
            kept = [list(run) for is_mark, run in groupby(given, lambda token: token in marks) if not is_mark]
            assert len(kept) == count  # kept spans are not empty either
            assert given[0] not in marks

    def test_the_example_of_the_docstring(self) -> None:
        """Some seed gives it: 8 tokens, 3 of noise in 2 spans."""
        rows = from_lists([[10, 11, 12, 13, 14, 15, 16, 17]])
        noise: dict[str, Any] = {"density": 0.375, "mean_length": 1.5, "sentinels": SENTINELS}
        found = [corrupt_spans(rows, np.array([seed]), **noise) for seed in range(100)]
        pairs = [(lists(inputs)[0], lists(targets)[0]) for inputs, targets in found]
        assert ([10, 11, 100, 14, 15, 16, 99], [100, 12, 13, 99, 17, 98]) in pairs
        assert len({tuple(target) for _, target in pairs}) == 2 * 4  # ways to cut 3 in 2 and 5 in 2

    def test_lengths_of_the_paper(self) -> None:
        """568 tokens give inputs of 512 with EOS, and targets of 114, as T5 trains on, and the last sentinel."""
        marks = np.arange(1000, 1100)
        noise: dict[str, Any] = {"density": 0.15, "mean_length": 3.0, "sentinels": marks}
        inputs, targets = corrupt_spans(text(568), seeds(1), **noise)
        assert len(inputs.flat) + 1 == 512
        assert len(targets.flat) + 1 == 114 + 1

    def test_unused_ids_of_any_type(self) -> None:
        """Rows mapped from 16-bit files take ids beyond them."""
        rows = Ragged(np.arange(20, dtype=np.uint16), offsets_of(np.array([20])))
        inputs, targets = corrupt_spans(
            rows, seeds(1), density=0.3, mean_length=3.0, sentinels=np.array([70000, 70001])
        )
        assert inputs.flat.max() == 70000
        assert targets.flat.max() == 70001


class TestInfill:
    @pytest.mark.parametrize("rate", [0.1, 0.3, 1.0])
    @pytest.mark.parametrize("mean_length", [0.2, 3.0, 11.0])
    def test_the_share_and_the_order(self, rate: float, mean_length: float) -> None:
        rows = text(*range(50))
        inputs = infill(rows, seeds(50), rate=rate, mean_length=mean_length, mask=MASK)
        for row, given in zip(lists(rows), lists(inputs), strict=True):
            kept = [token for token in given if token != MASK]
            removed = min(len(row), max(1, halves_up(rate * len(row)))) if row else 0
            assert len(kept) == len(row) - removed
            after = iter(row)
            assert all(token in after for token in kept)  # a subsequence
            assert (MASK in given) == bool(row)
            assert len(given) <= len(row)

    def test_spans_are_poisson(self) -> None:
        """Rows of distinct tokens tell how many tokens each mask stands for; the cut ones weigh little in long rows."""
        rows = from_lists([list(range(8, 3008))] * 30)
        inputs = infill(rows, seeds(30), **BART)
        lengths: list[int] = []
        for given in lists(inputs):
            runs = [(masked, list(run)) for masked, run in groupby(given, lambda token: token == MASK)]
            ends = [7, *(run[-1] for masked, run in runs if not masked)]
            begins = [run[0] for masked, run in runs if not masked]
            gaps = [begin - end - 1 for begin, end in zip(begins, ends[: len(begins)], strict=True)]
            lengths += [gap for gap, count in zip(gaps, masks_before(runs), strict=True) if count == 1]
        draws = len(lengths)
        assert draws > 5000
        for k in range(7):
            p = math.exp(-3) * 3**k / math.factorial(k)
            assert abs(lengths.count(k) / draws - p) < 4.5 * math.sqrt(p * (1 - p) / draws) + 0.002

    def test_masks_may_stand_anywhere(self) -> None:
        """3 tokens, 1 removed: each of them as often, and its mask stands anywhere, before, between and behind."""
        rows = from_lists([[20, 30, 40]] * 3000)
        given = lists(infill(rows, seeds(3000), rate=0.3, mean_length=3.0, mask=MASK))
        for token in (20, 30, 40):
            assert within_chance(sum(token not in row for row in given), 3000, 1 / 3)
        for place in range(3):
            assert within_chance(sum(row[place] == MASK for row in given), 3000, 1 / 3)


@pytest.mark.parametrize("kind", ["mask", "spans", "infill"])
def test_noise_depends_on_the_row_and_its_seed_alone(kind: str) -> None:
    """A row by itself, and in another batch, in another place."""

    def noised(rows: Ragged, which: np.ndarray) -> list[list[int]]:
        if kind == "mask":
            inputs, _, counted = mask_tokens(rows, which, **BERT)
            return [
                a + b for a, b in zip(lists(inputs), lists(Ragged(counted.astype(np.int8), rows.offsets)), strict=True)
            ]
        if kind == "spans":
            inputs, targets = corrupt_spans(rows, which, **T5)
            return [a + b for a, b in zip(lists(inputs), lists(targets), strict=True)]
        return lists(infill(rows, which, **BART))

    rows, own = text(40, 1, 13, 0, 64, 29), np.array([3, 2**31 - 1, 5, 0, 5, 77])
    together = noised(rows, own)
    for number in range(6):
        assert noised(rows.gather(np.array([number])), own[[number]]) == [together[number]]
    order = np.array([4, 2, 5, 0])
    assert noised(rows.gather(order), own[order]) == [together[number] for number in order]
    assert noised(rows, own + 1) != together


@pytest.mark.parametrize("rows", [from_lists([]), from_lists([[], []])], ids=["none", "empty"])
def test_nothing_gives_nothing(rows: Ragged) -> None:
    which = seeds(len(rows))
    assert len(mask_tokens(rows, which, **BERT)[0].flat) == 0
    assert len(infill(rows, which, **BART).flat) == 0
    inputs, targets = corrupt_spans(rows, which, **T5)
    assert len(inputs.flat) == 0
    assert lists(targets) == [[100]] * len(rows)


def split(target: list[int], marks: list[int]) -> dict[int, list[int]]:
    """What stands behind each sentinel."""
    found: dict[int, list[int]] = {}
    for token in target:
        if token in marks:
            found[last := token] = []
        else:
            found[last].append(token)
    return found


def restored(given: list[int], spans: dict[int, list[int]]) -> list[int]:
    """The inputs with the spans in the places of their sentinels."""
    return [token for each in given for token in spans.get(each, [each])]


def masks_before(runs: list[tuple[bool, list[int]]]) -> list[int]:
    """How many masks stand before each run of kept tokens."""
    counts, masks = [], 0
    for masked, run in runs:
        if masked:
            masks = len(run)
        else:
            counts.append(masks)
            masks = 0
    return counts
