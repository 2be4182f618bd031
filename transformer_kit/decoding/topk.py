"""The k largest values of each row, ties going to the lower index, without sorting the row.

`torch.topk` says nothing about ties. Here one more value than asked for is taken: only a row whose k-th and next
value are equal can hide a tie, and such rows (rare in float32, common with bf16 logits) are searched once more.
"""

from __future__ import annotations

import torch
from torch import Tensor

_BLOCK = 128  # width of a block whose maximum stands for it
_WIDE = 4096  # narrower rows are searched directly


def top_k(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest values of each row and where they stand, largest first, equal values by rising index.

    Args:
        x: (R, N) floating point; minus infinity marks what must not be chosen (its order is undefined).
        k: at most N.

    Shape:
        (R, k) values and (R, k) int64 indices.
    """
    assert 1 <= k <= x.shape[1], (k, x.shape)
    values, indices, unsure = _blocks(x, k) if x.shape[1] >= _WIDE and k * _BLOCK * 2 < x.shape[1] else _direct(x, k)
    if bool(unsure.any()):
        rows = unsure.nonzero().squeeze(1)
        values[rows], indices[rows] = _lowest(x[rows], values[rows, k - 1 :], k)
    return values, indices


def rank(values: Tensor, keys: Tensor) -> Tensor:
    """The order (indices along the last axis) by falling value, equal values by rising key."""
    by_key = keys.argsort(dim=-1, stable=True)
    by_value = values.gather(-1, by_key).argsort(dim=-1, descending=True, stable=True)
    return by_key.gather(-1, by_value)


def _lowest(x: Tensor, edge: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """What `top_k` returns where several values equal the k-th, `edge` (R, 1): of these, those of lowest index."""
    falling = -torch.arange(x.shape[1], dtype=torch.float32, device=x.device)
    indices = torch.where(x > edge, torch.inf, torch.where(x == edge, falling, -torch.inf)).topk(k, dim=1).indices
    values = x.gather(1, indices)
    order = rank(values, indices)
    return values.gather(1, order), indices.gather(1, order)


def _direct(x: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    values, indices = x.topk(min(k + 1, x.shape[1]), dim=1)
    order = rank(values, indices)
    values, indices = values.gather(1, order), indices.gather(1, order)
    if values.shape[1] == k:
        return values, indices, torch.zeros(x.shape[0], dtype=torch.bool, device=x.device)
    unsure = (values[:, k - 1] == values[:, k]) & (values[:, k] > -torch.inf)
    return values[:, :k], indices[:, :k], unsure


def _blocks(x: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Two stages: the k blocks with the largest maxima hold the k largest values."""
    width = x.shape[1]
    whole = width // _BLOCK
    tops = x[:, : whole * _BLOCK].unflatten(1, (whole, _BLOCK)).amax(2)
    if whole * _BLOCK < width:
        tops = torch.cat((tops, x[:, whole * _BLOCK :].amax(1, keepdim=True)), dim=1)
    best, blocks = tops.topk(k + 1, dim=1)
    outside = best[:, k]  # no value outside the chosen blocks is larger
    chosen = blocks[:, :k].sort(dim=1).values  # rising, so that the place in `part` rises with the index
    index = (chosen[:, :, None] * _BLOCK + torch.arange(_BLOCK, device=x.device)).flatten(1)  # (R, k * block)
    part = x.gather(1, index.clamp(max=width - 1)).masked_fill_(index >= width, -torch.inf)
    values, places, unsure = _direct(part, k)
    unsure = unsure | ((values[:, k - 1] == outside) & (outside > -torch.inf))
    return values, index.gather(1, places), unsure
