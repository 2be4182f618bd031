"""Masks as values: what may be seen is said once, and each kernel turns it into what it needs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Mask:
    """The conjunction of conditions under which a query cell sees a key cell.

    Query i stands at cell `offset + i` of the keys' row, so decoding with a cache needs no case of its own.

    Attributes:
        causal: only keys at or before the query's cell.
        window: only keys fewer than `window` (>= 1) cells away; a query always sees its own cell.
        key_valid: (B, S) bool; only keys that are True, i.e. no padding.
        document: ((B, T), (B, S)) int64; only keys of the query's own document.
        offset: the number of key cells before the first query.
        prefix: (B, S) bool; keys that are True escape `causal` (and no other condition): every query sees them.
    """

    causal: bool = False
    window: int | None = None
    key_valid: Tensor | None = None
    document: tuple[Tensor, Tensor] | None = None
    offset: int = 0
    prefix: Tensor | None = None

    def __and__(self, other: Mask) -> Mask:
        """Both masks at once. Masks that look at distances must agree on `offset`; one at most names documents, and a
        prefix belongs to the one that is causal."""
        assert self.document is None or other.document is None, "two document masks cannot be joined"
        assert not (self.causal and other.causal and self.prefix is not other.prefix), "two prefixes cannot be joined"
        offsets = {mask.offset for mask in (self, other) if mask.causal or mask.window is not None}
        assert len(offsets) <= 1, "masks of different offsets cannot be joined"
        windows = [mask.window for mask in (self, other) if mask.window is not None]
        valid = [mask.key_valid for mask in (self, other) if mask.key_valid is not None]
        return Mask(
            causal=self.causal or other.causal,
            window=min(windows, default=None),
            key_valid=None if not valid else valid[0] if len(valid) == 1 else valid[0] & valid[1],
            document=other.document if self.document is None else self.document,
            offset=offsets.pop() if offsets else max(self.offset, other.offset),
            prefix=self.prefix if self.causal else other.prefix if other.causal else None,
        )

    @property
    def can_blind(self) -> bool:
        """Whether some query might see no key at all; causality and a window alone leave each query its own cell."""
        return self.key_valid is not None or self.document is not None

    def dense(self, queries: int, keys: int, device: torch.device) -> Tensor | None:
        """The mask written out.

        Args:
            queries: T, the number of query cells.
            keys: S, the number of key cells, at least `offset + queries` where distances count.

        Returns:
            (B or 1, 1, T or 1, S) bool, True where a query sees a key; None where every query sees every key.
        """
        parts: list[Tensor] = []
        hides_later = self.causal and keys > self.offset + 1
        furthest = max(self.offset + queries - 1, keys - 1 - self.offset)
        hides_far = self.window is not None and furthest >= self.window
        if hides_later or hides_far:
            query = torch.arange(self.offset, self.offset + queries, device=device)[:, None]
            key = torch.arange(keys, device=device)[None, :]
            if hides_later:
                before = (key <= query)[None, None]  # (1, 1, T, S)
                parts.append(before if self.prefix is None else before | self.prefix[:, None, None, :])
            if hides_far and self.window is not None:
                parts.append(((query - key).abs() < self.window)[None, None])
        if self.key_valid is not None:
            parts.append(self.key_valid[:, None, None, :])  # (B, 1, 1, S)
        if self.document is not None:
            of_query, of_key = self.document
            parts.append(of_query[:, None, :, None] == of_key[:, None, None, :])  # (B, 1, T, S)
        visible: Tensor | None = None
        for part in parts:
            visible = part if visible is None else visible & part
        return visible
