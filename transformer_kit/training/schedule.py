"""Learning rates as closed formulas of the update's number, so that a resumed run needs no state for them."""

from __future__ import annotations

import math
from collections.abc import Callable

from transformer_kit.training.options import ScheduleOptions

Schedule = Callable[[int], float]


def _warm(step: int, warmup: int, initial_lr: float, lr: float) -> float:
    """Linear from `initial_lr` at update 0 to `lr` at update `warmup`."""
    return initial_lr + (lr - initial_lr) * step / warmup


def constant(step: int, lr: float, initial_lr: float, warmup: int) -> float:
    """Warm up, then stay at `lr`."""
    return _warm(step, warmup, initial_lr, lr) if step < warmup else lr


def linear(step: int, lr: float, initial_lr: float, final_lr: float, warmup: int, steps: int) -> float:
    """Warm up, then fall in a line to `final_lr` at update `steps`, and stay there."""
    if step < warmup:
        return _warm(step, warmup, initial_lr, lr)
    done = min(1.0, (step - warmup) / (steps - warmup))
    return lr + (final_lr - lr) * done


def cosine(step: int, lr: float, initial_lr: float, final_lr: float, warmup: int, steps: int) -> float:
    """Warm up, then final_lr + (lr − final_lr) · (1 + cos πt) / 2, t from 0 at `warmup` to 1 at `steps`.

    Source: Loshchilov & Hutter 2017 (SGDR), equation 5, one period.
    """
    if step < warmup:
        return _warm(step, warmup, initial_lr, lr)
    done = min(1.0, (step - warmup) / (steps - warmup))
    return final_lr + (lr - final_lr) * 0.5 * (1 + math.cos(math.pi * done))


def inverse_sqrt(step: int, lr: float, initial_lr: float, warmup: int) -> float:
    """Warm up, then lr · √(warmup / step)."""
    return _warm(step, warmup, initial_lr, lr) if step < warmup else lr * math.sqrt(warmup / step)


def noam(step: int, factor: float, d_model: int, warmup: int) -> float:
    """factor · d_model^-0.5 · min(step^-0.5, step · warmup^-1.5).

    Source: Vaswani et al. 2017, section 5.3, equation 3 (factor 1).
    """
    return factor * d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)


_FORMULAS: dict[str, Callable[..., float]] = {
    "constant": constant,
    "linear": linear,
    "cosine": cosine,
    "inverse_sqrt": inverse_sqrt,
    "noam": noam,
}


def build_schedule(options: ScheduleOptions) -> Schedule:
    """The learning rate of each update, as `schedule(step)`; the first update is step 1."""
    formula = _FORMULAS[options.name]
    names = [
        n for n in ("lr", "initial_lr", "final_lr", "steps", "factor", "d_model") if getattr(options, n) is not None
    ]
    values = {name: getattr(options, name) for name in names}
    return lambda step: formula(step, warmup=options.warmup, **values)


def standstill(schedule: Schedule, steps: int | None) -> int | None:
    """After which update of `steps` the rate is 0 for good, if more than the last one follows and changes nothing."""
    if steps is None or steps < 2 or schedule(steps) != 0 or schedule(steps - 1) != 0:
        return None
    return next((step for step in range(steps, 0, -1) if schedule(step) > 0), 0)
