"""Checkpoints written beside the training.

- The training thread copies the state to memory (`snapshot.py`); a thread of its own writes the copy. One save is in
  flight at most: whatever asks for the next, or for what is on disk, waits for it.
- The thread steps back behind every other, and keeps off the core of the training thread: on few cores a busy thread
  beside those that train costs more than its own time, as each of them waits for the slowest at every operation. Those
  that help the training thread wait for it now and then anyway; it hardly ever waits for them.
- The thread is no daemon: Python waits for it, however the program ends, a kill excepted.
- Of several ranks all make the same calls. Rank 0 writes, and says what the others cannot see; where each holds a part
  of the model, each writes its part of the optimizer's state (`sharded_state.py`).
"""

from __future__ import annotations

import copy
import ctypes
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from transformer_kit.logs import get_logger
from transformer_kit.training.checkpoint import Checkpoint, CheckpointStore
from transformer_kit.training.shards import gathered, is_sharded
from transformer_kit.training.snapshot import Snapshot
from transformer_kit.training.weights import unique_tensors
from transformer_kit.training.world import ALONE, LONGEST, World

log = get_logger(__name__)

LAST = 19  # the lowest priority of a thread


@dataclass(frozen=True)
class _State:
    """What is saved; see `CheckpointStore.save`.

    Attributes:
        mark: tells states apart.
        spread: whether the ranks hold parts of it.
    """

    mark: Any
    weights: Mapping[str, Tensor]
    trainer_state: Any
    averaged: Mapping[str, Tensor] | None
    state: Mapping[str, Any]
    spread: bool


class Saver:
    """Saves the states of one training run; as a context it waits for the save in flight on the way out.

    Args:
        store: where they go; nobody else writes to it meanwhile.
        asynchronous: write beside the training.
        world: the ranks.
    """

    def __init__(self, store: CheckpointStore, asynchronous: bool, world: World = ALONE) -> None:
        self._store, self._asynchronous, self._world = store, asynchronous, world
        self._snapshot = Snapshot()
        self._thread: _Thread | None = None
        self._saved: Any = None
        self._flying: Any = None
        self._group: dist.ProcessGroup | None = None  # of the threads that write

    @property
    def saved(self) -> Any:
        """The `mark` of the newest state on disk, after waiting for one on the way; None: none is. For all ranks."""
        self.wait()
        return self._world.share(self._saved)

    @property
    def writing(self) -> bool:
        """Whether this rank is writing beside its training now."""
        return self._thread is not None and self._thread.alive

    def found(self, mark: Any) -> None:
        """Tell the mark of a state that an earlier session left on disk."""
        self._saved = mark

    def recover(self) -> Checkpoint | None:
        """What `CheckpointStore.recover` says, for all ranks."""
        self.wait()
        return self._world.share(self._store.recover() if self._world.leads else None)

    def is_among_best(self, scores: Mapping[str, float | None]) -> bool:
        """What `CheckpointStore.is_among_best` says of all that was saved so far, for all ranks."""
        self.wait()
        return self._world.share(self._store.is_among_best(scores) if self._world.leads else False)

    def save(
        self,
        mark: Any,
        model: nn.Module,
        trainer_state: Any,
        state: Mapping[str, Any],
        averaged: Mapping[str, Tensor] | None,
        last: bool = False,
    ) -> bool:
        """Save a state, beside the training unless it is the last one; nothing is done for one that is on disk.

        Args:
            mark: tells states apart.
            model, trainer_state, state, averaged: as `CheckpointStore.save` takes them; on all ranks.
            last: nothing else will happen meanwhile: write it here and now.

        Returns:
            Whether it is on disk, or on the way. A failure on the way is a warning, and `saved` stays as it was.
        """
        spread = any(is_sharded(parameter) for parameter in model.parameters())
        kept = True
        if self._world.leads or spread:
            given = _State(mark, unique_tensors(model), trainer_state, averaged, state, spread)
            kept = self._save(given, last)
        return self._world.share(kept) if last else kept

    def wait(self) -> None:
        """Until no save is in flight; what went wrong in it other than writing is raised here."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.end()

    def __enter__(self) -> Saver:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.wait()
        self._snapshot.clear()

    def _save(self, given: _State, last: bool) -> bool:
        if self._thread is not None and self._flying == given.mark and not last:
            return True
        self.wait()
        if self._saved == given.mark:
            return True
        if given.spread:
            given = self._whole(given)
        if self._asynchronous and not last and self._write_beside(given):
            return True
        self._write(given)
        return bool(self._saved == given.mark)

    def _whole(self, given: _State) -> _State:
        """With whole weights, on rank 0; all ranks make this call together."""
        if self._group is None and self._world.size > 1:
            self._group = dist.new_group(backend="gloo", timeout=LONGEST)
        averaged = None if given.averaged is None else gathered(given.averaged)
        return replace(given, weights=gathered(given.weights), averaged=averaged)

    def _write_beside(self, given: _State) -> bool:
        """Begin to write a copy of a state; False where there is no room for copies, or for a thread."""
        problem = None
        try:
            parts = self._snapshot.take((given.weights, given.trainer_state, given.averaged))
            weights, trainer_state, averaged = parts
            state = copy.deepcopy(dict(given.state))
            taken = replace(given, weights=weights, trainer_state=trainer_state, averaged=averaged, state=state)
        except (MemoryError, RuntimeError) as error:
            problem = (str(error) or type(error).__name__).splitlines()[0]
        if given.spread:
            problem = next((each for each in self._world.gather(problem) if each is not None), None)
        if problem is None:
            self._flying = given.mark
            self._thread = _Thread(self._write, taken)
            return True
        log.warning("checkpoints hold the training up from now on: %s", problem)
        self._asynchronous = False
        self._snapshot.clear()
        return False

    def _write(self, given: _State) -> None:
        self._snapshot.wait()
        if given.spread:
            from transformer_kit.training.sharded_state import save_together  # torch's part for ranks takes a second

            done = save_together(
                self._store, given.weights, given.trainer_state, given.state, given.averaged, self._group
            )
        else:
            done = self._store.save(given.weights, given.trainer_state, given.state, given.averaged) is not None
        if done:
            self._saved = given.mark


class _Thread:
    """A call in a thread that steps back behind the others until somebody waits for it."""

    def __init__(self, call: Callable[..., None], *arguments: Any) -> None:
        self._error: BaseException | None = None
        self._runner = threading.Thread(target=self._run, args=(call, arguments), name="checkpoint", daemon=False)
        self._runner.start()
        self._cores = _cores()
        _set_priority(self._runner, LAST)
        _set_cores(self._runner, self._cores - {_core()})

    @property
    def alive(self) -> bool:
        """Whether the call has not come back yet."""
        return self._runner.is_alive()

    def end(self) -> None:
        """Wait, and raise what the call raised."""
        _set_priority(self._runner, os.getpriority(os.PRIO_PROCESS, 0))
        _set_cores(self._runner, self._cores)
        self._runner.join()
        if self._error is not None:
            raise self._error

    def _run(self, call: Callable[..., None], arguments: Sequence[Any]) -> None:
        try:
            call(*arguments)
        except BaseException as error:  # the thread that waits raises it
            self._error = error


def _set_priority(thread: threading.Thread, nice: int) -> None:
    """Change a thread's priority where each has one (Linux), and where the system lets it be raised."""
    if sys.platform == "linux" and thread.is_alive() and thread.native_id is not None:
        with suppress(OSError):  # it has just ended, or may not be raised
            os.setpriority(os.PRIO_PROCESS, thread.native_id, nice)


def _set_cores(thread: threading.Thread, cores: set[int]) -> None:
    """Say where a thread may run, where there is a choice."""
    if cores and thread.is_alive() and thread.native_id is not None:
        with suppress(OSError):  # it has just ended, or the cores were taken away
            os.sched_setaffinity(thread.native_id, cores)


def _cores() -> set[int]:
    """Where this thread may run; nothing where the system does not tell."""
    return os.sched_getaffinity(0) if sys.platform == "linux" else set()


def _core() -> int:
    """Where this thread runs now."""
    return int(ctypes.CDLL(None).sched_getcpu()) if sys.platform == "linux" else -1
