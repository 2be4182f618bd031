from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from transformer_kit.batch import Batch, Specials, translation_batch
from transformer_kit.errors import DataError
from transformer_kit.evaluation.perplexity import Likelihood, likelihood
from transformer_kit.models.base import ModelOutput
from transformer_kit.objectives.translation import Translation

PAD, BOS, EOS, VOCAB = 0, 2, 3, 29
SPECIALS = Specials(pad=0, bos=2, eos=3, unk=1, mask=None, sentinels=(), vocab_size=VOCAB, start=2)


class Unigrams(nn.Module):
    """p(label | token before it) from a table: small enough to know the answer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.table = nn.Embedding(VOCAB, 7)
        self.weight = nn.Parameter(torch.randn(VOCAB, 7))

    def forward(self, batch: Batch) -> ModelOutput:
        assert not self.training
        return ModelOutput(self.table(batch.target.ids))

    def prepare(self, hidden: Tensor) -> Tensor:
        return hidden

    def output(self) -> tuple[Tensor, Tensor | None]:
        return self.weight, None


def samples() -> list[list[int]]:
    rng = np.random.default_rng(5)
    return [rng.integers(1, VOCAB, rng.integers(0, 12)).tolist() for _ in range(23)]


def batches(order: list[int], size: int) -> list[Batch]:
    rows = samples()
    groups = [order[start : start + size] for start in range(0, len(order), size)]
    special = {"pad_id": PAD, "bos_id": BOS, "eos_id": EOS}
    return [translation_batch([[5]] * len(g), [rows[i] for i in g], g, **special) for g in groups]


def objective(smoothing: float = 0.1) -> Translation:
    return Translation(SPECIALS, smoothing, "all", 11, 0.0)


def by_hand(model: Unigrams) -> tuple[float, int, int]:
    """Σ nll in float64, correct tokens, tokens."""
    log_probs = (model.table.weight.double() @ model.weight.double().T).log_softmax(1).detach()
    pairs = [pair for row in samples() for pair in zip([BOS, *row], [*row, EOS], strict=True)]
    nll = -sum(float(log_probs[before, label]) for before, label in pairs)
    return nll, sum(int(log_probs[before].argmax()) == label for before, label in pairs), len(pairs)


@pytest.mark.parametrize("size", [1, 7, 23])
@pytest.mark.parametrize("shuffle", [False, True])
def test_equals_the_sum_by_hand_for_any_batch_size_and_order(size: int, shuffle: bool) -> None:
    model = Unigrams()
    order = np.random.default_rng(1).permutation(23).tolist() if shuffle else list(range(23))
    nll, correct, tokens = by_hand(model)
    found = likelihood(model, objective(), batches(order, size))
    assert found.tokens == tokens == sum(len(row) + 1 for row in samples())
    assert found.nll == pytest.approx(nll, rel=1e-6)
    assert found.perplexity == pytest.approx(math.exp(nll / tokens), rel=1e-6)
    assert found.accuracy == correct / tokens


def test_smoothing_changes_the_loss_but_not_the_perplexity() -> None:
    model = Unigrams()
    smooth, plain = (likelihood(model, objective(e), batches(list(range(23)), 5)) for e in (0.1, 0.0))
    assert smooth.perplexity == pytest.approx(plain.perplexity, rel=1e-6)
    assert plain.loss == pytest.approx(plain.nll / plain.tokens, rel=1e-6)
    assert smooth.loss != pytest.approx(plain.loss, rel=1e-3)


def test_the_model_returns_to_training_mode() -> None:
    model = Unigrams().train()
    likelihood(model, objective(), batches([0, 1], 2))
    assert model.training


def test_a_hopeless_model_has_infinite_perplexity() -> None:
    assert Likelihood(1.0, 1e6, 0, 10).perplexity == math.inf
    assert math.isnan(Likelihood(1.0, math.nan, 0, 10).perplexity)


def test_nothing_to_score_is_refused() -> None:
    with pytest.raises(DataError, match="no target tokens"):
        likelihood(Unigrams(), objective(), [])
