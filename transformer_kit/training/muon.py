"""Muon: steps along the nearest matrix with orthonormal rows or columns, for the matrices inside a network.

The iteration that finds it runs on all matrices of one shape at once: small ones alone do not fill a processor.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from transformer_kit.training.shards import is_sharded, local, own_rows, whole

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic a x + b x³ + c x⁵; it brings singular values near 1 fast, and leaves them between 0.7 and 1.2."""


def rms_scale(rows: int, columns: int) -> float:
    """0.2 √max(rows, columns): an update's entries have root mean square 0.2, near that of Adam's.

    Source: Liu et al. 2025, "Muon is Scalable for LLM Training", section 2.2.
    """
    return 0.2 * math.sqrt(max(rows, columns))


def spectral_scale(rows: int, columns: int) -> float:
    """√max(1, rows / columns).

    Source: Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks".
    """
    return math.sqrt(max(1.0, rows / columns))


SCALES: dict[str, Callable[[int, int], float]] = {"rms": rms_scale, "spectral": spectral_scale}


def orthogonalised(matrices: Tensor, iterations: int, dtype: torch.dtype) -> Tensor:
    """About U Vᵀ of each matrix U S Vᵀ, by Newton–Schulz iterations x ← a x + (b x xᵀ + c (x xᵀ)²) x.

    Args:
        matrices: a batch of one shape.
        iterations: five bring singular values from 0.01 of the norm near 1.
        dtype: of the products; bfloat16 is exact enough.

    Shape: (N, R, C) -> (N, R, C), of type `dtype`.
    Source: Jordan et al. 2024; Bernstein and Newhouse 2024, "Old Optimizer, New Norm: An Anthology", appendix A.
    """
    a, b, c = COEFFICIENTS
    tall = matrices.shape[1] > matrices.shape[2]
    x = (matrices.mT if tall else matrices).to(dtype)
    x = x / torch.linalg.matrix_norm(x, keepdim=True).clamp(min=1e-7)
    for _ in range(iterations):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


class Muon(Optimizer):
    """m ← μ m + (1 − μ) g; w ← w − lr λ w − lr scale(R, C) orthogonalised((1 − μ) g + μ m).

    A matrix that holds several (`parts`) has each of them orthogonalised by itself, with the scale of its own shape.
    Of a parameter that is spread over ranks, each rank orthogonalises the whole and takes its own rows.

    Args:
        groups: as torch's optimizers take them, with `lr` and `weight_decay` in each.
        momentum: μ, in [0, 1).
        scale: rms or spectral; see `SCALES`.
        iterations: see `orthogonalised`.
        dtype: of the products of the iterations.
        parts: the rows of each part of a parameter; one that is not named is one matrix.

    Source: Jordan et al. 2024 (with Nesterov momentum); decay: Liu et al. 2025, equation 3.
    """

    def __init__(
        self,
        groups: Sequence[dict[str, Any]],
        *,
        momentum: float,
        scale: str,
        iterations: int,
        dtype: torch.dtype,
        parts: Mapping[nn.Parameter, Sequence[int]],
    ) -> None:
        super().__init__(groups, {})
        self._momentum, self._scale = momentum, SCALES[scale]
        self._iterations, self._dtype = iterations, dtype
        self._parts = parts

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # nothing is evaluated again
        """Make one update; a parameter without a gradient stays."""
        alike: dict[Any, list[tuple[Tensor, Tensor, float]]] = defaultdict(list)  # by shape and place
        changes: dict[nn.Parameter, Tensor] = {}  # of parameters that are spread over ranks
        for group in self.param_groups:
            held = [p for p in group["params"] if p.grad is not None]
            if not held:
                continue
            if group["weight_decay"]:
                torch._foreach_mul_(held, 1 - group["lr"] * group["weight_decay"])
            for parameter, update in zip(held, self._momenta(held), strict=True):
                rows = list(self._parts.get(parameter, parameter.shape[:1]))
                update = whole(update)
                target: Tensor = parameter
                if is_sharded(parameter):
                    target = changes[parameter] = torch.zeros_like(update)
                for part, step in zip(target.split(rows), update.split(rows), strict=True):
                    alike[part.shape, part.device, part.dtype].append((part, step, group["lr"]))
        for batch in alike.values():
            steps = orthogonalised(torch.stack([step for _, step, _ in batch]), self._iterations, self._dtype)
            scale = self._scale(*steps.shape[1:])
            for (part, _, lr), step in zip(batch, steps, strict=True):
                part.add_(step, alpha=-lr * scale)
        for parameter, change in changes.items():
            local(parameter).add_(own_rows(change, parameter))

    def _momenta(self, held: list[nn.Parameter]) -> list[Tensor]:
        """Take the gradients into the momenta; returns what is to be orthogonalised."""
        for parameter in held:
            if not self.state[parameter]:
                self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        grads, momenta = [p.grad for p in held if p.grad is not None], [self.state[p]["momentum_buffer"] for p in held]
        torch._foreach_lerp_(momenta, grads, 1 - self._momentum)
        return list(torch._foreach_lerp(grads, momenta, self._momentum))
