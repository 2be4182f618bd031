"""The batches of an update over several ranks: the same stretch of the same order, whatever the number of ranks."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest
from training_toys import Stream

from transformer_kit.training.prefetch import Prefetched
from transformer_kit.training.windows import Window, Windows
from transformer_kit.training.world import ALONE, World


@dataclass
class Meeting:
    """Where threads that stand for ranks add their numbers."""

    size: int
    values: dict[int, Sequence[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.barrier = threading.Barrier(self.size, timeout=10)


@dataclass(frozen=True)
class Threaded(World):
    """A rank that is a thread."""

    meeting: Meeting = field(default_factory=lambda: Meeting(1))

    def sum(self, values: Sequence[float]) -> list[float]:
        self.meeting.values[self.rank] = values
        self.meeting.barrier.wait()
        total = [sum(column) for column in zip(*self.meeting.values.values(), strict=True)]
        self.meeting.barrier.wait()
        return total


def windows_of(size: int, made: int, cursor: Any = None, ahead: int = 0, **options: Any) -> list[list[Window]]:
    """`made` windows of each rank, and in each window's place the cursor behind it."""
    meeting = Meeting(size)

    def run(rank: int) -> list[Any]:
        world = ALONE if size == 1 else Threaded(rank, size, rank, size, meeting)
        with Prefetched(Stream(samples=23, rows=3), ahead, False, world) as stream:
            windows = Windows(stream, world, **options)
            if cursor is not None:
                windows.load_state_dict(cursor)
            return [(windows.next(), windows.state_dict(), windows.epoch) for _ in range(made)]

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(run, range(size)))


def samples(parts: Sequence[Window]) -> list[list[int]]:
    """The sample ids of the batches of a window, in order, from the shares of all ranks."""
    placed = {
        number: batch.sample_ids.tolist()
        for part in parts
        for number, batch in zip(part.numbers[: part.real], part.batches, strict=False)
    }
    assert sorted(placed) == list(range(len(placed))), "no batch twice, none left out"
    return [placed[number] for number in sorted(placed)]


OPTIONS = [{"labels": None, "count": 1}, {"labels": None, "count": 4}, {"labels": 40}, {"labels": 40, "epochs": 2}]


@pytest.mark.parametrize("ahead", [0, 2])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("size", [2, 3, 5])
def test_any_number_of_ranks_shares_what_one_would_take(size: int, options: dict[str, Any], ahead: int) -> None:
    (alone,) = windows_of(1, 9, **options)
    together = windows_of(size, 9, ahead=ahead, **options)
    for number, (window, cursor, epoch) in enumerate(alone):
        shares = [rank[number] for rank in together]
        parts = [share[0] for share in shares]
        assert samples(parts) == samples([window])
        assert {part.labels for part in parts} == {window.labels}
        assert len({len(part.batches) for part in parts}) == 1, "as many batches on every rank"
        assert all(batch.num_labels == 0 for part in parts for batch in part.batches[part.real :])
        assert all(share[1:] == (cursor, epoch) for share in shares)


@pytest.mark.parametrize("options", OPTIONS[:3], ids=str)
@pytest.mark.parametrize("sizes", [(2, 1), (1, 2), (2, 4), (3, 2)])
def test_another_number_of_ranks_goes_on_with_the_next_sample(sizes: tuple[int, int], options: dict[str, Any]) -> None:
    """Also where the first ranks had made batches of the next window already."""
    (whole,) = windows_of(1, 12, **options)
    first = windows_of(sizes[0], 5, **options)
    then = windows_of(sizes[1], 7, cursor=first[0][-1][1], **options)
    parts = [[rank[number][0] for rank in first] for number in range(5)]
    parts += [[rank[number][0] for rank in then] for number in range(7)]
    assert [samples(part) for part in parts] == [samples([window]) for window, _, _ in whole]


def test_the_digest_is_a_sum_over_ranks_that_knows_the_order() -> None:
    (alone,) = windows_of(1, 3, labels=40)
    together = windows_of(3, 3, labels=40)
    for number, (window, _, _) in enumerate(alone):
        parts = [rank[number][0].counts() for rank in together]
        assert {key: sum(part[key] for part in parts) for key in parts[0]} == window.counts()
    window = alone[0][0]
    turned = Window(window.batches[::-1], window.numbers, window.real, window.labels)
    assert turned.counts()["real"] == window.counts()["real"]
    assert turned.counts()["samples"] != window.counts()["samples"]


def test_the_epoch_ends_with_a_smaller_window() -> None:
    """8 batches an epoch, 5 an update, 1 epoch: 5, then 3."""
    for size in (1, 2):
        found = windows_of(size, 2, labels=None, count=5, epochs=1)
        assert [sum(rank[number][0].real for rank in found) for number in range(2)] == [5, 3]
        assert found[0][1][2] == 1
