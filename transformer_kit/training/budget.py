"""A token budget for batches that fits the memory: what `data.batch.tokens=auto` stands for.

- Two budgets, the second twice the first, are tried with a forward and a backward pass over their heaviest batch.
  Memory grows linearly with the tokens of a batch, so the two peaks give a line, and the line the budget.
- The optimizer's state, which a trial does not make, is added: two numbers and a temporary one a parameter, as Adam.
- Neither parameters nor random numbers are touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

import torch

from transformer_kit.batch import Batch
from transformer_kit.errors import RunError
from transformer_kit.logs import get_logger
from transformer_kit.training.memory import available_memory, is_out_of_memory, peak_of, release
from transformer_kit.training.precision import Precision
from transformer_kit.training.step import Step

log = get_logger(__name__)

SHARES = {"cuda": 0.85, "cpu": 0.5}  # of the memory; a CPU's system ends a process that takes too much without a word
MOST = 65_536  # more gains no speed, and changes what is learnt
LOOK = 200  # batches among which the heaviest is tried
MULTIPLE = 256


@dataclass(frozen=True)
class Trial:
    """What a budget took: the most bytes held."""

    tokens: int
    peak: int


def fit_tokens(one: Trial, two: Trial, fixed: int, room: int) -> int:
    """The largest budget, a multiple of `MULTIPLE` up to `MOST`, whose peak lies within `room` bytes; 0: none does.

    Args:
        one, two: trials, the second with more tokens.
        fixed: bytes to come on top of every peak.
    """
    slope = max((two.peak - one.peak) / (two.tokens - one.tokens), 1.0)
    tokens = int((room - fixed - (two.peak - slope * two.tokens)) / slope)
    return max(0, min(MOST, tokens) // MULTIPLE * MULTIPLE)


def auto_tokens(step: Step, batches: Callable[[int], Iterator[Batch]], precision: Precision, least: int) -> int:
    """The token budget for the memory that is free now.

    Args:
        step: model and objective, in training mode; moved to the device of `precision`.
        batches: the training batches under a budget.
        precision: format and device.
        least: tokens of the longest row, so that no smaller budget is of use.

    Raises:
        RunError: the memory is too small for the smallest budget.
    """
    device = precision.device
    room = available_memory(device)
    if room is None:
        raise RunError(f"data.batch.tokens=auto: how much memory {device} has is not known; give a number")
    first = -(-max(least, 4 * MULTIPLE) // MULTIPLE) * MULTIPLE
    share = SHARES.get(device.type, 0.5)
    parameters = sum(p.numel() * p.element_size() for p in step.parameters() if p.requires_grad)
    room = int(share * room)
    try:
        step.to(device)
        one, two = (Trial(n, _peak(step, _heaviest(batches(n)), precision)) for n in (first, 2 * first))
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        tokens = 0
    else:
        tokens = fit_tokens(one, two, fixed=3 * parameters, room=room)
    if tokens < least:
        raise RunError(
            f"data.batch.tokens=auto: {share:.0%} of the free memory of {device} ({room / 2**30:.2f} GiB) does not "
            f"hold batches of {first:,} tokens, which the longest rows need; take shorter rows, a smaller model, or "
            "give a number"
        )
    log.info(
        "data.batch.tokens=auto: %s tokens, which take about %.2f of %.2f GiB on %s",
        f"{tokens:,}",
        _line(one, two, tokens, 3 * parameters) / 2**30,
        room / share / 2**30,
        device,
    )
    return tokens


def _line(one: Trial, two: Trial, tokens: int, fixed: int) -> float:
    slope = max((two.peak - one.peak) / (two.tokens - one.tokens), 1.0)
    return fixed + two.peak + slope * (tokens - two.tokens)


def _heaviest(batches: Iterator[Batch]) -> Batch:
    """Of some batches the one with the most pairs of cells, which attention pays for, and with that the most cells."""

    def weight(batch: Batch) -> int:
        sides = [batch.target] if batch.source is None else [batch.source, batch.target]
        return sum(side.ids.numel() * side.ids.shape[1] for side in sides)

    return max(islice(batches, LOOK), key=weight)


def _peak(step: Step, batch: Batch, precision: Precision) -> int:
    """The most bytes held during a forward and backward pass."""
    device = precision.device
    release(device)
    devices = [device] if device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices), peak_of(device) as peak:
            with precision.autocast():
                sums = step(batch.to(device))
            sums.loss.backward()
            del sums
        return peak()
    finally:
        step.zero_grad(set_to_none=True)
