from __future__ import annotations

import pytest
import torch
from torch import Tensor

from transformer_kit.nn.norm.base import Norm
from transformer_kit.nn.norm.layernorm import LayerNorm
from transformer_kit.nn.residual.base import Residual
from transformer_kit.nn.residual.post import PostNorm
from transformer_kit.nn.residual.pre import PreNorm


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


@pytest.mark.parametrize("kind", [PostNorm, PreNorm])
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
