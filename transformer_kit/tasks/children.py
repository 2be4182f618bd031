"""Processes that train beside this one, and are told when this one is asked to stop.

A training saves its state at a step boundary when a signal asks it to stop; so whoever started it hands such a signal
on and waits, instead of leaving it behind or cutting it off.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2)
STOPPED = -1
"""What `run` returns instead of an exit code when a stop was asked for before the process began."""


class Children:
    """A context in which SIGINT, SIGTERM, SIGHUP and SIGUSR2 go on to every process that `run` started.

    They end nothing here: what runs is waited for, and nothing new begins. `run` may be called by several threads at
    once; the handlers are taken in the main thread, and are put back at the end.

    Attributes:
        asked: the first signal that came, or None.
    """

    def __init__(self) -> None:
        self.asked: int | None = None
        self._live: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.RLock()  # a handler may interrupt the thread that holds it
        self._before: dict[int, signal.Handlers | object] = {}

    def __enter__(self) -> Children:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._tell) for number in SIGNALS}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # what signal.signal returned

    def run(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None, output: Path | None = None
    ) -> int:
        """Run a command to its end and return its exit code (that of a shell, 128 + n, where signal n ended it).

        Args:
            command: words.
            environment: variables on top of those of this process.
            output: what it writes to stdout and stderr is appended here; None leaves both as they are.
        """
        with contextlib.ExitStack() as open_files:
            target = None if output is None else open_files.enter_context(output.open("ab"))
            with self._lock:
                if self.asked is not None:
                    return STOPPED
                whole = {**os.environ, **(environment or {})}
                process = subprocess.Popen(command, env=whole, stdout=target, stderr=target and subprocess.STDOUT)
                self._live.add(process)
            if self.asked is not None:  # while it was being made
                process.send_signal(self.asked)
            code = process.wait()
            with self._lock:
                self._live.discard(process)
        return code if code >= 0 else 128 - code

    def _tell(self, number: int, frame: FrameType | None) -> None:
        with self._lock:
            if self.asked is None:
                self.asked = number
            for process in self._live:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(number)
