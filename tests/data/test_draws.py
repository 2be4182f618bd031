"""Random numbers by row, and what is drawn with them."""

from __future__ import annotations

import math

import numpy as np

from transformer_kit.data.draws import ranks, segments, uniform
from transformer_kit.data.ragged import Ragged, offsets_of


def test_a_rows_numbers_are_its_seeds_alone() -> None:
    lengths = np.array([3, 0, 40, 7])
    numbers = uniform(np.array([5, 6, 7, 8]), lengths, 2)
    assert np.array_equal(numbers[3:43], uniform(np.array([7]), np.array([40]), 2))
    assert np.array_equal(numbers[3:13], uniform(np.array([7]), np.array([10]), 2))


def test_numbers_are_uniform_and_streams_unlike() -> None:
    draws = [uniform(np.arange(1000), np.full(1000, 40), stream) for stream in range(3)]
    for numbers in draws:
        assert numbers.min() > 0
        assert numbers.max() < 1
        counts = np.bincount((numbers * 16).astype(int))
        assert ((counts - 2500) ** 2 / 2500).sum() < 45  # χ² of 15 degrees: p = 8e-5
    for one, other in ((0, 1), (1, 2), (0, 2)):
        assert abs(np.corrcoef(draws[one], draws[other])[0, 1]) < 0.025


def test_ranks_are_permutations_each_as_often() -> None:
    sizes = np.full(6000, 3)
    found = ranks(np.arange(6000), sizes, 0).reshape(-1, 3)
    assert (np.sort(found, axis=1) == np.arange(3)).all()
    counts = np.unique(found, axis=0, return_counts=True)[1]
    assert len(counts) == 6
    assert ((counts - 1000) ** 2 / 1000).sum() < 26  # 5 degrees: p = 9e-5


def test_segments_fill_and_are_never_empty() -> None:
    sizes, parts = np.array([1, 0, 7, 7, 5, 11]), np.array([1, 0, 1, 7, 2, 4])
    cuts = segments(np.arange(6), sizes, parts, 0)
    assert cuts.min() >= 1
    rows = Ragged(cuts, offsets_of(parts))
    assert [rows[number].sum() for number in range(len(rows))] == sizes.tolist()


def test_every_way_to_cut_is_as_probable() -> None:
    cuts = segments(np.arange(6000), np.full(6000, 5), np.full(6000, 3), 1).reshape(-1, 3)
    counts = np.unique(cuts, axis=0, return_counts=True)[1]
    assert len(counts) == 6  # compositions of 5 into 3
    assert ((counts - 1000) ** 2 / 1000).sum() < 26


def test_streams_of_neighbouring_seeds_share_no_number() -> None:
    lengths = np.arange(1000) % 23
    numbers = uniform(np.arange(1000), lengths, 0)
    assert len(np.unique(numbers)) == len(numbers) == lengths.sum()
    assert 0 < numbers.min() < 1e-3
    assert 1 > numbers.max() > 1 - 1e-3
    assert abs(numbers.mean() - 0.5) < 4 / math.sqrt(12 * len(numbers))
    alone = uniform(np.array([999]), np.array([40]), 0)
    assert alone[: lengths[999]].tolist() == numbers[-lengths[999] :].tolist()
