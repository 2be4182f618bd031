"""Several points of a sweep at once on one machine, each in a process with its share of the cores and GPUs.

What a point prints goes to a file of its own; here one line tells that it began, and one how it ended.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from transformer_kit.console import duration
from transformer_kit.errors import Interrupted
from transformer_kit.logs import get_logger
from transformer_kit.tasks.children import STOPPED, Children

log = get_logger(__name__)

LOGS = "logs"  # in the folder of the sweep: what each point printed


@dataclass(frozen=True)
class Job:
    """A point to be trained.

    Attributes:
        label: what tells it from the others.
        name: of its run, and of the file that holds what it prints.
        overrides: as `tkit train` takes them.
    """

    label: str
    name: str
    overrides: tuple[str, ...]


Ended = Callable[[Job], Mapping[str, Any] | None]
"""What the `result.json` of a point holds, or None."""


def train_command(config_dirs: Sequence[str], overrides: Sequence[str]) -> list[str]:
    """The words that train one point in a process of its own."""
    folders = [word for path in config_dirs for word in ("--config-dir", path)]
    return [sys.executable, "-m", "transformer_kit.cli", "train", *folders, "--", *overrides]


def shares(workers: int, cores: int, gpus: Sequence[str]) -> list[dict[str, str]]:
    """The environment of each worker: its number of threads, and its GPUs where there are any.

    GPUs are dealt out in turn; workers beyond their number share them. One alone looks for itself what is free.
    """
    found = []
    for worker in range(workers):
        share = {} if workers == 1 else {"OMP_NUM_THREADS": str(max(1, cores // workers))}
        if gpus:
            own = list(gpus[worker::workers]) or [gpus[worker % len(gpus)]]
            share["CUDA_VISIBLE_DEVICES"] = ",".join(own)
        found.append(share)
    return found


def gpus_here() -> list[str]:
    """The GPUs that this process may use, as `CUDA_VISIBLE_DEVICES` names them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [name.strip() for name in named.split(",") if name.strip()]
    import torch

    return [str(index) for index in range(torch.cuda.device_count())]


class Pool:
    """Workers that train points; a context, as its processes have to be told when the sweep is stopped.

    Args:
        environments: one worker each; see `shares`.
        config_dirs: the user's folders.
        folder: of the sweep.
        ended: reads a point's result.
        metric: the score that is told when a point ends.
    """

    def __init__(
        self,
        environments: Sequence[Mapping[str, str]],
        config_dirs: Sequence[str],
        folder: Path,
        ended: Ended,
        metric: str,
    ) -> None:
        self.size = len(environments)
        self._free: SimpleQueue[Mapping[str, str]] = SimpleQueue()
        for environment in environments:
            self._free.put(environment)
        self._config_dirs = config_dirs
        self._folder = folder
        self._ended = ended
        self._metric = metric
        self._children = Children()

    def __enter__(self) -> Pool:
        (self._folder / LOGS).mkdir(parents=True, exist_ok=True)
        self._children.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._children.__exit__(*error)

    @property
    def stopped(self) -> bool:
        """Whether the user asked to stop."""
        return self._children.asked is not None

    def train(self, job: Job) -> None:
        """Train one point on a free worker; called by as many threads as there are workers."""
        if self.stopped:
            return
        environment = self._free.get()
        output = self._folder / LOGS / f"{job.name}.log"
        try:
            log.info("begins: %s  (%s)", job.label, output)
            code = self._children.run(train_command(self._config_dirs, job.overrides), environment, output)
        finally:
            self._free.put(environment)
        if code != STOPPED:
            self._tell(job, code, output)

    def run(self, jobs: Sequence[Job]) -> None:
        """Train all, as many at once as there are workers.

        Raises:
            Interrupted: the user stopped the sweep; every point that trained has saved its state.
        """
        with ThreadPoolExecutor(self.size) as threads:
            for future in [threads.submit(self.train, job) for job in jobs]:
                future.result()
        self.check()

    def check(self) -> None:
        """Raises:
        Interrupted: the user stopped the sweep.
        """
        if self.stopped:
            raise Interrupted("stopped: the same command goes on from where each point is")

    def _tell(self, job: Job, code: int, output: Path) -> None:
        result = self._ended(job) or {}
        if code == 0 and result.get("status") == "complete":
            score = result["scores"].get(self._metric)
            said = "" if score is None else f"{self._metric} {score:.4g}, "
            log.info("done:   %s  (%s%s)", job.label, said, duration(result["seconds"]))
        elif code == Interrupted.exit_code or self.stopped:
            log.info("stopped: %s", job.label)
        else:
            why = str(result.get("error", f"exit code {code}")) if result.get("status") == "failed" else _last(output)
            log.error("failed: %s  (%s; %s)", job.label, why or f"exit code {code}", output)


def _last(output: Path) -> str:
    """The last line that a process printed."""
    lines = output.read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
