"""Endless training batches of rows of different lengths, under a token budget.

- Budget: rows × the longest side of the batch, with special tokens and padding counted, is at most `tokens`. A row that
  alone is over the budget is left out of the epoch and counted.
- An epoch's rows are shuffled, taken in pools, sorted by length inside a pool, cut into batches, and the batches are
  shuffled. Every draw comes from (seed, epoch, ...), so a cursor of a few numbers is enough to go on anywhere.
- An epoch draws as many rows as the corpora hold together. A corpus of n rows and weight w gets a share proportional
  to w · n^(1/temperature) and is walked through evenly: no row is drawn again before all others of its corpus were.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from transformer_kit.batch import Batch
from transformer_kit.data.buckets import by_length, cut, passes, quotas
from transformer_kit.data.dealt import Dealt
from transformer_kit.data.options import BatchOptions
from transformer_kit.data.ragged import Ints, Ragged, concatenate
from transformer_kit.errors import DataError
from transformer_kit.logs import get_logger

log = get_logger(__name__)
ORDER, PASS, SHUFFLE, START = 1, 2, 3, 4  # what a random draw is for
Pool = TypeVar("Pool")


class BucketStream(Dealt, ABC, Generic[Pool]):
    """A mixture of corpora as endless batches.

    `state_dict()` taken after a batch resumes at the next one.

    Args:
        lengths: of each corpus the (rows,) lengths of its longer side, without special tokens.
        weights: one per corpus.
        options: budget and pool.
        temperature: above 1 draws small corpora more often than their size says.
        seed: another seed gives another order.
        extra: the special tokens that a batch adds to the longer side of a row.

    Attributes:
        epoch: how many epochs are complete.
        over_budget: rows left out so far in this epoch, as they alone were over the budget.

    Raises:
        DataError: no row fits the budget.
    """

    noun: ClassVar[str]

    def __init__(
        self,
        lengths: Sequence[Ints],
        weights: Sequence[float],
        options: BatchOptions,
        *,
        temperature: float,
        seed: int,
        extra: int,
    ) -> None:
        self.options, self.seed, self._extra = options, seed, extra
        sizes = np.array([len(one) for one in lengths])
        self._bases = np.concatenate(([0], np.cumsum(sizes)))  # the first global sample id of each corpus
        # Narrow where possible: at tens of millions of rows the order of an epoch is what takes memory.
        self._id_type: type[np.signedinteger] = np.int32 if self._bases[-1] < 1 << 31 else np.int64
        self._quotas = quotas(sizes, np.array(weights), temperature)
        self.epoch = self._pool = self._next = self._batch = 0
        self.over_budget = 0
        long = sum(int((one + extra > options.budget).sum()) for one in lengths)
        counted = (
            f"{long:,} of {sizes.sum():,} training {self.noun} are longer than data.batch.tokens={options.budget:,}"
        )
        if long == sizes.sum():
            raise DataError(f"{counted}: 0 {self.noun} left; raise data.batch.tokens")
        if long:
            log.warning(f"{counted} allows and are left out of each epoch")

    @abstractmethod
    def _fetch(self, ids: Ints) -> Pool:
        # The rows of a pool, in the order of their global ids.
        ...

    @abstractmethod
    def _lengths(self, pool: Pool) -> tuple[Ints, Ints]:
        # The lengths of both sides of each row, without special tokens; twice the same where there is one side.
        ...

    @abstractmethod
    def _collate(self, pool: Pool, rows: Ints, ids: Ints) -> Batch:
        # The batch of some rows of a pool, whose global ids are given.
        ...

    def state_dict(self) -> dict[str, Any]:
        """The cursor, as plain numbers: epoch, batch within the epoch, and where that is in terms of pools."""
        return {"epoch": self.epoch, "batch": self._batch, "pool": self._pool, "batch_in_pool": self._next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self._batch = int(state["epoch"]), int(state["batch"])
        self._pool, self._next = int(state["pool"]), int(state["batch_in_pool"])

    def dealt(self, rank: int, ranks: int) -> Iterator[Batch | None]:
        order, order_epoch, barren, given = self._order(self.epoch), self.epoch, 0, 0
        while True:
            if order_epoch != self.epoch:
                order, order_epoch = self._order(self.epoch), self.epoch
            size = self.options.pool
            ids = order[self._pool * size : (self._pool + 1) * size]
            last = (self._pool + 1) * size >= len(order)
            pool = self._fetch(ids)
            spans, by = self._plan(*self._lengths(pool))
            barren = 0 if spans else barren + len(ids)
            if barren > 2 * len(order):  # only sampling can come here: its lengths change from epoch to epoch
                raise DataError("no training pair fits data.batch.tokens with this subword sampling; raise it")
            if self._next >= len(spans):  # nothing of this pool fits the budget
                self._turn(last)
                continue
            for start, end in spans[self._next :]:
                rows = np.sort(by[start:end])
                batch = self._collate(pool, rows, ids[rows]) if given % ranks == rank else None
                given += 1
                self._next += 1
                self._batch += 1
                if self._next == len(spans):
                    self._turn(last)
                yield batch  # the cursor already stands behind it

    def _turn(self, last: bool) -> None:
        # Move the cursor behind a pool; behind the last one an epoch is complete.
        self._next = 0
        self._pool += 1
        if last:
            self.epoch += 1
            self._pool = self._batch = 0

    def _order(self, epoch: int) -> Ints:
        # (rows of an epoch,): the global ids drawn in this epoch, shuffled.
        self.over_budget = 0
        drawn: list[Ints] = []
        for number, quota in enumerate(self._quotas.tolist()):
            base, size = int(self._bases[number]), int(self._bases[number + 1] - self._bases[number])
            if quota == size:
                drawn.append(np.arange(base, base + size, dtype=self._id_type))
                continue
            for turn, first, stop in passes(size, quota, epoch):
                shuffled = self._random(PASS, number, turn).permutation(size)
                drawn.append((shuffled[first:stop] + base).astype(self._id_type))
        order: Ints = np.concatenate(drawn)
        self._random(ORDER, epoch).shuffle(order)
        return order

    def _random(self, *what: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, *what])

    def _gather(self, ids: Ints, rows_of: Callable[[int, Ints], Ragged]) -> Ragged:
        # Rows in the order of their global ids; `rows_of` gives those of one corpus by its own numbers.
        owner = np.searchsorted(self._bases, ids, side="right") - 1
        numbers = range(len(self._bases) - 1)
        found = concatenate([rows_of(number, ids[owner == number] - self._bases[number]) for number in numbers])
        if len(numbers) == 1:
            return found
        return found.gather(np.argsort(np.argsort(owner, kind="stable")))

    def _plan(self, one: Ints, other: Ints) -> tuple[list[tuple[int, int]], NDArray[np.int64]]:
        # Spans of batches in shuffled order, and the order of rows that they cut.
        costs = np.maximum(one, other) + self._extra
        by = by_length(one, other)
        by = by[costs[by] <= self.options.budget]
        if self._next == 0:
            self.over_budget += len(one) - len(by)
        spans = cut(costs[by], self.options.budget)
        shuffled = self._random(SHUFFLE, self.epoch, self._pool).permutation(len(spans))
        return [spans[number] for number in shuffled], by
