"""The norm slot."""

from __future__ import annotations

from torch import Tensor, nn


class Norm(nn.Module):
    """Brings each vector to a common scale: (..., D) -> (..., D), statistics in float32 at least.

    Build-time facts, taken if the constructor names them: `dim`.
    """

    def forward(self, x: Tensor) -> Tensor:
        raise NotImplementedError
