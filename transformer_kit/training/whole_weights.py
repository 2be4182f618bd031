"""Weights that are whole on rank 0 alone: how a model comes to be there, and how the others get what it holds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn

from transformer_kit.models.empty import without_weights
from transformer_kit.training.weights import unique_tensors
from transformer_kit.training.world import World


@contextmanager
def on_rank_0(world: World) -> Iterator[None]:
    """Around the building of a model: its parameters have values on rank 0, those of one process, and none elsewhere.

    All ranks enter it together. Afterwards torch's generator is everywhere in the state that it has on rank 0.
    """
    with nullcontext() if world.leads else without_weights():
        yield
    torch.set_rng_state(world.share(torch.get_rng_state()))


def from_rank_0(tensor: Tensor, device: torch.device) -> Tensor:
    """Rank 0's tensor on a device of every rank; of the others the shape is read alone. All ranks call it together."""
    if dist.get_rank() == 0:
        held = tensor.detach().to(device).contiguous()
    else:
        held = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
    if held.numel():
        dist.broadcast(held.view(-1).view(torch.uint8), src=0)  # as bytes: not every backend knows every type
    return held


def buffers_from_rank_0(root: nn.Module, device: torch.device) -> None:
    """Put rank 0's buffers on a device of every rank."""
    moved: dict[int, tuple[Tensor, Tensor]] = {}  # with the tensor itself, so that its id is not given again
    for module in root.modules():
        for name, buffer in module.named_buffers(recurse=False, remove_duplicate=False):
            if id(buffer) not in moved:
                moved[id(buffer)] = buffer, from_rank_0(buffer, device)
            setattr(module, name, moved[id(buffer)][1])


@torch.no_grad()
def follow_rank_0(model: nn.Module, world: World) -> None:
    """Give a model that is whole on every rank the weights that it has on rank 0, one tensor at a time."""
    if world.size > 1:
        for tensor in unique_tensors(model).values():
            tensor.copy_(from_rank_0(tensor, tensor.device))
