"""Scaled dot-product attention behind one function: a readable reference and two fast ways, chosen by shape.

- `reference`: the formula, in float32 or better; what the others are tested against.
- `plain`: two batched products around a softmax; fastest at short sequences and small heads.
- `fused`: torch's fused attention, which never holds the (T, S) weights; fastest at long sequences.
- `auto`: one of the last two by shape (see `choose`).
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from transformer_kit.nn.dropout import dropout as fast_dropout
from transformer_kit.nn.mask import Mask

Kernel = Literal["auto", "fused", "plain", "reference"]
KERNELS: tuple[str, ...] = get_args(Kernel)


class Visibility:
    """A mask and a position bias, made ready for the kernels once and shared by all layers of a stack.

    Args:
        mask: which keys each query sees.
        bias: broadcastable to (B, H, T, S), added to the scores, or None.
        queries: T.
        keys: S.
        device: where the tensors live.
    """

    def __init__(self, mask: Mask, bias: Tensor | None, queries: int, keys: int, device: torch.device) -> None:
        self.bias = bias
        self.visible = mask.dense(queries, keys, device)  # (B|1, 1, T|1, S) bool, or None: all visible
        self.causal_only = mask.causal and mask == Mask(causal=True) and queries == keys and bias is None
        self.blind: Tensor | None = None  # (B|1, 1, T|1, 1) bool: queries that see nothing; None: there are none
        if self.visible is not None and mask.can_blind:
            blind = ~self.visible.any(-1, keepdim=True)
            self.blind = blind if bool(blind.any()) else None
        self._additive: dict[torch.dtype, Tensor | None] = {}

    def additive(self, dtype: torch.dtype) -> Tensor | None:
        """Bias and mask as one summand of the scores, broadcastable to (B, H, T, S), made once per dtype.

        Hidden cells hold a huge negative number instead of −∞, so that a row that sees nothing stays finite forwards
        and backwards; its output is set to zero afterwards.
        """
        if dtype not in self._additive:
            summand = None if self.bias is None else self.bias.to(dtype)
            if self.visible is not None:
                hidden = torch.finfo(dtype).min / 2
                base = torch.zeros((), dtype=dtype, device=self.visible.device) if summand is None else summand
                summand = torch.where(self.visible, base, hidden)
            self._additive[dtype] = summand
        return self._additive[dtype]


def attend(
    q: Tensor, k: Tensor, v: Tensor, seen: Visibility, scale: float, dropout: float, kernel: Kernel = "auto"
) -> Tensor:
    """softmax(q kᵀ · scale + bias) v over the visible keys; zeros for a query that sees none.

    Args:
        q, k, v: queries, keys and values; query head h reads key/value head h // (H / G).
        seen: mask and bias.
        scale: what the products are multiplied by, 1/√K in the paper.
        dropout: probability in [0, 1) with which an attention weight is dropped; 0 outside training.
        kernel: which implementation.

    Shape:
        q (B, H, T, K), k (B, G, S, K), v (B, G, S, W) -> (B, H, T, W), of q's dtype.

    Source:
        Vaswani et al. 2017, section 3.2.1, equation 1; grouped heads: Ainslie et al. 2023, section 2.
    """
    if kernel == "auto":
        kernel = choose(q, k, v, seen, dropout)
    return _KERNELS[kernel](q, k, v, seen, scale, dropout)


def choose(q: Tensor, k: Tensor, v: Tensor, seen: Visibility, dropout: float) -> Kernel:
    """The faster of `plain` and `fused` for these shapes."""
    if not q.is_cpu:
        return "fused"
    # On a CPU, dropout, a learned bias or values of another width than keys make torch's fused attention fall back to
    # unfused products that are slower than ours.
    if dropout > 0 or q.shape[-1] != v.shape[-1] or (seen.bias is not None and seen.bias.requires_grad):
        return "plain"
    return "fused" if q.shape[-2] * k.shape[-2] > _FUSED_FROM else "plain"


_FUSED_FROM = 128 * 128


def _reference(q: Tensor, k: Tensor, v: Tensor, seen: Visibility, scale: float, dropout: float) -> Tensor:
    dtype = torch.promote_types(q.dtype, torch.float32)
    group = q.shape[1] // k.shape[1]
    keys = k.to(dtype).repeat_interleave(group, dim=1)  # (B, H, S, K)
    values = v.to(dtype).repeat_interleave(group, dim=1)  # (B, H, S, W)
    scores = torch.einsum("bhtk,bhsk->bhts", q.to(dtype), keys) * scale
    if seen.bias is not None:
        scores = scores + seen.bias.to(dtype)
    if seen.visible is not None:
        # A row without a visible key keeps finite scores here and loses its weights below.
        scores = scores.masked_fill(~seen.visible, torch.finfo(dtype).min)
    weights = scores.softmax(-1)
    if seen.blind is not None:
        weights = weights.masked_fill(seen.blind, 0.0)
    weights = F.dropout(weights, dropout, training=dropout > 0)
    return torch.einsum("bhts,bhsw->bhtw", weights, values).to(q.dtype)


def _plain(q: Tensor, k: Tensor, v: Tensor, seen: Visibility, scale: float, dropout: float) -> Tensor:
    (batch, heads, queries, width), (groups, keys) = q.shape, k.shape[1:3]
    rows = heads // groups * queries  # the query heads of one key/value head are stacked: one product serves all
    with torch.autocast(q.device.type, enabled=False):
        dtype = v.dtype
        # Contiguous copies, then views: `matmul` on the four-dimensional tensors would copy kᵀ across the grain.
        query = q.to(dtype).reshape(batch * groups, rows, width)
        key = k.to(dtype).reshape(batch * groups, keys, width)
        value = v.reshape(batch * groups, keys, v.shape[-1])
        scores = torch.bmm(query * scale, key.transpose(1, 2)).view(batch, heads, queries, keys)
        summand = seen.additive(dtype)
        if summand is not None:
            scores = scores + summand
        weights = scores.softmax(-1)
        weights = fast_dropout(weights, dropout, dropout > 0)
        mixed = torch.bmm(weights.view(batch * groups, rows, keys), value)
        mixed = mixed.view(batch, heads, queries, v.shape[-1])
    return mixed if seen.blind is None else mixed.masked_fill(seen.blind, 0.0)


def _fused(q: Tensor, k: Tensor, v: Tensor, seen: Visibility, scale: float, dropout: float) -> Tensor:
    group = q.shape[1] // k.shape[1]
    if group > 1 and q.is_cpu:  # torch's own grouping leaves the fused path on a CPU
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    mixed = F.scaled_dot_product_attention(
        q,
        k.to(q.dtype),
        v.to(q.dtype),
        attn_mask=None if seen.causal_only else seen.additive(q.dtype),
        dropout_p=dropout,
        is_causal=seen.causal_only,
        scale=scale,
        enable_gqa=group > 1 and not q.is_cpu,
    )
    return mixed if seen.blind is None else mixed.masked_fill(seen.blind, 0.0)


_KERNELS = {"reference": _reference, "plain": _plain, "fused": _fused}


def default_scale(head_dim: int) -> float:
    """1/√K, which keeps the scores of unit-variance queries and keys at unit variance."""
    return 1.0 / math.sqrt(head_dim)
