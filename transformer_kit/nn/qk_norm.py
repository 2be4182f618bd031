"""Multi-head attention with normed queries and keys."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from transformer_kit.nn.attention import MultiHeadAttention
from transformer_kit.nn.kernels import Kernel
from transformer_kit.nn.norm.base import Norm


class QKNormAttention(MultiHeadAttention):
    """softmax(q̂ k̂ᵀ · scale) v with q̂ = norm(q), k̂ = norm(k) over the width of each head, before they are turned.

    So scores cannot grow with the weights. All heads share a norm, queries and keys have one each; it is of the model's
    kind (`model/norm`). Keys are normed before they are cached. Cross-attention norms in the same way.

    Args:
        dim, num_heads, head_dim, v_head_dim, dropout, num_kv_heads, bias, out_bias, scale, window, kernel: as in
            `MultiHeadAttention`.
        make_head_norm: builds a norm of a given width.

    Source:
        Dehghani et al. 2023, "Scaling Vision Transformers to 22 Billion Parameters", section 2; Qwen Team 2025, "Qwen3
        Technical Report", section 2 (with RMSNorm).
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        head_dim: int,
        v_head_dim: int,
        dropout: float,
        make_head_norm: Callable[[int], Norm],
        num_kv_heads: int | None,
        bias: bool,
        out_bias: bool,
        scale: float | None,
        window: int | None,
        kernel: Kernel,
    ) -> None:
        super().__init__(
            dim, num_heads, head_dim, v_head_dim, dropout, num_kv_heads, bias, out_bias, scale, window, kernel
        )
        self.q_norm, self.k_norm = make_head_norm(head_dim), make_head_norm(head_dim)

    def prepare_q(self, q: Tensor) -> Tensor:
        return self.q_norm(q)

    def prepare_k(self, k: Tensor) -> Tensor:
        return self.k_norm(k)
