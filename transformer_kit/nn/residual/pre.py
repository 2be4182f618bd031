"""The norm before the sub-layer, off the shortcut."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from transformer_kit.nn.dropout import add_dropout
from transformer_kit.nn.residual.base import MakeNorm, Residual


class PreNorm(Residual):
    """x + dropout(sublayer(norm(x))); the stack norms what leaves its last layer.

    Args:
        make_norm: builds the norm.
        dropout: rate on the sub-layer's output.

    Source: Xiong et al. 2020, "On Layer Normalization in the Transformer Architecture".
    """

    final_norm = True

    def __init__(self, make_norm: MakeNorm, dropout: float) -> None:
        super().__init__()
        self.norm = make_norm()
        self.dropout = dropout

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        return add_dropout(x, sublayer(self.norm(x)), self.dropout, self.training)
