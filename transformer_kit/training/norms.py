"""The size of many tensors together."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def total_norm(gradients: Sequence[Tensor]) -> Tensor:
    """The Euclidean norm of all gradients together, computed in float32 at least: a scalar."""
    if not gradients:
        return torch.zeros(())
    norms = [torch.linalg.vector_norm(g, dtype=torch.promote_types(g.dtype, torch.float32)) for g in gradients]
    return torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device) for norm in norms]))
