"""The training loop. It knows batches, sums and counters, and no objective by name.

- One update: gather batches up to `accumulate_tokens` labels, then `update.py`.
- A window whose loss or gradient is not sound (`health.py`) changes nothing but the counters and the cursor.
- At a step boundary, in this order: log, stop if asked to, validate, save.
- On several ranks all go through the same boundaries and decide alike; rank 0 alone writes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext

import torch
from torch import nn
from torch.optim import Optimizer

from transformer_kit.console import Progress
from transformer_kit.errors import CheckpointError, Interrupted, RunError
from transformer_kit.logs import get_logger
from transformer_kit.training.checkpoint import MODEL, TRAINER, CheckpointStore
from transformer_kit.training.ema import Ema
from transformer_kit.training.health import Fault
from transformer_kit.training.optimizer import load_optimizer_state, optimizer_state
from transformer_kit.training.options import TrainerOptions
from transformer_kit.training.parallel import Parallel
from transformer_kit.training.precision import Precision
from transformer_kit.training.prefetch import Prefetched, Stream, batches_ahead
from transformer_kit.training.saver import Saver
from transformer_kit.training.schedule import Schedule, standstill
from transformer_kit.training.signals import StopFlag
from transformer_kit.training.state import Budget, Interval, RunState
from transformer_kit.training.summary import Summary
from transformer_kit.training.threads import Cores, Crowding
from transformer_kit.training.throughput import Work
from transformer_kit.training.tracker import Tracker, Trackers
from transformer_kit.training.update import Updater
from transformer_kit.training.watch import Watch
from transformer_kit.training.watchdog import Watchdog
from transformer_kit.training.weights import load_model, load_tensors
from transformer_kit.training.windows import Windows

log = get_logger(__name__)

STOPPING = "stopping when this update, or validation, is done; the state will be saved"


class Trainer:
    """Train a model until a budget is used up, from the last good checkpoint on if there is one.

    Args:
        parallel: the step that is trained, on the device of `precision`.
        stream: training batches.
        optimizer: over the model's parameters.
        schedule: learning rate of update 1, 2, ….
        options: how long and how; see TrainerOptions.
        precision: device and number format of the forward pass.
        store: checkpoints.
        seed: of everything random.
        validate: called without gradients, in evaluation mode; its result must hold `options.best_metric`.
        progress: shown while it trains.
        trackers: receive rows; of rank 0.
        batches: of an update, where no `accumulate_tokens` says more.
        watchdog: is told of all progress; the caller has entered it.
    """

    def __init__(
        self,
        *,
        parallel: Parallel,
        stream: Stream,
        optimizer: Optimizer,
        schedule: Schedule,
        options: TrainerOptions,
        precision: Precision,
        store: CheckpointStore,
        seed: int,
        validate: Callable[[nn.Module], Mapping[str, float]],
        progress: Progress,
        trackers: Sequence[Tracker],
        batches: int = 1,
        watchdog: Watchdog | None = None,
    ) -> None:
        self.model = model = parallel.step.model
        self.state = RunState()
        self._parallel, self._world = parallel, parallel.world
        self._compiler = parallel.step.compiler
        watch = None if options.watch is None else Watch(model, options.watch, parallel.step, self._world)
        self._updater = Updater(parallel, optimizer, schedule, precision, options.clip_norm, seed, watch)
        ahead = batches_ahead(options.prefetch, precision.device)
        self._stream = Prefetched(stream, ahead, precision.device.type == "cuda", self._world)
        self._windows = Windows(
            self._stream, self._world, labels=options.accumulate_tokens, count=batches, epochs=options.epochs
        )
        self._ema = None if options.ema is None else Ema(model, options.ema)
        self._optimizer = optimizer
        self._schedule = schedule
        self._options = options
        self._precision = precision
        self._store = store
        self._saver = Saver(store, options.save_async, self._world)
        self._validate = validate
        self._progress = progress
        self._trackers = Trackers(trackers)
        self._budget = Budget(options)
        self._scores: dict[str, float] = {}
        self._began = 0.0
        self._session = Interval()
        self._work = Work(model)
        self._crowding = Crowding(Cores.here()) if precision.device.type == "cpu" and self._world.size == 1 else None
        self._watchdog = watchdog or Watchdog(self._world, None)

    def fit(self) -> Summary:
        """Train.

        Raises:
            Interrupted: after SIGINT, SIGTERM or SIGUSR2, with the state saved; calling `fit` of a new Trainer goes on.
            RunError: `max_skips` updates in a row were skipped, validation lacks the metric, or half a batch needs too
                much memory.
            CheckpointError: the last state could not be saved, or the checkpoint is of another model.
        """
        with StopFlag(STOPPING if self._world.leads else "") as stop, self._stream, self._saver:
            self._resume()
            self._began = time.monotonic() - self.state.seconds
            log.info("training on %s in %s: %s", *self._precision.facts())
            if (moving := standstill(self._schedule, self._options.steps)) is not None:
                log.warning(
                    "the learning rate is 0 after step %d: raise schedule.steps, or lower trainer.steps", moving
                )
            self._progress.start("training", self._fraction())
            self._parallel.module.train()
            try:
                self._boundary(stop)  # a session may have ended between saving and validating
                while (reason := self._budget.reached(self.state, self._windows.epoch)) is None:
                    self._update()
                    self._report()
                    self._boundary(stop)
                self._finish()
            finally:
                self._progress.stop()
        return Summary.of(
            reason, self.state, self._session, self._windows.epoch, self._work.flops_per_token, self._scores
        )

    # -- one update ----------------------------------------------------------------------------------------------

    def _update(self) -> None:
        began = time.perf_counter()
        state = self.state
        window = self._windows.next()
        outcome = self._updater.run(window, state.step + state.skipped, state.step + 1, self._judge)
        if self._compiler is not None:
            self._compiler.report(state.step + 1)
        if outcome.fault is None:
            state.step += 1
            state.tokens += outcome.labels
            state.skipped_in_a_row = 0
            state.recent.add(outcome.loss / max(1, outcome.labels), outcome.norm)
            if self._ema is not None:
                self._ema.update(state.step)
            for interval in (state.interval, self._session):
                interval.add(outcome.labels, outcome.loss, outcome.norm, outcome.metrics)
        else:
            self._skip(outcome.fault, outcome.origin)
        self._count_splits(outcome.splits)
        for batch in window.batches[: window.real]:
            self._work.add(batch)
        for interval in (state.interval, self._session):
            interval.count(outcome.counts)
            interval.seconds += time.perf_counter() - began
        state.seconds = time.monotonic() - self._began
        self._watchdog.progress(f"step {state.step + 1}")
        if outcome.watched:
            self._trackers.add({"kind": "norms", "step": state.step, **outcome.watched})

    def _judge(self, loss: float, norm: float) -> Fault | None:
        return self.state.recent.judge(loss, norm, self._options.spike)

    def _skip(self, fault: Fault, origin: str | None) -> None:
        state, began = self.state, f", first in {origin}" if origin else ""
        state.skipped += 1
        state.skipped_in_a_row += 1
        state.spikes += fault.spike
        log.warning("step %d: %s%s; skipped (%d so far)", state.step + 1, fault.what, began, state.skipped)
        if state.skipped_in_a_row >= self._options.max_skips:
            saved = self._saver.saved
            kept = "no checkpoint yet" if saved is None else f"the last checkpoint is of step {saved[0]}"
            remedy = "raise trainer.spike" if fault.spike else "set trainer.clip_norm, or try trainer.precision=fp32"
            raise RunError(
                f"{state.skipped_in_a_row} updates in a row were skipped after step {state.step}, the last because "
                f"{fault.what}{began} ({kept}): lower the learning rate, or {remedy}"
            )

    def _count_splits(self, splits: int) -> None:
        """Say it when the number of halved batches grows by a digit."""
        before = self.state.oom_splits
        self.state.oom_splits += splits
        if splits and (not before or len(str(self.state.oom_splits)) > len(str(before))):
            log.warning(
                "step %d: memory ran out; %d batches were computed in halves so far, which takes more than twice their "
                "time: a smaller data.batch.tokens avoids it",
                self.state.step,
                self.state.oom_splits,
            )

    # -- step boundaries -----------------------------------------------------------------------------------------

    def _report(self) -> None:
        """Write a row if one is due; a skipped window is not a step."""
        state = self.state
        if state.skipped_in_a_row or state.step % self._options.log_every:
            self._progress.update(self._fraction())
            return
        self._write_row()
        state.interval = Interval()

    def _write_row(self) -> None:
        state = self.state
        lr = self._schedule(state.step)
        row = {**state.interval.row(), "lr": lr, "tokens": state.tokens, "skipped": state.skipped}
        row |= {"spikes": state.spikes, "oom_splits": state.oom_splits}
        row["elapsed"] = state.seconds
        self._trackers.add({"kind": "train", "step": state.step, **row})
        facts = {"step": f"{state.step:,}", "loss": f"{row['loss']:.3f}"}
        if "perplexity" in row:
            facts["ppl"] = f"{row['perplexity']:.4g}"
        facts |= {"lr": f"{lr:.2e}", "tokens/s": f"{row['tokens_per_second']:,.0f}"}
        self._progress.update(self._fraction(), facts)
        if self._crowding is not None:
            self._crowding.look()

    def _boundary(self, stop: StopFlag) -> None:
        """Between two updates: leave if asked to, else validate and save what is due."""
        asked, state = self._agree(stop), self.state
        if asked:
            self._leave(stop)
        if state.step and _due(state.step, self._options.validate_every) and state.validated != state.step:
            self._run_validation()
            asked = self._agree(stop)  # while it validated
        good = state.validated == state.step and self._saver.is_among_best(self._scores)
        if state.step and (good or _due(state.step, self._options.save_every)):
            self._save()
        if asked:
            self._leave(stop)

    def _agree(self, stop: StopFlag) -> bool:
        """Whether some rank was asked to stop; the clock of the run is rank 0's."""
        elapsed = time.monotonic() - self._began
        asked, elapsed = self._world.sum([float(bool(stop)), elapsed if self._world.leads else 0.0])
        if self._session.cells:  # no time is spent before the first update
            self.state.seconds = elapsed
        return asked > 0

    def _finish(self) -> None:
        """After the last update: the last row, the last validation, the last checkpoint."""
        state = self.state
        if state.interval.updates:
            self._write_row()  # an incomplete interval; it stays in the state in case the run is extended
        if state.validated != state.step:
            self._run_validation()
        if not self._save(last=True):
            raise CheckpointError(f"{self._store.folder}: training ended, but its last state could not be saved")

    def _run_validation(self) -> None:
        began = time.monotonic()
        module = self._parallel.module
        module.eval()
        with (
            torch.no_grad(),
            self._watchdog.counting_modules(f"the validation of step {self.state.step}"),
            nullcontext() if self._ema is None else self._ema.applied(),
            self._parallel.whole() as model,
        ):
            scores = {name: float(value) for name, value in self._validate(model).items()}
        module.train()
        state, metric = self.state, self._options.best_metric
        if metric not in scores:
            raise RunError(f"trainer.best_metric={metric}: validation gives only {', '.join(sorted(scores))}")
        best = state.judge(scores[metric], metric, due=_due(state.step, self._options.validate_every))
        state.validated = state.step
        self._scores = scores
        seconds = time.monotonic() - began
        self._trackers.add(
            {"kind": "validation", "step": state.step, **scores, "seconds": seconds, "elapsed": state.seconds}
        )
        said = "  ".join(f"{name} {value:.4g}" for name, value in scores.items())
        log.info("step %d: validation  %s%s", state.step, said, "  (best)" if best else "")

    def _save(self, last: bool = False) -> bool:
        """Write a checkpoint unless there is one of this very state; is there one, or, but for the last, on its way?"""
        state = self.state
        scores = {name: value if math.isfinite(value) else None for name, value in self._scores.items()}
        return self._saver.save(
            (state.step, state.validated),  # the mark of a state
            self.model,
            optimizer_state(self._optimizer, self.model),
            {
                "format": 1,
                "step": state.step,
                "regular": _due(state.step, self._options.save_every),
                "scores": scores if state.validated == state.step else {},
                "cursor": self._windows.state_dict(),
                "run": state.plain(),
            },
            None if self._ema is None else self._ema.tensors(),
            last,
        )

    def _leave(self, stop: StopFlag) -> None:
        """Save and end the session.

        Raises:
            Interrupted: always.
        """
        name = next(name for name in self._world.gather(stop.name) if name)
        what = f"stopped by {name} after step {self.state.step}"
        if self._save(last=True):
            raise Interrupted(f"{what}; the state is saved: the same command goes on from there")
        saved = self._saver.saved
        where = "there is no checkpoint" if saved is None else f"the last checkpoint is of step {saved[0]}"
        raise Interrupted(f"{what}, but the state could not be saved: {where}")

    def _resume(self) -> None:
        found = self._saver.recover()
        if found is not None:
            saved = found.state()
            try:
                cursor, run = saved["cursor"], saved["run"]
            except KeyError as error:
                raise CheckpointError(f"{found.path}: the state lacks {error}") from None
            self.state = RunState.load(run, str(found.path))
            self._scores = {k: math.nan if v is None else float(v) for k, v in found.scores.items()}
            load_model(found.path / MODEL, self.model)
            if self._ema is not None:  # switched on since, it begins with these weights
                self._ema.restart()
                if found.averaged is not None:
                    self._ema.load(load_tensors(found.averaged), str(found.averaged))
            origin = str(found.path / TRAINER)
            load_optimizer_state(self._optimizer, self.model, found.trainer_state(self.model), origin)
            if cursor.keys() == self._windows.state_dict().keys():
                self._windows.load_state_dict(cursor)
            else:  # one batch alone, or another way of making rows, which was switched on or off since
                log.warning("%s is of data that were read in another way: their first pass begins anew", found.path)
            self._saver.found((found.step, self.state.validated))
            log.info("going on from step %d", found.step)
        self.state.choose_by(self._options.best_metric)
        self._trackers.rewind(self.state.step, self.state.validated)

    def _fraction(self) -> float:
        return self._budget.fraction(self.state, self._windows.epoch)


def _due(step: int, every: int | None) -> bool:
    return every is not None and step % every == 0
