"""What a user may ask a cluster for; the defaults stand in `conf/cluster`, and a run without `+cluster=…` has none."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal


@dataclass
class ClusterOptions:
    """One job that trains one run.

    Attributes:
        kind: the scheduler.
        nodes: machines; each runs `trainer.devices` ranks.
        gpus: of each node.
        cpus: cores of each node; null: what the scheduler gives.
        memory: GB of each node; null: what the scheduler gives.
        minutes: the time limit. A job that reaches it saves, is queued again and goes on.
        grace: seconds before the limit at which the job is warned.
        partition, account, qos: as the scheduler names them; null: its own choice.
        wait: come back when the job has ended, not when it is submitted.
        setup: shell lines that run on the first node before the training.
        extra: further options of the scheduler: `+cluster.extra.constraint=a100`.
    """

    kind: Literal["slurm"]
    nodes: int
    gpus: int
    cpus: int | None
    memory: float | None
    minutes: int
    grace: int
    partition: str | None
    account: str | None
    qos: str | None
    wait: bool
    setup: list[str]
    extra: dict[str, Any]

    def problems(self) -> list[tuple[str, str]]:
        """What is wrong, as (key, message)."""
        found = []
        for key, least in (("nodes", 1), ("gpus", 0), ("cpus", 1), ("minutes", 1), ("grace", 1)):
            value = getattr(self, key)
            if value is not None and value < least:
                found.append((key, f"must be at least {least}, not {value}"))
        if self.memory is not None and not (self.memory > 0 and math.isfinite(self.memory)):
            found.append(("memory", f"must be a number of GB above 0, not {self.memory}"))
        if not found and self.grace >= 60 * self.minutes:
            found.append(("grace", f"must be less than the {60 * self.minutes} seconds of the job, not {self.grace}"))
        return found
