"""What training starts from: the weights of another run, and which parameters stay as they are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from transformer_kit.config.saved import load_run
from transformer_kit.errors import CheckpointError, ConfigError
from transformer_kit.logs import get_logger
from transformer_kit.models.base import Model
from transformer_kit.models.classifier import Classifier
from transformer_kit.tasks.load import run_weights
from transformer_kit.training.weights import load_tensors, unique_tensors

log = get_logger(__name__)

OWN = ("head.", "pooler.")  # what another task may lack or leave behind
BODY, CLASSIFIER = "body.", "classifier."


def start_from(folder: Path, model: Model) -> None:
    """Fill a model with the weights of a run, but for a classifier's last layer, which always starts afresh.

    A head over the vocabulary and a pooler are taken where the run has them, and start afresh where it does not.

    Args:
        folder: the run folder; an imported model is one.
        model: filled in place.

    Raises:
        CheckpointError: a tensor is missing, left over, or of another shape; it is named, with both shapes.
    """
    weights = run_weights(folder, load_run(folder, check=False))
    found = {name.removeprefix(BODY): tensor for name, tensor in load_tensors(weights).items()}
    own = unique_tensors(model.body if isinstance(model, Classifier) else model)
    fresh = [name for name in own if name not in found]
    wrong = [f"{name} is missing" for name in fresh if not name.startswith(OWN)]
    wrong += [
        f"{name} is not part of the model"
        for name in found
        if name not in own and not name.startswith((*OWN, CLASSIFIER))
    ]
    taken = own.keys() & found.keys()
    wrong += [
        f"{name} is {tuple(found[name].shape)}, the model's {tuple(own[name].shape)}"
        for name in sorted(taken)
        if found[name].shape != own[name].shape
    ]
    if wrong:
        more = f", and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise CheckpointError(f"init.from={folder}: its weights do not fit the model: {'; '.join(wrong[:3])}{more}")
    _fill(own, found, taken)
    if isinstance(model, Classifier):
        fresh.append(CLASSIFIER)
    log.info("started from %s: %d tensors%s", folder, len(taken), f"; afresh: {', '.join(fresh)}" if fresh else "")


@torch.no_grad()
def _fill(own: dict[str, Tensor], found: dict[str, Tensor], names: set[str]) -> None:
    for name in names:
        own[name].copy_(found[name])


def freeze(model: nn.Module, beginnings: Sequence[str]) -> None:
    """Take parameters out of training.

    Args:
        model: changed in place.
        beginnings: of names, dotted parts compared whole: `encoder.blocks.0` is no beginning of `encoder.blocks.01`;
            `0-3` stands for the numbers from 0 to 3.

    Raises:
        ConfigError: nothing begins so, or nothing is left to train.
    """
    names = [name.removeprefix(BODY) for name, _ in model.named_parameters()]
    problems = [
        f"init.freeze: no parameter begins with {beginning!r}; the model has {', '.join(_levels(names))}, …"
        for beginning in beginnings
        if not any(_begins(name, beginning) for name in names)
    ]
    if problems:
        raise ConfigError(problems)
    for name, parameter in model.named_parameters():
        if any(_begins(name.removeprefix(BODY), beginning) for beginning in beginnings):
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigError("init.freeze: nothing is left to train")
    if beginnings:
        trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
        log.info("frozen: %s; %s parameters are trained", ", ".join(beginnings), f"{trained:,}")


def _begins(name: str, beginning: str) -> bool:
    parts, wanted = name.split("."), beginning.split(".")
    return len(wanted) <= len(parts) and all(map(_matches, parts, wanted))


def _matches(part: str, wanted: str) -> bool:
    """Whether a part of a name is the one wanted, or a number of the range wanted."""
    first, dash, last = wanted.partition("-")
    if dash and first.isdecimal() and last.isdecimal() and part.isdecimal():
        return int(first) <= int(part) <= int(last)
    return part == wanted


def _levels(names: Sequence[str]) -> list[str]:
    """What names begin with, to the block's number."""
    return sorted({".".join(name.split(".")[:3]) if ".blocks." in name else name.split(".")[0] for name in names})[:8]
