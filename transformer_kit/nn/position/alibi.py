"""A penalty on attention scores that grows with distance."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from transformer_kit.nn.position.base import Position


def slopes(num_heads: int) -> list[float]:
    """One slope per query head.

    2^(−8i/H) for i = 1 … H where H is a power of two; otherwise those of the next lower power of two, followed by every
    other one of the next higher.
    """
    power = 2 ** int(math.log2(num_heads))
    own = [2.0 ** (-8 * (i + 1) / power) for i in range(power)]
    between = [2.0 ** (-4 * (i + 1) / power) for i in range(0, 2 * power, 2)]
    return own + between[: num_heads - power]


class Alibi(Position):
    """scores − slope_h · |i − j|

    Symmetric, so that it serves an encoder too; in a causal stack it is the paper's. There is no longest position.

    Args:
        num_heads: H, query heads; under grouped attention too each query head has a slope of its own.

    Source: Press et al. 2022, "Train Short, Test Long", section 3 and its published code for other numbers of heads.
    """

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.slopes = slopes(num_heads)

    def bias(self, q_at: Tensor, k_at: Tensor) -> Tensor:
        distance = (q_at[:, None, :, None] - k_at[:, None, None, :]).abs()  # (B, 1, T, S)
        slope = torch.tensor(self.slopes, dtype=torch.float32, device=q_at.device)
        return distance * -slope[:, None, None]  # (B, H, T, S)
