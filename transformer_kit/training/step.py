"""One forward pass as one module: what is wrapped, moved and put in training mode as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from transformer_kit.batch import Batch
from transformer_kit.training.compiling import Compiler, as_padded

if TYPE_CHECKING:
    from transformer_kit.objectives.base import Sums


class Step(nn.Module):
    """Apply an objective to a model.

    Args:
        model: what is trained.
        objective: called as `objective(model, batch)`; returns sums over the counted labels.
        compiler: compiles the model's layers in training; None: they run as they are.
    """

    def __init__(self, model: nn.Module, objective: nn.Module, compiler: Compiler | None = None) -> None:
        super().__init__()
        self.model = model
        self.objective = objective
        self.compiler = compiler
        if compiler is not None:
            compiler.apply(model)

    def forward(self, batch: Batch) -> Sums:
        """The loss and metrics of one batch, as sums; the loop divides."""
        if self.compiler is not None:
            batch = as_padded(batch)
        sums: Sums = self.objective(self.model, batch)
        return sums
