"""What is learnt: an objective turns a model and a batch into sums.

Sums and counts travel; the loop divides once, by the global count, so accumulation, ranks and padding change nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor, nn

from transformer_kit.batch import Batch


@dataclass(frozen=True)
class Sums:
    """What one batch gives.

    Attributes:
        loss: scalar, the loss summed over the counted labels; differentiable.
        count: the number of counted labels.
        metrics: scalars summed over the counted labels, not differentiable: `nll`, the plain negative log-likelihood
            in nats, and `correct`, the number of labels predicted.
    """

    loss: Tensor
    count: int
    metrics: dict[str, Tensor] = field(default_factory=dict)


class Objective(nn.Module):
    """Called with the model, so that what wraps it (`training/step.py`) stays one module."""

    def forward(self, model: nn.Module, batch: Batch) -> Sums:
        raise NotImplementedError
