"""Where a value that is not finite began: in a module, in the loss, or on the way back.

The window is computed once more, forward only, with a look at what each module takes and gives. That costs time only
where an update failed, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from transformer_kit.batch import Batch
from transformer_kit.training.memory import is_out_of_memory
from transformer_kit.training.precision import Precision
from transformer_kit.training.step import Step

LOSS, MODEL = "the loss", "the model"
GRADIENT = "the gradient of "


def culprit(step: Step, batches: Sequence[Batch], seeds: Sequence[int], precision: Precision) -> str | None:
    """The first module whose output is not finite; else the loss; else the gradient of a parameter; None: none is.

    Gradients flow from the loss to the input, so of several that are not finite the one nearest to the loss is named.
    Where ranks hold parts of the weights, all call this together, with equally many batches: none is left out because
    something was found before.

    Args:
        step: as it was trained, its gradients still there; not wrapped, so that a rank may call it alone.
        batches: this rank's.
        seeds: what each was computed with.
    """
    listener = _Listener()
    try:
        with torch.no_grad(), listener.attached(step):
            for batch, seed in zip(batches, seeds, strict=True):
                torch.manual_seed(seed)
                with precision.autocast():
                    sums = step(batch.to(precision.device))
                if not _sound(sums.loss):
                    listener.note(LOSS)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
    return listener.found or _bad_gradient(step.model, listener.order)


def agreed(found: Sequence[str | None]) -> str | None:
    """The origin, from what each rank found: a gradient, which is a sum over ranks, says less than anything else."""
    own = [(rank, name) for rank, name in enumerate(found) if name is not None and not name.startswith(GRADIENT)]
    if own:
        rank, name = own[0]
        return name if len(found) == 1 else f"{name} (rank {rank})"
    return next((name for name in found if name is not None), None)


class _Listener:
    """Looks at the tensors that modules take and give, until one is not finite.

    What comes into a module and is not finite, with no module before it that gave it, was computed by the code of the
    module around it.
    """

    def __init__(self) -> None:
        self.found: str | None = None
        self.order: dict[nn.Module, int] = {}  # as they ended, each for the first time

    def note(self, name: str) -> None:
        self.found = self.found or name

    @contextmanager
    def attached(self, step: Step) -> Iterator[None]:
        modules = dict(step.named_modules())
        handles: list[RemovableHandle] = []
        try:
            for name, module in modules.items():
                around = name.rpartition(".")[0]
                while isinstance(modules.get(around), nn.ModuleList | nn.ModuleDict | nn.Sequential):
                    around = around.rpartition(".")[0]
                if name:
                    handles += self._attach(_spoken(name), _spoken(around), module)
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _attach(self, name: str, around: str, module: nn.Module) -> tuple[RemovableHandle, RemovableHandle]:
        def enter(_: nn.Module, args: tuple[Any, ...]) -> None:
            if self.found is None and args and not _sound(args[0]):
                self.found = around

        def leave(_: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            self.order.setdefault(module, len(self.order))
            if self.found is None and not _sound(output):
                self.found = name

        return module.register_forward_pre_hook(enter), module.register_forward_hook(leave)


def _spoken(name: str) -> str:
    """The name of a part of a `Step`, as the model's users know it."""
    part, _, rest = name.partition(".")
    return LOSS if part == "objective" else rest or MODEL


def _sound(value: Any) -> bool:
    """Whether every number in tensors, and in tuples, lists and mappings of them, is finite."""
    if isinstance(value, Tensor):
        return not value.is_floating_point() or bool(torch.isfinite(value).all())
    if isinstance(value, Mapping):
        return all(_sound(each) for each in value.values())
    return not isinstance(value, tuple | list) or all(_sound(each) for each in value)


def _bad_gradient(model: nn.Module, order: Mapping[nn.Module, int]) -> str | None:
    """Of the parameters whose gradient is not finite the one whose module ran last, nearest to the loss."""
    bad = [
        (order.get(module, -1), f"{at}.{name}" if at else name)
        for at, module in model.named_modules()
        for name, parameter in module.named_parameters(recurse=False)
        if not _sound(_local(parameter.grad))
    ]
    return f"{GRADIENT}{max(bad)[1]}" if bad else None


def _local(gradient: Tensor | None) -> Tensor | None:
    """This rank's part of a gradient that ranks share, so that nobody is waited for."""
    whole: Any = gradient
    return whole.to_local() if hasattr(whole, "to_local") else gradient
