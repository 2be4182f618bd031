"""Processes beside this one: exit codes, signals handed on, nothing new once a stop was asked for."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from transformer_kit.tasks.children import SIGNALS, STOPPED, Children

# Writes that it is ready, then the first signal that comes, and leaves as a training does.
PATIENT = """
import signal, sys, time
def leave(number, frame):
    print(number, flush=True)
    sys.exit(130)
for number in (signal.SIGTERM, signal.SIGUSR2):
    signal.signal(number, leave)
print("ready", flush=True)
time.sleep(30)
"""


def test_exit_codes_and_output(tmp_path: Path) -> None:
    with Children() as children:
        words = [sys.executable, "-c", "import os, sys; print(os.environ['X']); sys.exit(3)"]
        assert children.run(words, {"X": "7"}, tmp_path / "log") == 3
        assert children.run(["sh", "-c", "kill -KILL $$"]) == 128 + signal.SIGKILL
        assert children.run(["true"]) == 0
    assert (tmp_path / "log").read_text() == "7\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
def test_a_signal_goes_on_and_nothing_new_begins(tmp_path: Path, number: int) -> None:
    before = {each: signal.getsignal(each) for each in SIGNALS}
    codes: list[int] = []
    output = tmp_path / "log"

    with Children() as children:
        thread = threading.Thread(
            target=lambda: codes.append(children.run([sys.executable, "-c", PATIENT], None, output))
        )
        thread.start()
        while not output.exists() or "ready" not in output.read_text():
            thread.join(0.02)
        os.kill(os.getpid(), number)
        thread.join(20)
        assert not thread.is_alive()
        assert children.asked == number
        assert children.run(["touch", str(tmp_path / "new")]) == STOPPED
    assert codes == [130]
    assert output.read_text() == f"ready\n{int(number)}\n"
    assert not (tmp_path / "new").exists()
    assert {each: signal.getsignal(each) for each in SIGNALS} == before
