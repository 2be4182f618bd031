"""Feed-forward layers whose activation gates a second projection."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer_kit.nn.dropout import dropout as drop
from transformer_kit.nn.feedforward.activations import find_activation
from transformer_kit.nn.feedforward.base import FeedForward


class Gated(FeedForward):
    """W₂ dropout(activation(W x + b) ⊙ (V x + c)) + b₂

    SwiGLU, GEGLU, ReGLU, GLU and the bilinear layer are this with SiLU, GELU, ReLU, sigmoid and identity. W and V
    are one packed matrix. With three matrices instead of two, an inner width of 2/3 keeps the parameter count.

    Args:
        dim: D.
        d_ff: F, the inner width.
        dropout: rate on the gated product.
        activation: a name in `ACTIVATIONS`.
        bias: biases b, c and b₂.

    Source: Shazeer 2020, "GLU Variants Improve Transformer", equations 5 and 6.
    """

    def __init__(self, dim: int, d_ff: int, dropout: float, activation: str, bias: bool) -> None:
        super().__init__()
        self.activation = find_activation(activation)
        self.dropout = dropout
        self.up_weight = nn.Parameter(torch.empty(2 * d_ff, dim))  # the gate's rows, then the others
        self.up_bias = nn.Parameter(torch.zeros(2 * d_ff)) if bias else None
        self.down = nn.Linear(d_ff, dim, bias=bias)
        for matrix in self.matrices():
            nn.init.xavier_uniform_(matrix)

    def packed(self) -> dict[str, tuple[int, ...]]:
        """The rows of each matrix in a parameter that holds several."""
        return {"up_weight": (self.up_weight.shape[0] // 2,) * 2}

    def matrices(self) -> tuple[Tensor, ...]:
        """The matrices by role, W, V, W₂: views, so that what is written to them is written to the module."""
        return (*self.up_weight.detach().chunk(2), self.down.weight.detach())

    def forward(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        gate, value = F.linear(x, self.up_weight, self.up_bias).chunk(2, dim=-1)
        inner = drop(self.activation(gate) * value, self.dropout, self.training)  # (B, L, F)
        return self.down(inner), {}
