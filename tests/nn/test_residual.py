from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from transformer_kit.nn.norm.base import Norm
from transformer_kit.nn.norm.layernorm import LayerNorm
from transformer_kit.nn.residual.base import Residual
from transformer_kit.nn.residual.post import PostNorm
from transformer_kit.nn.residual.pre import PreNorm
from transformer_kit.nn.residual.sandwich import SandwichNorm


def make_norm() -> Norm:
    norm = LayerNorm(5, 1e-6, True)
    torch.nn.init.normal_(norm.weight)
    return norm


def sublayer(x: Tensor) -> Tensor:
    return x.flip(-1) * 3 + 1


def test_post_is_the_norm_of_the_sum() -> None:
    x = torch.randn(2, 3, 5, dtype=torch.float64)
    residual = PostNorm(make_norm, 0.3).double().eval()
    torch.testing.assert_close(residual(x, sublayer), residual.norm(x + sublayer(x)))
    assert not residual.final_norm


def test_pre_leaves_the_shortcut_alone() -> None:
    x = torch.randn(2, 3, 5, dtype=torch.float64)
    residual = PreNorm(make_norm, 0.3).double().eval()
    torch.testing.assert_close(residual(x, sublayer), x + sublayer(residual.norm(x)))
    assert residual.final_norm


def test_sandwich_norms_on_both_sides_of_the_sublayer() -> None:
    x = torch.randn(2, 3, 5, dtype=torch.float64)
    residual = SandwichNorm(make_norm, 0.3).double().eval()
    before, after = residual.norm, residual.post_norm
    assert isinstance(before, LayerNorm)
    assert isinstance(after, LayerNorm)
    inner = sublayer(F.layer_norm(x, (5,), before.weight, before.bias, 1e-6))
    expected = x + F.layer_norm(inner, (5,), after.weight, after.bias, 1e-6)
    torch.testing.assert_close(residual(x, sublayer), expected)
    assert residual.final_norm


def test_sandwich_drops_before_its_second_norm() -> None:
    """What is added is normed also in training: each row has mean 0 and variance 1, dropped cells are alike."""
    torch.manual_seed(1)
    residual = SandwichNorm(lambda: LayerNorm(64, 1e-9, True), 0.3)
    x, y = torch.randn(7, 11, 64), torch.full((7, 11, 64), 3.0)
    added = residual(x, lambda _: y) - x
    torch.testing.assert_close(added.mean(-1), torch.zeros(7, 11), rtol=0, atol=1e-5)
    torch.testing.assert_close(added.var(-1, unbiased=False), torch.ones(7, 11), rtol=0, atol=1e-4)
    dropped = added < 0
    assert 0.2 < dropped.double().mean() < 0.4


@pytest.mark.parametrize("kind", [PostNorm, PreNorm, SandwichNorm])
def test_dropout_falls_on_the_sublayers_output_alone(kind: type[Residual]) -> None:
    """With a norm that does nothing, each element is x or x + y / 0.7."""

    class Nothing(Norm):
        def forward(self, x: Tensor) -> Tensor:
            return x

    torch.manual_seed(1)
    residual = kind(Nothing, 0.3)
    x, y = torch.randn(7, 11, 5), torch.ones(7, 11, 5)
    added = residual(x, lambda _: y) - x
    dropped = added.abs() < 1e-6
    assert 0.2 < dropped.double().mean() < 0.4
    torch.testing.assert_close(added[~dropped], torch.full_like(added[~dropped], 1 / 0.7))
