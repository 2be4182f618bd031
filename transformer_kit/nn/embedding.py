"""Token embeddings: the front-end that turns ids into vectors."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class TokenEmbedding(nn.Module):
    """A row of a table per token id, times √D if `scale`.

    Args:
        vocab_size: V, rows of the table.
        dim: D, width of a row.
        scale: multiply by √D, so that rows drawn from N(0, 1/D), as suits an output projection that shares the table,
            enter the stack with unit variance.

    Shape: ids (B, L) int64 -> (B, L, D).
    Source: Vaswani et al. 2017, section 3.4.
    """

    def __init__(self, vocab_size: int, dim: int, scale: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, dim))
        self.factor = math.sqrt(dim) if scale else 1.0
        nn.init.normal_(self.weight, std=dim**-0.5)

    def forward(self, ids: Tensor) -> Tensor:
        rows = F.embedding(ids, self.weight)
        return rows if self.factor == 1.0 else rows * self.factor
