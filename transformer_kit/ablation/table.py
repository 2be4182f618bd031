"""The table of a sweep: one row a point, with how sure its difference from the first row is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from transformer_kit.ablation.grid import Outcome, Point
from transformer_kit.evaluation.bleu import Metric
from transformer_kit.evaluation.significance import paired_bootstrap

SAMPLES = 1000
SEED = 1


@dataclass(frozen=True)
class Row:
    """A point, its outcome, and its comparison with the first row.

    Attributes:
        difference: BLEU minus the first row's; None for the first row, and without hypotheses of both.
        p_value: the probability of so large a difference if there were none.
    """

    point: Point
    outcome: Outcome
    difference: float | None = None
    p_value: float | None = None

    @property
    def mark(self) -> str:
        """`**` below 1 %, `*` below 5 %."""
        if self.p_value is None:
            return ""
        return "**" if self.p_value < 0.01 else "*" if self.p_value < 0.05 else ""


def make_rows(
    points: Sequence[Point], outcomes: Sequence[Outcome], references: Sequence[Sequence[str]], metric: Metric | None
) -> list[Row]:
    """One row a point, in order.

    Args:
        references: of the sentences that the hypotheses translate; one list a reference translation.
        metric: which the BLEU scores were computed with; None where nothing was translated.

    Source: paired bootstrap, Koehn 2004; each row is compared with the first alone.
    """
    rows = []
    baseline = outcomes[0].hypotheses if outcomes else None
    for point, outcome in zip(points, outcomes, strict=True):
        if point.order == 0 or baseline is None or outcome.hypotheses is None or metric is None:
            rows.append(Row(point, outcome))
            continue
        compared = paired_bootstrap(baseline, outcome.hypotheses, references, metric, samples=SAMPLES, seed=SEED)
        rows.append(Row(point, outcome, compared.difference.value, compared.p_value))
    return rows
