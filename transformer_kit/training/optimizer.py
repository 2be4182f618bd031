"""Optimizers by name, over groups of parameters by role and depth.

- Decay is for matrices and projections; norms and biases never decay, tables where `decay_tables` says so.
- A group's learning rate is the schedule's times its `factor`: the depth's, and with Muon the matrices'.
- The fused implementations update all parameters of a group in one pass over memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from transformer_kit.errors import CheckpointError
from transformer_kit.logs import get_logger
from transformer_kit.training.groups import Member, Role, members
from transformer_kit.training.muon import Muon
from transformer_kit.training.options import OptimizerOptions
from transformer_kit.training.precision import resolve_precision
from transformer_kit.training.shards import is_sharded, sharded_like

log = get_logger(__name__)

Groups = list[dict[str, Any]]


def build_optimizer(options: OptimizerOptions, model: nn.Module) -> Optimizer:
    """An optimizer of the parameters that take gradients; its learning rates are 0 until `set_lr`.

    - `adam`: Kingma & Ba 2015, algorithm 1; no decay.
    - `adamw`: Loshchilov & Hutter 2019, algorithm 2.
    - `adafactor`: Shazeer & Stern 2018, algorithm 4; the schedule's rate is the largest relative step.
    - `muon`: `training/muon.py` for matrices, `adamw` for everything else.
    """
    return _BUILDERS[options.name](options, members(model))


def set_lr(optimizer: Optimizer, lr: float) -> None:
    """Give each group the schedule's learning rate times its factor."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group["factor"]


def _grouped(options: OptimizerOptions, found: Sequence[Member], factor: float = 1.0) -> Groups:
    """Groups of one decay and one factor each, the decaying ones first, in the order of depth."""
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    decaying = {"matrix", "projection"} | ({"table"} if options.decay_tables else set())
    layer_decay = 1.0 if options.layer_decay is None else options.layer_decay
    for member in found:
        decay = options.weight_decay if member.role in decaying else 0.0
        groups.setdefault((decay, factor * layer_decay**member.depth), []).append(member.parameter)
    ordered = sorted(groups.items(), key=lambda item: item[0], reverse=True)
    return [{"params": each, "lr": 0.0, "weight_decay": decay, "factor": own} for (decay, own), each in ordered]


def _adam(options: OptimizerOptions, found: Sequence[Member]) -> Optimizer:
    return torch.optim.Adam(_grouped(options, found), fused=True, **_moments(options))


def _adamw(options: OptimizerOptions, found: Sequence[Member]) -> Optimizer:
    return torch.optim.AdamW(_grouped(options, found), fused=True, **_moments(options))


def _moments(options: OptimizerOptions) -> dict[str, Any]:
    assert options.betas is not None
    b1, b2 = options.betas
    return {"lr": 0.0, "betas": (b1, b2), "eps": options.eps}


def _adafactor(options: OptimizerOptions, found: Sequence[Member]) -> Optimizer:
    assert options.decay_rate is not None
    assert options.clip_update is not None
    assert options.least_scale is not None
    return torch.optim.Adafactor(
        _grouped(options, found),
        lr=0.0,
        beta2_decay=-options.decay_rate,
        eps=(options.eps, options.least_scale),
        d=options.clip_update,
    )


def _muon(options: OptimizerOptions, found: Sequence[Member]) -> Optimizer:
    assert options.momentum is not None
    assert options.matrix_lr is not None
    assert options.update_scale is not None
    assert options.iterations is not None
    matrices = [member for member in found if member.role == "matrix"]
    others = [member for member in found if member.role != "matrix"]
    both: list[Optimizer] = []
    if matrices:
        fast = resolve_precision("auto", matrices[0].parameter.device).name == "bf16"
        muon = Muon(
            _grouped(options, matrices, options.matrix_lr),
            momentum=options.momentum,
            scale=options.update_scale,
            iterations=options.iterations,
            dtype=torch.bfloat16 if fast else torch.float32,
            parts={member.parameter: member.parts for member in matrices},
        )
        both.append(muon)
    if others:
        both.append(_adamw(options, others))
    return Together(both)


_BUILDERS: dict[str, Callable[[OptimizerOptions, Sequence[Member]], Optimizer]] = {
    "adam": _adam,
    "adamw": _adamw,
    "adafactor": _adafactor,
    "muon": _muon,
}


def kept_numbers(options: OptimizerOptions, role: Role, shape: Sequence[int]) -> int:
    """How many numbers an optimizer keeps of a parameter, or of a part of it, beside a count of updates."""
    count = math.prod(shape)
    if options.name == "adafactor" and len(shape) > 1:
        return count // max(1, shape[-1]) + math.prod(shape[:-2]) * shape[-1]  # a row's sums and a column's
    return count if options.name == "adafactor" or (options.name == "muon" and role == "matrix") else 2 * count


class Together(Optimizer):
    """Several optimizers as one: their groups behind each other, one state.

    Args:
        optimizers: over parameters of their own, at least one.
    """

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        super().__init__([group for each in optimizers for group in each.param_groups], {})
        self.optimizers = list(optimizers)
        for each in self.optimizers:
            each.state = self.state

    def step(self, closure: None = None) -> None:  # type: ignore[override]  # nothing is evaluated again
        """Step each."""
        for each in self.optimizers:
            each.step()


_KEPT: dict[type[Optimizer], Sequence[frozenset[str]]] = {
    torch.optim.Adam: [frozenset({"step", "exp_avg", "exp_avg_sq"})],  # and AdamW, which is one
    torch.optim.Adafactor: [frozenset({"step", "row_var", "col_var"}), frozenset({"step", "variance"})],
    Muon: [frozenset({"momentum_buffer"})],
}


def optimizer_state(optimizer: Optimizer, model: nn.Module) -> dict[str, dict[str, Tensor]]:
    """The optimizer's moments and counts under the names of the model's parameters."""
    return {name: dict(optimizer.state[p]) for name, p in model.named_parameters() if p in optimizer.state}


def load_optimizer_state(optimizer: Optimizer, model: nn.Module, saved: Any, origin: str) -> None:
    """Put back what `optimizer_state` gave; the options of the optimizer stay its own.

    A parameter for which this optimizer keeps other values, as the state is of another one, begins anew; a warning
    counts such parameters.

    Raises:
        CheckpointError: the state of other parameters; `origin` names the file.
    """
    parameters = dict(model.named_parameters())
    kept, anew = dict(_kept(optimizer)), 0
    if not isinstance(saved, dict) or not saved.keys() <= parameters.keys():
        raise CheckpointError(f"{origin}: holds the optimizer state of another model")
    for name, values in saved.items():
        moments = {key: _placed(value, parameters[name]) for key, value in values.items()}
        if not all(_fits(key, value, parameters[name]) for key, value in moments.items()):
            raise CheckpointError(f"{origin}: the optimizer state of {name} has another shape than the parameter")
        wanted = kept.get(parameters[name])
        if moments and wanted is not None and frozenset(moments) not in wanted:
            anew += 1
        else:
            optimizer.state[parameters[name]] = moments
    if anew:
        log.warning(
            "%s is of another optimizer: the moments of %d of %d parameters begin anew", origin, anew, len(saved)
        )


def _kept(optimizer: Optimizer) -> Iterator[tuple[nn.Parameter, Sequence[frozenset[str]]]]:
    """What may be kept for each parameter, where that is known."""
    for each in optimizer.optimizers if isinstance(optimizer, Together) else [optimizer]:
        for kind, keys in _KEPT.items():
            if isinstance(each, kind):
                yield from ((parameter, keys) for group in each.param_groups for parameter in group["params"])


def _placed(value: Tensor, parameter: Tensor) -> Tensor:
    """A value of the state where its parameter is: on its device, and spread over the same ranks if it is not yet."""
    if is_sharded(value) or value.shape != parameter.shape:
        return value.to(parameter.device)
    return sharded_like(value, parameter)


def _fits(key: str, value: Tensor, parameter: Tensor) -> bool:
    """Whether a value of the state may be of a parameter: its shape, one axis of it, or a number."""
    shape = list(parameter.shape)
    axis = {"row_var": -1, "col_var": -2}.get(key)  # what Adafactor sums over
    if axis is not None and len(shape) > 1:
        shape[axis] = 1
    return not value.dim() or list(value.shape) == shape
