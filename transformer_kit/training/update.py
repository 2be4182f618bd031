"""One update of the parameters: forward and backward over a window of batches, the check, the clip, the step.

- The loss of each batch is divided by the labels of the whole window, over all ranks, before its backward pass: one
  division, so that neither padding nor the number of batches or ranks changes anything.
- Randomness comes from (seed, attempt, batch), so a resumed run, on other ranks too, draws what the unbroken one would
  have drawn.
- Whether the update is made is decided by sums over all ranks, so all decide alike.
- Where memory runs out, the gradient may hold a part of a batch already. So the whole window begins anew, with the
  batch that was too large, and those as large, in halves; only once.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from transformer_kit.batch import Batch
from transformer_kit.errors import RunError
from transformer_kit.training.culprit import agreed, culprit
from transformer_kit.training.health import Fault, Judge, not_finite
from transformer_kit.training.memory import is_out_of_memory, release
from transformer_kit.training.optimizer import set_lr
from transformer_kit.training.parallel import Parallel
from transformer_kit.training.precision import Precision
from transformer_kit.training.schedule import Schedule
from transformer_kit.training.watch import Watch
from transformer_kit.training.windows import Window


@dataclass(frozen=True)
class Outcome:
    """What a window gave.

    Attributes:
        labels: real target tokens.
        loss, metrics: sums over them.
        norm: of the gradient of the mean loss, before clipping.
        fault: why the update was not made, and nothing was changed; None: it was made.
        origin: where what is not finite began, as far as it was found.
        splits: batches that were halved because memory ran out.
        counts: sums over all ranks of what the window's share counted; see `Window.counts`.
        watched: norms and sizes by module, where the update was watched and made.
    """

    labels: int
    loss: float
    norm: float
    metrics: Mapping[str, float]
    fault: Fault | None
    counts: Mapping[str, float]
    origin: str | None = None
    splits: int = 0
    watched: Mapping[str, float] = field(default_factory=dict)


class Updater:
    """Makes updates.

    Args:
        parallel: the step of this rank.
        clip_norm: largest norm of the gradient; None does not clip.
        seed: the run's.
        watch: looks at some updates; None looks at none.
    """

    def __init__(
        self,
        parallel: Parallel,
        optimizer: Optimizer,
        schedule: Schedule,
        precision: Precision,
        clip_norm: float | None,
        seed: int,
        watch: Watch | None = None,
    ) -> None:
        self._parallel, self._world = parallel, parallel.world
        self._optimizer = optimizer
        self._parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._schedule = schedule
        self._precision = precision
        self._clip_norm = clip_norm
        self._seed = seed
        self._watch = watch

    def run(self, window: Window, attempt: int, step: int, judge: Judge = not_finite) -> Outcome:
        """Make update number `step` from a window of batches, unless its loss or gradient is not sound.

        Args:
            attempt: updates made and skipped before this one; seeds what is random in it.
            judge: tells by mean loss and norm what is wrong with it.

        Raises:
            RunError: memory ran out, and halving a batch did not help.
        """
        record = self._watch.record() if self._watch is not None and self._watch.due(step) else None
        with nullcontext() if record is None else record.listening():
            sums, splits = self._gradient(window, attempt)
        norm = self._parallel.norm([p.grad for p in self._parameters if p.grad is not None])
        names = [name for each in sums for name in each]
        # the only copy to the host: whether the update is made must be known here
        norm_value, *values = torch.stack([norm, *(value for each in sums for value in each.values())]).tolist()
        own = {name: sum(v for n, v in zip(names, values, strict=True) if n == name) for name in dict.fromkeys(names)}
        counted = {**window.counts(), "splits": float(splits)}
        totals = dict(zip([*own, *counted], self._world.sum([*own.values(), *counted.values()]), strict=True))
        counts = {name: totals.pop(name) for name in counted}
        loss, splits = totals.pop("loss"), int(counts.pop("splits"))
        fault = judge(loss / max(1, window.labels), norm_value)
        watched: Mapping[str, float] = {}
        if fault is None:
            if record is not None:
                record.before()
            self._apply(norm, norm_value, step)
            watched = {} if record is None else record.after()
        origin = None if fault is None or fault.spike else self._origin(window, attempt)
        return Outcome(window.labels, loss, norm_value, totals, fault, counts, origin, splits, watched)

    def _origin(self, window: Window, attempt: int) -> str | None:
        seeds = [derive_seed(self._seed, attempt, number) for number in window.numbers]
        own = culprit(self._parallel.step, window.batches, seeds, self._precision)
        return agreed(self._world.gather(own))

    def _gradient(self, window: Window, attempt: int) -> tuple[list[dict[str, Tensor]], int]:
        """The window's gradient into the parameters: its batches' sums, and how many had to be halved.

        Raises:
            RunError: memory ran out for half a batch as well, for a batch of one row, or on one of several ranks, whose
                batches all ranks compute in step.
        """
        seeds = [derive_seed(self._seed, attempt, number) for number in window.numbers]
        limit: int | None = None  # batches of so many cells and more go in halves
        while True:
            pieces = [
                piece
                for batch, seed in zip(window.batches, seeds, strict=True)
                for piece in _pieces(batch, seed, limit)
            ]
            self._optimizer.zero_grad(set_to_none=True)
            if limit is not None:
                release(self._precision.device)
            sums: list[dict[str, Tensor]] = []
            try:
                for number, (batch, seed) in enumerate(pieces, 1):
                    with self._parallel.last(number == len(pieces)):
                        sums.append(self._backward(batch, seed, window.labels))
                return sums, len(pieces) - len(window.batches)
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                said = str(error).strip().splitlines() or [type(error).__name__]
            failed = pieces[len(sums)][0]  # out of the handler: the error held on to what the batch had computed
            whole = any(failed is batch for batch in window.batches)
            if len(failed.labels) == 1 or not whole or self._world.size > 1:
                raise RunError(_too_large(failed, self._precision.device, said[0], halved=not whole))
            limit = _size(failed)
            del sums, pieces, failed

    def _backward(self, batch: Batch, seed: int, labels: int) -> dict[str, Tensor]:
        """Add one batch's share to the gradient; returns its sums, the loss among them."""
        _seed(self._precision.device, seed)
        with self._precision.autocast():
            sums = self._parallel.module(batch.to(self._precision.device))
        (sums.loss * self._parallel.scale / max(1, labels)).backward()
        return {"loss": sums.loss.detach(), **{name: value.detach() for name, value in sums.metrics.items()}}

    def _apply(self, norm: Tensor, norm_value: float, step: int) -> None:
        if self._clip_norm is not None and norm_value > self._clip_norm:
            nn.utils.clip_grads_with_norm_(self._parameters, self._clip_norm, norm)
        set_lr(self._optimizer, self._schedule(step))
        try:
            self._optimizer.step()
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            device = self._precision.device
            raise RunError(
                f"{device} has not enough memory for the optimizer's step: take a smaller model or batch"
            ) from None


def _size(batch: Batch) -> int:
    """Cells of both sides, padding counted."""
    return batch.target.ids.numel() + (0 if batch.source is None else batch.source.ids.numel())


def _pieces(batch: Batch, seed: int, limit: int | None) -> list[tuple[Batch, int]]:
    """A batch with its seed, or its halves, each with a seed of its own, where it has `limit` cells or more."""
    rows = len(batch.labels)
    if limit is None or _size(batch) < limit or rows == 1:
        return [(batch, seed)]
    halves = slice(0, rows // 2), slice(rows // 2, rows)
    return [(batch.rows(half), derive_seed(seed, 0, number)) for number, half in enumerate(halves)]


def _too_large(batch: Batch, device: torch.device, said: str, halved: bool) -> str:
    rows, width = batch.target.shape
    if batch.source is not None:
        width = max(width, batch.source.shape[1])
    what = "one row" if rows == 1 else f"half a batch, {rows} rows" if halved else f"a batch of {rows} rows"
    remedy = "a smaller data.batch.tokens (with trainer.accumulate_tokens the update stays as large)"
    if rows == 1:
        remedy = "shorter rows (data.filter.max_length, data.length or data.max_length) or a smaller model"
    return f"{device} has not enough memory for {what} of {width} cells: {remedy}. It said: {said}"


def derive_seed(seed: int, attempt: int, batch: int) -> int:
    """A 63-bit seed that mixes the run's seed, the attempt and the batch within it; near inputs give unlike seeds."""
    digest = hashlib.blake2b(struct.pack("<qqq", seed, attempt, batch), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def _seed(device: torch.device, seed: int) -> None:
    """Seed what draws on a device; torch.manual_seed on a machine without a GPU costs three stack traces a call."""
    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)
