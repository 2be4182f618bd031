"""Dropout from cheap random bits.

On a CPU the draws are what dropout costs: torch draws a double per element, on one thread. Here 64 random bits serve
eight elements, and the mask is one byte per element, which the backward pass reads again. The draws come from torch's
default generator, so `torch.manual_seed` fixes them.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_LEVELS = 256
_LOWEST = -(2**63)  # with it, `random_` fills all 64 bits; without, the sign bit stays 0


def keep_mask(shape: torch.Size | tuple[int, ...], p: float) -> Tensor:
    """A uint8 tensor on the CPU: 1 with probability 1 − p at each element, else 0.

    A byte falls below a threshold of 256·p with probability p. If that lies between two whole numbers, a stretch of
    the elements, as long as the fraction asks for and beginning anywhere, meets the upper one and the others the lower
    one: so the rate at each element is p, and two elements correlate by less than 2e-5.

    Args:
        shape: any.
        p: rate, 0 <= p < 1.
    """
    size = torch.Size(shape).numel()
    words = torch.empty((size + 7) // 8 + 2, dtype=torch.int64).random_(_LOWEST, None)
    place, rounding = words[-2:].tolist()
    mask = words.view(torch.uint8)[:size]
    level, fraction = divmod(p * _LEVELS, 1.0)
    lower, upper = int(level), int(level) + 1
    begin = place % max(size, 1)
    end = begin + int(fraction * size + rounding % 2**32 / 2**32)  # rounded up as often as the remainder asks for
    if end <= size:
        cuts = ((0, begin, lower), (begin, end, upper), (end, size, lower))
    else:  # the stretch goes on at the front
        cuts = ((0, end - size, upper), (end - size, begin, lower), (begin, size, upper))
    for first, last, threshold in cuts:
        _at_least(mask[first:last], threshold)
    return mask.view(shape)


def _at_least(values: Tensor, threshold: int) -> None:
    """Replace bytes by 1 where they reach the threshold, else by 0; clamping is five times as fast as comparing."""
    if 0 < threshold < _LEVELS:
        values.clamp_(threshold - 1, threshold).sub_(threshold - 1)
    else:
        values.fill_(int(threshold == 0))


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        mask = keep_mask(x.shape, p)
        ctx.save_for_backward(mask)
        ctx.scale = 1 / (1 - p)
        return (x * mask).mul_(ctx.scale)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (mask,) = ctx.saved_tensors
        return (grads[0] * mask).mul_(ctx.scale), None


class _AddDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, p: float) -> Tensor:
        mask = keep_mask(y.shape, p)
        ctx.save_for_backward(mask)
        ctx.scale, ctx.dtypes = 1 / (1 - p), (x.dtype, y.dtype)
        return torch.add(x, y * mask, alpha=ctx.scale)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        (mask,) = ctx.saved_tensors
        to_x, to_y = (grads[0].to(dtype) for dtype in ctx.dtypes)
        return to_x, (to_y * mask).mul_(ctx.scale), None


def dropout(x: Tensor, p: float, training: bool) -> Tensor:
    """Zero each element with probability p and scale the others by 1 / (1 − p).

    Args:
        x: any shape, floating.
        p: rate, 0 <= p < 1.
        training: False makes it the identity: `x` itself is returned, as with p = 0.

    Source: Srivastava et al. 2014, in the "inverted" form.
    """
    if not training or p == 0.0:
        return x
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(x, p, True)
    return _Dropout.apply(x, p)


def add_dropout(x: Tensor, y: Tensor, p: float, training: bool) -> Tensor:
    """x + dropout(y), with one pass less.

    Args:
        x, y: of one shape, floating.
        p: rate, 0 <= p < 1.
        training: False makes it x + y, as does p = 0.
    """
    if not training or p == 0.0:
        return x + y
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return x + F.dropout(y, p, True)
    return _AddDropout.apply(x, y, p)


class Dropout(nn.Module):
    """`dropout` as a module.

    Args:
        p: rate, 0 <= p < 1.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        assert 0.0 <= p < 1.0, f"dropout rate {p} is outside [0, 1)"
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p, self.training)

    def extra_repr(self) -> str:
        return f"p={self.p}"
