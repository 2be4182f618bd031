"""Sinusoids added to the embeddings."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from transformer_kit.errors import ConfigError
from transformer_kit.nn.position.angles import angles, rates
from transformer_kit.nn.position.base import Position

LAYOUTS = ("interleaved", "concatenated", "split")


class Sinusoidal(Position):
    """x + PE(at), waves of geometrically growing length.

    - `interleaved`, the paper: PE(p)_2i = sin(p / base^(2i/D)), PE(p)_2i+1 = cos(p / base^(2i/D));
    - `concatenated`, tensor2tensor: ⌊D/2⌋ sines, then as many cosines, of p / base^(i / (⌊D/2⌋ − 1)); the last column
      of an odd D is 0. So the slowest wave reaches `base` itself;
    - `split`, Marian: the columns of the paper, its ⌈D/2⌉ sines first, then its ⌊D/2⌋ cosines.

    There is no longest position.

    Args:
        dim: D, at least 4.
        base: how much slower the slowest wave is than the fastest, > 1.
        layout: one of the above.

    Raises:
        ConfigError: an unknown layout, or a base that is not above 1.

    Source: Vaswani et al. 2017, section 3.5; tensor2tensor, `get_timing_signal_1d`;
        Junczys-Dowmunt et al. 2018, "Marian".
    """

    def __init__(self, dim: int, base: float, layout: Literal["interleaved", "concatenated", "split"]) -> None:
        super().__init__()
        if layout not in LAYOUTS:
            raise ConfigError(f"model.position.layout={layout}: must be one of {', '.join(LAYOUTS)}")
        if base <= 1:
            raise ConfigError(f"model.position.base={base}: must be above 1")
        self.dim, self.base, self.layout = dim, base, layout

    def embed(self, x: Tensor, at: Tensor) -> Tensor:
        return x + self._waves(at, torch.promote_types(x.dtype, torch.float32)).to(x.dtype)

    def _waves(self, at: Tensor, dtype: torch.dtype) -> Tensor:
        """(B, L) -> (B, L, D)."""
        half = self.dim // 2
        if self.layout == "concatenated":
            phase = angles(at, rates(half, 1 / max(half - 1, 1), self.base, at.device), dtype)
            waves = torch.cat((phase.sin(), phase.cos()), dim=-1)
            return torch.nn.functional.pad(waves, (0, self.dim - 2 * half))
        phase = angles(at, rates(self.dim - half, 2 / self.dim, self.base, at.device), dtype)
        if self.layout == "split":
            return torch.cat((phase.sin(), phase[..., :half].cos()), dim=-1)
        return torch.stack((phase.sin(), phase.cos()), dim=-1).flatten(-2)[..., : self.dim]
