"""Blocks against torch.nn's layers, weights copied, attention scores of unit spread, forwards and backwards."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from transformer_kit.nn.attention import MultiHeadAttention, SelfView
from transformer_kit.nn.block import Block
from transformer_kit.nn.feedforward.base import FeedForward
from transformer_kit.nn.feedforward.dense import Dense
from transformer_kit.nn.kernels import Visibility
from transformer_kit.nn.mask import Mask
from transformer_kit.nn.norm.layernorm import LayerNorm
from transformer_kit.nn.position.base import Position
from transformer_kit.nn.residual.base import Residual
from transformer_kit.nn.residual.post import PostNorm
from transformer_kit.nn.residual.pre import PreNorm

CPU = torch.device("cpu")
B, T, S, D, F, H = 3, 7, 11, 15, 13, 3
TARGET_VALID = torch.arange(T) < torch.tensor([[7], [5], [2]])
SOURCE_VALID = torch.arange(S) < torch.tensor([[2], [11], [5]])


def attention() -> MultiHeadAttention:
    return MultiHeadAttention(
        D, H, D // H, D // H, 0.0, num_kv_heads=None, bias=True, out_bias=True, scale=None, window=None, kernel="auto"
    )


def block(residual: type[Residual], cross: bool, feedforward: FeedForward | None = None) -> Block:
    def make_residual() -> Residual:
        return residual(make_norm=lambda: LayerNorm(D, 1e-5, True), dropout=0.0)

    own = feedforward or Dense(D, F, 0.0, "relu", True)
    return Block(attention(), attention() if cross else None, own, make_residual).double()


def sharpen(module: nn.Module) -> None:
    draw = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=draw, dtype=torch.float64)
            if parameter.dim() == 2:
                parameter.copy_(noise * parameter.shape[1] ** -0.5 * 1.5)
            else:
                parameter.add_(noise, alpha=0.3)


def copy_attention(mine: nn.Module, theirs: nn.MultiheadAttention) -> None:
    assert isinstance(mine, MultiHeadAttention)
    assert mine.qkv_bias is not None
    with torch.no_grad():
        mine.qkv_weight.copy_(theirs.in_proj_weight)
        mine.qkv_bias.copy_(theirs.in_proj_bias)
    mine.out.load_state_dict(theirs.out_proj.state_dict())


def copy_layer(mine: Block, theirs: nn.TransformerEncoderLayer | nn.TransformerDecoderLayer) -> None:
    copy_attention(mine.self_attention, theirs.self_attn)
    residuals = [mine.self_residual, mine.feedforward_residual]
    if isinstance(theirs, nn.TransformerDecoderLayer):
        assert mine.cross_attention is not None
        assert mine.cross_residual is not None
        copy_attention(mine.cross_attention, theirs.multihead_attn)
        residuals.insert(1, mine.cross_residual)
    assert isinstance(mine.feedforward, Dense)
    mine.feedforward.up.load_state_dict(theirs.linear1.state_dict())
    mine.feedforward.down.load_state_dict(theirs.linear2.state_dict())
    for number, residual in enumerate(residuals, start=1):
        residual.get_submodule("norm").load_state_dict(getattr(theirs, f"norm{number}").state_dict())


def view(mask: Mask, cells: int) -> SelfView:
    return SelfView(Position(), torch.arange(cells).expand(B, cells), Visibility(mask, None, cells, cells, CPU))


def compare(got: Tensor, expected: Tensor, inputs: tuple[Tensor, ...]) -> None:
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)
    weight = torch.linspace(-1, 1, got.numel(), dtype=got.dtype).view(got.shape)
    grads, others = torch.autograd.grad(got, inputs, weight), torch.autograd.grad(expected, inputs, weight)
    for grad, other in zip(grads, others, strict=True):
        torch.testing.assert_close(grad, other, rtol=0, atol=1e-11)


@pytest.mark.parametrize("residual", [PostNorm, PreNorm])
def test_encoder_block_equals_torch(residual: type[Residual]) -> None:
    theirs = nn.TransformerEncoderLayer(
        D, H, F, 0.0, batch_first=True, norm_first=residual is PreNorm, dtype=torch.float64
    )
    sharpen(theirs)
    mine = block(residual, cross=False)
    copy_layer(mine, theirs)
    x = torch.randn(B, S, D, dtype=torch.float64, requires_grad=True)
    got, aux = mine(x, view(Mask(key_valid=SOURCE_VALID), S))
    assert aux == {}
    compare(got, theirs(x, src_key_padding_mask=~SOURCE_VALID), (x,))


@pytest.mark.parametrize("residual", [PostNorm, PreNorm])
def test_decoder_block_equals_torch(residual: type[Residual]) -> None:
    theirs = nn.TransformerDecoderLayer(
        D, H, F, 0.0, batch_first=True, norm_first=residual is PreNorm, dtype=torch.float64
    )
    sharpen(theirs)
    mine = block(residual, cross=True)
    copy_layer(mine, theirs)
    x = torch.randn(B, T, D, dtype=torch.float64, requires_grad=True)
    memory = torch.randn(B, S, D, dtype=torch.float64, requires_grad=True)
    assert mine.cross_attention is not None
    seen = Visibility(Mask(key_valid=SOURCE_VALID), None, T, S, CPU)
    got, _ = mine(x, view(Mask(causal=True, key_valid=TARGET_VALID), T), (memory, seen))
    later = torch.ones(T, T, dtype=torch.bool).triu(1)
    expected = theirs(
        x,
        memory,
        tgt_mask=later,
        tgt_key_padding_mask=~TARGET_VALID,
        memory_key_padding_mask=~SOURCE_VALID,
    )
    compare(got, expected, (x, memory))
    remembered = mine.cross_attention.remember(memory)
    again, _ = mine(x, view(Mask(causal=True, key_valid=TARGET_VALID), T), (remembered, seen))
    assert torch.equal(again, got), "as in decoding, where it is read once"


class Noted(FeedForward):
    def forward(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return x, {"size": x.square().sum()}


def test_auxiliary_sums_come_out() -> None:
    x = torch.randn(B, T, D, dtype=torch.float64)
    _, aux = block(PostNorm, False, Noted())(x, view(Mask(), T))
    assert set(aux) == {"size"}
    assert aux["size"] > 0


def test_cross_attention_without_memory_is_refused() -> None:
    with pytest.raises(AssertionError, match="needs something to read"):
        block(PostNorm, True)(torch.zeros(B, T, D, dtype=torch.float64), view(Mask(), T))
