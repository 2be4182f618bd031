"""Multi-head attention, with heads of keys and values shared or not (MHA, GQA, MQA).

- q, k and v are one packed matrix: self-attention is one product in, cross-attention reads the source with one.
- A position's rotation is applied to queries and new keys, before keys are cached.
- Nothing is stored on the module: masks come in ready made, caches are passed in.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer_kit.errors import ConfigError
from transformer_kit.nn.kernels import KERNELS, Kernel, Visibility, attend, default_scale
from transformer_kit.nn.position.base import Position
from transformer_kit.nn.state import KeyValueCache


@dataclass(frozen=True)
class SelfView:
    """What the self-attentions of one stack and one window share in one forward pass.

    Attributes:
        position: the stack's position scheme.
        at: (B, T) int64, positions of the cells in hand.
        seen: which keys they see, with the position's bias.
    """

    position: Position
    at: Tensor
    seen: Visibility


class Attention(nn.Module):
    """The attention slot: self-attention by `forward`, cross-attention by `remember` once and `cross` per call.

    Build-time facts: `dim`, `num_heads`, `head_dim`, `v_head_dim`, `dropout`, `make_head_norm` (builds a norm of a
    given width).

    Attributes:
        window: self-attention sees only cells fewer than this many away; None: all. The stack makes the mask.
    """

    window: int | None = None

    def forward(self, x: Tensor, view: SelfView, cache: KeyValueCache | None = None) -> Tensor:
        """Each cell mixes the cells that it sees, with a cache also those before: (B, T, D) -> (B, T, D)."""
        raise NotImplementedError

    def remember(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """What `cross` reads of another sequence: (B, S, D) -> keys (B, G, S, K), values (B, G, S, W)."""
        raise NotImplementedError

    def cross(self, x: Tensor, keys: Tensor, values: Tensor, seen: Visibility) -> Tensor:
        """Each cell mixes the cells of another sequence.

        Shape:
            x (B·beams, T, D), keys (B, G, S, K), values (B, G, S, W) -> (B·beams, T, D); rows of a sentence adjoin.
        """
        raise NotImplementedError


class MultiHeadAttention(Attention):
    """concat_h(softmax(q_h k_gᵀ · scale) v_g) W_o, where q, k, v are linear in the input and g = h // (H / G).

    Args:
        dim: D.
        num_heads: H.
        head_dim: K, width of a query and a key.
        v_head_dim: W, width of a value.
        dropout: probability in [0, 1) with which an attention weight is dropped.
        num_kv_heads: G, a divisor of H; None means H; 1 is multi-query attention.
        bias: biases on q, k and v.
        out_bias: bias on the output projection.
        scale: factor of the scores; None means 1/√K.
        window: self-attention sees only cells fewer than this many (>= 1) away, in a causal stack the last `window`
            with its own; None means all.
        kernel: auto, fused, plain or reference (`nn/kernels.py`).

    Raises:
        ConfigError: G does not divide H, a scale or window out of range, or the kernel's name is unknown.

    Source:
        Vaswani et al. 2017, section 3.2; Shazeer 2019 (one key/value head); Ainslie et al. 2023 (groups); Beltagy et
        al. 2020, section 3.1 (windows).
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        head_dim: int,
        v_head_dim: int,
        dropout: float,
        num_kv_heads: int | None,
        bias: bool,
        out_bias: bool,
        scale: float | None,
        window: int | None,
        kernel: Kernel,
    ) -> None:
        super().__init__()
        groups = num_heads if num_kv_heads is None else num_kv_heads
        if groups < 1 or num_heads % groups:
            raise ConfigError(f"model.attention.num_kv_heads={groups}: must divide the number of heads, {num_heads}")
        if kernel not in KERNELS:
            raise ConfigError(f"model.attention.kernel={kernel}: must be one of {', '.join(KERNELS)}")
        self.num_heads, self.num_kv_heads = num_heads, groups
        self.head_dim, self.v_head_dim = head_dim, v_head_dim
        self.dropout = dropout
        if scale is not None and not scale > 0:
            raise ConfigError(f"model.attention.scale={scale}: must be above 0, or null for 1/√head_dim")
        if window is not None and window < 1:
            raise ConfigError(f"model.attention.window={window}: must be at least 1, or null for no window")
        self.scale = default_scale(head_dim) if scale is None else scale
        self.window = window
        self.kernel: Kernel = kernel
        self.sizes = (num_heads * head_dim, groups * head_dim, groups * v_head_dim)  # rows of q, k, v
        self.qkv_weight = nn.Parameter(torch.empty(sum(self.sizes), dim))
        self.qkv_bias = nn.Parameter(torch.zeros(sum(self.sizes))) if bias else None
        self.out = nn.Linear(num_heads * v_head_dim, dim, bias=out_bias)
        for matrix in self.matrices():
            nn.init.xavier_uniform_(matrix)
        if self.out.bias is not None:
            nn.init.zeros_(self.out.bias)

    def packed(self) -> dict[str, tuple[int, ...]]:
        """The rows of each matrix in a parameter that holds several."""
        return {"qkv_weight": self.sizes}

    def matrices(self) -> tuple[Tensor, ...]:
        """The matrices by role, q, k, v, o: views, so that what is written to them is written to the module."""
        return (*self.qkv_weight.detach().split(self.sizes), self.out.weight.detach())

    def forward(self, x: Tensor, view: SelfView, cache: KeyValueCache | None = None) -> Tensor:
        packed = F.linear(x, self.qkv_weight, self.qkv_bias)
        q, k, v = packed.split(self.sizes, dim=-1)
        q = self.prepare_q(self._heads(q, self.num_heads))
        k, v = self.prepare_k(self._heads(k, self.num_kv_heads)), self._heads(v, self.num_kv_heads)
        q, k = view.position.rotate(q, k, view.at, view.at)
        if cache is not None:
            k, v = cache.append(k, v)
        return self._mix(q, k, v, view.seen)

    def remember(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        queries = self.sizes[0]
        bias = None if self.qkv_bias is None else self.qkv_bias[queries:]
        k, v = F.linear(memory, self.qkv_weight[queries:], bias).split(self.sizes[1:], dim=-1)
        return self.prepare_k(self._heads(k, self.num_kv_heads)), self._heads(v, self.num_kv_heads)

    def cross(self, x: Tensor, keys: Tensor, values: Tensor, seen: Visibility) -> Tensor:
        queries = self.sizes[0]
        bias = None if self.qkv_bias is None else self.qkv_bias[:queries]
        q = F.linear(x, self.qkv_weight[:queries], bias)
        beams = x.shape[0] // keys.shape[0]
        if beams > 1:  # the beams of a sentence read the same keys: they become further queries of one row
            q = q.reshape(keys.shape[0], beams * x.shape[1], queries)
        q = self.prepare_q(self._heads(q, self.num_heads))
        return self._mix(q, keys, values, seen).view(x.shape[0], x.shape[1], -1)

    def prepare_q(self, q: Tensor) -> Tensor:
        """What a variant does to queries before they are turned: (B, H, T, K) -> (B, H, T, K)."""
        return q

    def prepare_k(self, k: Tensor) -> Tensor:
        """What a variant does to keys before they are turned and cached: (B, G, S, K) -> (B, G, S, K)."""
        return k

    def _heads(self, x: Tensor, heads: int) -> Tensor:
        """(B, L, heads · K) -> (B, heads, L, K), a view."""
        return x.view(x.shape[0], x.shape[1], heads, -1).transpose(1, 2)

    def _mix(self, q: Tensor, k: Tensor, v: Tensor, seen: Visibility) -> Tensor:
        """Attend and project: q (B, H, T, K), k (B, G, S, K), v (B, G, S, W) -> (B, T, D)."""
        dropout = self.dropout if self.training else 0.0
        mixed = attend(q, k, v, seen, self.scale, dropout, self.kernel)  # (B, H, T, W)
        return self.out(mixed.transpose(1, 2).flatten(2))
