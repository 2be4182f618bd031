"""Predict the next target token, given the source and the target before it."""

from __future__ import annotations

import math
from typing import cast

from torch import nn

from transformer_kit.batch import Batch, Specials
from transformer_kit.errors import ConfigError
from transformer_kit.models.base import Model
from transformer_kit.nn.consistency import paired_cross_entropy
from transformer_kit.nn.cross_entropy import Spread
from transformer_kit.objectives.base import Sums
from transformer_kit.objectives.tokens import TokenObjective, counted


class Translation(TokenObjective):
    """−log p(target | source), token by token, with an encoder–decoder.

    With `rdrop`, in training, each batch passes twice under different dropout, in one forward pass of twice the rows,
    and the two distributions of each target token are drawn together: ½ (CE₁ + CE₂) + ½ α KL
    (`nn/consistency.py`). Counts and metrics stay those of the batch; `nll` and `correct` are means of the passes.

    Args:
        specials, label_smoothing, smoothing_over, chunk: as in `TokenObjective`.
        rdrop: α, at least 0 and finite; 0 is a single pass. The paper takes 5 for translation.

    Raises:
        ConfigError: an option out of its range.

    Source: Vaswani et al. 2017, section 5; `rdrop`: Liang et al. 2021, equations 2 to 4.
    """

    reads = "pairs"
    families = frozenset({"encoder_decoder"})

    def __init__(
        self, specials: Specials, label_smoothing: float, smoothing_over: Spread, chunk: int, rdrop: float
    ) -> None:
        super().__init__(specials, label_smoothing, smoothing_over, chunk)
        if not 0 <= rdrop < math.inf:
            raise ConfigError(f"objective.rdrop={rdrop}: must be at least 0 and finite")
        self.rdrop = rdrop

    def forward(self, model: nn.Module, batch: Batch) -> Sums:
        if not (self.rdrop and self.training):
            return super().forward(model, batch)
        model = cast(Model, model)
        states, labels = counted(self.hidden(model, twice := batch.repeated(2)), twice)
        first, second = model.prepare(states).chunk(2)
        weight, bias = model.output()
        loss, nll, correct, _ = paired_cross_entropy(
            first,
            second,
            weight,
            bias,
            labels[: len(first)],
            self.label_smoothing,
            self.smoothing_over,
            self.specials.pad,
            self.chunk,
            self.rdrop,
        )
        return Sums(loss, batch.num_labels, {"nll": nll, "correct": correct})
