"""Ctrl-C, SIGTERM, SIGHUP (a closed terminal), SIGUSR2 (a cluster's warning): a wish to stop at a step boundary."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType

from transformer_kit.errors import Interrupted

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2)


class StopFlag:
    """A context in which SIGINT, SIGTERM, SIGHUP and SIGUSR2 set a flag, once or several times, and do nothing else.

    Outside the main thread Python takes no handlers; the flag then stays False. The handlers before are put back.
    """

    def __init__(self) -> None:
        self._raised: int | None = None
        self._before: dict[int, signal.Handlers | object] = {}

    def __bool__(self) -> bool:
        return self._raised is not None

    @property
    def name(self) -> str:
        """The first signal that came, for the message."""
        return "" if self._raised is None else signal.Signals(self._raised).name

    def __enter__(self) -> StopFlag:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._set) for number in _SIGNALS}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # what signal.signal returned

    def _set(self, number: int, frame: FrameType | None) -> None:
        if self._raised is None:
            self._raised = number


@contextmanager
def raising(what: str) -> Iterator[None]:
    """A context in which the first of these signals raises Interrupted, where nothing has to be brought to an end.

    Args:
        what: where that is, and what follows, for the message.

    Raises:
        Interrupted: a signal came.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came = False

    def leave(number: int, frame: FrameType | None) -> None:
        nonlocal came
        if not came:
            came = True
            raise Interrupted(f"stopped by {signal.Signals(number).name} {what}")

    before = {number: signal.signal(number, leave) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
