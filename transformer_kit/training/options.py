"""What a user may set about training; the defaults stand in `conf/{trainer,optimizer,schedule}`."""

from __future__ import annotations

import math
from dataclasses import dataclass

from transformer_kit.training.ranks_options import RanksOptions

PRECISIONS = ("auto", "fp32", "bf16")
METRICS = {"loss": "lower", "perplexity": "lower", "accuracy": "higher", "bleu": "higher"}
FINALS = ("best", "average", "last", "ema")
AVERAGES = ("none", "last", "best")
# What each optimizer reads beside `name` and `layer_decay`; everything else of OptimizerOptions stays null.
OPTIMIZERS = {
    "adam": ("betas", "eps"),
    "adamw": ("betas", "eps", "weight_decay", "decay_tables"),
    "adafactor": ("eps", "weight_decay", "decay_tables", "decay_rate", "clip_update", "least_scale"),
    "muon": (
        "betas",
        "eps",
        "weight_decay",
        "decay_tables",
        "momentum",
        "matrix_lr",
        "update_scale",
        "iterations",
    ),
}
_ADAFACTOR = ("decay_rate", "clip_update", "least_scale")
UPDATE_SCALES = ("rms", "spectral")
# What each schedule reads beside `name` and `warmup`; everything else of ScheduleOptions stays null.
SCHEDULES = {
    "constant": ("lr", "initial_lr"),
    "linear": ("lr", "initial_lr", "final_lr", "steps"),
    "cosine": ("lr", "initial_lr", "final_lr", "steps"),
    "inverse_sqrt": ("lr", "initial_lr"),
    "noam": ("factor", "d_model"),
}

Problems = list[tuple[str, str]]


def _at_least(low: float, **values: float | None) -> Problems:
    """One problem for each value that is set and below `low`, infinite, or not a number."""
    bad = {key: value for key, value in values.items() if value is not None and not low <= value < math.inf}
    return [
        (key, f"must be {'finite' if value == math.inf else f'at least {low}'}, not {value}")
        for key, value in bad.items()
    ]


def _positive(**values: float | None) -> Problems:
    bad = {k: v for k, v in values.items() if v is not None and not (v > 0 and math.isfinite(v))}
    return [(key, f"must be a number above 0, not {value}") for key, value in bad.items()]


def _one_of(key: str, value: str, valid: tuple[str, ...]) -> Problems:
    return [] if value in valid else [(key, f"must be one of {', '.join(valid)}; not '{value}'")]


@dataclass
class OptimizerOptions:
    """Which optimizer; the learning rate comes from the schedule.

    What a parameter is (matrix, projection, table, norm, bias) and its depth are told by `training/groups.py`.

    Attributes:
        name: `adam` (Kingma & Ba 2015); `adamw` (Loshchilov & Hutter 2019: decay apart from the gradient); `adafactor`
            (Shazeer & Stern 2018: second moments as a row and a column, no first moments); `muon` (Jordan et al. 2024)
            for the matrices of the layers, with `adamw` for everything else.
        betas: adam, adamw, muon: the two decay rates of the moments, each in [0, 1).
        eps: added to the denominator; adafactor: its square is the least second moment.
        weight_decay: all but adam: times the learning rate, the share of a weight that is taken off at each update;
            norms and biases do not decay.
        decay_tables: all but adam: whether embeddings and position tables decay too.
        layer_decay: in (0, 1]: multiplies the learning rate once for each layer below the head; null for none.
        momentum: muon: decay rate of the first moment of matrices, in [0, 1).
        matrix_lr: muon: the learning rate of matrices, as a factor of the schedule's.
        update_scale: muon: `rms`, 0.2 √max(rows, columns), with which one learning rate and decay suit both
            optimizers; `spectral`, √max(1, rows / columns).
        iterations: muon: Newton–Schulz iterations.
        decay_rate: adafactor: second moments take in update t with weight t^−decay_rate.
        clip_update: adafactor: the largest root mean square of a relative update, at least 1.
        least_scale: adafactor: a step is relative to the weights' root mean square, but to no less than this.
    """

    name: str
    betas: list[float] | None
    eps: float
    weight_decay: float
    decay_tables: bool
    layer_decay: float | None
    momentum: float | None
    matrix_lr: float | None
    update_scale: str | None
    iterations: int | None
    decay_rate: float | None
    clip_update: float | None
    least_scale: float | None

    def problems(self) -> Problems:
        found = _one_of("name", self.name, tuple(OPTIMIZERS))
        if found:
            return found
        for key in ("betas", "momentum", "matrix_lr", "update_scale", "iterations", *_ADAFACTOR):
            value, used = getattr(self, key), key in OPTIMIZERS[self.name]
            if used and value is None:
                found.append((key, f"is needed by optimizer={self.name}"))
            if not used and value is not None:
                found.append((key, f"is not read by optimizer={self.name}: leave it null"))
        if self.betas is not None and (len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas)):
            found.append(("betas", f"must be two numbers, each at least 0 and below 1, not {list(self.betas)}"))
        if self.momentum is not None and not 0 <= self.momentum < 1:
            found.append(("momentum", f"must be at least 0 and below 1, not {self.momentum}"))
        if self.layer_decay is not None and not 0 < self.layer_decay <= 1:
            found.append(("layer_decay", f"must be above 0 and at most 1, or null; not {self.layer_decay}"))
        if self.update_scale is not None:
            found += _one_of("update_scale", self.update_scale, UPDATE_SCALES)
        found += _positive(eps=self.eps, matrix_lr=self.matrix_lr, least_scale=self.least_scale)
        found += _at_least(0, weight_decay=self.weight_decay, decay_rate=self.decay_rate)
        found += _at_least(1, iterations=self.iterations, clip_update=self.clip_update)
        if self.name == "adam" and (self.weight_decay or self.decay_tables):
            key = "weight_decay" if self.weight_decay else "decay_tables"
            found.append((key, f"must be {'0' if self.weight_decay else 'false'} with adam; adamw decays weights"))
        return found


@dataclass
class ScheduleOptions:
    """The learning rate as a closed formula of the update's number (`training/schedule.py` has the formulas).

    Attributes:
        name: constant, linear, cosine, inverse_sqrt or noam.
        warmup: updates of linear growth at the start, 0 or more (noam, inverse_sqrt: 1 or more).
        lr: the peak, reached at update `warmup`.
        initial_lr: where the warm-up starts.
        final_lr: linear, cosine: where the decay ends.
        steps: linear, cosine: the update at which `final_lr` is reached.
        factor: noam: multiplies the paper's formula.
        d_model: noam: the model's width.
    """

    name: str
    warmup: int
    lr: float | None
    initial_lr: float | None
    final_lr: float | None
    steps: int | None
    factor: float | None
    d_model: int | None

    def problems(self) -> Problems:
        found = _one_of("name", self.name, tuple(SCHEDULES))
        if found:
            return found
        used = SCHEDULES[self.name]
        for key in ("lr", "initial_lr", "final_lr", "steps", "factor", "d_model"):
            value = getattr(self, key)
            if key in used and value is None:
                hint = "; give it, or trainer.steps, which it follows" if key == "steps" else ""
                found.append((key, f"is needed by schedule={self.name}{hint}"))
            if key not in used and value is not None:
                found.append((key, f"is not read by schedule={self.name}: leave it null"))
        found += _positive(lr=self.lr, factor=self.factor, d_model=self.d_model)
        found += _at_least(0, initial_lr=self.initial_lr, final_lr=self.final_lr)
        found += _at_least(1 if self.name in ("inverse_sqrt", "noam") else 0, warmup=self.warmup)
        if self.steps is not None and self.steps <= self.warmup:
            hint = "it is trainer.steps where it is not given: lower schedule.warmup, or train for longer"
            found.append(("steps", f"must be above warmup ({self.warmup}), not {self.steps}; {hint}"))
        return found


@dataclass
class AverageOptions:
    """Which checkpoints the averaged model is the mean of.

    Attributes:
        kind: `last` N saved by `save_every`, `best` N by `best_metric`, or `none`.
        count: N; that many must be kept (`keep_last` or `keep_best`).
    """

    kind: str
    count: int

    def problems(self) -> Problems:
        return _one_of("kind", self.kind, AVERAGES) + _at_least(1, count=self.count)


@dataclass
class ValidationOptions:
    """What a validation computes beside loss, perplexity and accuracy.

    Attributes:
        bleu: the metric of `evaluation/options.py` that is logged as `bleu`, over translations made as `decoding` says;
            null decodes nothing.
        samples: how many translations the log shows.
    """

    bleu: str | None
    samples: int

    def problems(self) -> Problems:
        return _at_least(0, samples=self.samples)


@dataclass
class TrainerOptions:
    """How long, how, and with what care a model is trained.

    Attributes:
        steps, tokens, epochs, minutes: budgets: updates, target tokens, passes over the data, wall-clock minutes of
            all sessions; the first one reached ends the training; null is no budget.
        device: auto (CUDA, MPS or CPU), cpu, cuda, cuda:N or mps.
        threads: CPU threads of torch; null: those that a run began with, for a new one the cores that nobody else uses.
        precision: fp32, bf16 (autocast), or auto: bf16 where the hardware multiplies it.
        compile: train through torch.compile, layer by layer; worth its start-up time on GPUs.
        deterministic: only operations that give the same bits each time, and an error where there is none such; see
            `training/precision.py`.
        activation_checkpointing: keep of each layer its input alone and run it a second time on the way back: less
            memory for a third more work, the same result to the bit.
        prefetch: batches that a thread makes ahead, 0 or more; null: 2 on CUDA, where they are copied to the GPU from
            pinned memory as well, else 0.
        accumulate_tokens: real target tokens of one update, gathered over batches; null is one batch an update.
        clip_norm: largest gradient norm; null does not clip.
        log_every, validate_every, save_every: in updates; null: only at the end.
        keep_last: how many checkpoints written by `save_every` stay (the newest one always does).
        keep_best: how many of the best validated checkpoints stay, whatever their age.
        best_metric: loss, perplexity, accuracy or bleu, of validation.
        patience: validations in a row without gain in `best_metric` that end the training; null never ends it.
        validation: what is computed then.
        average: the mean of several checkpoints, made at the end.
        ema: decay of a moving average of the weights, in (0, 1), shorter at the start (`training/ema.py`); it is what
            is validated, and what `final=best` and `final=ema` take. null keeps none.
        final: which model the run offers: best, average or last checkpoint, or the last moving average, ema.
        max_skips: updates in a row that were skipped (not finite, or a spike) that stop the run.
        spike: an update whose mean loss or gradient norm is more than so many standard deviations above the mean of
            the last 128 updates is skipped; null: none is.
        watch: every so many updates the norms of gradients, weights and updates and the size of activations are logged,
            module by module; null: never. It does not change the result.
        overfit_batch: train on the first batch again and again, and validate on it: a check of a new set-up, whose loss
            must go to (near) its floor. Dropout stays as it is.
    """

    steps: int | None
    tokens: int | None
    epochs: int | None
    minutes: float | None
    device: str
    devices: int | None
    ranks: RanksOptions
    threads: int | None
    precision: str
    compile: bool
    deterministic: bool
    activation_checkpointing: bool
    prefetch: int | None
    accumulate_tokens: int | None
    clip_norm: float | None
    log_every: int
    validate_every: int | None
    save_every: int | None
    save_async: bool
    keep_last: int
    keep_best: int
    best_metric: str
    patience: int | None
    validation: ValidationOptions
    average: AverageOptions
    ema: float | None
    final: str
    max_skips: int
    spike: float | None
    watch: int | None
    overfit_batch: bool

    def problems(self) -> Problems:
        found = self._precision_problems() + _one_of("final", self.final, FINALS)
        found += _one_of("best_metric", self.best_metric, tuple(METRICS))
        found += [(f"average.{key}", message) for key, message in self.average.problems()]
        found += [(f"validation.{key}", message) for key, message in self.validation.problems()]
        found += _at_least(1, steps=self.steps, tokens=self.tokens, epochs=self.epochs, threads=self.threads)
        found += _at_least(1, log_every=self.log_every, validate_every=self.validate_every)
        found += _at_least(1, save_every=self.save_every, accumulate_tokens=self.accumulate_tokens)
        found += _at_least(
            1, keep_last=self.keep_last, patience=self.patience, max_skips=self.max_skips, watch=self.watch
        )
        found += _at_least(0, keep_best=self.keep_best, prefetch=self.prefetch)
        found += _at_least(1, devices=self.devices)
        found += _positive(minutes=self.minutes, clip_norm=self.clip_norm, spike=self.spike)
        return found + self._device_problems() + self._conflicts()

    def _precision_problems(self) -> Problems:
        if self.precision in ("fp16", "float16", "half"):
            why = "there is no loss scaling, without which its small gradients become 0; take bf16, which needs none"
            return [("precision", f"fp16 is not offered: {why}, or fp32")]
        return _one_of("precision", self.precision, PRECISIONS)

    def _device_problems(self) -> Problems:
        kind, _, index = self.device.partition(":")
        if self.device in ("auto", "cpu", "cuda", "mps") or (kind == "cuda" and index.isdecimal()):
            return []
        return [("device", f"must be auto, cpu, cuda, cuda:N or mps; not '{self.device}'")]

    def _conflicts(self) -> Problems:
        found: Problems = []
        if self.steps is None and self.tokens is None and self.epochs is None and self.minutes is None:
            found.append(("steps", "no budget: set steps, tokens, epochs or minutes"))
        kind, count = self.average.kind, self.average.count
        if kind == "last" and count > self.keep_last:
            found.append(("keep_last", f"must be at least average.count ({count}), not {self.keep_last}"))
        if kind == "last" and count > 1 and self.save_every is None:
            found.append(("save_every", f"must be set to average the last {count} checkpoints"))
        if kind == "best" and count > self.keep_best:
            found.append(("keep_best", f"must be at least average.count ({count}), not {self.keep_best}"))
        if self.ema is not None and not 0 < self.ema < 1:
            found.append(("ema", f"must be above 0 and below 1, or null; not {self.ema}"))
        if self.final == "ema" and self.ema is None:
            found.append(("ema", "must be set for final=ema: 0.999 averages about the last thousand updates"))
        if self.final == "average" and kind == "none":
            found.append(("final", "average needs average.kind=last or best"))
        if self.best_metric == "bleu" and self.validation.bleu is None:
            found.append(("validation.bleu", "must name a metric (bleu) for best_metric=bleu"))
        if self.final == "best" and self.keep_best < 1:
            found.append(("keep_best", "must be at least 1 for final=best"))
        return found
