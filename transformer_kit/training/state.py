"""What a training run knows about itself: small, JSON-able, saved with each checkpoint."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from transformer_kit.errors import CheckpointError
from transformer_kit.training.health import Recent
from transformer_kit.training.options import METRICS, TrainerOptions


@dataclass
class Interval:
    """Sums since the last row of the log; kept in the state so that a resumed run writes the same rows.

    Attributes:
        real, cells: tokens, and cells with padding, of both sides.
        samples: a digest of the sample ids and of the order in which they were trained on.
    """

    updates: int = 0
    labels: int = 0
    real: int = 0
    cells: int = 0
    samples: int = 0
    loss: float = 0.0
    norm: float = 0.0
    seconds: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)

    def count(self, counts: Mapping[str, float]) -> None:
        """Add what `Window.counts` knows of a window, made or not."""
        self.real += int(counts["real"])
        self.cells += int(counts["cells"])
        self.samples = (self.samples * 1_000_003 + int(counts["samples"])) % 2**32

    def add(self, labels: int, loss: float, norm: float, metrics: Mapping[str, float]) -> None:
        """Add an update that was made."""
        self.updates += 1
        self.labels += labels
        self.loss += loss
        self.norm += norm
        for name, value in metrics.items():
            self.metrics[name] = self.metrics.get(name, 0.0) + value

    def row(self) -> dict[str, float | str]:
        """Means over the interval; divided here, once, by the number of labels.

        An objective's sum `nll` gives the perplexity exp(nll / labels), `correct` the accuracy.
        """
        labels = max(1, self.labels)
        means = {name: value / labels for name, value in self.metrics.items()}
        row: dict[str, float | str] = {"loss": self.loss / labels}
        if "nll" in means:
            row["perplexity"] = exp(means["nll"])
        if "correct" in means:
            row["accuracy"] = means.pop("correct")
        return {
            **row,
            **means,
            "grad_norm": self.norm / max(1, self.updates),
            "tokens_per_second": self.labels / self.seconds if self.seconds > 0 else 0.0,
            "padding_efficiency": self.real / max(1, self.cells),
            "samples": f"{self.samples:08x}",
        }


def exp(value: float) -> float:
    """e^value, infinite instead of an error where it is too large for a float."""
    return math.exp(value) if value < 700 else math.inf


@dataclass
class RunState:
    """Counters, the best score so far and how long ago it was; `interval` restarts at each row of the log.

    Attributes:
        step: updates made; a skipped one is none.
        tokens: real target tokens of these updates.
        skipped, skipped_in_a_row: windows of which no update was made.
        spikes: those of them whose loss and gradient were finite.
        oom_splits: batches that were halved because memory ran out.
        seconds: wall-clock time of all sessions.
        validated: the last step that was validated.
        best, best_step: the best score of `best_metric` and its step; None before there is one.
        without_gain: validations since then, of those that are due.
        recent: what the next update is judged by.
        metric: what `best` is a score of; None where that was not told.
    """

    step: int = 0
    tokens: int = 0
    skipped: int = 0
    skipped_in_a_row: int = 0
    spikes: int = 0
    oom_splits: int = 0
    seconds: float = 0.0
    validated: int = 0
    best: float | None = None
    best_step: int = 0
    without_gain: int = 0
    interval: Interval = field(default_factory=Interval)
    recent: Recent = field(default_factory=Recent)
    metric: str | None = None

    def judge(self, score: float, metric: str, *, due: bool = True) -> bool:
        """Record a validation score; is it the best so far? NaN and infinity never are.

        Args:
            due: by `validate_every`; one at the end of a session that was meant to be shorter costs no patience.
        """
        gain = math.isfinite(score) and (self.best is None or is_better(score, self.best, metric))
        if gain:
            self.best, self.best_step, self.without_gain = score, self.step, 0
        elif due:
            self.without_gain += 1
        return gain

    def choose_by(self, metric: str) -> None:
        """Scores are of this metric from now on: with another one's the best score and the patience are void."""
        if self.metric not in (None, metric):
            self.best, self.best_step, self.without_gain = None, 0, 0
        self.metric = metric

    def plain(self) -> dict[str, Any]:
        """As JSON-able data."""
        return asdict(self)

    @classmethod
    def load(cls, plain: Mapping[str, Any], origin: str) -> RunState:
        """From what `plain` gave, now or in a version that knew no spikes, or not the metric.

        Raises:
            CheckpointError: other keys or types; `origin` names the file.
        """
        try:
            interval, recent = Interval(**plain["interval"]), Recent(**plain.get("recent", {}))
            return cls(**{**plain, "interval": interval, "recent": recent})
        except (KeyError, TypeError) as error:
            raise CheckpointError(f"{origin}: not a state that this version wrote ({error})") from None


def is_better(score: float, than: float, metric: str) -> bool:
    """Compare two scores in the direction of their metric."""
    return score > than if METRICS[metric] == "higher" else score < than


class Budget:
    """When training ends by itself.

    Args:
        options: the budgets and the patience.
    """

    def __init__(self, options: TrainerOptions) -> None:
        self._limits = {
            "steps": options.steps,
            "tokens": options.tokens,
            "epochs": options.epochs,
            "minutes": options.minutes,
        }
        self._patience = options.patience

    def reached(self, state: RunState, epochs: int) -> str | None:
        """The name of a budget that is used up, or `patience`, or None."""
        for name, share in self._shares(state, epochs).items():
            if share >= 1:
                return name
        return "patience" if self._patience is not None and state.without_gain >= self._patience else None

    def fraction(self, state: RunState, epochs: int) -> float:
        """How much of the budget that ends first is used, in [0, 1]."""
        return min(1.0, max(self._shares(state, epochs).values(), default=0.0))

    def _shares(self, state: RunState, epochs: int) -> dict[str, float]:
        used = {"steps": state.step, "tokens": state.tokens, "epochs": epochs, "minutes": state.seconds / 60}
        return {name: used[name] / limit for name, limit in self._limits.items() if limit is not None}
