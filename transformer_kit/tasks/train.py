"""`tkit train`: from a configuration to a run folder with a model in it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from transformer_kit import logs
from transformer_kit.batch import Batch
from transformer_kit.config.build import count_parameters
from transformer_kit.config.run_folder import ENVIRONMENT, LABELS, RunFolder, open_run, write_text
from transformer_kit.config.schema import Config
from transformer_kit.console import Progress
from transformer_kit.data.folders import new_folder
from transformer_kit.data.prepare import Prepared, prepare
from transformer_kit.data.streams import Stream, longest_row, training_stream
from transformer_kit.errors import ConfigError, Interrupted, RunError
from transformer_kit.logs import get_logger
from transformer_kit.models.base import Model
from transformer_kit.models.stack import checkpoint_activations
from transformer_kit.objectives.base import Objective
from transformer_kit.tasks.environment import describe
from transformer_kit.tasks.initial import freeze, start_from
from transformer_kit.tasks.load import (
    BATCH_TOKENS,
    TOKENIZER,
    assemble,
    checkpoints,
    read_environment,
    run_labels,
    run_tokenizers,
)
from transformer_kit.tasks.overfit import BatchValidation, OneBatch, for_one_batch, judge
from transformer_kit.tasks.run_result import result_of, utilisation
from transformer_kit.tasks.tracking import outside_trackers
from transformer_kit.tasks.validate import Validation
from transformer_kit.training.average import VALIDATED, final_weights
from transformer_kit.training.budget import auto_tokens
from transformer_kit.training.checkpoint import MODEL
from transformer_kit.training.compiling import Compiler
from transformer_kit.training.files import sha256
from transformer_kit.training.loop import Trainer
from transformer_kit.training.optimizer import build_optimizer
from transformer_kit.training.parallel import is_spread, make_parallel
from transformer_kit.training.precision import Precision, determinism, resolve_device, resolve_precision
from transformer_kit.training.schedule import build_schedule
from transformer_kit.training.signals import raising
from transformer_kit.training.state import Budget, RunState
from transformer_kit.training.step import Step
from transformer_kit.training.threads import Cores, lent_threads
from transformer_kit.training.tracker import METRICS_FILE, Jsonl, Tracker
from transformer_kit.training.watchdog import Watchdog
from transformer_kit.training.weights import fill, load_model, save_tensors
from transformer_kit.training.whole_weights import follow_rank_0, on_rank_0
from transformer_kit.training.world import ALONE, World

log = get_logger(__name__)

LOG_FILE = "train.log"
HYPOTHESES = "validation.hypotheses"  # translations of the validation data by the final model
OUTSIDE = "outside of training, where nothing is lost; the same command goes on"
RANKS = "ranks"  # in environment.json: how many trained when the run began, which many batches an update has
SAMPLES = {"pairs": "pairs", "documents": "documents", "labels": "examples"}


@dataclass(frozen=True)
class Trained:
    """What `train` leaves.

    Attributes:
        folder: the run folder.
        already: the run had ended before; nothing was touched.
        result: what `result.json` holds.
        config: what was asked for.
    """

    folder: Path
    already: bool
    result: Mapping[str, Any]
    config: Config


def train(config: Config, progress: Progress, world: World = ALONE) -> Trained:
    """Train a model, or go on with the run that the configuration names.

    A failure, or a stop, is recorded in `result.json` as well, so that a sweep's table can show it.

    Args:
        world: the ranks that train it together, each of which calls this; rank 0 alone writes the run folder, which all
            must be able to read.

    Raises:
        TkitError: what a user can mend; see the modules called.
    """
    if not config.data.valid and getattr(config.data, "generate", None) is None:
        raise ConfigError("data.valid: no validation corpus is given; training needs one to choose its model by")
    with raising(OUTSIDE) as stop, _opened(config, world) as run:
        done = world.share(run.result())
        if done is not None and has_ended(done, config):
            return Trained(run.path, True, done, config)
        handler = logs.add_file(run.path / LOG_FILE) if world.leads else None
        try:
            log.info("run %s%s", run.path, " (going on)" if run.resumed else "")
            recorded = read_environment(run.path)
            threads = config.trainer.threads or (None if world.size == 1 else Cores.here().share(world.here))
            why = "as asked" if config.trainer.threads else f"the share of each of {world.here} ranks here"
            with (
                outside_trackers(run.config, run.path, on=world.leads) as trackers,
                determinism(config.trainer.deterministic),
                lent_threads(threads, recorded.get("threads"), why),
            ):
                result = _train(run, progress, world, recorded.get(RANKS, world.size), trackers)
        except (Exception, KeyboardInterrupt) as error:
            if world.leads:
                _record_end(run, stop.meant(error))
            raise
        finally:
            if handler is not None:
                logs.remove(handler)
        return Trained(run.path, False, result, config)


def _record_end(run: RunFolder, error: BaseException) -> None:
    """What ended the run before its end."""
    if isinstance(error, Interrupted | KeyboardInterrupt):
        result = {"status": "interrupted", "error": str(error) or "interrupted"}
    elif run.pending:
        return  # a change that the run cannot take leaves it as it was
    else:
        result = {"status": "failed", "error": f"{type(error).__name__}: {error}"}
    with suppress(OSError):  # a full disk must not hide what happened
        run.write_result(result)


@contextmanager
def _opened(config: Config, world: World) -> Iterator[RunFolder]:
    """The run's folder, locked by rank 0, on every rank."""
    if not world.leads:
        shared: Any = world.share(None)
        yield RunFolder(*shared)
        return
    with open_run(config) as run:
        world.share((run.path, run.config, run.resumed, run.changed))
        yield run


def has_ended(result: Mapping[str, Any], config: Config) -> bool:
    """Whether a finished run has nothing left to do: its budget may have been raised since."""
    if result.get("status") != "complete":
        return False
    spent = RunState(step=result["step"], tokens=result["tokens"], seconds=result["seconds"])
    return result["ended_by"] == "patience" or Budget(config.trainer).reached(spent, result["epochs"]) is not None


def _train(run: RunFolder, progress: Progress, world: World, ranks: int, outside: Sequence[Tracker]) -> dict[str, Any]:
    config = replace(run.config, trainer=for_one_batch(run.config.trainer))
    prepared = _prepared(run, world)
    tokenizers = prepared.tokenizers
    torch.manual_seed(config.seed)
    spread = is_spread(world, config.trainer.ranks)
    with on_rank_0(world) if spread else nullcontext():
        model, objective = assemble(config, tokenizers, prepared.labels)
    parameters = count_parameters(model)
    precision = resolve_precision(config.trainer.precision, rank_device(config, world))
    samples = f"{sum(len(corpus.dataset) for corpus in prepared.train):,}"
    log.info("%s parameters, %s training %s", f"{parameters:,}", samples, SAMPLES[config.data.kind])
    checkpoint_activations(model, config.trainer.activation_checkpointing)
    prepared = _with_budget(run, prepared, model, objective, precision, world)
    stream, validate = _material(config, prepared, objective, world)
    store = checkpoints(run.path, config)
    wanted = config.init.from_ is not None or run.changed  # a look costs a warning where one is damaged
    latest = world.share(store.latest_good() if world.leads and wanted else None)
    if config.init.from_ is not None and latest is None:
        begin = partial(start_from, Path(config.init.from_), model)
        world.led(begin) if spread else begin()
    freeze(model, config.init.freeze)
    if world.leads:
        _record_start(run, prepared, precision, world)  # from here on the run has begun
    if run.changed:
        if latest is not None:
            load_model(latest.path / MODEL, model)  # raises where the change leaves weights that do not fit
        if world.leads:
            run.accept()
    if world.size > 1:
        log.info("%d ranks (%s); an update is %s", world.size, config.trainer.ranks.parallel, _size(config, ranks))
    step = Step(model, objective, Compiler() if config.trainer.compile else None)
    parallel = make_parallel(step, world, config.trainer.ranks, precision.device)
    watchdog = Watchdog(world, config.trainer.ranks.timeout)
    trainer = Trainer(
        parallel=parallel,
        stream=stream,
        optimizer=build_optimizer(config.optimizer, model),
        schedule=build_schedule(config.schedule),
        options=config.trainer,
        precision=precision,
        store=store,
        seed=config.seed,
        validate=validate,
        progress=progress,
        trackers=[Jsonl(run.path / METRICS_FILE), *outside] if world.leads else [],
        batches=ranks,
        watchdog=watchdog,
    )
    with watchdog:
        summary = trainer.fit()
        tensors: dict[str, Tensor] = {}  # of rank 0 alone, which averages and keeps them

        def choose() -> tuple[str, list[int]]:
            found, kind, steps = final_weights(store, config.trainer)
            tensors.update(found)
            return kind, steps

        kind, steps = world.led(choose)
        # Validated again where the weights offered are others than those validated last, or were in another session.
        last = steps == [summary.step] and (config.trainer.ema is None or kind in VALIDATED)
        scores, texts = dict(summary.scores), validate.translations
        with parallel.whole() as whole, watchdog.counting_modules("the validation of the final model"):
            if world.leads:
                fill(whole, tensors, str(store.folder))
            follow_rank_0(whole, world)
            if not last or (texts is not None and not texts.hypotheses):
                began = time.monotonic()
                scores = dict(validate(whole))
                log.info(
                    "final model (%s of %d): validation  %s  (%.0f s)",
                    *(kind, len(steps), "  ".join(f"{name} {value:.4g}" for name, value in scores.items())),
                    time.monotonic() - began,
                )
    if not world.leads:
        return {}
    save_tensors(run.path / MODEL, tensors)
    if texts is not None:
        write_text(run.path / HYPOTHESES, "".join(f"{line}\n" for line in texts.hypotheses))
    result = result_of(summary, parameters, kind, steps, sha256(run.path / MODEL), scores, precision)
    if config.trainer.overfit_batch:
        result["overfit"] = asdict(judge(summary.scores["loss"], objective.floor(model), summary.step))
    result |= utilisation(summary, precision, world.size)
    run.write_result(result)
    return result


def rank_device(config: Config, world: World) -> torch.device:
    """The device of a rank: with several on a machine, each has a GPU of its own."""
    device = resolve_device(config.trainer.device)
    return torch.device("cuda", world.local_rank) if device.type == "cuda" and world.size > 1 else device


def _prepared(run: RunFolder, world: World) -> Prepared:
    """The data: rank 0 prepares what is not prepared yet, then all open it."""
    config = run.config
    made = prepare(config.data, config.tokenizer, run_tokenizers(run.path)) if world.leads else None
    world.barrier()
    prepared = made or prepare(config.data, config.tokenizer, run_tokenizers(run.path))
    assert prepared.valid is not None
    return prepared


def _size(config: Config, ranks: int) -> str:
    labels = config.trainer.accumulate_tokens
    return f"{labels:,} target tokens" if labels is not None else f"{ranks} batches, as when the run began"


def _material(
    config: Config, prepared: Prepared, objective: Objective, world: World
) -> tuple[Stream | OneBatch, Validation | BatchValidation]:
    """What is trained on, and what measures the model."""
    stream = training_stream(prepared, seed=config.seed, collate=objective.collate)
    if not config.trainer.overfit_batch:
        return stream, Validation(config, prepared, objective, world)
    one = OneBatch(stream)
    rows, labels = one.batch.labels.shape[0], one.batch.num_labels
    log.info("trainer.overfit_batch: training and validating on one batch of %d rows, %d labels", rows, labels)
    return one, BatchValidation(one.batch, objective)


def _with_budget(
    run: RunFolder, prepared: Prepared, model: Model, objective: Objective, precision: Precision, world: World
) -> Prepared:
    """The data with a number for `data.batch.tokens`: where it is `auto`, the one that the run began with, or a fit.

    Raises:
        RunError: the memory is too small.
    """

    def under(tokens: int) -> Prepared:
        data = prepared.data
        return replace(prepared, data=replace(data, batch=replace(data.batch, tokens=tokens)))

    def batches(tokens: int) -> Iterator[Batch]:
        return iter(training_stream(under(tokens), seed=run.config.seed, collate=objective.collate))

    if prepared.data.batch.tokens != "auto":
        return prepared

    def fitted() -> int:
        return auto_tokens(Step(model, objective).train(), batches, precision, longest_row(prepared))

    tokens: int | None = world.share(read_environment(run.path).get(BATCH_TOKENS))
    return under(world.led(fitted) if tokens is None else tokens)


def _record_start(run: RunFolder, prepared: Prepared, precision: Precision, world: World) -> None:
    """Leave the tokenizers, the names of classes and what the run is computed with, once; a resume adds nothing.

    Raises:
        RunError: the run was started with other classes.
    """
    labels = prepared.labels
    if (run.path / ENVIRONMENT).is_file():
        if run_labels(run.path) != labels:
            raise RunError(f"{run.path}: the training data have other labels than when the run began; give run.name")
        return
    if labels is not None:
        write_text(run.path / LABELS, json.dumps(labels, ensure_ascii=False) + "\n")
    with new_folder(run.path / TOKENIZER) as made:  # whole or not at all: a kill here must not spoil the run
        prepared.tokenizers.save(made)
    facts = {**describe(prepared, precision), RANKS: world.size}
    write_text(run.path / ENVIRONMENT, json.dumps(facts, indent=2) + "\n")
