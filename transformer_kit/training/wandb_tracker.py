"""Weights & Biases, kept at a distance: a process of its own, fed by a thread from a queue that never fills up memory.

Whatever happens there (no key, no network, an error, a call that never returns), training neither waits nor ends: there
is one warning, and the tracker is off.
"""

from __future__ import annotations

import json
import os
import queue
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from transformer_kit.logs import get_logger
from transformer_kit.training.tracker import Row, numbers
from transformer_kit.training.tracker_options import WandbOptions

log = get_logger(__name__)

FOLDER = "wandb"  # in the run's folder; wandb itself chooses it
RUN_ID = "run_id"
SCRIPT = Path(__file__).with_name("wandb_process.py")
MOST_ROWS = 10_000
"""Rows that wait while wandb does not take them; later ones are lost to it."""

PATIENCE, SHORT_PATIENCE = 30.0, 5.0
"""Seconds at the end, when the run folder is complete, in which wandb may finish; the second where training failed or
was stopped, or where wandb has not even started for the whole session."""


class Wandb:
    """One session of a run, begun with `rewind`. Every session of a run has the same id.

    Args:
        options: see `tracker_options.py`.
        config: shown beside the run; it leaves this machine, so environment values are not in it.
        folder: the run's.
    """

    def __init__(self, options: WandbOptions, config: Mapping[str, Any], folder: Path) -> None:
        self._options, self._config, self._folder = options, config, folder
        self._queue: queue.Queue[dict[str, Any] | None] = queue.Queue(MOST_ROWS)
        self._process: subprocess.Popen[str] | None = None
        self._begun: float | None = None  # when, by the monotonic clock
        self._started = self._off = False
        self._ended = threading.Event()
        self._lock = threading.Lock()

    def rewind(self, step: int, validated: int) -> None:
        """Begin. The rows have an axis of their own, so those of a lost stretch may come again."""
        options = self._options
        self._put(
            {
                "project": options.project,
                "entity": options.entity,
                "group": options.group,
                "name": options.name or self._folder.name,
                "tags": options.tags,
                "mode": options.mode,
                "id": self._run_id(),
                "dir": str(self._folder),
                "config": dict(self._config),
            }
        )
        self._begun = time.monotonic()
        threading.Thread(target=self._feed, name="wandb", daemon=True).start()

    def add(self, row: Row) -> None:
        self._put({"row": {"step": row["step"], **numbers(row)}})

    def finish(self, result: Mapping[str, Any] | None) -> None:
        """Give wandb a moment to end.

        Args:
            result: of the run; None: the session ended without one.
        """
        if self._begun is None:
            return
        self._put({"summary": _flat(result or {}), "code": int(result is None)})
        self._put(None)
        waited = 0.0 if self._started else time.monotonic() - self._begun
        patience = SHORT_PATIENCE if result is None else max(SHORT_PATIENCE, PATIENCE - waited)
        if not self._ended.wait(patience):
            self._give_up("it did not end" if self._started else "it did not start")
        if self._process is not None:
            self._end(self._process)

    def _end(self, process: subprocess.Popen[str]) -> None:
        """Let the process go, or make it."""
        try:
            process.wait(0.0 if self._off else SHORT_PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _run_id(self) -> str:
        path = self._folder / FOLDER / RUN_ID
        if not path.is_file():
            path.parent.mkdir(exist_ok=True)
            path.write_text(secrets.token_hex(4) + "\n", encoding="utf-8")
        return path.read_text(encoding="utf-8").strip()

    def _put(self, message: dict[str, Any] | None) -> None:
        if self._off:
            return
        try:
            self._queue.put_nowait(message)
        except queue.Full:
            self._give_up(f"it has not taken the last {MOST_ROWS:,} rows")

    def _feed(self) -> None:
        """The thread: start the process and hand it what is in the queue, however long each takes."""
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(SCRIPT)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                encoding="utf-8",
                start_new_session=True,  # Ctrl-C is for the training, which then says what becomes of this
            )
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            threading.Thread(target=self._listen, args=(self._process.stdout,), daemon=True).start()
            with self._process.stdin as pipe:
                while (message := self._queue.get()) is not None and not self._off:
                    pipe.write(json.dumps(message) + "\n")
                    pipe.flush()
        except (OSError, ValueError) as error:
            self._ended.wait(1.0)  # what it said before it went is the better reason
            self._give_up(str(error))

    def _listen(self, lines: IO[str]) -> None:
        for line in lines:
            said = json.loads(line)
            if "said" in said:
                self._started = True
                log.info("%s", said["said"])
            elif "failed" in said:
                self._give_up(said["failed"])
            else:
                self._ended.set()
        self._give_up("its process ended")

    def _give_up(self, why: str) -> None:
        with self._lock:
            if self._off or self._ended.is_set():
                return
            self._off = True
            log.warning("wandb is off for the rest of this session: %s", " ".join(why.split()))
            self._ended.set()


def _flat(result: Mapping[str, Any], at: str = "final") -> dict[str, Any]:
    """`{"final/scores/bleu": 30.0}`."""
    found: dict[str, Any] = {}
    for name, value in result.items():
        found |= _flat(value, f"{at}/{name}") if isinstance(value, Mapping) else {f"{at}/{name}": value}
    return found
