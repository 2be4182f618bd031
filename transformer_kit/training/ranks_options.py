"""What a user may set about training on several ranks; the defaults stand in `conf/trainer`."""

from __future__ import annotations

import math
from dataclasses import dataclass

from transformer_kit.errors import ConfigError

PARALLEL = ("ddp", "fsdp")


@dataclass
class RanksOptions:
    """How the ranks of a run work together.

    Attributes:
        parallel: `ddp`: each holds the whole model; `fsdp`: each holds a part of every weight, gradient and moment.
        shard: fsdp: how many ranks hold one copy together, a divisor of all ranks (hybrid sharding: the copies are
            replicas); null: all of them.
        timeout: seconds without progress on any rank after which the job ends.
        restarts: how often the ranks of this machine start anew, from the last checkpoint, when one of them dies.
    """

    parallel: str
    shard: int | None
    timeout: float
    restarts: int

    def problems(self) -> list[tuple[str, str]]:
        found = []
        if self.parallel not in PARALLEL:
            found.append(("parallel", f"must be one of {', '.join(PARALLEL)}; not '{self.parallel}'"))
        if self.shard is not None:
            if self.parallel != "fsdp":
                found.append(("shard", f"is read by parallel=fsdp alone, not by {self.parallel}: leave it null"))
            elif self.shard < 1:
                found.append(("shard", f"must be at least 1, not {self.shard}"))
        if not (self.timeout > 0 and math.isfinite(self.timeout)):
            found.append(("timeout", f"must be a number above 0, not {self.timeout}"))
        if self.restarts < 0:
            found.append(("restarts", f"must be at least 0, not {self.restarts}"))
        return found

    def check(self, ranks: int) -> None:
        """Look at what depends on the number of ranks, which the configuration alone does not tell.

        Raises:
            ConfigError: they do not divide into copies.
        """
        if ranks > 1 and self.shard is not None and ranks % self.shard:
            raise ConfigError(f"trainer.ranks.shard: must be a divisor of the {ranks:,} ranks, not {self.shard}")
