"""The mean of several checkpoints' weights, and the choice of the weights that a run offers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from transformer_kit.errors import CheckpointError
from transformer_kit.logs import get_logger
from transformer_kit.training.checkpoint import MODEL, Checkpoint, CheckpointStore
from transformer_kit.training.options import TrainerOptions
from transformer_kit.training.weights import load_tensors

log = get_logger(__name__)

VALIDATED = ("best", "ema")
"""Choices that give the weights with which a checkpoint was validated."""


def average(paths: Sequence[Path]) -> dict[str, Tensor]:
    """The mean of each tensor over safetensors files, summed in fp64; one file gives that file's tensors.

    Integers cannot be averaged; the last file's are taken.

    Raises:
        CheckpointError: a file is damaged, or has other tensors than the first.
    """
    assert paths, "nothing to average"
    files = [load_tensors(path) for path in paths]  # mapped, not read: one tensor of each is in memory at a time
    shapes = [{name: tensor.shape for name, tensor in tensors.items()} for tensors in files]
    for path, found in zip(paths, shapes, strict=True):
        if found != shapes[0]:
            raise CheckpointError(f"{path}: has other tensors than {paths[0]}; they cannot be averaged")
    return files[0] if len(files) == 1 else {name: _mean([tensors[name] for tensors in files]) for name in files[0]}


def _mean(tensors: Sequence[Tensor]) -> Tensor:
    if not tensors[0].is_floating_point():
        return tensors[-1]
    total = tensors[0].to(torch.float64)
    for tensor in tensors[1:]:
        total += tensor
    return (total / len(tensors)).to(tensors[-1].dtype)


def final_weights(store: CheckpointStore, options: TrainerOptions) -> tuple[dict[str, Tensor], str, list[int]]:
    """The weights that `trainer.final` asks for.

    Returns:
        The tensors; `best`, `average`, `last` or `ema`; the steps that they come from. Without a validated checkpoint
        `best` is the last one, or `ema`. Where the run keeps a moving average, `best` and `ema` take it; `average` and
        `last` take the weights themselves. Damaged checkpoints are passed over; an average says so when it is of fewer
        than asked for.
    """
    kind, chosen = _choose(store, options)
    if not chosen:
        raise CheckpointError(f"{store.folder}: no checkpoint to take the final model from")
    files = [c.weights if kind in VALIDATED else c.path / MODEL for c in chosen]
    return average(files), kind, [c.step for c in chosen]


def _choose(store: CheckpointStore, options: TrainerOptions) -> tuple[str, list[Checkpoint]]:
    if options.final == "average":
        pick = store.best if options.average.kind == "best" else store.last
        chosen = store.verified(pick(options.average.count))
        if len(chosen) < options.average.count:
            log.warning("%d checkpoints are there to average, not %d", len(chosen), options.average.count)
        if chosen:
            return "average", chosen
    if options.final == "best" and (best := store.verified(store.best(1))):
        return "best", best
    newest = store.latest_good()
    if newest is None:
        return "last", []
    return "ema" if options.final in VALIDATED and newest.averaged is not None else "last", [newest]
