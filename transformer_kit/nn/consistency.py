"""Cross-entropy of two passes over the same tokens, and how far their distributions are from each other.

As in `cross_entropy.py`, the logits are made a chunk of tokens at a time and turned into gradients at once.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from transformer_kit.nn.cross_entropy import Spread, Target, smoothed_target

_BLOCK = 2**17  # logits of a pass that are turned into gradients at a time on a CPU


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
            scores = [F.linear(states, cast_weight, cast_bias) for states in hidden]
            _to_gradients(scores[0], scores[1], labels[rows], target, alpha, sums)
            for gradient, grad, states in zip(scores, grads, hidden, strict=True):
                grad[rows] = gradient @ cast_weight
                grad_weight += gradient.t() @ states
                if bias is not None:
                    grad_bias += gradient.sum(dim=0, dtype=exact)
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


def _to_gradients(first: Tensor, second: Tensor, labels: Tensor, target: Target, alpha: float, sums: Tensor) -> None:
    """Replace both passes' logits by the gradients of the loss with respect to them; the sums grow.

    A few rows at a time, in float32 at least, so that all of it stays near the cache.

    Shape: first and second (n, V), labels (n,).
    """
    step = max(1, _BLOCK // first.shape[1]) if first.device.type == "cpu" else len(labels)
    for start in range(0, len(labels), step):
        rows = slice(start, start + step)
        found = _block(first[rows].to(sums.dtype), second[rows].to(sums.dtype), labels[rows], target, alpha, sums)
        first[rows], second[rows] = found


def _block(
    first: Tensor, second: Tensor, labels: Tensor, target: Target, alpha: float, sums: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients for a few rows of logits, which are spent.

    With r = log p₁ − log p₂: dKL(p₁ ‖ p₂)/dz₁ = p₁ (r − KL(p₁ ‖ p₂)) and dKL(p₂ ‖ p₁)/dz₁ = p₁ − p₂; so

        dL/dz₁ = p₁ (½ + ¼ α (1 + r − KL(p₁ ‖ p₂))) − ¼ α p₂ − ½ q, and z₂ likewise with −r.
    """
    each, width = torch.arange(len(labels), device=labels.device), first.shape[1]
    probabilities, norms = [], []
    for scores in (first, second):
        top = scores.amax(dim=-1, keepdim=True)
        scores -= top
        p = scores.exp()
        total = p.sum(dim=-1, keepdim=True)
        p /= total
        norm = total.log()  # log p = scores − norm
        at_label = scores[each, labels]
        spread = scores.sum() - width * norm.sum()
        if target.hole is not None:
            spread -= (scores[:, target.hole] - norm[:, 0]).sum()
        nll = norm.sum() - at_label.sum()
        correct = (at_label == 0).sum()
        cross_entropy = target.gold * nll - target.rest * spread
        sums[:3] += torch.stack([cross_entropy, nll, correct]) / 2
        probabilities.append(p)
        norms.append(norm)
    ratio = first.sub_(second).add_(norms[1] - norms[0])
    grads = []
    for sign, p, other in zip((1, -1), probabilities, probabilities[::-1], strict=True):
        divergence = sign * torch.linalg.vecdot(p, ratio)[:, None]  # (n, 1)
        half = divergence.sum() / 2
        sums[0] += alpha / 2 * half
        sums[3] += half
        grad = torch.add(0.5 + alpha / 4 * (1 - divergence), ratio, alpha=sign * alpha / 4)
        grad.mul_(p).sub_(other, alpha=alpha / 4).sub_(target.rest / 2)
        if target.hole is not None:
            grad[:, target.hole] += target.rest / 2
        grad[each, labels] -= target.gold / 2
        grads.append(grad)
    return grads[0], grads[1]
