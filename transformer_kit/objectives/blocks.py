"""From ragged rows to the padded blocks that models read."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from transformer_kit.batch import Tokens
from transformer_kit.data.ragged import Ints, Ragged, offsets_of


def block(rows: Ragged, fill: int) -> tuple[Tensor, Tensor]:
    """Rows on top of each other, padded on the right: ids (B, L) int64 and valid (B, L) bool."""
    lengths = rows.lengths
    valid = np.arange(lengths.max(initial=0)) < lengths[:, None]
    ids = np.full(valid.shape, fill, np.int64)
    ids[valid] = rows.flat
    return torch.from_numpy(ids), torch.from_numpy(valid)


def tokens_of(rows: Ragged, pad_id: int, document: Ragged | None = None) -> Tokens:
    """The padded block of some rows; positions restart where the document's number changes.

    Args:
        rows: B rows of ids.
        pad_id: what padding cells hold.
        document: the number of each token's document, shaped like `rows`, or None when a row is one document.
    """
    ids, valid = block(rows, pad_id)
    cell = torch.arange(ids.shape[1]).expand(ids.shape)
    full = bool(valid.all())
    if document is None:
        return Tokens(ids, valid, torch.where(valid, cell, 0), full, behind=True)
    number, _ = block(document, -1)
    begins = torch.ones_like(valid)
    begins[:, 1:] = number[:, 1:] != number[:, :-1]
    if not bool((begins & valid)[:, 1:].any()):  # each row is of one document: nothing to keep apart
        return Tokens(ids, valid, torch.where(valid, cell, 0), full, behind=True)
    since = torch.where(begins, cell, 0).cummax(dim=1).values if ids.shape[1] else cell
    return Tokens(ids, valid, torch.where(valid, cell - since, 0), full, number, behind=True)


def part(rows: Ragged, begin: int, end: int) -> Ragged:
    """Each row without its first `begin` and last `end` values; shorter rows become empty."""
    lengths = np.maximum(rows.lengths - begin - end, 0)
    offsets = offsets_of(lengths)
    starts = np.minimum(rows.offsets[:-1] + begin, rows.offsets[1:])
    where = np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])
    return Ragged(np.asarray(rows.flat[where]), offsets)


def wrapped(rows: Ragged, first: int | None, last: int | None) -> Ragged:
    """Each row between a first and a last id; None adds nothing on that side."""
    before, after = int(first is not None), int(last is not None)
    offsets = offsets_of(rows.lengths + before + after)
    flat: Ints = np.empty(offsets[-1], np.int64)
    inside = np.ones(len(flat), bool)
    if first is not None:
        flat[offsets[:-1]] = first
        inside[offsets[:-1]] = False
    if last is not None:
        flat[offsets[1:] - 1] = last
        inside[offsets[1:] - 1] = False
    flat[inside] = rows.flat
    return Ragged(flat, offsets)
