"""Copies of tensors that stay as they are while the originals change."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, TypeVar

import torch
from torch import Tensor

from transformer_kit.training.shards import is_sharded, local

T = TypeVar("T")
Place = tuple[Hashable, ...]


class Snapshot:
    """Copies in the memory of the CPU, which the next snapshot uses again; it costs the size of what is copied.

    Tensors of a GPU go to pinned memory by themselves: `wait`, in any thread, before the copies are read.
    """

    def __init__(self) -> None:
        self._buffers: dict[Place, Tensor] = {}
        self._copied: list[torch.cuda.Event] = []

    @torch.no_grad()
    def take(self, tree: T) -> T:
        """The same dicts, lists and tuples with copies in place of tensors; the copies of the last call are lost.

        A tensor that occurs twice is copied once.
        """
        before, self._buffers = self._buffers, {}
        streams: set[torch.device] = set()
        seen: dict[Hashable, Tensor] = {}

        def copied(place: Place, tensor: Tensor) -> Tensor:
            alias = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
            if tensor.numel() and alias in seen:
                return seen[alias]
            cuda = tensor.device.type == "cuda"
            buffer = before.get(place)
            if buffer is None or (buffer.dtype, buffer.shape) != (tensor.dtype, tensor.shape):
                buffer = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=cuda)
            buffer.copy_(tensor, non_blocking=cuda)
            if cuda:
                streams.add(tensor.device)
            self._buffers[place] = seen[alias] = buffer
            return buffer

        def walk(place: Place, value: Any) -> Any:
            if isinstance(value, Tensor):
                return _spread_as(copied(place, local(value)), value)
            if isinstance(value, dict):
                return {key: walk((*place, key), each) for key, each in value.items()}
            if isinstance(value, list | tuple):
                return type(value)(walk((*place, index), each) for index, each in enumerate(value))
            return value

        result: T = walk((), tree)
        self._copied = [torch.cuda.current_stream(device).record_event() for device in streams]
        return result

    def wait(self) -> None:
        """Until the copies of the last `take` are there."""
        for event in self._copied:
            event.synchronize()

    def clear(self) -> None:
        """Give the memory back."""
        self._buffers, self._copied = {}, []


def _spread_as(copied: Tensor, like: Tensor) -> Tensor:
    """A copy of the rows that this rank holds as a part of the same whole; it stays on the CPU."""
    if not is_sharded(like):
        return copied
    from torch.distributed.tensor import DTensor

    part: Tensor = DTensor(copied, like._spec, requires_grad=False)  # `from_local` would go back to the GPU
    return part
