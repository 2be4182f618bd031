"""Ctrl-C, SIGTERM, SIGHUP (a closed terminal), SIGUSR2 (a cluster's warning): a wish to stop at a step boundary."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from types import FrameType, TracebackType

from transformer_kit.errors import Interrupted

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2)


class _Raise:
    """A handler that raises Interrupted, once."""

    def __init__(self, what: str) -> None:
        self._what, self.came = what, False
        self.number: int | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if not self.came:
            self.came, self.number = True, number
            raise self.wish()

    def wish(self) -> Interrupted:
        """What is raised."""
        assert self.number is not None
        return Interrupted(f"stopped by {signal.Signals(self.number).name} {self._what}")

    def meant(self, error: BaseException) -> BaseException:
        """The error that leaves the context: after a signal, another one is what code on the way made of that."""
        return error if self.number is None or isinstance(error, Interrupted) else self.wish()


def _tell(*handlers: object) -> None:
    """Handlers that will be put back learn that the wish they wait for came: a repetition must not raise again."""
    for handler in handlers:
        if isinstance(handler, _Raise):
            handler.came = True


def _untold(handlers: Iterable[object]) -> int | None:
    """The signal for which one of these raised already, and somebody's `except Exception` took what was raised."""
    return next((each.number for each in handlers if isinstance(each, _Raise) and each.number), None)


class StopFlag:
    """A context in which SIGINT, SIGTERM, SIGHUP and SIGUSR2 set a flag, once or several times, and do nothing else.

    Outside the main thread Python takes no handlers; the flag then stays False. The handlers before are put back; where
    the wish is followed (Interrupted leaves the context), a `raising` around it takes it as known.

    Args:
        said: to whoever waits, on stderr, when the first one comes: it may take a while.
    """

    def __init__(self, said: str = "") -> None:
        self._said = said
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
            if (number := _untold(self._before.values())) is not None:
                self._set(number, None)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if isinstance(error, Interrupted):
            _tell(*self._before.values())
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # what signal.signal returned

    def _set(self, number: int, frame: FrameType | None) -> None:
        if self._raised is None:
            self._raised = number
            if self._said:
                with suppress(OSError):  # past Python's own buffers, which this may have interrupted
                    os.write(2, f"{signal.Signals(number).name}: {self._said}\n".encode())


class Relay:
    """A context in which these signals go on to every process that multiprocessing has started, or starts later.

    - Nothing is raised here: whoever waits for the processes sees them end. Each of them is told once.
    - A process hears nothing before it calls `heard`, so that none ends in its imports, with a traceback for each.
    - A process holds back what the thread that starts it does, here the main thread; so signals come in by a thread
      that is made here. Python runs handlers in the main thread all the same.

    Attributes:
        asked: the first signal that came, or None.
    """

    def __init__(self) -> None:
        self.asked: int | None = None
        self._over = threading.Event()
        self._told: set[int] = set()
        self._ear = threading.Thread(target=self._tell, name="signals", daemon=True)

    def __enter__(self) -> Relay:
        self._ear.start()  # before the main thread holds signals back
        self._before = {number: signal.signal(number, self._hear) for number in _SIGNALS}
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        resource_tracker.ensure_running()  # multiprocessing's own process, which hears none either;
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # starting it lets some in again
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._over.set()
        self._ear.join()

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.asked is None:
            self.asked = number

    def _tell(self) -> None:
        while not self._over.wait(0.1):
            if (number := self.asked) is None:
                continue
            for child in multiprocessing.active_children():
                if child.pid is not None and child.pid not in self._told:
                    self._told.add(child.pid)
                    with suppress(ProcessLookupError):
                        os.kill(child.pid, number)


class Impatient:
    """A context in which the first of these signals leads to a call by a thread, whatever the main thread is in.

    Python's handlers wait until the main thread is back from what it called, which may wait for what never comes.

    Args:
        call: with the signal's number; not made where the context ends within a moment, as a handler ended it.
    """

    MOMENT = 1.0  # seconds

    def __init__(self, call: Callable[[int], None]) -> None:
        self._call = call
        self._over = threading.Event()
        self._listener = threading.Thread(target=self._listen, name="signals", daemon=True)

    def __enter__(self) -> Impatient:
        self._heard, self._told = os.pipe()
        os.set_blocking(self._told, False)
        self._before = signal.set_wakeup_fd(self._told, warn_on_full_buffer=False)
        self._listener.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        signal.set_wakeup_fd(self._before)
        self._over.set()
        os.close(self._told)
        self._listener.join()
        os.close(self._heard)

    def _listen(self) -> None:
        while data := os.read(self._heard, 1):
            if data[0] in _SIGNALS and not self._over.wait(self.MOMENT):
                self._call(data[0])
                return


def hushed() -> None:
    """From here on these signals do nothing but where a context says otherwise; what is held back waits for one."""
    for number in _SIGNALS:
        signal.signal(number, _nothing)


def _nothing(number: int, frame: FrameType | None) -> None:
    pass


def heard() -> None:
    """In a process that was started in a `Relay`, when its handlers stand: signals come in, those held back first."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


@contextmanager
def raising(what: str) -> Iterator[_Raise]:
    """A context in which the first of these signals raises Interrupted, where nothing has to be brought to an end.

    An error that follows from it, as code on the way took it for one of its own, comes out as Interrupted too. Who has
    to know before that asks what `as` gives what an error `meant`.

    Args:
        what: where that is, and what follows, for the message.

    Raises:
        Interrupted: a signal came.
    """
    leave = _Raise(what)
    if threading.current_thread() is not threading.main_thread():
        yield leave
        return
    before = {number: signal.signal(number, leave) for number in _SIGNALS}
    try:
        if (number := _untold(before.values())) is not None:
            leave(number, None)
        yield leave
    except Exception as error:
        if (meant := leave.meant(error)) is error:
            raise
        raise meant from None
    finally:
        if leave.came:
            _tell(*before.values())
        for number, handler in before.items():
            signal.signal(number, handler)
