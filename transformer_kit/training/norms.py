"""The size of many tensors together, wherever their parts lie."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from transformer_kit.training.shards import holders, local


def total_norm(gradients: Sequence[Tensor]) -> Tensor:
    """The Euclidean norm of all gradients together, computed in float32 at least: a scalar.

    Gradients of which each rank holds some rows are all so; then all ranks call it together, and get the same.
    """
    if not gradients:
        return torch.zeros(())
    norms = [torch.linalg.vector_norm(local(g), dtype=torch.promote_types(g.dtype, torch.float32)) for g in gradients]
    total = torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device) for norm in norms]))
    group = holders(gradients[0])
    if group is None:
        return total
    squares = total.double().square()
    dist.all_reduce(squares, group=group)
    return squares.sqrt().to(total.dtype)
