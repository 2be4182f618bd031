"""Progress and tables for people: a live bar on a terminal, plain lines elsewhere; never on stdout unless asked.

rich is imported when something is shown on a terminal, not before: commands that print nothing stay quick.
"""

from __future__ import annotations

import csv
import io
import logging
import re
import sys
import time
import unicodedata
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TextIO

from transformer_kit import logs

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

_NUMBER = re.compile(r"[-+−]?[\d,]*\.?\d+(e[-+]?\d+)?\s*(%|s|M|k)?")
_EMPTY = ("", "-", "–")


class Progress(Protocol):
    """What a long task tells the person who waits: `start`, any number of `update`s, `stop`."""

    def start(self, title: str, fraction: float = 0.0) -> None:
        """Begin; `fraction` in [0, 1] is done already (a resumed run)."""

    def update(self, fraction: float, facts: Mapping[str, str] | None = None) -> None:
        """`fraction` is done; `facts` (a loss, a rate) replace those shown before, None leaves them."""

    def stop(self) -> None:
        """End; what was shown last stays."""


class NoProgress:
    """Shows nothing."""

    def start(self, title: str, fraction: float = 0.0) -> None:
        pass

    def update(self, fraction: float, facts: Mapping[str, str] | None = None) -> None:
        pass

    def stop(self) -> None:
        pass


class PlainProgress:
    """One line each time that facts arrive: for files, pipes and job logs."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._title = ""
        self._began = (0.0, 0.0)

    def start(self, title: str, fraction: float = 0.0) -> None:
        self._title = title
        self._began = (time.monotonic(), fraction)

    def update(self, fraction: float, facts: Mapping[str, str] | None = None) -> None:
        if facts is None:
            return
        began, first = self._began
        parts = [f"{self._title} {fraction:4.0%}", *(f"{name} {value}" for name, value in facts.items())]
        if 0 < fraction < 1 and fraction > first:
            left = (time.monotonic() - began) * (1 - fraction) / (fraction - first)
            parts.append(f"{duration(left)} left")
        print("  ".join(parts), file=self._stream, flush=True)

    def stop(self) -> None:
        pass


class BarProgress:
    """A live bar with the facts beside it and the time left; log records appear above it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._bar: RichProgress | None = None
        self._moved: list[tuple[logging.StreamHandler[TextIO], TextIO]] = []

    def start(self, title: str, fraction: float = 0.0) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TextColumn("{task.fields[facts]}", markup=False),
            TimeRemainingColumn(compact=True),
            TextColumn("left"),
        )
        # stdout is left alone: it may be a pipe full of results
        self._bar = RichProgress(
            *columns, console=Console(file=self._stream), redirect_stdout=False, speed_estimate_period=120
        )
        task = self._bar.add_task(title, total=1.0, facts="")
        self._bar.update(task, completed=fraction)
        self._bar.start()
        self._move_log_records()

    def update(self, fraction: float, facts: Mapping[str, str] | None = None) -> None:
        if self._bar is None:
            return
        task = self._bar.task_ids[0]
        if facts is None:
            self._bar.update(task, completed=fraction)
        else:
            self._bar.update(task, completed=fraction, facts="  ".join(f"{n} {v}" for n, v in facts.items()))

    def stop(self) -> None:
        if self._bar is None:
            return
        for handler, stream in self._moved:
            handler.setStream(stream)
        self._moved = []
        self._bar.stop()
        self._bar = None

    def _move_log_records(self) -> None:
        """Handlers that hold the real stream would write into the bar; the live display offers one that does not."""
        for handler in logging.getLogger(logs.ROOT).handlers:
            # a FileHandler is a StreamHandler too, and is no concern of the terminal's
            if isinstance(handler, logging.StreamHandler) and handler.stream is self._stream:
                self._moved.append((handler, self._stream))
                handler.setStream(sys.stderr)


def progress(stream: TextIO | None = None) -> Progress:
    """A bar where `stream` (stderr by default) is a terminal, plain lines elsewhere."""
    stream = sys.stderr if stream is None else stream
    return BarProgress(stream) if stream.isatty() else PlainProgress(stream)


def duration(seconds: float) -> str:
    """`1:02:03`, or `2:03` below an hour."""
    whole = max(0, round(seconds))
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, title: str = "", stream: TextIO) -> None:
    """Print a table: drawn on a terminal, aligned plain text elsewhere. Columns of numbers stand to the right."""
    if not stream.isatty():
        print("\n".join([title] * bool(title) + [plain_table(columns, rows)]), file=stream)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title) if title else None, title_justify="left")
    for name, right in zip(columns, _right(columns, rows), strict=True):
        table.add_column(Text(name), justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    Console(file=stream).print(table)


def plain_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in aligned text, two spaces between columns, no trailing space."""
    widths = [max(_width(cell) for cell in cells) for cells in zip(columns, *rows, strict=True)]
    right = _right(columns, rows)
    rule = ["-" * width for width in widths]
    lines = [_aligned(row, widths, right) for row in (columns, rule, *rows)]
    return "\n".join("  ".join(line).rstrip() for line in lines)


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in GitHub's Markdown."""
    right = _right(columns, rows)
    rule = ["---:" if flag else "---" for flag in right]
    safe = [[re.sub(r"\s+", " ", cell).replace("|", "\\|") for cell in row] for row in (columns, *rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (safe[0], rule, *safe[1:]))


def csv_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in CSV (RFC 4180 quoting, lines end in a plain newline)."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([columns, *rows])
    return out.getvalue()


def _right(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[bool]:
    """Which columns hold nothing but numbers."""
    filled = [[row[i] for row in rows if row[i] not in _EMPTY] for i in range(len(columns))]
    return [bool(cells) and all(_NUMBER.fullmatch(cell) for cell in cells) for cells in filled]


def _aligned(row: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> list[str]:
    gaps = [" " * (width - _width(cell)) for cell, width in zip(row, widths, strict=True)]
    return [gap + cell if flag else cell + gap for cell, gap, flag in zip(row, gaps, right, strict=True)]


def _width(text: str) -> int:
    """Terminal cells of a text: East Asian wide characters take two, combining marks none."""
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(unicodedata.combining(c) != 0 for c in text)
