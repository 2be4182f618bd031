"""A wish to stop that is repeated: what follows the first is not disturbed by the others."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading

import pytest

from transformer_kit import logs
from transformer_kit.errors import Interrupted
from transformer_kit.training.signals import Impatient, StopFlag, hushed, raising

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2)


@pytest.fixture(autouse=True)
def _ignored():
    """Signals that no context takes are ignored, not the end of the tests; all is put back."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in NUMBERS}
    yield
    assert {signal.getsignal(number) for number in NUMBERS} == {signal.SIG_IGN}, "the contexts leave nothing"
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", NUMBERS)
def test_the_first_is_told_and_none_raises(number):
    with StopFlag() as stop:
        assert not stop
        for each in (number, signal.SIGTERM, signal.SIGUSR2):
            signal.raise_signal(each)
        assert stop
        assert stop.name == number.name


def said_by(work):
    """The message of the Interrupted that leaves `work`."""
    with pytest.raises(Interrupted) as caught:
        work()
    return str(caught.value)


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("again", NUMBERS)
def test_a_second_one_does_not_disturb_what_follows_the_first(number, again):
    """Neither behind the loop, where the result is written, nor in a context around that."""
    written = []

    def outermost():
        with raising("outermost"):
            try:
                outside()
            finally:
                signal.raise_signal(again)
                written.append("failure")

    def outside():
        with raising("outside"):
            try:
                with StopFlag():
                    signal.raise_signal(number)
                    raise Interrupted("the state is saved")
            finally:
                signal.raise_signal(again)
                written.append("result")

    assert said_by(outermost) == "the state is saved"
    assert written == ["result", "failure"]


def test_outside_of_the_loop_the_first_raises_and_the_second_does_not():
    def outermost():
        with raising("outermost"):
            try:
                outside()
            finally:
                signal.raise_signal(signal.SIGTERM)

    def outside():
        with raising("outside"):
            try:
                signal.raise_signal(signal.SIGHUP)
            finally:
                signal.raise_signal(signal.SIGTERM)

    assert said_by(outermost) == "stopped by SIGHUP outside"


@pytest.mark.parametrize("error", [None, ZeroDivisionError()])
def test_a_wish_that_the_loop_did_not_follow_may_be_repeated(error):
    """It had come to its end, or failed."""

    def work():
        with raising("outside"):
            with contextlib.suppress(ZeroDivisionError), StopFlag():
                signal.raise_signal(signal.SIGTERM)
                if error is not None:
                    raise error
            signal.raise_signal(signal.SIGUSR2)

    assert said_by(work) == "stopped by SIGUSR2 outside"


def test_a_wish_that_somebody_took_for_an_error_of_his_own_is_not_lost():
    """An import that is interrupted, say: what it comes out as is Interrupted, and a loop that follows stops."""

    def import_something():
        try:
            signal.raise_signal(signal.SIGTERM)
        except Exception as error:
            raise ImportError("cannot be imported") from error

    def wrong():
        with raising("outside"):
            import_something()

    def silent():
        with raising("outside"), contextlib.suppress(ImportError):
            import_something()
        return "done"

    def then_a_loop():
        with raising("outside"):
            with contextlib.suppress(ImportError):
                import_something()
            with StopFlag() as stop:
                assert stop.name == "SIGTERM"
                raise Interrupted("the state is saved")

    def then_another_context():
        with raising("outermost"):
            with contextlib.suppress(ImportError):
                import_something()
            with raising("outside"):
                raise AssertionError("too late")

    def known_inside():
        with raising("outside") as stop:
            try:
                import_something()
            except ImportError as error:
                raise ValueError(str(stop.meant(error))) from error

    assert said_by(wrong) == "stopped by SIGTERM outside"
    assert said_by(then_another_context) == "stopped by SIGTERM outside"
    assert said_by(known_inside) == "stopped by SIGTERM outside"
    assert silent() == "done", "what has come to its end is done"
    assert said_by(then_a_loop) == "the state is saved"


def test_errors_that_follow_from_no_signal_stay_what_they_are():
    with raising("outside") as stop:
        error = ImportError("absent")
        assert stop.meant(error) is error
    with pytest.raises(ZeroDivisionError), raising("outside"):
        raise ZeroDivisionError


def test_who_waits_is_told_once(capfd):
    with StopFlag("stopping soon"):
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGTERM)
    assert capfd.readouterr().err == "SIGHUP: stopping soon\n"


def test_hushed_signals_are_heard_where_a_context_says_so():
    hushed()
    try:
        for number in NUMBERS:
            signal.raise_signal(number)
        assert said_by(lambda: _raise_within(signal.SIGUSR2)) == "stopped by SIGUSR2 outside"
        signal.raise_signal(signal.SIGTERM)
    finally:
        for number in NUMBERS:
            signal.signal(number, signal.SIG_IGN)


def _raise_within(number):
    with raising("outside"):
        signal.raise_signal(number)


def test_a_signal_is_acted_on_while_the_main_thread_is_in_a_call(monkeypatch):
    """One that no handler interrupts, as those of other languages are."""
    monkeypatch.setattr(Impatient, "MOMENT", 0.05)
    called, held = [], threading.Lock()
    held.acquire()

    def release(number):
        called.append(number)
        held.release()

    with StopFlag(), Impatient(release):
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM)).start()
        assert held.acquire(timeout=10)
    assert called == [signal.SIGTERM]


def test_what_a_handler_ends_is_not_ended_twice(monkeypatch):
    called = []
    with pytest.raises(Interrupted), raising("outside"), Impatient(called.append):
        signal.raise_signal(signal.SIGTERM)
    with Impatient(called.append):
        pass
    assert called == []
    assert signal.set_wakeup_fd(-1) == -1


@pytest.mark.parametrize("to_file", [False, True])
def test_a_signal_while_a_line_of_the_log_is_written_is_no_fault_of_the_log(tmp_path, monkeypatch, capfd, to_file):
    logs.setup()
    handlers = logging.getLogger(logs.ROOT).handlers
    handler = logs.add_file(tmp_path / "log") if to_file else next(h for h in handlers if hasattr(h, "tkit_console"))

    class Pipe:
        """A stream whose reader is slow; the signal comes meanwhile."""

        def write(self, text):
            signal.raise_signal(signal.SIGTERM)

        def flush(self):
            pass

        close = flush

    before = handler.setStream(Pipe())
    try:
        with pytest.raises(Interrupted), raising("outside"):
            logs.get_logger("x").warning("a line")
    finally:
        handler.setStream(before)
        if to_file:
            logs.remove(handler)
    assert "Traceback" not in capfd.readouterr().err
