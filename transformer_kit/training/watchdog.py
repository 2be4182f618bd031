"""Ends a job whose ranks make no progress, and says which rank the others wait for.

- Each rank counts what it has finished, and a thread of each publishes that count with the place where the main thread
  stands. A rank that waits for others makes no progress; the rank that they wait for makes none either when it hangs.
  So a long validation on one rank is no alarm, and a hang is.
- A rank to blame is one whose thread publishes no more (stopped, or its machine is gone), else one that stands anywhere
  but in an exchange with the others.
- What is to blame on the same machine is killed. The thread talks to the launcher's store by itself and ends its
  process, whatever the main thread waits for.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import torch.distributed as dist
from torch.nn.modules.module import register_module_forward_pre_hook

from transformer_kit.training.failures import write_failure
from transformer_kit.training.world import World

EXIT_CODE = 1
PATIENCE = 5.0  # seconds for what a thread is in at the end; the store may have gone with its rank
_SELF = {"host": socket.gethostname(), "pid": os.getpid()}
_LOOKS = 10  # in the time that is allowed
_EXCHANGES = ("torch/distributed", "torch/autograd/graph")  # files in which a rank waits for others; backward does


class Watchdog:
    """A context that watches over the ranks; alone, or without a time, it does nothing.

    Args:
        world: the ranks.
        seconds: without progress on any rank after which all end; None: never.
    """

    def __init__(self, world: World, seconds: float | None) -> None:
        self._world, self._seconds = world, seconds
        self._active = world.size > 1 and seconds is not None
        self._count, self._doing = 0, "the start"
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []
        self._looks: deque[list[dict[str, Any]]] = deque(maxlen=4)  # what all ranks told, newest last
        self._heard = time.monotonic()  # when the store last answered

    def progress(self, doing: str = "") -> None:
        """Something was finished.

        Args:
            doing: what this rank turns to now, where that is another thing than before.
        """
        self._count += 1
        self._doing = doing or self._doing

    @contextmanager
    def counting_modules(self, doing: str) -> Iterator[None]:
        """Around what takes long and tells nothing itself: every call of any module is progress."""
        self.progress(doing)
        if not self._active:
            yield
            return
        hook = register_module_forward_pre_hook(lambda module, inputs: self.progress())
        try:
            yield
        finally:
            hook.remove()

    def __enter__(self) -> Watchdog:
        if self._active:
            for call in (self._exchange, self._watch):
                self._threads.append(threading.Thread(target=call, name="watchdog", daemon=True))
                self._threads[-1].start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        for thread in self._threads:  # one that is cut off in the store's code as Python ends would abort the process
            thread.join(PATIENCE)

    def _exchange(self) -> None:
        """Tell and ask through the store, which stands on rank 0 or with torchrun: it may never answer again."""
        assert self._seconds is not None
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = dist.TCPStore(address, port, self._world.size, is_master=False)  # type: ignore[attr-defined]  # no __all__
        keys = [f"tkit/progress/{rank}" for rank in range(self._world.size)]
        for beat in itertools.count(1):
            facts = {"beat": beat, "count": self._count, "doing": self._doing, **_SELF, **_where()}
            try:
                store.set(keys[self._world.rank], json.dumps(facts))
                self._looks.append([json.loads(store.get(key)) if store.check([key]) else {} for key in keys])
            except Exception:  # `_watch` finds out
                return
            self._heard = time.monotonic()
            if self._over.wait(self._seconds / _LOOKS):
                return

    def _watch(self) -> None:
        assert self._seconds is not None
        counts: list[int] = []
        since = time.monotonic()
        while not self._over.wait(self._seconds / _LOOKS):
            looks = list(self._looks)
            if looks and (now := [each.get("count", -1) for each in looks[-1]]) != counts:
                counts, since = now, time.monotonic()
            elif time.monotonic() - since > self._seconds:
                nothing: list[dict[str, Any]] = [{} for _ in range(self._world.size)]
                self._end(looks[0] if looks else nothing, looks[-1] if looks else nothing)

    def _end(self, before: list[dict[str, Any]], found: list[dict[str, Any]]) -> None:
        assert self._seconds is not None
        ranks = range(len(found))
        silent = [rank for rank in ranks if not found[rank] or found[rank]["beat"] == before[rank].get("beat")]
        if time.monotonic() - self._heard > self._seconds / 2:
            silent = [0]  # with it the store fell silent
        blamed = silent or [rank for rank in ranks if not found[rank]["waits"]] or list(ranks)
        first = found[blamed[0]]
        who = "all ranks" if len(blamed) == len(found) > 1 else ", ".join(f"rank {rank}" for rank in blamed)
        at = "" if silent else f" ({first['at']})"
        text = f"{who} made no progress in {self._doing}{at} for {self._seconds:g} s (trainer.ranks.timeout)"
        write_failure(self._world.rank, text, EXIT_CODE)
        for rank in blamed:
            if found[rank].get("host") == _SELF["host"] and found[rank]["pid"] != _SELF["pid"]:
                os.kill(found[rank]["pid"], signal.SIGKILL)  # a stopped process does not hear its launcher
        os._exit(EXIT_CODE)


def _where() -> dict[str, Any]:
    """Where the main thread stands: the innermost place outside of torch, and whether it waits there for others."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    waits = False
    while frame is not None and "/torch/" in frame.f_code.co_filename:
        waits = waits or any(part in frame.f_code.co_filename for part in _EXCHANGES)
        frame = frame.f_back
    at = "" if frame is None else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}"
    return {"at": at, "waits": waits}
