"""Queries and keys turned by their positions, so that their products know the distance alone."""

from __future__ import annotations

from typing import Literal

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
    longest position.

    Args:
        head_dim: K, even.
        theta: base of the wave lengths, > 1.
        layout: one of the above.

    Raises:
        ConfigError: an odd K, an unknown layout, or a theta that is not above 1.

    Source: Su et al. 2021, "RoFormer", section 3.2.2.
    """

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
        return self._turned(q, q_turns), self._turned(k, k_turns)

    def _turns(self, at: Tensor, dtype: torch.dtype) -> Tensor:
        """(B, L) -> complex (B, 1, L, K/2) of length 1."""
        phase = angles(at, rates(self.head_dim // 2, 2 / self.head_dim, self.theta, at.device), dtype)
        return torch.complex(phase.cos(), phase.sin())[:, None]

    def _turned(self, x: Tensor, turns: Tensor) -> Tensor:
        """(B, H, L, K) -> (B, H, L, K)."""
        real = x.to(turns.real.dtype)
        if self.layout == "interleaved":
            pairs = torch.view_as_complex(real.unflatten(-1, (-1, 2)))
            return torch.view_as_real(pairs * turns).flatten(-2).to(x.dtype)
        turned = torch.complex(*real.chunk(2, dim=-1)) * turns
        return torch.cat((turned.real, turned.imag), dim=-1).to(x.dtype)
