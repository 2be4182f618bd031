"""What a rank leaves when it ends badly, for the process that started it: one small file a rank.

A launcher names a folder in an environment variable; without it nothing is written.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

FOLDER = "TKIT_FAILURES"


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


def write_failure(rank: int, message: str, exit_code: int, *, follows: bool = False) -> None:
    """Leave a failure; the first one of a rank stays."""
    folder = os.environ.get(FOLDER)
    if folder is None:
        return
    path = Path(folder) / f"rank_{rank}.json"
    if not path.exists():
        temporary = path.with_suffix(".tmp")
        temporary.write_text(
            json.dumps({"message": message, "exit_code": exit_code, "follows": follows}), encoding="utf-8"
        )
        temporary.rename(path)


def clear_failure(rank: int) -> None:
    """Forget what this rank left before it was started anew."""
    if FOLDER in os.environ:
        (Path(os.environ[FOLDER]) / f"rank_{rank}.json").unlink(missing_ok=True)


def read_failures(folder: Path) -> list[Failure]:
    """All failures, the earliest first."""
    found = []
    for path in folder.glob("rank_*.json"):
        facts = json.loads(path.read_text(encoding="utf-8"))
        rank = int(path.stem.removeprefix("rank_"))
        found.append(Failure(rank, **facts, seconds=path.stat().st_mtime))
    return sorted(found, key=lambda failure: failure.seconds)
