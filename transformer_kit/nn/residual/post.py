"""The norm after the shortcut."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from transformer_kit.nn.dropout import add_dropout
from transformer_kit.nn.residual.base import MakeNorm, Residual


class PostNorm(Residual):
    """norm(x + dropout(sublayer(x)))

    Args:
        make_norm: builds the norm.
        dropout: rate on the sub-layer's output.

    Source: Vaswani et al. 2017, sections 3.1 and 5.4.
    """

    def __init__(self, make_norm: MakeNorm, dropout: float) -> None:
        super().__init__()
        self.norm = make_norm()
        self.dropout = dropout

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        return self.norm(add_dropout(x, sublayer(x), self.dropout, self.training))
