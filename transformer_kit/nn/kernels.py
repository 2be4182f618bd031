"""Scaled dot-product attention behind one function: a readable reference and two fast ways, chosen by shape.

- `reference`: the formula, in float32 or better; what the others are tested against.
- `plain`: two batched products around a softmax; fastest at short sequences and small heads.
- `fused`: torch's fused attention, which never holds the (T, S) weights; fastest at long sequences.
- `auto`: one of the last two by shape (see `choose`).
"""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from transformer_kit.nn.dropout import dropout as drop
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
        plainly_causal = mask == Mask(causal=True)
        self.causal_only = plainly_causal and queries == keys and bias is None  # torch has a flag for this one
        self.blind: Tensor | None = None  # (B|1, 1, T|1, 1) bool: queries that see nothing; None: there are none
        if self.visible is not None and mask.can_blind:
            blind = ~self.visible.any(-1, keepdim=True)
            # On a GPU the look would wait for all work in hand; a mask over nothing costs less.
            self.blind = blind if device.type != "cpu" or bool(blind.any()) else None
        self._additive: dict[torch.dtype, Tensor | None] = {}

    @property
    def additives(self) -> list[Tensor]:
        """What `additive` has made so far."""
        return [summand for summand in self._additive.values() if summand is not None]

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
    """The faster of `plain` and `fused` for these shapes; on a CPU as measured with torch 2.13 (AVX-512, bf16).

    - Dropout, a bias that needs gradients, or values of another width than keys make torch's fused attention fall back
      to products that are slower than ours.
    - In float32, forwards and backwards, on one thread fused overtakes at T = S = 32 for heads of 32 and at 16 for
      heads of 64, and stays ahead by a tenth. Its two threads halve the time less well: there plain is 1.3 times as
      fast at 64, and even at 160. With few queries, as in decoding, plain stays ahead.
    - In bfloat16 the fused backward pass is slow: plain is 10 times as fast at 12, 4 times at 64, twice at 256, and
      still 1.6 times at 1,024, where its (T, S) weights begin to fill the memory.
    """
    if not q.is_cpu or torch.compiler.is_compiling():
        return "fused"
    queries, keys, width = q.shape[-2], k.shape[-2], q.shape[-1]
    if dropout > 0 or width != v.shape[-1] or (seen.bias is not None and seen.bias.requires_grad):
        return "plain"
    if v.dtype == torch.bfloat16:
        return "fused" if queries * keys > 1024**2 else "plain"
    long = queries * keys >= 160**2 if torch.get_num_threads() > 1 else queries * keys * width**2 >= 1024**2
    return "fused" if queries >= 16 and long else "plain"


def _reference(q: Tensor, k: Tensor, v: Tensor, seen: Visibility, scale: float, dropout: float) -> Tensor:
    dtype = torch.promote_types(q.dtype, torch.float32)
    group = q.shape[1] // k.shape[1]
    with torch.autocast(q.device.type, enabled=False):
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
        weights = drop(weights, dropout, dropout > 0)
        return torch.einsum("bhts,bhsw->bhtw", weights, values).to(q.dtype)


def _plain(q: Tensor, k: Tensor, v: Tensor, seen: Visibility, scale: float, dropout: float) -> Tensor:
    dtype = v.dtype  # a rotation may leave q and k in another one than autocast's products have
    with torch.autocast(q.device.type, enabled=False):
        summand = seen.additive(dtype)
        return _Plain.apply(q.to(dtype), k.to(dtype), v, summand, seen.blind, scale, dropout).to(q.dtype)


class _Plain(torch.autograd.Function):
    """Products and softmax with a backward pass by hand, which makes fewer passes over the scores than autograd's.

    With weights p, kept and rescaled weights d = p ∘ m / (1 − rate) and g = ∂L/∂out:
    ∂L/∂v = dᵀ g;  ∂L/∂scores = d ∘ (g vᵀ) − p · Σ_s d ∘ (g vᵀ);  so the mask m itself need not be kept.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        summand: Tensor | None,
        blind: Tensor | None,
        scale: float,
        dropout: float,
    ) -> Tensor:
        (batch, heads, queries, width), (groups, keys) = q.shape, k.shape[1:3]
        ctx.shape = (batch, heads, queries, keys)
        rows = heads // groups * queries  # the query heads of one key/value head are stacked: one product serves all
        # Contiguous copies, then views: four-dimensional products would copy kᵀ against the grain.
        q = q.reshape(batch * groups, rows, width)
        k = k.reshape(batch * groups, keys, width)
        v = v.reshape(batch * groups, keys, v.shape[-1])
        scores = _product(q, k.transpose(1, 2), scale)
        by_head = scores.view(ctx.shape)
        if summand is not None:
            by_head.add_(summand)
        weights = _softmax(scores)
        if blind is not None:
            weights.view(ctx.shape).masked_fill_(blind, 0.0)
        kept = drop(weights, dropout, dropout > 0)
        ctx.scale = scale
        ctx.summand_shape = None if summand is None else summand.shape
        ctx.save_for_backward(q, k, v, weights, kept)
        return torch.bmm(kept, v).view(batch, heads, queries, v.shape[-1])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, weights, kept = ctx.saved_tensors
        (batch, heads, queries, keys), groups = ctx.shape, k.shape[0] // ctx.shape[0]
        with torch.autocast(q.device.type, enabled=False):
            grad = grads[0].reshape(batch * groups, -1, v.shape[-1])
            grad_v = torch.bmm(kept.transpose(1, 2), grad)
            moved = torch.bmm(grad, v.transpose(1, 2)).mul_(kept)
            grad_scores = moved.addcmul_(weights, moved.sum(-1, keepdim=True), value=-1)
            grad_q = _product(grad_scores, k, ctx.scale)
            grad_k = _product(grad_scores.transpose(1, 2), q, ctx.scale)
        grad_summand = grad_scores.view(ctx.shape).sum_to_size(ctx.summand_shape) if ctx.needs_input_grad[3] else None
        return (
            grad_q.view(batch, heads, queries, -1),
            grad_k.view(batch, groups, keys, -1),
            grad_v.view(batch, groups, keys, -1),
            grad_summand,
            None,
            None,
            None,
        )


def _product(a: Tensor, b: Tensor, scale: float) -> Tensor:
    """a b · scale without a pass of its own for the factor: (N, T, K), (N, K, S) -> (N, T, S)."""
    return torch.baddbmm(a.new_empty(1, 1, 1), a, b, beta=0, alpha=scale)


_VECTOR = 16  # float32 numbers in one AVX-512 register


def _softmax(scores: Tensor) -> Tensor:
    """Softmax over the last axis; reductions in float32 at least."""
    keys = scores.shape[-1]
    if keys >= _VECTOR:
        return scores.softmax(-1)
    # Rows shorter than a register take a scalar path in torch on a CPU: padding them is eight to ten times as fast.
    wide = F.pad(scores, (0, _VECTOR - keys), value=torch.finfo(scores.dtype).min)
    return wide.softmax(-1)[..., :keys].contiguous()


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
