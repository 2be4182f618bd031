"""Norms of gradients, weights, updates and activations, module by module, of every Nth update.

Nothing is attached to the model but during an update that is watched, and nothing in it is changed: the losses of a
watched run are those of one that is not, to the bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from transformer_kit.batch import Batch, Cells
from transformer_kit.models.base import Model
from transformer_kit.models.stack import Stack
from transformer_kit.training.norms import total_norm
from transformer_kit.training.world import ALONE, World

GRADIENT, WEIGHT, UPDATE, ACTIVATION = "gradient", "weight", "update", "activation"
"""What a row holds of a module, as `gradient/encoder.blocks.0`: the norm of its gradient before clipping, the norm of
its weights before the update, the norm of the update by that of the weights, the root mean square of its output."""


class Watch:
    """Looks at some updates of a model.

    Args:
        model: what is trained.
        every: look at the updates whose number this divides.
        step: what is called on batches; None: the model.
        world: the ranks that train it together, all of which look.
    """

    def __init__(self, model: nn.Module, every: int, step: nn.Module | None = None, world: World = ALONE) -> None:
        self._model, self._every, self._step, self._world = model, every, step, world

    def due(self, step: int) -> bool:
        """Whether update number `step` is looked at."""
        return step % self._every == 0

    def record(self) -> Record:
        """An empty record of one update."""
        return Record(self._model, self._step, self._world)


class Record:
    """One update: `listening` while the window is computed, `before` and `after` the parameters change.

    A module is a layer of a stack, another part of it (`encoder.final_norm`), or a part of the model (`embedding`,
    `head`). A parameter that two of them share belongs to the first. Activations are of real cells alone: what comes
    into a stack (`encoder.input`), what each layer gives, and the last norm. They are those of all ranks, but for a
    batch of which nothing counts, which only keeps a rank in step.
    """

    def __init__(self, model: nn.Module, step: nn.Module | None = None, world: World = ALONE) -> None:
        self._model, self._step, self._world = model, model if step is None else step, world
        self._counts = True  # whether the batch in hand does
        self._parameters: dict[str, list[nn.Parameter]] = {}
        seen: set[nn.Parameter] = set()
        for name, unit in units(model):
            own = [parameter for parameter in unit.parameters() if parameter not in seen]
            seen.update(own)
            if own:
                self._parameters[name] = own
        self._sums: dict[str, list[Tensor]] = {}  # name -> Σ x² and the number of values, over the window's batches
        self._valid: dict[str, Tensor | None] = {}  # of the stacks that run now: which cells are real
        self._old: dict[str, list[Tensor]] = {}
        self._norms: dict[str, Tensor] = {}

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Collect activations meanwhile."""
        handles: list[RemovableHandle] = []
        try:
            for name, module in _stacks(self._model):
                handles += self._attach(name, module)
            if not handles:  # a model without stacks
                for name, unit in units(self._model):
                    handles.append(unit.register_forward_hook(self._hook(name, None)))
            handles.append(self._step.register_forward_pre_hook(self._begin))
            yield
        finally:
            for handle in handles:
                handle.remove()

    def before(self) -> None:
        """Before the parameters change: the norms of gradients and weights; the weights are kept."""
        for name, parameters in self._parameters.items():
            gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
            if gradients:
                self._norms[f"{GRADIENT}/{name}"] = total_norm(gradients)
                self._old[name] = [parameter.detach().clone() for parameter in parameters]
            self._norms[f"{WEIGHT}/{name}"] = total_norm([parameter.detach() for parameter in parameters])

    def after(self) -> dict[str, float]:
        """After they have changed: everything that was seen, in one copy to the host."""
        for name, old in self._old.items():
            changes = [now.detach() - then for now, then in zip(self._parameters[name], old, strict=True)]
            self._norms[f"{UPDATE}/{name}"] = total_norm(changes) / self._norms[f"{WEIGHT}/{name}"]
        self._old = {}
        for name, (squares, count) in self._shared_sums().items():
            self._norms[f"{ACTIVATION}/{name}"] = (squares / count).sqrt()
        values = torch.stack(list(self._norms.values())).tolist()
        return dict(zip(self._norms, values, strict=True))

    def _shared_sums(self) -> dict[str, list[Tensor]]:
        """The sums of all ranks; a rank whose batches did not count has none of its own."""
        if self._world.size == 1:
            return self._sums
        device = next(self._model.parameters()).device
        total: dict[str, list[Tensor]] = {}
        for own in self._world.gather({name: [float(value) for value in each] for name, each in self._sums.items()}):
            for name, values in own.items():
                before = total.get(name, [torch.zeros((), device=device)] * 2)
                total[name] = [one + value for one, value in zip(before, values, strict=True)]
        return total

    def _begin(self, _: nn.Module, args: tuple[Any, ...]) -> None:
        batch = args[0] if args else None
        self._counts = not isinstance(batch, Batch) or batch.num_labels > 0

    def _attach(self, name: str, stack: Stack) -> list[RemovableHandle]:
        def enter(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            given = [*args, *kwargs.values()]
            cells = next((each for each in given if isinstance(each, Cells)), None)
            self._valid[name] = None if cells is None else cells.valid
            self._add(f"{name}.input", given[0], self._valid[name])

        def leave(*_: object) -> None:
            self._valid.pop(name, None)

        handles = [stack.register_forward_pre_hook(enter, with_kwargs=True)]
        for number, block in enumerate(stack.blocks):
            handles.append(block.register_forward_hook(self._hook(f"{name}.blocks.{number}", name)))
        if stack.final_norm is not None:
            handles.append(stack.final_norm.register_forward_hook(self._hook(f"{name}.final_norm", name)))
        return [*handles, stack.register_forward_hook(leave)]

    def _hook(self, name: str, stack: str | None) -> Any:
        def hook(_: nn.Module, args: object, output: Any) -> None:
            if stack is not None and stack not in self._valid:
                return  # run again on the way back, where activations are not kept
            self._add(name, output[0] if isinstance(output, tuple) else output, self._valid.get(stack or ""))

        return hook

    @torch.no_grad()
    def _add(self, name: str, x: Tensor, valid: Tensor | None) -> None:
        """Add the values of one batch: x (..., D), valid (...) bool or None."""
        if not self._counts:
            return
        squares = x.detach().float().square()
        count = torch.tensor(float(x.numel()), device=x.device)
        if valid is not None and valid.shape == x.shape[:-1]:
            squares, count = squares.sum(-1).mul(valid), valid.sum().float() * x.shape[-1]
        total = self._sums.get(name)
        self._sums[name] = [squares.sum(), count] if total is None else [total[0] + squares.sum(), total[1] + count]


def units(model: nn.Module, at: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The modules that are looked at, with their names: the layers of stacks, and the parts that are no stack."""
    for name, child in model.named_children():
        if isinstance(child, Model | Stack | nn.ModuleList):
            yield from units(child, f"{at}{name}.")
        else:
            yield f"{at}{name}", child


def _stacks(model: nn.Module) -> Iterator[tuple[str, Stack]]:
    for name, module in model.named_modules():
        if isinstance(module, Stack):
            yield name, module
