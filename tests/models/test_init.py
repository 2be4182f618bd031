"""Initialisation by role: ranges and spreads of what was drawn."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from transformer_kit.config.build import build_model
from transformer_kit.config.compose import compose
from transformer_kit.errors import ConfigError
from transformer_kit.models.base import Model
from transformer_kit.models.encoder_decoder import EncoderDecoder
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


def named(*overrides: str) -> Model:
    """A named model in a small size: width 128, inner width 256, 4 heads of 32, 4 layers a stack."""
    torch.manual_seed(1)
    overrides = ("data=demo", *overrides, "model/size=tiny", "model.max_length=97")
    return build_model(compose("train", overrides, check=False).model, 499)


def assert_spreads(model: nn.Module, expected: dict[str, float]) -> None:
    """Each matrix from a normal distribution of the spread that the first fitting end of its name says; biases zero,
    gains one."""
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert not parameter.any(), name
        elif parameter.dim() == 1:
            assert (parameter == 1).all(), name
        else:
            spread = next(value for end, value in expected.items() if name.endswith(end))
            tolerance = 4 / math.sqrt(2 * parameter.numel())
            assert abs(parameter.std().item() / spread - 1) < tolerance, name
            assert parameter.abs().max() > 1.9 * spread, f"{name}: a normal distribution has tails"


def test_gpt2_shrinks_what_enters_the_residual_stream() -> None:
    """By the root of the number of sub-layers of the stack: two a layer, three where a layer reads an encoder."""
    outputs = {"attention.out.weight": 0.02 / math.sqrt(8), "down.weight": 0.02 / math.sqrt(8)}
    assert_spreads(named("model=gpt2"), outputs | {"": 0.02})
    assert_spreads(named("model=gpt2", "model.tie=none"), outputs | {"": 0.02})
    model = named("model=encoder_decoder", "model.init=gpt2")
    assert isinstance(model, EncoderDecoder)
    assert_spreads(model.encoder, outputs | {"": 0.02})
    assert_spreads(model.decoder, {end: 0.02 / math.sqrt(12) for end in outputs} | {"": 0.02})


def test_bert_draws_every_matrix_alike() -> None:
    """Segments, positions, pooler and the head's transformation among them."""
    model = named("model=bert_base", "model/head=mlm")
    assert {"embedding.types.weight", "pooler.weight", "head.transform.weight", "encoder.position.table"} <= {
        name for name, _ in model.named_parameters()
    }
    assert_spreads(model, {"": 0.02})


def test_t5_draws_by_inputs_and_queries_by_their_width_too() -> None:
    for name in ("t5_small", "t5_v1_1_small"):
        model = named(f"model={name}")
        for module in model.modules():
            if isinstance(module, MultiHeadAttention):
                spreads = [matrix.std().item() for matrix in module.matrices()]
                expected = [(128 * 32) ** -0.5, 128**-0.5, 128**-0.5, 128**-0.5]
                assert all(abs(one / other - 1) < 0.03 for one, other in zip(spreads, expected, strict=True))
                with torch.no_grad():
                    module.matrices()[0].mul_(32**0.5)  # then all of the packed matrix is alike
        assert_spreads(model, {"embedding.weight": 1.0, "head.weight": 1.0, "down.weight": 256**-0.5, "": 128**-0.5})


def test_glorot_draws_a_head_of_its_own() -> None:
    assert_glorot(named("model=encoder_decoder", "model.tie=none").output()[0])
