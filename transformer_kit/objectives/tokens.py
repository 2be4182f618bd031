"""The loss that all objectives over a vocabulary share."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from transformer_kit.batch import Batch, Specials
from transformer_kit.errors import ConfigError
from transformer_kit.models.base import Model
from transformer_kit.models.encoder_only import EncoderOnly
from transformer_kit.nn.cross_entropy import SPREADS, Spread, entropy, linear_cross_entropy, smoothed_target
from transformer_kit.objectives.base import Objective, Sums


class TokenObjective(Objective):
    """−Σ_t Σ_j q_j log p(j | …) over the counted cells alone: others are not even projected.

    Perplexity comes from `metrics["nll"]`, which knows no smoothing.

    Args:
        specials: of the vocabulary that is predicted.
        label_smoothing: ε, 0 <= ε < 1.
        smoothing_over: all, others or others_but_pad; what ε is spread over (`nn/cross_entropy.py`).
        chunk: tokens projected to logits at a time, at least 1; chunk × V logits are held.

    Raises:
        ConfigError: an option out of its range.

    Source: Vaswani et al. 2017, section 5.4; Szegedy et al. 2016, section 7.
    """

    def __init__(self, specials: Specials, label_smoothing: float, smoothing_over: Spread, chunk: int) -> None:
        super().__init__()
        problems = []
        if not 0 <= label_smoothing < 1:
            problems.append(f"objective.label_smoothing={label_smoothing}: must be at least 0 and below 1")
        if smoothing_over not in SPREADS:
            problems.append(f"objective.smoothing_over={smoothing_over}: must be one of {', '.join(SPREADS)}")
        if chunk < 1:
            problems.append(f"objective.chunk={chunk}: must be at least 1")
        if problems:
            raise ConfigError(problems)
        self.specials, self.chunk = specials, chunk
        self.label_smoothing, self.smoothing_over = label_smoothing, smoothing_over

    def adapt(self, model: Model, classes: int | None) -> Model:
        if isinstance(model, EncoderOnly) and model.pooler is not None:
            model.pooler.requires_grad_(False)  # it has no part in this, and ranks would wait for its gradient
        return model

    def check(self, model: Model) -> None:
        model.output()

    def floor(self, model: Model) -> float:
        size = model.output()[0].shape[0]
        return entropy(smoothed_target(size, self.label_smoothing, self.smoothing_over, self.specials.pad), size)

    def forward(self, model: nn.Module, batch: Batch) -> Sums:
        model = cast(Model, model)
        states, labels = counted(self.hidden(model, batch), batch)
        weight, bias = model.output()
        loss, nll, correct = linear_cross_entropy(
            model.prepare(states),
            weight,
            bias,
            labels,
            self.label_smoothing,
            self.smoothing_over,
            self.specials.pad,
            self.chunk,
        )
        return Sums(loss, batch.num_labels, {"nll": nll, "correct": correct})

    def hidden(self, model: Model, batch: Batch) -> Tensor:
        """The states that predict the labels: (B, T, D)."""
        return model(batch).hidden


def counted(hidden: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Hidden states and labels of the counted cells: (B, T, D) -> (N, D), (N,)."""
    if batch.num_labels == batch.labels.numel():
        return hidden.flatten(0, 1), batch.labels.flatten()
    places = batch.counted.flatten().nonzero().squeeze(1) if batch.places is None else batch.places
    return hidden.flatten(0, 1).index_select(0, places), batch.labels.flatten().index_select(0, places)
