"""Logging: everything that a program says about itself goes to stderr, and to the run's `train.log` once it is open."""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from transformer_kit.errors import Interrupted

ROOT = "transformer_kit"


def get_logger(name: str) -> logging.Logger:
    """The logger of one module; pass `__name__`."""
    return logging.getLogger(name if name.startswith(ROOT) else f"{ROOT}.{name}")


def setup(level: int = logging.INFO) -> None:
    """Send the toolkit's records to stderr as plain lines; calling it again changes the level only."""
    root = logging.getLogger(ROOT)
    root.setLevel(level)
    root.propagate = False
    if not any(getattr(handler, "tkit_console", False) for handler in root.handlers):
        handler = _Console(sys.stderr)
        handler.setFormatter(logging.Formatter("%(message)s"))
        handler.tkit_console = True  # type: ignore[attr-defined]  # marks the one handler that is ours
        root.addHandler(handler)


def _pass_on_a_stop() -> None:
    """Raise the Interrupted that a signal raised in the midst of writing a line, which is no fault of the log."""
    error = sys.exc_info()[1]
    if isinstance(error, Interrupted):
        raise error


class _Console(logging.StreamHandler[TextIO]):
    def handleError(self, record: logging.LogRecord) -> None:
        _pass_on_a_stop()
        super().handleError(record)


class _RunLog(logging.FileHandler):
    """A log file; where it cannot be written (a full disk), that is said once, and the program goes on."""

    _told = False

    def handleError(self, record: logging.LogRecord) -> None:
        _pass_on_a_stop()
        if not self._told:
            print(f"{self.baseFilename}: lines of the log are lost: {sys.exc_info()[1]}", file=sys.stderr)
        self._told = True


def add_file(path: Path) -> logging.Handler:
    """Append records to `path` with a time stamp as well; returns the handler for `remove`."""
    handler = _RunLog(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.getLogger(ROOT).addHandler(handler)
    return handler


def remove(handler: logging.Handler) -> None:
    """Detach and close a handler that `add_file` returned."""
    logging.getLogger(ROOT).removeHandler(handler)
    with suppress(OSError):  # lines that found no room are lost, as was said
        handler.close()
