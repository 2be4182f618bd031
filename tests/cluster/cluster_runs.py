"""Small trainings for a real Slurm, through the command line."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

TINY = [
    "+recipe=demo",
    *("model.d_model=16", "model.num_heads=2", "model.d_ff=28", "model.encoder.layers=1", "model.decoder.layers=1"),
    *("tokenizer.vocab_size=300", "data.batch.tokens=256", "trainer.validation.bleu=null", "trainer.log_every=1"),
    *("trainer.steps=6", "trainer.validate_every=3", "trainer.save_every=3", "schedule.warmup=2", "trainer.device=cpu"),
    *("trainer.threads=1", "data.workers=1"),
]


class Tkit:
    """The command line, in a folder of its own whose data are prepared once for all tests."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self.folder, self.cache = folder, cache

    def start(self, command: str, *words: str) -> subprocess.Popen[str]:
        given = [*TINY, f"data.cache='{self.cache}'", *words]
        return subprocess.Popen(
            [sys.executable, "-m", "transformer_kit.cli", command, *given],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
        )

    def __call__(self, command: str, *words: str) -> subprocess.CompletedProcess[str]:
        process = self.start(command, *words)
        output, error = process.communicate(timeout=240)
        return subprocess.CompletedProcess(process.args, process.returncode, output, error)

    def runs(self) -> list[str]:
        """The names of all runs."""
        return sorted(path.name for path in (self.folder / "runs").glob("*"))

    def run(self, name: str) -> Path:
        return self.folder / "runs" / name

    def status(self, name: str) -> str | None:
        """What the result of a run says, where it has one."""
        path = self.run(name) / "result.json"
        return str(json.loads(path.read_text())["status"]) if path.exists() else None

    def steps(self, name: str) -> list[int]:
        """The step of each training row of a run."""
        try:
            lines = (self.run(name) / "metrics.jsonl").read_text().split("\n")[:-1]  # whole ones
        except FileNotFoundError:
            return []
        return [row["step"] for row in map(json.loads, lines) if row["kind"] == "train"]


def until(true: Callable[[], object], seconds: float, what: Callable[[], str]) -> None:
    """Wait for something; tell what is there instead when it does not come."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, what()
        time.sleep(0.2)


def slurm(*words: str) -> str:
    """What a command of Slurm prints."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, f"{words}: {done.stderr}"
    return done.stdout.strip()
