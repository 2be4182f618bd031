"""Batches made by a thread while the one before is trained on.

- A resumed run must go on behind the last batch that was trained on, not behind the last one made: so each batch
  travels with the cursor and the epoch that hold when it is handed out.
- An error of the thread comes out where the batch would have: after all batches before it.
- Making a batch of 25,000 tokens takes 3 ms of one core, 0.3 % of an update on a CPU, which the thread would only
  take from the update itself; on a GPU it would be several percent of waiting.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Protocol

import torch

from transformer_kit.batch import Batch
from transformer_kit.training.world import ALONE, World

AHEAD = 2  # batches; one is on its way to the device while the next is made


class Stream(Protocol):
    """Batches without end, and where in them we are."""

    @property
    def epoch(self) -> int:
        """How many passes over the data are complete: the epoch, from 0, of the next batch."""

    def dealt(self, rank: int, ranks: int) -> Iterator[Batch | None]:
        """All batches; None in place of those that are for other ranks: batch i is for rank i mod `ranks`."""

    def state_dict(self) -> dict[str, Any]:
        """The cursor as JSON-able data: the batch after the last one given."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to a cursor."""


def batches_ahead(asked: int | None, device: torch.device) -> int:
    """How many batches are made ahead: as many as asked for; None: 2 for a GPU, 0 for a CPU."""
    return asked if asked is not None else AHEAD if device.type == "cuda" else 0


@dataclass(frozen=True)
class _Made:
    """A batch, None for another rank's, or the error or the end in its place; where the stream stands behind it."""

    batch: Batch | None
    error: BaseException | None
    cursor: dict[str, Any]
    epoch: int
    end: bool = False


class Prefetched:
    """A stream whose batches are made ahead; equal to the stream itself in batches, cursor and epoch.

    One thread at a time: a new iteration ends the one before. As a context it ends its thread on the way out, after the
    batch in hand at most.

    Args:
        stream: only this object uses it from now on.
        ahead: how many batches wait at most; 0 makes each when it is asked for, without a thread.
        pin: put batches into memory from which a GPU reads by itself.
        world: the ranks; None takes the place of the batches of others.
    """

    def __init__(self, stream: Stream, ahead: int, pin: bool, world: World = ALONE) -> None:
        self._stream = stream
        self._ahead, self._pin, self._world = ahead, pin, world
        self._cursor, self._epoch = stream.state_dict(), stream.epoch
        self._thread: _Thread | None = None

    @property
    def epoch(self) -> int:
        """How many passes over the data are complete: the epoch, from 0, of the next batch handed out."""
        return self._epoch

    def state_dict(self) -> dict[str, Any]:
        """The cursor behind the last batch handed out."""
        return self._cursor

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.close()
        self._stream.load_state_dict(state)
        self._cursor, self._epoch = self._stream.state_dict(), self._stream.epoch

    def __iter__(self) -> Iterator[Batch | None]:
        self.close()
        batches = _batches(self._stream, self._pin, self._world)
        if self._ahead == 0:
            for made in batches:
                yield self._hand_out(made)
            return
        thread = self._thread = _Thread(batches, self._ahead)
        try:
            for made in thread:
                yield self._hand_out(made)
        finally:
            if self._thread is thread:
                self.close()

    def close(self) -> None:
        """End the thread, and go back to the batch behind the last one handed out."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.end()
            self._stream.load_state_dict(self._cursor)

    def __enter__(self) -> Prefetched:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _hand_out(self, made: _Made) -> Batch | None:
        self._cursor, self._epoch = made.cursor, made.epoch
        return made.batch


class _Thread:
    """Makes batches until it is told to end; iterated over by the thread that trains."""

    def __init__(self, batches: Iterator[_Made], ahead: int) -> None:
        self._made: SimpleQueue[_Made] = SimpleQueue()
        self._room = threading.Semaphore(ahead)
        self._ending = threading.Event()
        self._runner = threading.Thread(target=self._run, args=(batches,), name="batches", daemon=True)
        self._runner.start()

    def __iter__(self) -> Iterator[_Made]:
        while True:
            made = self._made.get()
            if made.error is not None:
                raise made.error
            if made.end:
                return
            self._room.release()
            yield made

    def end(self) -> None:
        self._ending.set()
        self._room.release()
        self._runner.join()

    def _run(self, batches: Iterator[_Made]) -> None:
        error: BaseException | None = None
        try:
            while True:
                self._room.acquire()
                if self._ending.is_set():
                    return
                made = next(batches, None)
                if made is None:
                    break
                self._made.put(made)
        except BaseException as raised:  # the thread that trains raises it
            error = raised
        self._made.put(_Made(None, error, {}, 0, end=True))


def _batches(stream: Stream, pin: bool, world: World) -> Iterator[_Made]:
    for batch in stream.dealt(world.rank, world.size):
        ready = batch.pinned() if pin and batch is not None else batch
        yield _Made(ready, None, stream.state_dict(), stream.epoch)
