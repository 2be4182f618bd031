"""Dropout from cheap random bits.

On a CPU the draws are what dropout costs: torch draws a double per element. Here one 64-bit draw serves four elements,
each kept if its 16 bits reach a threshold, so the rate is exact to 2⁻¹⁶. One byte per element is kept for the backward
pass. The draws come from torch's default generator, so `torch.manual_seed` fixes them.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_LEVELS = 2**16
_LOWEST = -(2**63)  # with it, `random_` fills all 64 bits; without, the sign bit stays 0


def keep_mask(shape: torch.Size | tuple[int, ...], p: float) -> Tensor:
    """A bool tensor on the CPU, True with probability 1 − p (to 2⁻¹⁶), independently at each element."""
    size = torch.Size(shape).numel()
    words = torch.empty((size + 3) // 4, dtype=torch.int64).random_(_LOWEST, None)
    return (words.view(torch.int16)[:size] >= round(p * _LEVELS) - _LEVELS // 2).view(shape)


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
    if x.device.type != "cpu":
        return F.dropout(x, p, True)
    return _Dropout.apply(x, p)


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
