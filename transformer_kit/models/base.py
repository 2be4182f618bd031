"""What the families of models have in common: hidden states out, and a head that turns them into logits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from transformer_kit.batch import Batch, Tokens
from transformer_kit.models.heads import Head


@dataclass(frozen=True)
class ModelOutput:
    """What a model returns: hidden states, not logits, so that a loss can project in chunks and where it counts.

    Attributes:
        hidden: (B, T, D).
        aux: auxiliary sums for the loss, by name.
    """

    hidden: Tensor
    aux: dict[str, Tensor] = field(default_factory=dict)


class Model(nn.Module):
    """A Transformer of some family.

    Attributes:
        family: the name that configurations know it by.
        head: from hidden states to logits.
    """

    family: ClassVar[str]
    head: Head

    @property
    def dim(self) -> int:
        """D, the width of the hidden states."""
        raise NotImplementedError

    def forward(self, batch: Batch) -> ModelOutput:
        """The states that predict `batch.labels`: (B, T, D)."""
        raise NotImplementedError

    def read(self, tokens: Tokens) -> ModelOutput:
        """The states of one input, each in its context: (B, L) ids -> (B, L, D). An encoder's where there is one."""
        raise NotImplementedError

    def prepare(self, hidden: Tensor) -> Tensor:
        """What the head does before its projection: (..., D) -> (..., D)."""
        return self.head.prepare(hidden)

    def output(self) -> tuple[Tensor, Tensor | None]:
        """Weight (V, D) and bias (V,) or None of the projection to logits; it takes what `prepare` gives."""
        return self.head.output()

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., D) -> (..., V)."""
        return F.linear(self.prepare(hidden), *self.output())
