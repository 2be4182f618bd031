from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from transformer_kit.batch import Batch, Specials
from transformer_kit.evaluation.perplexity import Likelihood, likelihood
from transformer_kit.evaluation.windows import ContextRule, Running, TextScores, window_batches
from transformer_kit.objectives.base import Sums
from transformer_kit.objectives.causal_lm import CausalLM

V = 11
SPECIALS = Specials(pad=0, bos=1, eos=2, unk=None, mask=None, sentinels=(), vocab_size=V, start=1)


def log_prob(context: tuple[int, ...], token: int) -> float:
    """A fixed random distribution over tokens for each context."""
    logits = np.random.default_rng([7, *context]).standard_normal(V)
    return float(logits[token] - math.log(np.exp(logits).sum()))


class Table(nn.Module):
    """Sums over counted cells of a batch; remembers how long the contexts were."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.contexts: list[int] = []
        self.tokens: list[int] = []


class TableObjective(nn.Module):
    def forward(self, model: Table, batch: Batch) -> Sums:
        total = 0.0
        for row, cell in batch.counted.nonzero().tolist():
            at = int(batch.target.at[row, cell])
            context = tuple(batch.target.ids[row, cell - at : cell + 1].tolist())
            label = int(batch.labels[row, cell])
            total += log_prob(context, label)
            model.contexts.append(len(context))
            model.tokens.append(label)
        nll = torch.tensor(-total, dtype=torch.float64)
        return Sums(nll, batch.num_labels, {"nll": nll, "correct": torch.tensor(0.0)})


def scored(texts: list[Running], rule: ContextRule, budget: int = 40) -> tuple[Likelihood, Table]:
    collate = CausalLM(SPECIALS, 0.0, "all", 99).collate
    model = Table()
    return likelihood(model, TableObjective(), window_batches(texts, rule, collate, budget)), model


def text(length: int, seed: int = 1) -> Running:
    return Running(np.random.default_rng(seed).integers(3, V, length), None)


@pytest.mark.parametrize("tokens", [2, 5, 6, 7, 12, 13, 29])
@pytest.mark.parametrize(("length", "stride"), [(6, 6), (6, 1), (6, 2), (6, 4), (1, 1), (50, 50), (50, 3)])
def test_each_token_but_the_first_is_scored_once_with_the_context_of_the_rule(
    tokens: int, length: int, stride: int
) -> None:
    running = text(tokens)
    found, model = scored([running], ContextRule(length, stride))
    expected, contexts = 0.0, []
    for at in range(1, tokens):
        window = (at - 1) // stride  # which window predicts token `at`
        start = max(0, (window + 1) * stride - length)
        expected -= log_prob(tuple(running.ids[start:at].tolist()), int(running.ids[at]))
        contexts.append(at - start)
    assert found.tokens == tokens - 1
    assert found.nll == pytest.approx(expected)
    assert sorted(model.contexts) == sorted(contexts)
    assert max(model.contexts) <= length
    if stride == 1 and tokens > length:
        assert model.contexts.count(length) == tokens - length


def test_budget_changes_nothing_and_is_kept() -> None:
    texts = [text(29), text(7, 2), text(1, 3), text(13, 4)]
    rule = ContextRule(6, 2)
    whole, _ = scored(texts, rule, 10_000)
    for budget in (1, 13, 40):
        assert scored(texts, rule, budget)[0].nll == pytest.approx(whole.nll)
    collate = CausalLM(SPECIALS, 0.0, "all", 99).collate
    batches = list(window_batches(texts, rule, collate, 13))
    assert all(batch.target.ids.numel() <= 13 for batch in batches)
    ids = torch.cat([batch.sample_ids for batch in batches]).tolist()
    assert ids == list(range(len(ids)))


def test_documents_that_see_themselves_alone_are_scored_as_by_themselves() -> None:
    parts = [text(n, n).ids for n in (5, 4, 9)]
    joined = Running(np.concatenate(parts), np.repeat([0, 1, 2], [5, 4, 9]))
    together, _ = scored([joined], ContextRule(50, 50))
    apart, _ = scored([Running(part, None) for part in parts], ContextRule(50, 50))
    assert together.tokens == apart.tokens == 15  # the first token of a document is predicted by nothing
    assert together.nll == pytest.approx(apart.nll)


def test_bits() -> None:
    scores = TextScores(Likelihood(0.0, 8 * math.log(2), 0, 4), 16, 32, "rule")
    assert scores.bits_per_character == pytest.approx(0.5)
    assert scores.bits_per_byte == pytest.approx(0.25)


def test_a_rule_says_what_it_is() -> None:
    assert str(ContextRule(64, 64)) == "windows of 64 tokens, none overlapping"
    assert str(ContextRule(64, 16)) == (
        "windows of 64 tokens, stride 16: each predicts its last 16, from up to 48 before them and each other"
    )
