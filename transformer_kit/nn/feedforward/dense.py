"""The feed-forward layer of 2017, with any activation."""

from __future__ import annotations

from torch import Tensor, nn

from transformer_kit.nn.dropout import dropout as drop
from transformer_kit.nn.feedforward.activations import find_activation
from transformer_kit.nn.feedforward.base import FeedForward
from transformer_kit.nn.feedforward.blocked import blocked_feed_forward, suits


class Dense(FeedForward):
    """W₂ dropout(activation(W₁ x + b₁)) + b₂

    Args:
        dim: D.
        d_ff: F, the inner width.
        dropout: rate on the activation.
        activation: a name in `ACTIVATIONS`.
        bias: biases b₁ and b₂.

    Source: Vaswani et al. 2017, section 3.3 (ReLU); Hendrycks and Gimpel 2016 (GELU).
    """

    def __init__(self, dim: int, d_ff: int, dropout: float, activation: str, bias: bool) -> None:
        super().__init__()
        self.name, self.activation = activation, find_activation(activation)
        self.dropout = dropout
        self.up = nn.Linear(dim, d_ff, bias=bias)
        self.down = nn.Linear(d_ff, dim, bias=bias)

    def forward(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        if suits(x, self.up.weight, self.name):
            rate = self.dropout if self.training else 0.0
            up, down = self.up, self.down
            return blocked_feed_forward(x, up.weight, up.bias, down.weight, down.bias, self.name, rate), {}
        inner = drop(self.activation(self.up(x)), self.dropout, self.training)  # (B, L, F)
        return self.down(inner), {}
