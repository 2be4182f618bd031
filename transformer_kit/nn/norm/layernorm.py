"""Layer normalisation."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer_kit.nn.norm.base import Norm, check_eps


class LayerNorm(Norm):
    """(x − mean x) / √(var x + eps) · weight + bias, over the last axis.

    Args:
        dim: D.
        eps: added to the variance, > 0.
        bias: whether there is a bias.

    Source: Ba et al. 2016.
    """

    def __init__(self, dim: int, eps: float, bias: bool) -> None:
        super().__init__()
        check_eps(eps)
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)
