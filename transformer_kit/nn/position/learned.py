"""A learned vector per position, added to the embeddings."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer_kit.nn.position.base import Position


class Learned(Position):
    """x + table[min(at, max_length − 1)]

    Positions at and beyond `max_length` share the last row: a long input is worse modelled, but neither refused nor
    felt by its neighbours in the batch.

    Args:
        dim: D.
        max_length: rows of the table.

    Source: Gehring et al. 2017, section 3.1; row E of table 3 of Vaswani et al. 2017.
    """

    def __init__(self, dim: int, max_length: int) -> None:
        super().__init__()
        self.limit = max_length
        self.table = nn.Parameter(torch.empty(max_length, dim))
        nn.init.normal_(self.table, std=dim**-0.5)

    def embed(self, x: Tensor, at: Tensor) -> Tensor:
        return x + F.embedding(at.clamp(max=len(self.table) - 1), self.table).to(x.dtype)
