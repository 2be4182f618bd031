"""The processes that train one model together, called ranks, and the few things that they tell each other.

- Small values travel as float64 or as Python objects through gloo, on the CPU, whatever carries the gradients: nothing
  here waits for a GPU.
- Every rank makes the same calls in the same order. Alone, each call returns what it was given.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from transformer_kit.errors import TkitError

T = TypeVar("T")
LONGEST = timedelta(days=7)
"""For what may wait: whether a rank still works is told by `training/watchdog.py`, which knows who waits for whom."""


@dataclass(frozen=True)
class World:
    """This rank among all.

    Attributes:
        rank: the number of this process, from 0; rank 0 writes the run folder.
        size: how many there are.
        local_rank: the number among those of this machine; the index of its GPU.
        here: how many are on this machine.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    here: int = 1

    @property
    def leads(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    def sum(self, values: Sequence[float]) -> list[float]:
        """The sums of several numbers over all ranks, the same bits on each."""
        if self.size == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total)
        return [float(value) for value in total.tolist()]

    def any(self, value: bool) -> bool:
        """Whether it is so on some rank."""
        return self.sum([float(value)])[0] > 0

    def gather(self, value: T) -> list[T]:
        """The objects of all ranks, in their order, on each."""
        if self.size == 1:
            return [value]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value)
        return found

    def share(self, value: T) -> T:
        """Rank 0's object, on each."""
        if self.size == 1:
            return value
        held = [value]
        dist.broadcast_object_list(held, src=0)
        return held[0]

    def led(self, work: Callable[[], T]) -> T:
        """What rank 0 gets of `work`, which it alone does, on each.

        Raises:
            TkitError: on each, where rank 0 met one.
        """
        problem: TkitError | None = None
        found: Any = None
        if self.leads:
            try:
                found = work()
            except TkitError as error:
                problem = error
        found, problem = self.share((found, problem))
        if problem is not None:
            raise problem
        done: T = found
        return done

    def barrier(self) -> None:
        """Wait for all."""
        self.any(False)


ALONE = World()
"""One process that trains by itself."""


def invited() -> bool:
    """Whether a launcher (torchrun, or our own) started this process as one of several ranks."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 or "TORCHELASTIC_RUN_ID" in os.environ


@contextmanager
def joined(cuda: bool) -> Iterator[World]:
    """The world that the environment of a launcher describes, left at the end; alone where there is none.

    Args:
        cuda: carry the tensors of GPUs by NCCL.
    """
    if not invited():
        yield ALONE
        return
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    rank, size, local, here = (int(os.environ[name]) for name in names)
    if cuda:
        torch.cuda.set_device(local)
    dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo", timeout=LONGEST)
    try:
        yield World(rank, size, local, here)
    finally:
        dist.destroy_process_group()
