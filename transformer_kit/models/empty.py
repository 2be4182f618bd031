"""Models without memory: their parameters have shapes, on torch's meta device, and no values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode


class NoDraws(TorchFunctionMode):
    """Leaves out the drawing of values for what has no memory: the first such draw costs a second of imports."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init" or func in (
            torch.Tensor.uniform_,
            torch.Tensor.normal_,
        ):
            tensor = args[0] if args else kwargs["tensor"]
            if tensor.is_meta:
                return tensor
        return func(*args, **kwargs)


@contextmanager
def without_weights() -> Iterator[None]:
    """Take the memory of each parameter as soon as a module registers it; ties stay ties.

    Buffers and plain tensors are made as ever, on the device where they belong: a model's constructor may compute them
    and nothing else knows how. What a module draws after it has registered a parameter is not drawn, so torch's
    generator is left in another state than by a model with weights.
    """

    def empty(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and not parameter.is_meta:
            emptied(parameter)

    hook = register_module_parameter_registration_hook(empty)
    try:
        with NoDraws():
            yield
    finally:
        hook.remove()


def emptied(parameter: nn.Parameter) -> nn.Parameter:
    """Take a parameter's memory, in place, as several modules may hold the same object; what it was is returned."""
    other = nn.Parameter(torch.empty_like(parameter, device="meta"), parameter.requires_grad)
    torch.utils.swap_tensors(parameter, other)
    return other
