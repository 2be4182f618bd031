"""What a rank leaves when it ends badly, for the process that started it: one small file a rank.

A launcher names a folder in an environment variable; without it nothing is written. Each start of the ranks has a
folder of its own in it, so that a restart can tell why it came.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from transformer_kit.errors import Interrupted

FOLDER, START = "TKIT_FAILURES", "TKIT_START"


@dataclass(frozen=True)
class Failure:
    """How a rank ended.

    Attributes:
        message: for the user.
        exit_code: what the command returns for it.
        follows: whether it only lost the connection to another rank, which failed first.
        seconds: when.
    """

    rank: int
    message: str
    exit_code: int
    follows: bool
    seconds: float


def begin(start: int) -> None:
    """From now on what this process leaves belongs to start `start` of the ranks: 0, or the number of a restart."""
    folder = os.environ.get(FOLDER)
    if folder is not None:
        os.environ[START] = str(start)
        (Path(folder) / str(start)).mkdir(exist_ok=True)


def write_failure(rank: int, message: str, exit_code: int, *, follows: bool = False) -> None:
    """Leave a failure; the first one of a rank stays."""
    folder, start = os.environ.get(FOLDER), os.environ.get(START)
    if folder is None or start is None:
        return
    path = Path(folder) / start / f"rank_{rank}.json"
    if not path.exists():
        temporary = path.with_suffix(".tmp")
        temporary.write_text(
            json.dumps({"message": message, "exit_code": exit_code, "follows": follows}), encoding="utf-8"
        )
        temporary.rename(path)


def read_failures(folder: Path, start: int | None = None) -> list[Failure]:
    """All failures of a start of the ranks, the earliest first; None: of the last one."""
    starts = [int(path.name) for path in folder.iterdir() if path.name.isdecimal()]
    found = []
    for path in (folder / str(max(starts, default=0) if start is None else start)).glob("rank_*.json"):
        facts = json.loads(path.read_text(encoding="utf-8"))
        rank = int(path.stem.removeprefix("rank_"))
        found.append(Failure(rank, **facts, seconds=path.stat().st_mtime))
    return sorted(found, key=lambda failure: failure.seconds)


def first_cause(failures: Sequence[Failure], ranks: int) -> Failure | None:
    """Why the ranks of one start ended, of what they left: the first that follows from no other's end.

    None: nothing is left. A rank that left nothing while all others lost their connection, or were told to stop for
    it, was killed.
    """
    if not failures:
        return None
    told = [failure for failure in failures if failure.exit_code != Interrupted.exit_code]
    own = next((failure for failure in told if not failure.follows), None)
    silent = set(range(ranks)) - {failure.rank for failure in failures}
    if own is None and silent:
        return Failure(min(silent), "was killed, or ended without a word", 1, follows=False, seconds=0.0)
    return own or next(iter(told), failures[0])
