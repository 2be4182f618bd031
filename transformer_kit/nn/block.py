"""One layer of a stack, put together from built parts."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from transformer_kit.nn.attention import Attention, SelfView
from transformer_kit.nn.feedforward.base import FeedForward
from transformer_kit.nn.kernels import Visibility
from transformer_kit.nn.residual.base import Residual
from transformer_kit.nn.state import KeyValueCache

Remembered = tuple[Tensor, Tensor]
"""Keys (B, G, S, K) and values (B, G, S, W) of another sequence, as `Attention.remember` makes them."""
CrossView = tuple[Tensor | Remembered, Visibility]
"""Another sequence, (B, S, D) or what was remembered of it, and which of its cells are visible."""


class Block(nn.Module):
    """Self-attention, cross-attention if there is one, feed-forward; each inside a residual.

    Args:
        self_attention: mixes the cells of the sequence.
        cross_attention: mixes in another sequence, or None.
        feedforward: transforms each cell.
        make_residual: builds the shortcut (with its norms and dropout) around one sub-layer.

    Source:
        Vaswani et al. 2017, section 3.1.
    """

    def __init__(
        self,
        self_attention: Attention,
        cross_attention: Attention | None,
        feedforward: FeedForward,
        make_residual: Callable[[], Residual],
    ) -> None:
        super().__init__()
        self.self_attention, self.self_residual = self_attention, make_residual()
        self.cross_attention, self.cross_residual = cross_attention, make_residual() if cross_attention else None
        self.feedforward, self.feedforward_residual = feedforward, make_residual()

    def forward(
        self,
        x: Tensor,
        view: SelfView,
        cross: CrossView | None = None,
        cache: KeyValueCache | None = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Run the layer.

        Args:
            x: (B, T, D).
            view: what self-attention sees.
            cross: what cross-attention reads; needed if the layer has one. Another sequence as such is read here, with
                the layer's own weights, so that nothing of them is touched outside this call.
            cache: keys and values of earlier cells, appended to.

        Returns:
            (B, T, D) and the feed-forward's auxiliary sums.
        """
        x = self.self_residual(x, lambda y: self.self_attention(y, view, cache))
        if self.cross_attention is not None:
            assert self.cross_residual is not None
            assert cross is not None, "cross-attention needs something to read"
            attention, (other, seen) = self.cross_attention, cross
            keys, values = other if isinstance(other, tuple) else attention.remember(other)
            x = self.cross_residual(x, lambda y: attention.cross(y, keys, values, seen))
        aux: dict[str, Tensor] = {}

        def transform(y: Tensor) -> Tensor:
            y, sums = self.feedforward(y)
            aux.update(sums)
            return y

        return self.feedforward_residual(x, transform), aux
