"""Token embeddings: the front-end that turns ids into vectors."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class TokenEmbedding(nn.Module):
    """A row of a table per token id, times √D if `scale`, plus a row per segment where there are segments.

    Args:
        vocab_size: V, rows of the table.
        dim: D, width of a row.
        scale: multiply by √D, so that rows drawn from N(0, 1/D), as suits an output projection that shares the table,
            enter the stack with unit variance.
        types: the number of segments (token types) that are told apart, 0 for none.

    Shape: ids (B, L) int64, types (B, L) int64 or None for segment 0 everywhere -> (B, L, D).
    Source: Vaswani et al. 2017, section 3.4; segments: Devlin et al. 2019, figure 2.
    """

    def __init__(self, vocab_size: int, dim: int, scale: bool, types: int = 0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, dim))
        self.factor = math.sqrt(dim) if scale else 1.0
        self.types = TokenEmbedding(types, dim, scale=False) if types else None
        nn.init.normal_(self.weight, std=dim**-0.5)

    def forward(self, ids: Tensor, types: Tensor | None = None) -> Tensor:
        rows = F.embedding(ids, self.weight)
        rows = rows if self.factor == 1.0 else rows * self.factor
        if self.types is None:
            return rows
        return rows + (self.types.weight[0] if types is None else self.types(types))
