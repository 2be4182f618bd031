"""Queries and keys turned by their positions, so that their products know the distance alone."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from transformer_kit.errors import ConfigError
from transformer_kit.nn.position.angles import angles, rates
from transformer_kit.nn.position.base import Position

LAYOUTS = ("interleaved", "half")


class Rotary(Position):
    """Pair i of a head's K numbers, as a complex number, times exp(j · at · theta^(−2i/K)).

    - `interleaved`, the paper: pair i is numbers 2i and 2i + 1;
    - `half`, as in LLaMA checkpoints of the Hugging Face form: pair i is numbers i and i + K/2.

    Angles and products are float32 (float64 for float64 inputs) whatever the module's type or autocast. There is no
    longest position. A subclass may choose other `rates`, and a `gain` of the turned vectors.

    Args:
        head_dim: K, even.
        theta: base of the wave lengths, > 1.
        layout: one of the above.

    Attributes:
        gain: factor of cosines and sines.

    Raises:
        ConfigError: an odd K, an unknown layout, or a theta that is not above 1.

    Source: Su et al. 2021, "RoFormer", section 3.2.2.
    """

    gain = 1.0

    def __init__(self, head_dim: int, theta: float, layout: Literal["interleaved", "half"]) -> None:
        super().__init__()
        if head_dim % 2:
            raise ConfigError(f"model.head_dim={head_dim}: rotary positions need an even head width")
        if layout not in LAYOUTS:
            raise ConfigError(f"model.position.layout={layout}: must be one of {', '.join(LAYOUTS)}")
        if theta <= 1:
            raise ConfigError(f"model.position.theta={theta}: must be above 1")
        self.head_dim, self.theta, self.layout = head_dim, theta, layout

    def rotate(self, q: Tensor, k: Tensor, q_at: Tensor, k_at: Tensor) -> tuple[Tensor, Tensor]:
        dtype = torch.promote_types(q.dtype, torch.float32)
        q_turns = self._turns(q_at, dtype)
        k_turns = q_turns if k_at is q_at else self._turns(k_at, dtype)
        if torch.compiler.is_compiling():
            return plainly_turned(q, *q_turns, self.layout), plainly_turned(k, *k_turns, self.layout)
        return _Turned.apply(q, *q_turns, self.layout), _Turned.apply(k, *k_turns, self.layout)

    def rates(self, device: torch.device) -> Tensor:
        """Radians per position of each pair, (K/2,), in the widest type: theta^(−2i/K)."""
        return rates(self.head_dim // 2, 2 / self.head_dim, self.theta, device)

    def _turns(self, at: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosines and sines times the gain: (B, L) -> (B, 1, L, K/2) each."""
        phase = angles(at, self.rates(at.device), dtype)[:, None]
        cos, sin = phase.cos(), phase.sin()
        return (cos, sin) if self.gain == 1.0 else (cos * self.gain, sin * self.gain)


class _Turned(torch.autograd.Function):
    """By hand, because the backward pass of a turn is the turn back, and autograd's is three times as slow."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, layout: str) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.layout = layout
        return turned(x, cos, sin, layout)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        cos, sin = ctx.saved_tensors
        return turned(grads[0], cos, -sin, ctx.layout), None, None, None


def plainly_turned(x: Tensor, cos: Tensor, sin: Tensor, layout: str) -> Tensor:
    """`turned` as the formula says, for a compiler, which fuses it and derives it."""
    exact = x.to(cos.dtype)
    pairs = exact.unflatten(-1, (-1, 2)) if layout == "interleaved" else exact.unflatten(-1, (2, -1)).transpose(-1, -2)
    a, b = pairs.unbind(-1)
    both = torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1 if layout == "interleaved" else -2)
    return both.flatten(-2).to(x.dtype)


def turned(x: Tensor, cos: Tensor, sin: Tensor, layout: str) -> Tensor:
    """Each pair (a, b) of the last axis becomes (a·cos − b·sin, a·sin + b·cos).

    Shape: x (B, H, L, K), cos and sin (B, 1, L, K/2) -> (B, H, L, K) in the type of x, computed in that of cos.
    """
    exact = x.to(cos.dtype)
    if layout == "interleaved":
        if any(stride % 2 for stride in exact.stride()[:-1]) or exact.stride(-1) != 1 or exact.storage_offset() % 2:
            exact = exact.contiguous()  # pairs that straddle complex numbers cannot be viewed as such
        pairs = torch.view_as_complex(exact.unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * torch.complex(cos, sin)).flatten(-2).to(x.dtype)
    first, second = exact.chunk(2, dim=-1)
    result = torch.empty_like(exact)
    real, imaginary = result.chunk(2, dim=-1)
    torch.mul(first, cos, out=real).addcmul_(second, sin, value=-1)
    torch.mul(first, sin, out=imaginary).addcmul_(second, cos)
    return result.to(x.dtype)
