"""Whether an update is sound: its loss and gradient finite, and not far above those of the updates before it.

Loss and norm are of all ranks together, so that every rank comes to the same decision without a word to the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

LENGTH = 128
"""So many updates are remembered; before there are as many, nothing is a spike."""

LEAST_LOSS, LEAST_NORM = 0.05, 0.5
"""The least standard deviations that count, by the mean. Small batches of unlike lengths have norms of three times the
mean in healthy training, and a loss that hardly varies any more has batches far above it by its own deviation."""


@dataclass(frozen=True)
class Fault:
    """Why an update is not made.

    Attributes:
        what: in words, a clause.
        spike: whether everything was finite.
    """

    what: str
    spike: bool = False


Judge = Callable[[float, float], Fault | None]
"""What is wrong with an update of this mean loss and this norm of the gradient; None: it is made."""


def not_finite(loss: float, norm: float) -> Fault | None:
    """The judge without a memory."""
    for name, value in (("loss", loss), ("gradient", norm)):
        if not math.isfinite(value):
            return Fault(f"the {name} is not finite")
    return None


@dataclass
class Recent:
    """The last updates that were made, oldest first; part of the run's state, so that a resumed run judges alike.

    Attributes:
        losses: mean losses.
        norms: norms of the gradient before clipping.
    """

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)

    def add(self, loss: float, norm: float) -> None:
        """Remember an update, and forget the oldest beyond `LENGTH`."""
        for values, value in ((self.losses, loss), (self.norms, norm)):
            values.append(value)
            del values[:-LENGTH]

    def judge(self, loss: float, norm: float, spike: float | None) -> Fault | None:
        """What is wrong with the next update: not finite, or more than `spike` standard deviations above the mean.

        Args:
            loss: the mean of the update.
            norm: of its gradient, before clipping.
            spike: standard deviations; None: nothing finite is wrong.
        """
        fault = not_finite(loss, norm)
        if fault is not None or spike is None or len(self.losses) < LENGTH:
            return fault
        for name, value, past, least in (
            ("loss", loss, self.losses, LEAST_LOSS),
            ("gradient's norm", norm, self.norms, LEAST_NORM),
        ):
            mean = math.fsum(past) / len(past)
            variance = math.fsum((each - mean) ** 2 for each in past) / len(past)
            deviation = max(math.sqrt(variance), least * abs(mean))
            if value - mean > spike * deviation:
                far = (value - mean) / deviation if deviation else math.inf
                return Fault(
                    f"the {name}, {value:.4g}, is {far:.3g} standard deviations above the mean of the last "
                    f"{len(past)} updates, {mean:.4g}",
                    spike=True,
                )
        return None
