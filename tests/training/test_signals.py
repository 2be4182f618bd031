"""A wish to stop that is repeated: what follows the first is not disturbed by the others."""

from __future__ import annotations

import contextlib
import signal

import pytest

from transformer_kit.errors import Interrupted
from transformer_kit.training.signals import StopFlag, raising

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
