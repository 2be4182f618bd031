"""From a run folder to a model that can be used."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from transformer_kit.config.build import build_model, build_objective
from transformer_kit.config.run_folder import ENVIRONMENT, LABELS, read_result
from transformer_kit.config.saved import load_run
from transformer_kit.config.schema import Config
from transformer_kit.data.tokenizer import Tokenizers
from transformer_kit.errors import CheckpointError, RunError
from transformer_kit.logs import get_logger
from transformer_kit.models.base import Model
from transformer_kit.objectives.base import Objective
from transformer_kit.tasks.overfit import for_one_batch
from transformer_kit.training.checkpoint import MODEL, CheckpointStore
from transformer_kit.training.files import sha256
from transformer_kit.training.options import METRICS
from transformer_kit.training.precision import resolve_device
from transformer_kit.training.threads import Cores
from transformer_kit.training.weights import load_model

log = get_logger(__name__)

BATCH_TOKENS = "batch_tokens"  # in the environment: what data.batch.tokens=auto became
FALLBACK_TOKENS = 4096  # for the batches of other commands, where a run has not recorded it

CHECKPOINTS = "checkpoints"
TOKENIZER = "tokenizer"


@dataclass(frozen=True)
class Loaded:
    """A trained model and what belongs to it.

    Attributes:
        folder: the run folder.
        config: as saved, with the overrides given.
        tokenizers: the run's own.
        model: in evaluation mode, on the device of `trainer.device`.
        objective: what it was trained for.
        labels: the names of its classes; None where it has none.
        weights: the file that the weights came from.
    """

    folder: Path
    config: Config
    tokenizers: Tokenizers
    model: Model
    objective: Objective
    labels: list[str] | None
    weights: Path


def load(run: str | Path, overrides: Sequence[str] = (), checkpoint: str | None = None) -> Loaded:
    """Load a run for use.

    Args:
        run: the run folder.
        overrides: of options that the weights do not depend on: `decoding.beam=8`, `trainer.device=cpu`.
        checkpoint: `best`, `last` or a step whose checkpoint was kept, with its moving average where it has one; None
            takes the run's `model.safetensors`, or the last good checkpoint while the run has not ended.

    Raises:
        RunError: no run there, or it has no weights yet.
        CheckpointError: the weights are damaged or do not fit.
        DataError: the run's tokenizer is not the one it was trained with.
    """
    folder = Path(run)
    config = load_run(folder, overrides, check=False)  # its corpora need not be here; building checks the model
    tokenizers = run_tokenizers(folder)
    if tokenizers is None:
        raise RunError(f"{folder} has no tokenizer yet: its training has not started; run the same `tkit train` again")
    labels = run_labels(folder)
    if config.data.batch.tokens == "auto":
        config.data.batch.tokens = read_environment(folder).get(BATCH_TOKENS, FALLBACK_TOKENS)
    model, objective = assemble(config, tokenizers, labels)
    weights = run_weights(folder, config, checkpoint)
    load_model(weights, model)
    model = model.to(resolve_device(config.trainer.device)).eval()
    return Loaded(folder, config, tokenizers, model, objective, labels, weights)


def assemble(config: Config, tokenizers: Tokenizers, labels: list[str] | None) -> tuple[Model, Objective]:
    """The model that a configuration trains, with fresh parameters, and its objective.

    Args:
        labels: the names of the classes in the data, where it has labels.
    """
    objective = build_objective(config.objective, specials=tokenizers.target.specials)
    model = build_model(config.model, tokenizers.source.vocab_size, tokenizers.target.vocab_size)
    return objective.adapt(model, None if labels is None else len(labels)), objective


def checkpoints(folder: Path, config: Config) -> CheckpointStore:
    """The checkpoints of a run."""
    options = for_one_batch(config.trainer)
    return CheckpointStore(
        folder / CHECKPOINTS,
        keep_last=options.keep_last,
        keep_best=options.keep_best,
        metric=options.best_metric,
        higher_is_better=METRICS[options.best_metric] == "higher",
    )


def run_tokenizers(folder: Path) -> Tokenizers | None:
    """The tokenizers that a run was started with, or None before it was.

    Raises:
        DataError: the folder holds other ones now.
    """
    if not (folder / TOKENIZER).is_dir():
        return None
    return Tokenizers.load(folder / TOKENIZER, read_environment(folder).get(TOKENIZER))


def run_labels(folder: Path) -> list[str] | None:
    """The names of a run's classes, or None where it has none.

    Raises:
        RunError: the file is damaged.
    """
    path = folder / LABELS
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise RunError(f"{path} is damaged ({error}): restore the file") from None
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise RunError(f"{path} is damaged: it must be a list of names")
    return found


def read_environment(folder: Path) -> dict[str, Any]:
    """What `environment.json` records; empty where there is none.

    Raises:
        RunError: the file is damaged.
    """
    path = folder / ENVIRONMENT
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise RunError(
            f"{path} is damaged ({error}): the run's tokenizer cannot be checked; restore the file"
        ) from None
    return found if isinstance(found, dict) else {}


def model_limit(config: Config) -> int:
    """The most tokens, BOS or EOS included, that the model takes on one side.

    `model.max_length`; half of it where source and target share one row.
    """
    shared = config.data.kind == "pairs" and config.model.family == "decoder_only"
    return max(1, config.model.max_length // 2) if shared else config.model.max_length


def set_threads(threads: int | None) -> None:
    """Let torch use that many CPU threads; None leaves its own choice, but for a smaller quota of cores."""
    if threads is None:
        threads = min(torch.get_num_threads(), Cores.here().allowed)
    if threads != torch.get_num_threads():
        torch.set_num_threads(threads)


def _check_digest(folder: Path) -> None:
    """Refuse weights that are not those that training left; a flipped bit would load silently."""
    expected = ((read_result(folder) or {}).get("model") or {}).get("sha256")
    if expected is not None and sha256(folder / MODEL) != expected:
        raise CheckpointError(
            f"{folder / MODEL} is not the file that training left (its SHA-256 differs): use --checkpoint best or last"
        )


def run_weights(folder: Path, config: Config, checkpoint: str | None = None) -> Path:
    """The file with the weights of a run; see `load`."""
    store = checkpoints(folder, config)
    if checkpoint is None:
        if (folder / MODEL).is_file():
            _check_digest(folder)
            return folder / MODEL
        latest = store.latest_good()
        if latest is None:
            raise RunError(f"{folder} holds no {MODEL} and no checkpoint: train it first")
        log.warning("%s has not ended: using its checkpoint of step %d", folder, latest.step)
        return latest.weights
    if checkpoint in ("best", "last"):
        kept = store.best(len(store.all())) if checkpoint == "best" else store.all()[::-1]
    else:
        kept = [found for found in store.all() if str(found.step) == checkpoint.removeprefix("step_").lstrip("0")]
    if not kept:
        steps = ", ".join(str(found.step) for found in store.all()) or "none"
        raise RunError(f"{folder} has no checkpoint {checkpoint!r}; it keeps best, last and the steps {steps}")
    good = next((found for found in kept if store.verified([found])), None)  # a warning names those passed over
    if good is None:
        raise CheckpointError(f"{store.folder}: {checkpoint!r} is damaged; take another checkpoint, or train again")
    return good.weights
