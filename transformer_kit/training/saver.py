"""Checkpoints written beside the training.

- The training thread copies the state to memory (`snapshot.py`); a thread of its own writes the copy. One save is in
  flight at most: whatever asks for the next, or for what is on disk, waits for it.
- The thread steps back behind every other: on few cores a busy thread beside those that train costs several times its
  own time (each of them waits for the slowest at every operation).
- The thread is no daemon: Python waits for it, however the program ends, a kill excepted.
- Of several ranks all make the same calls; rank 0 writes, and says what the others cannot see.
"""

from __future__ import annotations

import copy
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

from torch import Tensor, nn

from transformer_kit.logs import get_logger
from transformer_kit.training.checkpoint import Checkpoint, CheckpointStore
from transformer_kit.training.snapshot import Snapshot
from transformer_kit.training.weights import unique_tensors
from transformer_kit.training.world import ALONE, World

log = get_logger(__name__)

LAST = 19  # the lowest priority of a thread


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

    @property
    def saved(self) -> Any:
        """The `mark` of the newest state on disk, after waiting for one on the way; None: none is. For all ranks."""
        self.wait()
        return self._world.share(self._saved)

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
            model, trainer_state, state, averaged: as `CheckpointStore.save` takes them.
            last: nothing else will happen meanwhile: write it here and now.

        Returns:
            Whether it is on disk, or on the way. A failure on the way is a warning, and `saved` stays as it was.
        """
        kept = self._save(mark, model, trainer_state, state, averaged, last) if self._world.leads else True
        return self._world.share(kept) if last else kept

    def _save(
        self,
        mark: Any,
        model: nn.Module,
        trainer_state: Any,
        state: Mapping[str, Any],
        averaged: Mapping[str, Tensor] | None,
        last: bool,
    ) -> bool:
        if self._thread is not None and self._flying == mark and not last:
            return True
        self.wait()
        if self._saved == mark:
            return True
        parts = (unique_tensors(model), trainer_state, averaged)
        if self._asynchronous and not last:
            try:
                parts = self._snapshot.take(parts)
                self._thread = _Thread(self._write, mark, parts, copy.deepcopy(dict(state)))
            except (MemoryError, RuntimeError) as error:  # no room for the copies, or for a thread
                log.warning("checkpoints hold the training up from now on: %s", str(error).splitlines()[0])
                self._asynchronous = False
                self._snapshot.clear()
                parts = (unique_tensors(model), trainer_state, averaged)
            else:
                self._flying = mark
                return True
        self._write(mark, parts, state)
        return bool(self._saved == mark)

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

    def _write(self, mark: Any, parts: tuple[Any, Any, Any], state: Mapping[str, Any]) -> None:
        self._snapshot.wait()
        weights, trainer_state, averaged = parts
        if self._store.save(weights, trainer_state, state, averaged) is not None:
            self._saved = mark


class _Thread:
    """A call in a thread that steps back behind the others until somebody waits for it."""

    def __init__(self, call: Callable[..., None], *arguments: Any) -> None:
        self._error: BaseException | None = None
        self._runner = threading.Thread(target=self._run, args=(call, arguments), name="checkpoint", daemon=False)
        self._runner.start()
        _set_priority(self._runner, LAST)

    def end(self) -> None:
        """Wait, and raise what the call raised."""
        _set_priority(self._runner, os.getpriority(os.PRIO_PROCESS, 0))
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
