"""Initialisation by role: ranges and spreads of what was drawn."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from transformer_kit.errors import ConfigError
from transformer_kit.models.init import initialise
from transformer_kit.nn.attention import MultiHeadAttention
from transformer_kit.nn.embedding import TokenEmbedding
from transformer_kit.nn.feedforward.dense import Dense
from transformer_kit.nn.feedforward.gated import Gated
from transformer_kit.nn.norm.layernorm import LayerNorm


def assert_glorot(matrix: torch.Tensor) -> None:
    """Uniform between ± √(6 / (fan in + fan out)) of the matrix' own shape: within it, reaching it, filling it."""
    bound = math.sqrt(6 / sum(matrix.shape))
    assert bound * 0.98 < matrix.abs().max() <= bound
    assert abs(matrix.std().item() / (bound / math.sqrt(3)) - 1) < 0.05


def drawn(module: nn.Module) -> nn.Module:
    """Every parameter first spoilt, so that what is not drawn shows."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(9.0)
    torch.manual_seed(1)
    initialise(module, "glorot")
    return module


def test_packed_matrices_are_drawn_by_their_own_shapes() -> None:
    attention = MultiHeadAttention(
        61, 6, 11, 17, 0.0, num_kv_heads=2, bias=True, out_bias=True, scale=None, window=None, kernel="auto"
    )
    for module in (attention, Gated(61, 97, 0.0, "silu", True)):
        drawn(nn.Sequential(module))
        for matrix in module.matrices():
            assert_glorot(matrix)
    assert [tuple(m.shape) for m in attention.matrices()] == [(66, 61), (22, 61), (34, 61), (61, 102)]


def test_every_bias_starts_at_zero() -> None:
    attention = MultiHeadAttention(
        61, 6, 11, 17, 0.0, num_kv_heads=2, bias=True, out_bias=True, scale=None, window=None, kernel="auto"
    )
    for module in (attention, Dense(61, 97, 0.0, "relu", True), Gated(61, 97, 0.0, "silu", True)):
        for name, parameter in drawn(module).named_parameters():
            assert name.endswith("weight") or not parameter.any(), name


def test_plain_matrices_and_embeddings() -> None:
    dense = Dense(61, 97, 0.0, "relu", True)
    drawn(dense)
    assert_glorot(dense.up.weight)
    assert_glorot(dense.down.weight)
    embedding = TokenEmbedding(211, 61, scale=True)
    drawn(embedding)
    assert abs(embedding.weight.std().item() * math.sqrt(61) - 1) < 0.03
    assert embedding.weight.abs().max() > 3 / math.sqrt(61), "a normal distribution has tails"


def test_gains_stay_as_they_are_made() -> None:
    norm = LayerNorm(13, 1e-6, True)
    initialise(norm, "glorot")
    assert torch.equal(norm.weight, torch.ones(13))


def test_unknown_scheme_is_named() -> None:
    with pytest.raises(ConfigError, match=r"model\.init=magic: must be one of glorot"):
        initialise(nn.Linear(2, 3), "magic")
