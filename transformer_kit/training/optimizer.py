"""Optimizers by name. The fused implementations update all parameters in one pass over memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from transformer_kit.errors import CheckpointError
from transformer_kit.training.options import OptimizerOptions


def build_optimizer(options: OptimizerOptions, parameters: Iterable[nn.Parameter]) -> Optimizer:
    """An optimizer of the parameters that take gradients.

    `adam` is Kingma & Ba 2015, algorithm 1. `adamw` is Loshchilov & Hutter 2019, algorithm 2, in which matrices and
    tables (two axes or more) decay; vectors (norms, biases) do not. The learning rate is 0 until the loop sets it.
    """
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    b1, b2 = options.betas
    if options.name == "adam":
        return torch.optim.Adam(trained, lr=0.0, betas=(b1, b2), eps=options.eps, fused=True)
    groups = [
        {"params": [p for p in trained if p.dim() >= 2], "weight_decay": options.weight_decay},
        {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0},
    ]
    filled = [group for group in groups if group["params"]]
    return torch.optim.AdamW(filled, lr=0.0, betas=(b1, b2), eps=options.eps, fused=True)


def optimizer_state(optimizer: Optimizer, model: nn.Module) -> dict[str, dict[str, Tensor]]:
    """The optimizer's moments and counts under the names of the model's parameters."""
    return {name: dict(optimizer.state[p]) for name, p in model.named_parameters() if p in optimizer.state}


def load_optimizer_state(optimizer: Optimizer, model: nn.Module, saved: Any, origin: str) -> None:
    """Put back what `optimizer_state` gave; the options of the optimizer stay its own.

    Raises:
        CheckpointError: the state of other parameters; `origin` names the file.
    """
    parameters = dict(model.named_parameters())
    if not isinstance(saved, dict) or not saved.keys() <= parameters.keys():
        raise CheckpointError(f"{origin}: holds the optimizer state of another model")
    for name, values in saved.items():
        moments = {key: value.to(parameters[name].device) for key, value in values.items()}
        if any(value.dim() and value.shape != parameters[name].shape for value in moments.values()):
            raise CheckpointError(f"{origin}: the optimizer state of {name} has another shape than the parameter")
        optimizer.state[parameters[name]] = moments
