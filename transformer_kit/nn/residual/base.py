"""The residual slot: where the norms stand around a sub-layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from torch import Tensor, nn

from transformer_kit.nn.norm.base import Norm

MakeNorm = Callable[[], Norm]


class Residual(nn.Module):
    """One sub-layer with its shortcut, norm and dropout.

    Build-time facts: `make_norm` (builds a fresh norm), `dropout` (rate on the sub-layer's output).

    Attributes:
        final_norm: whether the stack has to norm what leaves its last layer.
    """

    final_norm: ClassVar[bool] = False

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Shape: x (B, L, D) -> (B, L, D)."""
        raise NotImplementedError
