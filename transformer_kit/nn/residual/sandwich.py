"""Norms on both sides of the sub-layer, off the shortcut."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from transformer_kit.nn.dropout import dropout as drop
from transformer_kit.nn.residual.base import MakeNorm, Residual


class SandwichNorm(Residual):
    """x + post_norm(dropout(sublayer(norm(x)))); the stack norms what leaves its last layer.

    Dropout stands between the sub-layer and its second norm, so that what is added keeps its scale in training and in
    use.

    Args:
        make_norm: builds each norm.
        dropout: rate on the sub-layer's output.

    Source: Ding et al. 2021, "CogView", section 2.4; the layers of Gemma 2 (Gemma Team 2024, section 2).
    """

    final_norm = True

    def __init__(self, make_norm: MakeNorm, dropout: float) -> None:
        super().__init__()
        self.norm, self.post_norm = make_norm(), make_norm()
        self.dropout = dropout

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        return x + self.post_norm(drop(sublayer(self.norm(x)), self.dropout, self.training))
