"""How likely a model finds given targets: loss, perplexity and accuracy over real tokens, EOS included."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from transformer_kit.batch import Batch
from transformer_kit.errors import DataError


@dataclass(frozen=True)
class Likelihood:
    """Totals over a data set, and what is derived from them.

    Attributes:
        loss_sum: the objective's loss (label smoothing included), summed over tokens.
        nll: −Σ log p(token), in nats, without smoothing.
        correct: tokens that the model ranks first.
        tokens: real target tokens, EOS included.
    """

    loss_sum: float
    nll: float
    correct: int
    tokens: int

    @property
    def loss(self) -> float:
        """The objective's loss per token."""
        return self.loss_sum / self.tokens

    @property
    def perplexity(self) -> float:
        """exp(nll / tokens); infinite where that is beyond a float."""
        mean = self.nll / self.tokens
        return math.exp(mean) if mean < 700 else (math.nan if math.isnan(mean) else math.inf)

    @property
    def accuracy(self) -> float:
        """The share of tokens that the model ranks first, 0 to 1."""
        return self.correct / self.tokens


def likelihood(
    model: nn.Module,
    objective: nn.Module,
    batches: Iterable[Batch],
    combine: Callable[[Sequence[float]], Sequence[float]] = tuple,
) -> Likelihood:
    """Sum an objective over batches; the sums do not depend on how the data is cut into batches or ordered.

    Args:
        model: put into evaluation mode for the time, and back.
        objective: `(model, batch) -> Sums` with the metrics `nll` and `correct`.
        batches: each sample once.
        combine: adds the sums of several processes that share the batches.

    Raises:
        DataError: there is no token to count.
    """
    loss = nll = correct = 0.0
    tokens = 0
    device = next(model.parameters()).device
    was_training = model.training, objective.training
    model.eval()
    objective.eval()
    try:
        with torch.inference_mode():
            for batch in batches:
                sums = objective(model, batch.to(device))
                loss += float(sums.loss)
                nll += float(sums.metrics["nll"])
                correct += float(sums.metrics["correct"])
                tokens += int(sums.count)
    finally:
        model.train(was_training[0])
        objective.train(was_training[1])
    loss, nll, correct, count = combine((loss, nll, correct, float(tokens)))
    tokens = round(count)
    if not tokens:
        raise DataError("there are no target tokens to score: the data set is empty")
    return Likelihood(loss, nll, round(correct), tokens)
