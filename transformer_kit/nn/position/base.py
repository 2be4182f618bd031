"""The position slot: three neutral hooks, of which a variant overrides one."""

from __future__ import annotations

from torch import Tensor, nn


class Position(nn.Module):
    """How a stack learns where a token stands.

    One object serves all layers of a stack. `at` is the position of each token, 0 at padding and restarting in each
    packed document, so cached decoding, padding on either side and packing need no special case. Cross-attention gets
    neither rotation nor bias.

    Build-time facts, taken if the constructor names them: `dim`, `num_heads`, `head_dim`, `causal`, `max_length`.

    Attributes:
        limit: the number of positions that the scheme can tell apart, or None where there is no end. A longer input is
            no error: the class says what happens beyond, and a front-end that knows line numbers warns.
    """

    limit: int | None = None

    def __init__(self) -> None:
        super().__init__()  # without it, a scheme without options would seem to take any: torch's own takes all

    def embed(self, x: Tensor, at: Tensor) -> Tensor:
        """Add to what enters the stack.

        Shape: x (B, L, D), at (B, L) int64 -> (B, L, D).
        """
        return x

    def rotate(self, q: Tensor, k: Tensor, q_at: Tensor, k_at: Tensor) -> tuple[Tensor, Tensor]:
        """Turn queries and new keys before their products; keys are turned before they are cached.

        Shape: q (B, H, T, K), k (B, G, S, K), q_at (B, T), k_at (B, S) -> the shapes of q and k.
        """
        return q, k

    def bias(self, q_at: Tensor, k_at: Tensor) -> Tensor | None:
        """What is added to the scaled scores; None where nothing is.

        Shape: q_at (B, T), k_at (B, S) -> broadcastable to (B, H, T, S), float32.
        """
        return None
