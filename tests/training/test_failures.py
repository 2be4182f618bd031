"""What ranks leave when they end badly, and which of it was the cause."""

from __future__ import annotations

import os

import pytest

from transformer_kit.training import failures as module
from transformer_kit.training.failures import Failure, begin, first_cause, read_failures, write_failure

LOST = "RuntimeError: Connection closed by peer"


def left(rank: int, message: str = "ZeroDivisionError", code: int = 1, follows: bool = False) -> Failure:
    return Failure(rank, message, code, follows, seconds=float(rank))


@pytest.mark.parametrize(
    ("failures", "rank", "says"),
    [
        ([left(1), left(0, LOST, follows=True)], 1, "ZeroDivisionError"),
        ([left(0, LOST, follows=True), left(2)], 2, "ZeroDivisionError"),
        ([left(0, LOST, follows=True), left(2, LOST, follows=True)], 1, "was killed, or ended without a word"),
        ([left(0, "stopped by SIGTERM", 130), left(2, LOST, follows=True)], 1, "was killed, or ended without a word"),
        ([left(0, "stopped by SIGTERM", 130), left(1), left(2, LOST, follows=True)], 1, "ZeroDivisionError"),
        ([left(rank, LOST, follows=True) for rank in range(3)], 0, LOST),
        ([left(rank, "stopped by SIGTERM", 130) for rank in range(3)], 0, "stopped by SIGTERM"),
    ],
)
def test_the_first_cause(failures: list[Failure], rank: int, says: str) -> None:
    cause = first_cause(failures, 3)
    assert cause is not None
    assert (cause.rank, cause.message) == (rank, says)


def test_nothing_left_is_no_cause() -> None:
    assert first_cause([], 3) is None


def test_each_start_has_its_own(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv(module.FOLDER, str(tmp_path))
    monkeypatch.setenv(module.START, "0")  # put back afterwards
    begin(0)
    write_failure(1, "first", 1)
    write_failure(1, "later", 1)
    write_failure(0, LOST, 1, follows=True)
    begin(1)
    assert read_failures(tmp_path) == []
    write_failure(1, "again", 2)
    assert [(each.rank, each.message, each.exit_code) for each in read_failures(tmp_path)] == [(1, "again", 2)]
    assert {each.message for each in read_failures(tmp_path, 0)} == {"first", LOST}


def test_without_a_launcher_nothing_is_written(tmp_path, monkeypatch) -> None:
    monkeypatch.delenv(module.FOLDER, raising=False)
    monkeypatch.chdir(tmp_path)
    begin(0)
    write_failure(0, "x", 1)
    assert os.listdir(tmp_path) == []
