"""What `result.json` of a complete run holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from transformer_kit.logs import get_logger
from transformer_kit.training.memory import peak_memory
from transformer_kit.training.precision import Precision
from transformer_kit.training.summary import Summary
from transformer_kit.training.throughput import product_rate

log = get_logger(__name__)

LEAST_SECONDS = 5.0  # of updates, before their speed is set beside a matrix product's


def utilisation(summary: Summary, precision: Precision, ranks: int) -> dict[str, Any]:
    """Peak memory, and the share of a matrix product's rate that the model's own operations reached.

    The rate is measured here and now, for a moment; a session of few updates says nothing and measures nothing.
    """
    facts: dict[str, Any] = {"peak_memory": peak_memory(precision.device), "product_rate": None, "mfu": None}
    if summary.flops_per_token is not None and summary.update_seconds >= LEAST_SECONDS:
        facts["product_rate"] = product_rate(precision) * ranks
        facts["mfu"] = summary.flops_per_token * summary.tokens_per_second / facts["product_rate"]
        log.info(
            "%.4g MFLOP a target token: %.1f %% of the %.4g GFLOP/s of a matrix product",
            summary.flops_per_token / 1e6,
            100 * facts["mfu"],
            facts["product_rate"] / 1e9,
        )
    return facts


def result_of(
    summary: Summary,
    parameters: int,
    kind: str,
    steps: list[int],
    digest: str,
    scores: Mapping[str, float],
    precision: Precision,
) -> dict[str, Any]:
    """What a complete run leaves.

    Args:
        summary: of its training.
        parameters: of the model, each once.
        kind, steps, digest: of the weights offered: how they were chosen, from which checkpoints, their SHA-256.
        scores: of these weights on the validation data.
        precision: of the forward pass.
    """
    facts = asdict(summary)
    facts["ended_by"] = facts.pop("reason")
    facts["last_scores"] = facts.pop("scores")
    return {
        "status": "complete",
        "parameters": parameters,
        "model": {"kind": kind, "steps": steps, "sha256": digest},
        "scores": dict(scores),
        "precision": precision.name,
        **facts,
    }
