"""The 2017 feed-forward layer, a block of positions at a time: for training narrow layers in float32 on a CPU.

Done as a whole, each step of the layer writes and reads (N, F) numbers, which no cache holds: at narrow widths that
takes longer than the products. Here a block of positions goes through all steps while it is in the cache, forwards and
backwards. Only what enters the activation is kept (for ReLU, what leaves it); the rest is made again backwards. In
bfloat16 the products are so quick that their small blocks cost more than the cache gives.

Random draws and results are those of the layer in `dense.py`, up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from transformer_kit.nn.dropout import keep_mask

_aten: Any = torch.ops.aten
_LARGEST = 2**17  # entries of a weight: beyond, adding up its gradient per block costs more than the cache gives
_BLOCK = 2**19  # bytes of a block's activations


@dataclass(frozen=True)
class _Activation:
    """`apply(x, out=)` and `back(gradient, x, grad_input=)`; if `from_output`, `back` reads what `apply` gave."""

    apply: Callable[..., Tensor]
    back: Callable[..., Tensor]
    from_output: bool = False


ACTIVATIONS = {
    "relu": _Activation(
        partial(torch.clamp, min=0), partial(_aten.threshold_backward.grad_input, threshold=0), from_output=True
    ),
    "gelu": _Activation(_aten.gelu.out, _aten.gelu_backward.grad_input),
    "gelu_tanh": _Activation(
        partial(_aten.gelu.out, approximate="tanh"), partial(_aten.gelu_backward.grad_input, approximate="tanh")
    ),
    "silu": _Activation(_aten.silu.out, _aten.silu_backward.grad_input),
}
"""The activations that this path knows."""


def suits(x: Tensor, up: Tensor, activation: str) -> bool:
    """Whether the blocked way is the faster one for these inputs, and can compute them."""
    exact = x.dtype in (torch.float32, torch.float64) and not torch.is_autocast_enabled("cpu")
    if not (x.is_cpu and exact and torch.is_grad_enabled()) or torch.compiler.is_compiling():
        return False
    return up.numel() <= _LARGEST and activation in ACTIVATIONS


def blocked_feed_forward(
    x: Tensor,
    up: Tensor,
    up_bias: Tensor | None,
    down: Tensor,
    down_bias: Tensor | None,
    activation: str,
    dropout: float,
) -> Tensor:
    """down · dropout(activation(up · x + up_bias)) + down_bias

    Args:
        activation: a key of `ACTIVATIONS`.
        dropout: rate in [0, 1); 0 outside training.

    Shape: x (..., D), up (F, D), up_bias (F,), down (E, F), down_bias (E,) -> (..., E), all of one type.
    """
    return _Blocked.apply(x, up, up_bias, down, down_bias, activation, dropout)


class _Blocked(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        up: Tensor,
        up_bias: Tensor | None,
        down: Tensor,
        down_bias: Tensor | None,
        activation: str,
        dropout: float,
    ) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        act = ACTIVATIONS[activation]
        kept = rows.new_empty(len(rows), len(up))  # (N, F)
        out = rows.new_empty(len(rows), len(down))
        mask = keep_mask(kept.shape, dropout) if dropout > 0 else None
        spans = _spans(kept)
        room = kept if act.from_output else kept.new_empty(spans[0][1], kept.shape[1])
        for start, end in spans:
            block = kept[start:end]
            _linear(rows[start:end], up, up_bias, block)
            inner = act.apply(block, out=block if act.from_output else room[: end - start])
            if mask is not None:
                inner.mul_(mask[start:end]).mul_(1 / (1 - dropout))
            _linear(inner, down, down_bias, out[start:end])
        ctx.save_for_backward(rows, kept, None if act.from_output else mask, up, down)
        ctx.act, ctx.scale, ctx.shape = act, 1 / (1 - dropout), x.shape
        ctx.biases = up_bias is not None, down_bias is not None
        return out.view(*x.shape[:-1], len(down))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        rows, kept, mask, up, down = ctx.saved_tensors
        act, grad, spans = ctx.act, grads[0].reshape(len(rows), len(down)), _spans(kept)
        room, other = (kept.new_empty(spans[0][1], kept.shape[1]) for _ in range(2))
        grad_x, grad_up, grad_down = torch.empty_like(rows), torch.zeros_like(up), torch.zeros_like(down)
        grad_up_bias = up.new_zeros(len(up)) if ctx.biases[0] else None
        for start, end in spans:
            block, at, size = kept[start:end], grad[start:end], end - start
            inner = block if act.from_output else act.apply(block, out=other[:size])
            grad_inner = torch.mm(at, down, out=room[:size])
            if mask is not None:
                inner.mul_(mask[start:end]).mul_(ctx.scale)
                grad_inner.mul_(mask[start:end])
            grad_down.addmm_(at.t(), inner)
            act.back(grad_inner, block, grad_input=grad_inner)  # where ReLU's output was dropped it is 0, as its slope
            if ctx.scale != 1:
                grad_inner.mul_(ctx.scale)
            grad_up.addmm_(grad_inner.t(), rows[start:end])
            if grad_up_bias is not None:
                grad_up_bias += grad_inner.sum(0)
            torch.mm(grad_inner, up, out=grad_x[start:end])
        grad_down_bias = grad.sum(0) if ctx.biases[1] else None
        return grad_x.view(ctx.shape), grad_up, grad_up_bias, grad_down, grad_down_bias, None, None


def _spans(kept: Tensor) -> list[tuple[int, int]]:
    """Blocks of positions, all but the last of one size."""
    rows, width = kept.shape
    size = max(1, _BLOCK // (width * kept.element_size()))
    return [(start, min(start + size, rows)) for start in range(0, rows, size)] or [(0, 0)]


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
    if bias is None:
        torch.mm(x, weight.t(), out=out)
    else:
        torch.addmm(bias, x, weight.t(), out=out)
