"""Angles that positions turn through, exact in float32 at any position and in any module type.

They are made when needed: no table that a cast, a move or a checkpoint could touch, and no end to it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_TURN = 2 * math.pi


def wide(device: torch.device) -> torch.dtype:
    """The widest floating type there: float64, but Apple's GPUs have none."""
    return torch.float32 if device.type == "mps" else torch.float64


def rates(count: int, step: float, base: float, device: torch.device) -> Tensor:
    """Radians per position: base^(−i·step) for i = 0 … count − 1, shape (count,)."""
    return base ** (torch.arange(count, dtype=wide(device), device=device) * -step)


def angles(at: Tensor, per_position: Tensor, dtype: torch.dtype) -> Tensor:
    """at · rate, less whole turns, so that the cast to float32 costs nothing at large positions.

    Shape: at (B, L) int64, per_position (n,) -> (B, L, n) in `dtype`, between −π and π.
    """
    turns = at[..., None] * (per_position / _TURN)
    return turns.sub_(turns.round()).mul_(_TURN).to(dtype)
