"""Output projection and label-smoothed cross-entropy in one, a chunk of tokens at a time.

- The logits of a whole batch are never held: each chunk's are made, turned into their own gradient in place, and used.
- So the gradients of hidden states, weight and bias are ready when the loss is; backward only scales them.
- Under autocast the products run in its type; reductions and the softmax in float32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Spread = Literal["all", "others", "others_but_pad"]
SPREADS = ("all", "others", "others_but_pad")

_BLOCK = 2**19  # logits that the softmax visits at a time on a CPU, so that its passes stay near the cache


@dataclass(frozen=True)
class Target:
    """The smoothed distribution: `gold` more at the label, `rest` at every type, but nothing at `hole`."""

    gold: float
    rest: float
    hole: int | None


def smoothed_target(vocab_size: int, smoothing: float, spread: Spread, pad_id: int) -> Target:
    """What a label's distribution is.

    - `all`: ε/V at each type and 1 − ε more at the label (torch; Szegedy et al. 2016, section 7);
    - `others`: 1 − ε at the label, ε/(V − 1) at each other type (tensor2tensor);
    - `others_but_pad`: 1 − ε at the label, ε/(V − 2) at each other type but padding (JoeyNMT); no label is `pad_id`.

    Args:
        vocab_size: V, at least 3.
        smoothing: ε, 0 <= ε < 1.
        spread: one of the above.
        pad_id: the type that `others_but_pad` leaves out.
    """
    if spread == "all":
        return Target(1 - smoothing, smoothing / vocab_size, None)
    if spread == "others":
        rest = smoothing / (vocab_size - 1)
        return Target(1 - smoothing - rest, rest, None)
    assert spread == "others_but_pad", spread
    rest = smoothing / (vocab_size - 2)
    return Target(1 - smoothing - rest, rest, pad_id)


def entropy(target: Target, vocab_size: int) -> float:
    """−Σ_j q_j log q_j of a smoothed distribution over V types: the least that its cross-entropy can be, in nats."""
    others = vocab_size - 1 - (target.hole is not None)
    shares = [(1, target.gold + target.rest), (others, target.rest)]
    return sum((-count * share * math.log(share) for count, share in shares if share > 0), 0.0)


def reference_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    smoothing: float,
    spread: Spread,
    pad_id: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """The formula, −Σ_i Σ_j q_ij log softmax(h_i Wᵀ + b)_j, as it is read; `linear_cross_entropy` equals it."""
    logits = F.linear(hidden, weight, bias).to(torch.promote_types(weight.dtype, torch.float32))  # (N, V)
    log_probs = logits.log_softmax(dim=-1)
    target = smoothed_target(weight.shape[0], smoothing, spread, pad_id)
    q = torch.full_like(log_probs, target.rest)
    if target.hole is not None:
        q[:, target.hole] = 0.0
    q[torch.arange(len(labels)), labels] += target.gold
    nll = -log_probs.gather(1, labels[:, None]).sum()
    return -(q * log_probs).sum(), nll, (logits.argmax(dim=-1) == labels).sum()


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    smoothing: float,
    spread: Spread,
    pad_id: int,
    chunk: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Label-smoothed cross-entropy of a linear projection, summed over tokens.

    Args:
        hidden: what is projected; every row counts.
        weight, bias: the projection.
        labels: the type that each row should predict.
        smoothing, spread, pad_id: see `smoothed_target`.
        chunk: rows projected at a time, at least 1; memory is chunk × V, the result does not depend on it.

    Returns:
        The smoothed loss (differentiable), the plain negative log-likelihood (not), and the number of labels that no
        other type's logit exceeds; scalars, in float32 at least.

    Shape: hidden (N, D), weight (V, D), bias (V,), labels (N,) int64 -> three scalars.
    """
    target = smoothed_target(weight.shape[0], smoothing, spread, pad_id)
    device = hidden.device.type
    product = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype
    with torch.autocast(device, enabled=False):
        return _LinearCrossEntropy.apply(hidden, weight, bias, labels, target, chunk, product, torch.is_grad_enabled())


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        target: Target,
        chunk: int,
        product: torch.dtype,
        with_grad: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        work = _Chunks(hidden, weight, bias, target, product)
        if with_grad:
            work.start_gradients()
        for start in range(0, len(labels), chunk):
            work.add(slice(start, start + chunk), labels[start : start + chunk])
        ctx.grads = work.grads
        ctx.mark_non_differentiable(work.nll, work.correct)
        return work.loss(), work.nll, work.correct

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        scaled = [None if grad is None else (grad * grads[0].to(grad.dtype)).to(dtype) for grad, dtype in ctx.grads]
        return (*scaled, None, None, None, None, None)


class _Chunks:
    """Sums and gradients of the loss, gathered over chunks of rows.

    With p the softmax of a row's logits and the target `rest` everywhere (but 0 at the hole) plus `gold` at the label,
    the gradient of the row's logits is p − gold·onehot − rest. The last term is constant: its products are sums made
    once. One workspace serves the logits of all chunks: fresh memory costs a page fault every few kilobytes.
    """

    def __init__(
        self, hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Target, product: torch.dtype
    ) -> None:
        self.hidden, self.weight, self.bias, self.target = hidden, weight, bias, target
        self.exact = torch.promote_types(weight.dtype, torch.float32)
        self.cast_hidden, self.cast_weight = hidden.to(product), weight.to(product)
        self.cast_bias = None if bias is None else bias.to(product)
        self.nll = torch.zeros((), dtype=self.exact, device=hidden.device)
        self.gold_logits = torch.zeros_like(self.nll)
        self.correct = torch.zeros((), dtype=torch.int64, device=hidden.device)
        self.grads: list[tuple[Tensor | None, torch.dtype | None]] = []
        self._workspace: Tensor | None = None  # (chunk, V)

    def _spread(self, over_types: Tensor) -> Tensor:
        """The sum over the types that get `rest`, of something per type: (V, ...) -> (...)."""
        total = over_types.sum(dim=0, dtype=self.exact)
        return total if self.target.hole is None else total - over_types[self.target.hole]

    def start_gradients(self) -> None:
        rest, rows = self.target.rest, len(self.hidden)
        weight = (-rest * self.hidden.sum(dim=0, dtype=self.exact)).expand(self.weight.shape).clone()
        self.grads = [(torch.empty_like(self.hidden), self.hidden.dtype), (weight, self.weight.dtype), (None, None)]
        if self.bias is not None:
            bias = torch.full_like(self.bias, -rest * rows, dtype=self.exact)
            self.grads[2] = (bias, self.bias.dtype)
        for grad, _ in self.grads[1:]:
            if grad is not None and self.target.hole is not None:
                grad[self.target.hole] = 0.0
        self.constant = -rest * self._spread(self.weight)  # (D,) what every row of grad_hidden gets

    def loss(self) -> Tensor:
        """Σ (log-sum-exp − gold·z_label − rest·Σ_j z_j), the last sum by way of the sums over rows and types."""
        logits = self.hidden.sum(dim=0, dtype=self.exact) @ self._spread(self.weight)
        if self.bias is not None:
            logits = logits + len(self.hidden) * self._spread(self.bias)
        log_sum_exp = self.nll + self.gold_logits
        return log_sum_exp - self.target.gold * self.gold_logits - self.target.rest * logits

    def add(self, rows: slice, labels: Tensor) -> None:
        """Take in the rows of one chunk."""
        hidden, weight = self.cast_hidden[rows], self.cast_weight
        scores = self._scores(hidden)  # (n, V)
        gold = scores.gather(1, labels[:, None]).to(self.exact)  # (n, 1)
        top, top_probability = self._softmax(scores)
        self.nll += (top - top_probability.log() - gold).sum()
        self.gold_logits += gold.sum()
        self.correct += (gold == top).sum()
        if not self.grads:
            return
        each = torch.arange(len(labels), device=labels.device)
        at_label = (gold - top).exp_().mul_(top_probability).sub_(self.target.gold)
        scores[each, labels] = at_label.squeeze(1).to(scores.dtype)  # p − gold·onehot; scatter_ is slow in bf16
        (grad_hidden, _), (grad_weight, _), (grad_bias, _) = self.grads
        assert grad_hidden is not None
        assert grad_weight is not None
        torch.add(self.constant, scores @ weight, out=grad_hidden[rows])
        _add_product(grad_weight, scores.t(), hidden)
        if grad_bias is not None:
            grad_bias += scores.sum(dim=0, dtype=self.exact)

    def _scores(self, hidden: Tensor) -> Tensor:
        if self._workspace is None:
            self._workspace = hidden.new_empty(len(hidden), len(self.weight))
        scores = self._workspace[: len(hidden)]
        if self.cast_bias is None:
            return torch.mm(hidden, self.cast_weight.t(), out=scores)
        return torch.addmm(self.cast_bias, hidden, self.cast_weight.t(), out=scores)

    def _softmax(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Replace each row of scores by its softmax; returns the largest score and probability of each row, (n, 1)."""
        count, width = scores.shape
        step = max(1, _BLOCK // width) if scores.device.type == "cpu" else count
        tops, probabilities = [], []
        for start in range(0, count, step):
            block = scores[start : start + step]
            exact = block.to(self.exact)  # the block itself where the products are exact already
            tops.append(exact.amax(dim=-1, keepdim=True))
            torch.softmax(exact, dim=-1, out=exact)  # one kernel, several times as fast as exp and sum
            probabilities.append(exact.amax(dim=-1, keepdim=True))
            if exact is not block and self.grads:
                block.copy_(exact)
        return torch.cat(tops), torch.cat(probabilities)


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total += left @ right, in one call where the types agree."""
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    else:
        total += left @ right
