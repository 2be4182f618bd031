"""The log of a run on a disk without room."""

from __future__ import annotations

from pathlib import Path

import pytest

from transformer_kit import logs


def test_a_log_that_finds_no_room_is_said_once_and_raises_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither while lines come nor at the end, where it would hide what the run ended with."""
    path = tmp_path / "train.log"
    path.symlink_to("/dev/full")
    handler = logs.add_file(path)
    for number in range(3):
        logs.get_logger("test").error("line %d", number)
    logs.remove(handler)
    said = [line for line in capsys.readouterr().err.splitlines() if str(path) in line]
    assert said == [f"{path}: lines of the log are lost: [Errno 28] No space left on device"]
