"""Cross-entropy of two passes over the same tokens, and how far their distributions are from each other.

As in `cross_entropy.py`, the logits are made a chunk of tokens at a time and turned into gradients at once.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from transformer_kit.nn.cross_entropy import Spread, Target, smoothed_target


def paired_cross_entropy(
    first: Tensor,
    second: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    smoothing: float,
    spread: Spread,
    pad_id: int,
    chunk: int,
    alpha: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """½ (CE₁ + CE₂) + ½ α KL, with KL = ½ (KL(p₁ ‖ p₂) + KL(p₂ ‖ p₁)), summed over tokens.

    Half of the paper's loss: where the passes agree it is the cross-entropy of one, so that α = 0 and a single pass
    have losses, and gradients, of one size.

    Args:
        first, second: what is projected in each pass; every row counts.
        weight, bias: the projection.
        labels: the type that each row should predict.
        smoothing, spread, pad_id: see `smoothed_target`; KL is of the distributions themselves.
        chunk: rows of each pass projected at a time, at least 1.
        alpha: α, at least 0.

    Returns:
        The loss (differentiable); the plain negative log-likelihood and the number of labels that no other type's logit
        exceeds, each the mean of the passes; KL. Scalars, in float32 at least.

    Shape: first and second (N, D), weight (V, D), bias (V,), labels (N,) int64 -> four scalars.
    Source: Liang et al. 2021, "R-Drop: Regularized Dropout for Neural Networks", equations 2 to 4.
    """
    target = smoothed_target(weight.shape[0], smoothing, spread, pad_id)
    device = first.device.type
    product = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype
    with torch.autocast(device, enabled=False):
        return _PairedCrossEntropy.apply(first, second, weight, bias, labels, target, chunk, alpha, product)


class _PairedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        first: Tensor,
        second: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        target: Target,
        chunk: int,
        alpha: float,
        product: torch.dtype,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        exact = torch.promote_types(weight.dtype, torch.float32)
        sums = torch.zeros(4, dtype=exact, device=weight.device)  # loss, nll, correct, KL
        grads = [torch.empty_like(first), torch.empty_like(second)]
        grad_weight = torch.zeros_like(weight, dtype=exact)
        grad_bias = torch.zeros_like(weight[:, 0], dtype=exact)
        cast_weight, cast_bias = weight.to(product), None if bias is None else bias.to(product)
        for start in range(0, len(labels), chunk):
            rows = slice(start, start + chunk)
            hidden = [states[rows].to(product) for states in (first, second)]
            logits = [F.linear(each, cast_weight, cast_bias).to(exact) for each in hidden]
            for each, grad, states in zip(
                _gradients(logits, labels[rows], target, alpha, sums), grads, hidden, strict=True
            ):
                small = each.to(product)
                grad[rows] = small @ cast_weight
                grad_weight += small.t() @ states
                grad_bias += each.sum(dim=0)
        ctx.grads = (*grads, grad_weight, None if bias is None else grad_bias)
        ctx.kinds = (first.dtype, second.dtype, weight.dtype, weight.dtype)
        loss, nll, correct, divergence = sums.unbind()
        ctx.mark_non_differentiable(nll, correct, divergence)
        return loss.clone(), nll, correct, divergence

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        scaled = [
            None if grad is None else (grad * grads[0].to(grad.dtype)).to(kind)
            for grad, kind in zip(ctx.grads, ctx.kinds, strict=True)
        ]
        return (*scaled, None, None, None, None, None)


def _gradients(
    logits: list[Tensor], labels: Tensor, target: Target, alpha: float, sums: Tensor
) -> tuple[Tensor, Tensor]:
    """Those of the loss with respect to both passes' logits, (n, V) each; the sums grow.

    With l = log p₁ − log p₂: dKL(p₁ ‖ p₂)/dz₁ = p₁ (l − KL(p₁ ‖ p₂)), dKL(p₂ ‖ p₁)/dz₁ = p₁ − p₂; z₂ likewise.
    """
    each = torch.arange(len(labels), device=labels.device)
    logs = [scores.log_softmax(dim=-1) for scores in logits]
    probabilities = [log.exp() for log in logs]
    ratio = logs[0] - logs[1]
    grads = []
    for sign, log, p, other in zip((1, -1), logs, probabilities, probabilities[::-1], strict=True):
        at_label = log[each, labels]
        spread = log.sum() if target.hole is None else log.sum() - log[:, target.hole].sum()
        cross_entropy = -target.gold * at_label.sum() - target.rest * spread
        divergence = sign * (p * ratio).sum(dim=-1, keepdim=True)  # (n, 1)
        correct = (at_label == log.amax(dim=-1)).sum()
        of_kl = p * (sign * ratio - divergence) + p - other
        both = divergence.sum() / 2  # of the two directions, half each
        sums += torch.stack([cross_entropy / 2 + alpha * both / 2, -at_label.sum() / 2, correct / 2, both])
        grad = p - target.rest
        if target.hole is not None:
            grad[:, target.hole] += target.rest
        grad[each, labels] -= target.gold
        grads.append(grad / 2 + alpha / 4 * of_kl)
    return grads[0], grads[1]
