"""Attention with normed queries and keys against the formula, head by head; the rest is its base's and tested there."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from transformer_kit.nn.attention import SelfView
from transformer_kit.nn.kernels import Visibility
from transformer_kit.nn.mask import Mask
from transformer_kit.nn.norm.base import Norm
from transformer_kit.nn.norm.layernorm import LayerNorm
from transformer_kit.nn.norm.rmsnorm import RMSNorm
from transformer_kit.nn.position.rotary import Rotary
from transformer_kit.nn.qk_norm import QKNormAttention
from transformer_kit.nn.state import KeyValueCache

CPU = torch.device("cpu")
B, L, S, D, H, G, K, W = 3, 7, 11, 30, 4, 2, 6, 5


def layer_norm(width: int) -> Norm:
    return LayerNorm(width, 1e-5, True)


def rms_norm(width: int) -> Norm:
    return RMSNorm(width, 1e-5)


def attention(make: Callable[[int], Norm] = rms_norm) -> QKNormAttention:
    """In float64; the norms' gains differ from 1 and from each other."""
    torch.manual_seed(7)
    module = QKNormAttention(D, H, K, W, 0.0, make, G, True, True, None, None, "auto").double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=D**-0.5 if parameter.dim() == 2 else 0.3)
        for norm in (module.q_norm, module.k_norm):
            assert isinstance(norm, LayerNorm | RMSNorm)
            norm.weight.add_(2.0)
    return module.eval()


def normed(x: Tensor, norm: Norm) -> Tensor:
    """Of one head, by hand."""
    if isinstance(norm, LayerNorm):
        assert norm.bias is not None
        centred = x - x.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * norm.weight + norm.bias
    assert isinstance(norm, RMSNorm)
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * norm.weight


def by_hand(module: QKNormAttention, x: Tensor, memory: Tensor, at: Tensor | None, visible: Tensor) -> Tensor:
    """Head h reads group h // (H / G); norms before the turn."""
    weight, bias = module.qkv_weight, module.qkv_bias
    assert bias is not None
    q = (x @ weight[: H * K].T + bias[: H * K]).unflatten(-1, (H, K))
    k = (memory @ weight[H * K : (H + G) * K].T + bias[H * K : (H + G) * K]).unflatten(-1, (G, K))
    v = (memory @ weight[(H + G) * K :].T + bias[(H + G) * K :]).unflatten(-1, (G, W))
    mixed = []
    for h in range(H):
        g = h // (H // G)
        one, other = normed(q[:, :, h], module.q_norm), normed(k[:, :, g], module.k_norm)
        if at is not None:
            turned = Rotary(K, 1e4, "half").rotate(one[:, None], other[:, None], at, at)
            one, other = turned[0][:, 0], turned[1][:, 0]
        scores = one @ other.mT * K**-0.5
        mixed.append(scores.masked_fill(~visible, -torch.inf).softmax(-1) @ v[:, :, g])
    return module.out(torch.cat(mixed, -1))


def view(at: Tensor, queries: int, offset: int = 0) -> SelfView:
    mask = Mask(causal=True, offset=offset)
    return SelfView(Rotary(K, 1e4, "half"), at, Visibility(mask, None, queries, queries + offset, CPU))


@pytest.mark.parametrize("make", [layer_norm, rms_norm])
def test_self_attention_is_the_formula(make: Callable[[int], Norm]) -> None:
    module, x = attention(make), torch.randn(B, L, D, dtype=torch.float64, requires_grad=True)
    at = torch.arange(L).expand(B, L)
    got = module(x, view(at, L))
    expected = by_hand(module, x, x, at, torch.ones(L, L, dtype=torch.bool).tril())
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)
    leaves = (x, *module.parameters())
    for one, other in zip(
        torch.autograd.grad(got.square().sum(), leaves),
        torch.autograd.grad(expected.square().sum(), leaves),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


def test_cross_attention_is_the_formula() -> None:
    module = attention()
    x, memory = torch.randn(B, L, D, dtype=torch.float64), torch.randn(B, S, D, dtype=torch.float64)
    keys, values = module.remember(memory)
    got = module.cross(x, keys, values, Visibility(Mask(), None, L, S, CPU))
    expected = by_hand(module, x, memory, None, torch.ones(L, S, dtype=torch.bool))
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


def test_keys_are_normed_before_they_are_cached() -> None:
    module, x = attention(), torch.randn(B, L, D, dtype=torch.float64)
    at = torch.arange(L).expand(B, L)
    cache, pieces = KeyValueCache(L), []
    with torch.no_grad():
        for t in range(L):
            pieces.append(module(x[:, t : t + 1], view(at[:, t : t + 1], 1, t), cache))
        torch.testing.assert_close(torch.cat(pieces, 1), module(x, view(at, L)), rtol=0, atol=1e-12)


def test_scores_do_not_grow_with_the_weights() -> None:
    """Queries and keys a thousand times as long: the same answer but for eps."""
    module = attention()
    x, at = torch.randn(B, L, D, dtype=torch.float64), torch.arange(L).expand(B, L)
    with torch.no_grad():
        before = module(x, view(at, L))
        assert module.qkv_bias is not None
        module.qkv_weight[: (H + G) * K] *= 1000
        module.qkv_bias[: (H + G) * K] *= 1000
        torch.testing.assert_close(module(x, view(at, L)), before, rtol=0, atol=1e-4)
