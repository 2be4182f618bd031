"""The batches of one update, over all ranks.

- All batches stand in one order, which does not depend on the ranks: batch i belongs to rank i mod their number. A
  window is the next stretch of that order, so an update is the same whatever the number of ranks.
- Every rank runs as many batches in a window. Where one has fewer than another, it runs batches without weight.
- The cursor is that of the last batch in a window: what was made ahead is made again after a resume.
"""

from __future__ import annotations

import zlib
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from transformer_kit.batch import Batch
from transformer_kit.training.prefetch import Prefetched
from transformer_kit.training.world import World


@dataclass(frozen=True)
class Window:
    """The share of one rank in an update.

    Attributes:
        batches: those of this rank, then those without weight.
        numbers: what seeds each: its place in the whole window.
        real: how many have weight.
        labels: real target tokens of the whole window, over all ranks.
    """

    batches: Sequence[Batch]
    numbers: Sequence[int]
    real: int
    labels: int

    @classmethod
    def of(cls, batches: Sequence[Batch]) -> Window:
        """A window of one process alone."""
        return cls(batches, range(len(batches)), len(batches), sum(batch.num_labels for batch in batches))

    def counts(self) -> dict[str, float]:
        """What is known of the batches before they are computed, as sums, which may be added over ranks.

        `real` tokens and `cells` with padding of both sides, and `samples`: CRC-32s of the sample ids of each batch,
        begun with its place in the window, so that their sum tells another order as well.
        """
        real = cells = samples = 0
        for batch, number in zip(self.batches[: self.real], self.numbers, strict=False):
            sides = [batch.target] if batch.source is None else [batch.source, batch.target]
            real += sum(tokens.ids.numel() if tokens.full else int(tokens.valid.sum()) for tokens in sides)
            cells += sum(tokens.ids.numel() for tokens in sides)
            samples += zlib.crc32(batch.sample_ids.numpy().tobytes(), number)
        return {"real": real, "cells": cells, "samples": samples}


@dataclass(frozen=True)
class _Item:
    batch: Batch | None  # None: another rank's
    owner: int
    labels: int
    cursor: dict[str, Any]
    epoch: int


class Windows:
    """Makes windows of a stream.

    Args:
        stream: dealt to the ranks of `world`; only this object uses it from now on.
        world: the ranks.
        labels: real target tokens of a window, gathered over batches; None: `count` batches.
        count: batches of a window where `labels` is None, at least 1.
        epochs: a window ends with the last epoch; None: there is no last one.
    """

    def __init__(
        self, stream: Prefetched, world: World, *, labels: int | None, count: int = 1, epochs: int | None = None
    ) -> None:
        self._stream, self._world = stream, world
        self._labels, self._count, self._epochs = labels, count, epochs
        self._cursor, self._epoch = stream.state_dict(), stream.epoch
        self._waiting: deque[_Item] = deque()  # the rest of a round: one batch of each rank
        self._batches: Iterator[Batch | None] | None = None
        self._any: Batch | None = None  # stands for a batch without weight

    @property
    def epoch(self) -> int:
        """How many passes over the data are complete: the epoch, from 0, of the next window's first batch."""
        return self._epoch

    def state_dict(self) -> dict[str, Any]:
        """The cursor behind the last window."""
        return self._cursor

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._stream.load_state_dict(state)
        self._cursor, self._epoch = self._stream.state_dict(), self._stream.epoch
        self._waiting.clear()
        self._batches = None

    def next(self) -> Window:
        """The batches of the next update; the last window of the last epoch may be smaller than asked for."""
        items = [self._take()]
        while not self._is_full(items) and (self._epochs is None or self._epoch < self._epochs):
            items.append(self._take())
        own = [(number, item) for number, item in enumerate(items) if item.owner == self._world.rank]
        batches = [item.batch for _, item in own if item.batch is not None]
        missing = max(Counter(item.owner for item in items).values()) - len(own)
        if missing:
            assert self._any is not None
            batches += [self._any.uncounted()] * missing
        numbers = [number for number, _ in own] + [len(items)] * missing
        return Window(batches, numbers, len(own), sum(item.labels for item in items))

    def _is_full(self, items: Sequence[_Item]) -> bool:
        if self._labels is None:
            return len(items) >= self._count
        return sum(item.labels for item in items) >= self._labels

    def _take(self) -> _Item:
        if not self._waiting:
            self._draw()
        item = self._waiting.popleft()
        self._cursor, self._epoch = item.cursor, item.epoch
        return item

    def _draw(self) -> None:
        """One batch of each rank, and how many labels they have."""
        if self._batches is None:
            self._batches = iter(self._stream)
        world = self._world
        drawn = [(batch, self._stream.state_dict(), self._stream.epoch) for batch in islice(self._batches, world.size)]
        own = drawn[world.rank][0]
        assert own is not None
        self._any = own
        labels = world.sum([float(own.num_labels if rank == world.rank else 0) for rank in range(world.size)])
        self._waiting.extend(
            _Item(batch, rank, int(labels[rank]), cursor, epoch) for rank, (batch, cursor, epoch) in enumerate(drawn)
        )
