"""What is learnt: an objective turns rows of data into a batch, and a model and a batch into sums.

Sums and counts travel; the loop divides once, by the global count, so accumulation, ranks and padding change nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from torch import Tensor, nn

from transformer_kit.batch import Batch
from transformer_kit.data.rows import LabelRows, TextRows
from transformer_kit.models.base import Model

DataKind = Literal["pairs", "documents", "labels"]


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
    """Called with the model, so that what wraps it (`training/step.py`) stays one module.

    Build-time facts, taken if the constructor names them: `specials`, the special ids of what the model predicts.

    Attributes:
        reads: the kind of data it learns from.
        families: the model families it can train.
    """

    reads: ClassVar[DataKind]
    families: ClassVar[frozenset[str]]

    def adapt(self, model: Model, classes: int | None) -> Model:
        """The model that is trained: the one given, or one around it.

        Args:
            model: as configured.
            classes: the number of labels in the data, where there are labels.
        """
        return model

    def check(self, model: Model) -> None:
        """Look at a model of one of its families, which may be without memory, before any work.

        Raises:
            ConfigError: it lacks what the objective needs.
        """

    def floor(self, model: Model) -> float:
        """The least mean loss that any model could have: the entropy of the smoothed labels, in nats; else 0."""
        return 0.0

    def longest(self, length: int, packed: bool) -> int:
        """The most cells of a row, source or target, that `collate` makes of documents.

        Args:
            length: `data.length`: the most tokens of a row that is not packed, one less than those of a block.
            packed: whether the rows are blocks.
        """
        return length

    def collate(self, rows: TextRows | LabelRows) -> Batch:
        """The batch of some rows. Pairs need none: `data/batching.py` makes theirs."""
        raise NotImplementedError

    def forward(self, model: nn.Module, batch: Batch) -> Sums:
        raise NotImplementedError
