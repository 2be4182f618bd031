"""A learned summand of the attention scores for each bucket of distances."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer_kit.errors import ConfigError
from transformer_kit.nn.position.base import Position


def bucket_starts(buckets: int, max_distance: int) -> list[int]:
    """The smallest distance of every bucket but the first: distance d belongs to bucket #{start ≤ d}.

    The lower half of the buckets holds one distance each. Then bucket h + ⌊ln(d / h) / ln(max_distance / h) · (n − h)⌋,
    with n buckets and h = ⌊n / 2⌋, and at most n − 1. In float32 on a CPU, as published: some distances fall on a rim.
    """
    exact = buckets // 2
    far = torch.arange(exact, max_distance + 1, dtype=torch.float32, device="cpu")
    steps = torch.log(far / exact) / math.log(max_distance / exact) * (buckets - exact)
    bucket = exact + steps.to(torch.int64).clamp(max=buckets - exact - 1)
    reached = (bucket[:, None] >= torch.arange(exact, buckets, device="cpu")).int().argmax(dim=0)  # first that does
    return [*range(1, exact), *(exact + reached).tolist()]


class RelativeBias(Position):
    """scores + table[bucket(j − i), h], for a query at i and a key at j; nothing else scales it.

    Near distances have a bucket each, farther ones share buckets that grow as their logarithm, and all from
    `max_distance` on share the last. Where `causal`, the buckets tell the distances i − j ≥ 0 apart, and a later key
    (of a visible prefix) counts as distance 0; otherwise the lower half serves keys at or before the query, the upper
    half keys after it. There is no longest position.

    Args:
        dim: D; the table starts from N(0, 1/D).
        num_heads: H.
        causal: whether the stack is a decoder.
        num_buckets: rows of the table, at least 2 where causal and 4 elsewhere.
        max_distance: where the last bucket begins at the latest; more than the distances with a bucket of their own.

    Raises:
        ConfigError: too few buckets, or a `max_distance` within the distances that have a bucket each.

    Source: Raffel et al. 2020, section 2.1, and its published code, `_relative_position_bucket`.
    """

    def __init__(self, dim: int, num_heads: int, causal: bool, num_buckets: int, max_distance: int) -> None:
        super().__init__()
        self.causal = causal
        self.buckets = num_buckets if causal else num_buckets // 2  # on one side
        if self.buckets < 2:
            least = 2 if causal else 4
            raise ConfigError(f"model.position.num_buckets={num_buckets}: must be at least {least}")
        if max_distance <= self.buckets // 2:
            raise ConfigError(f"model.position.max_distance={max_distance}: must be above {self.buckets // 2}")
        self.starts = bucket_starts(self.buckets, max_distance)
        self.table = nn.Parameter(torch.empty(num_buckets, num_heads))
        nn.init.normal_(self.table, std=dim**-0.5)

    def bucket(self, distance: Tensor) -> Tensor:
        """The row of the table for each j − i; any shape, int64."""
        starts = torch.tensor(self.starts, device=distance.device)
        if self.causal:
            return torch.bucketize(-distance, starts, right=True)
        return torch.bucketize(distance.abs(), starts, right=True) + (distance > 0) * self.buckets

    def bias(self, q_at: Tensor, k_at: Tensor) -> Tensor:
        bucket = self.bucket(k_at[:, None, :] - q_at[:, :, None])  # (B, T, S)
        return F.embedding(bucket, self.table).permute(0, 3, 1, 2).contiguous()  # (B, H, T, S)
