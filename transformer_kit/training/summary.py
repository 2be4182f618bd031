"""What is known of a training when it ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from transformer_kit.training.state import Interval, RunState


@dataclass(frozen=True)
class Summary:
    """How a training ended.

    Attributes:
        reason: steps, tokens, epochs, minutes or patience.
        seconds: wall-clock time of all sessions.
        tokens_per_second: target tokens of this session by the time spent in updates.
        update_seconds: this time.
        padding_efficiency: the share of this session's cells that were no padding; None without updates.
        flops_per_token: operations of its matrix products for a target token (`models/flops.py`); None: not known.
        skipped: updates that were not made: not finite, or a spike.
        spikes: the latter.
        oom_splits: batches that were halved because memory ran out.
        scores: the last validation.
        best, best_step: the best score of `best_metric`; None where there was none.
    """

    reason: str
    step: int
    tokens: int
    epochs: int
    seconds: float
    tokens_per_second: float
    update_seconds: float
    padding_efficiency: float | None
    flops_per_token: float | None
    skipped: int
    spikes: int
    oom_splits: int
    scores: Mapping[str, float]
    best: float | None
    best_step: int

    @classmethod
    def of(
        cls,
        reason: str,
        state: RunState,
        session: Interval,
        epochs: int,
        flops_per_token: float | None,
        scores: Mapping[str, float],
    ) -> Summary:
        """From the state of the run and the sums of its last session."""
        return cls(
            reason=reason,
            step=state.step,
            tokens=state.tokens,
            epochs=epochs,
            seconds=state.seconds,
            tokens_per_second=session.labels / session.seconds if session.seconds else 0.0,
            update_seconds=session.seconds,
            padding_efficiency=session.real / session.cells if session.cells else None,
            flops_per_token=flops_per_token,
            skipped=state.skipped,
            spikes=state.spikes,
            oom_splits=state.oom_splits,
            scores=scores,
            best=state.best,
            best_step=state.best_step,
        )
