"""The feed-forward slot."""

from __future__ import annotations

from torch import Tensor, nn


class FeedForward(nn.Module):
    """Transforms each position by itself.

    Build-time facts, taken if the constructor names them: `dim`, `d_ff`, `dropout` (rate on the activation).
    """

    def forward(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Shape: x (B, L, D) -> ((B, L, D), auxiliary sums for the loss, {} where there are none)."""
        raise NotImplementedError
