"""Where a run's numbers go. A tracker that fails is dropped with one warning: it never stops a training."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from transformer_kit.logs import get_logger

log = get_logger(__name__)

METRICS_FILE = "metrics.jsonl"

Row = Mapping[str, float | int | str | None]


class Tracker(Protocol):
    """Receives rows: `kind` is `train`, `validation` or `norms`, `step` the update, the rest numbers."""

    def rewind(self, step: int, validated: int) -> None:
        """Training goes on after update `step`: forget later rows, and validations after update `validated`."""

    def add(self, row: Row) -> None:
        """Take one row."""


class Outside(Tracker, Protocol):
    """A tracker of another program's, which has to be told the end."""

    def finish(self, result: Mapping[str, Any] | None) -> None:
        """The session has ended, the run with it if there is a result: what `result.json` holds."""


def numbers(row: Row) -> dict[str, float]:
    """The numbers of a row under names that say its kind, `train/loss`; without the step."""
    kind = row["kind"]
    values = {name: value for name, value in row.items() if name != "step" and isinstance(value, int | float)}
    return {f"{kind}/{name}": value for name, value in values.items()}


class Jsonl:
    """A JSON object per line; a number that is not finite is written as null, which JSON can hold.

    Rows that cannot be written, as the disk is full, wait for the next one that can, so that an outage leaves no hole.

    Args:
        path: appended to; made with the first row.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._waiting: list[str] = []

    def rewind(self, step: int, validated: int) -> None:
        """Rewrite the file without the rows that a resumed run will write again, nor half a line left by a kill."""
        if not self.path.exists():
            return
        lines = self.path.read_text(encoding="utf-8", errors="replace").split("\n")
        kept = [line for line in lines if _is_before(line, step, validated)]
        temporary = self.path.with_name(self.path.name + ".tmp")
        temporary.write_text("".join(line + "\n" for line in kept), encoding="utf-8")
        os.replace(temporary, self.path)

    def add(self, row: Row) -> None:
        safe = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
        self._waiting.append(json.dumps(safe) + "\n")
        try:
            _append(self.path, "".join(self._waiting))
        except OSError as error:
            if len(self._waiting) == 1:
                log.warning("could not write %s: %s; its rows wait", self.path, error)
            return
        self._waiting.clear()


def _append(path: Path, text: str) -> None:
    """Add to a file all or nothing."""
    data = text.encode()
    with path.open("ab", buffering=0) as file:
        size = file.tell()
        try:
            while data:
                data = data[file.write(data) :]
        except OSError:
            file.truncate(size)
            raise


def _is_before(line: str, step: int, validated: int) -> bool:
    try:
        row = json.loads(line)
        return bool(row["step"] <= (validated if row["kind"] == "validation" else step))
    except (ValueError, KeyError, TypeError):
        return False


class Trackers:
    """Several trackers as one; any that raises is dropped."""

    def __init__(self, trackers: Iterable[Tracker]) -> None:
        self._live = list(trackers)

    def rewind(self, step: int, validated: int) -> None:
        for tracker in list(self._live):
            try:
                tracker.rewind(step, validated)
            except Exception as error:  # whatever a tracker does, training goes on
                self._drop(tracker, error)

    def add(self, row: Row) -> None:
        for tracker in list(self._live):
            try:
                tracker.add(row)
            except Exception as error:
                self._drop(tracker, error)

    def _drop(self, tracker: Tracker, error: Exception) -> None:
        self._live.remove(tracker)
        name = getattr(tracker, "path", type(tracker).__name__)
        log.warning("%s gets no more rows in this session: %s; training goes on", name, error)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows that `Jsonl` wrote, also while a run goes on: half a line, or anything else that is no row, is left out.

    Raises:
        OSError: there is no file, or it cannot be read.
    """
    rows = []
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and isinstance(row.get("step"), int) and isinstance(row.get("kind"), str):
            rows.append(row)
    return rows
