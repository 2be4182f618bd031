"""How fast a training was, beside what the machine can do."""

from __future__ import annotations

import time

import torch
from torch import nn

from transformer_kit.batch import Batch
from transformer_kit.models.base import Model
from transformer_kit.models.flops import TrainingCost
from transformer_kit.training.precision import Precision

SIZES = {"cuda": 8192, "cpu": 1024}  # of the square matrices whose product is timed


def product_rate(precision: Precision, seconds: float = 0.2) -> float:
    """FLOP/s of a product of two square matrices, in the number format of a training: the best of several.

    Args:
        precision: format and device.
        seconds: for how long products are timed, at least three; one before warms up.
    """
    dtype = torch.bfloat16 if precision.name == "bf16" else torch.float32
    size = SIZES.get(precision.device.type, 2048)
    generator = torch.Generator(precision.device).manual_seed(0)  # the draws of a training stay what they are
    left, right = (torch.randn(size, size, device=precision.device, generator=generator).to(dtype) for _ in range(2))
    out = torch.empty_like(left)
    best, count, begun = float("inf"), -1, time.perf_counter()
    with torch.no_grad():
        while count < 3 or time.perf_counter() - begun < seconds:
            started = time.perf_counter()
            torch.matmul(left, right, out=out)
            _wait(precision.device)
            if count >= 0:
                best = min(best, time.perf_counter() - started)
            count += 1
    return 2 * size**3 / best


def _wait(device: torch.device) -> None:
    """Until the device has done what it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


class Work:
    """Sums over a session's batches.

    Args:
        model: what is trained.

    Attributes:
        flops: operations that the batches ask for; stays 0 for a module that is none of the toolkit's models.
        labels: real target tokens.
    """

    def __init__(self, model: nn.Module) -> None:
        self._cost = TrainingCost(model) if isinstance(model, Model) else None
        self.flops = self.labels = 0

    def add(self, batch: Batch) -> None:
        self.labels += batch.num_labels
        if self._cost is not None:
            self.flops += self._cost.of(batch)

    @property
    def flops_per_token(self) -> float | None:
        """Operations for a target token; None before there is one, or where they are not known."""
        return self.flops / self.labels if self.flops and self.labels else None
