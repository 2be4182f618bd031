"""The norm slot."""

from __future__ import annotations

from torch import Tensor, nn

from transformer_kit.errors import ConfigError


class Norm(nn.Module):
    """Brings each vector to a common scale: (..., D) -> (..., D), statistics in float32 at least.

    Build-time facts, taken if the constructor names them: `dim`.
    """

    def forward(self, x: Tensor) -> Tensor:
        raise NotImplementedError


def check_eps(eps: float) -> None:
    """Refuse an eps that could divide by zero or take the root of a negative number.

    Raises:
        ConfigError: it is not above 0.
    """
    if not eps > 0:
        raise ConfigError(f"model.norm.eps={eps}: must be above 0")
