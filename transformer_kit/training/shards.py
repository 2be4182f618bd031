"""Tensors of which each rank holds some rows: what the training has to know of torch's DTensor.

- Of R rows rank i of n holds ⌈R/n⌉ from row i·⌈R/n⌉ on, as many as there are: the last ranks may hold fewer, or none.
- Where no ranks share a model there are no such tensors, and each function does the plain thing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

import torch
import torch.distributed as dist
from torch import Tensor


def is_sharded(tensor: Tensor) -> TypeGuard[Any]:
    """Whether the tensor is spread over ranks; it is then a DTensor, which is not imported for a look."""
    return hasattr(tensor, "device_mesh")


def local(tensor: Tensor) -> Tensor:
    """The rows that this rank holds; of a plain tensor all."""
    rows: Tensor = tensor.to_local() if is_sharded(tensor) else tensor
    return rows


def holders(tensor: Tensor) -> dist.ProcessGroup | None:
    """The ranks that hold one copy of a tensor together; None of a plain one."""
    if not is_sharded(tensor):
        return None
    mesh = tensor.device_mesh
    group: dist.ProcessGroup = mesh.get_group(mesh.ndim - 1)
    return group


def whole(tensor: Tensor) -> Tensor:
    """All rows, on every rank; all ranks call it together where the tensor is sharded."""
    rows: Tensor = tensor.full_tensor() if is_sharded(tensor) else tensor
    return rows


def own_rows(rows: Tensor, like: Tensor) -> Tensor:
    """Of a whole tensor the rows that this rank holds of `like`, a view; nothing is sent."""
    if not is_sharded(like) or not like.placements[-1].is_shard():
        return rows
    mesh = like.device_mesh
    parts, rank = rows.chunk(mesh.size(mesh.ndim - 1)), mesh.get_local_rank(mesh.ndim - 1)
    return parts[rank] if rank < len(parts) else rows[:0]


@torch.no_grad()
def put(into: Tensor, rows: Tensor) -> None:
    """Copy a whole tensor into one that may be sharded."""
    local(into).copy_(own_rows(rows, into))


def sharded_like(rows: Tensor, like: Tensor) -> Tensor:
    """A copy of a whole tensor, on the device of `like` and spread as it is; nothing is sent."""
    own = own_rows(rows, like).to(like.device, copy=True)
    if not is_sharded(like):
        return own
    from torch.distributed.tensor import DTensor

    spread: Tensor = DTensor.from_local(
        own, like.device_mesh, like.placements, run_check=False, shape=rows.shape, stride=rows.contiguous().stride()
    )
    return spread


@torch.no_grad()
def gathered(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Whole tensors on the CPU of rank 0; on other ranks nothing. All ranks call it together."""
    leads = not dist.is_initialized() or dist.get_rank() == 0
    found = {}
    for name, tensor in tensors.items():
        rows = whole(tensor)
        if leads:
            found[name] = rows.detach().cpu()
    return found
