from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from transformer_kit.errors import ConfigError
from transformer_kit.nn.feedforward.activations import ACTIVATIONS
from transformer_kit.nn.feedforward.base import FeedForward
from transformer_kit.nn.feedforward.dense import Dense
from transformer_kit.nn.feedforward.gated import Gated


def gelu(x: Tensor) -> Tensor:
    return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def gelu_tanh(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


FORMULAS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": lambda x: torch.where(x > 0, x, 0.0),
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "silu": lambda x: x / (1 + torch.exp(-x)),
    "sigmoid": lambda x: 1 / (1 + torch.exp(-x)),
    "identity": lambda x: x,
}


def drawn(layer: FeedForward) -> FeedForward:
    with torch.no_grad():
        for parameter in layer.double().parameters():
            parameter.normal_()
    return layer


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", FORMULAS)
def test_dense_is_its_formula(activation: str, bias: bool) -> None:
    torch.manual_seed(1)
    layer = drawn(Dense(5, 11, 0.0, activation, bias))
    x = torch.randn(2, 3, 5, dtype=torch.float64)
    own = dict(layer.named_parameters())
    inner = x @ own["up.weight"].T + own.get("up.bias", torch.zeros(()))
    expected = FORMULAS[activation](inner) @ own["down.weight"].T + own.get("down.bias", torch.zeros(()))
    result, sums = layer(x)
    torch.testing.assert_close(result, expected)
    assert sums == {}
    assert len(own) == (4 if bias else 2)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", FORMULAS)
def test_gated_is_its_formula(activation: str, bias: bool) -> None:
    torch.manual_seed(1)
    layer = drawn(Gated(5, 11, 0.0, activation, bias))
    assert isinstance(layer, Gated)
    x = torch.randn(2, 3, 5, dtype=torch.float64)
    w, v, w2 = layer.matrices()
    assert (w.shape, v.shape, w2.shape) == ((11, 5), (11, 5), (5, 11))
    b, c = (0.0, 0.0) if layer.up_bias is None else layer.up_bias.chunk(2)
    b2 = 0.0 if layer.down.bias is None else layer.down.bias
    expected = (FORMULAS[activation](x @ w.T + b) * (x @ v.T + c)) @ w2.T + b2
    torch.testing.assert_close(layer(x)[0], expected)
    assert len(list(layer.parameters())) == (4 if bias else 2)


@pytest.mark.parametrize("kind", [Dense, Gated])
def test_dropout_falls_on_the_inner_activation(kind: type[Dense] | type[Gated]) -> None:
    """With the output matrix the identity, each element is 0 or the undropped one / 0.7."""
    torch.manual_seed(1)
    layer = kind(7, 7, 0.3, "silu", False)
    torch.nn.init.eye_(layer.down.weight)
    x = torch.randn(5, 31, 7)
    got, whole = layer.train()(x)[0], layer.eval()(x)[0]
    dropped = got == 0
    assert 0.2 < dropped.double().mean() < 0.4
    torch.testing.assert_close(got[~dropped], whole[~dropped] / 0.7)


def test_every_activation_has_its_formula_here() -> None:
    assert set(FORMULAS) == set(ACTIVATIONS)


@pytest.mark.parametrize("kind", [Dense, Gated])
def test_unknown_activation_is_named(kind: type[Dense] | type[Gated]) -> None:
    with pytest.raises(ConfigError, match=r"activation=swish.*relu, gelu, gelu_tanh, silu"):
        kind(5, 11, 0.0, "swish", True)
