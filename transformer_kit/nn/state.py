"""What decoding remembers, kept outside the modules and passed in: keys, values, positions, padding.

Rows: R = B sentences × beams, row = sentence · beams + beam. Self-attention caches have R rows; the keys and values of
the source exist once per sentence, since the beams of one sentence share them.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class Cache(Protocol):
    """What one layer remembers of the tokens so far; the key/value cache below is one kind."""

    def reorder(self, rows: Tensor) -> None:
        """Row r goes on from old row rows[r]; (R',) int64."""

    @property
    def nbytes(self) -> int:
        """Bytes in use."""


class KeyValueCache:
    """Keys and values of one self-attention layer in buffers of a fixed length.

    It carries no gradients. The buffers are made at the first `append`, which knows heads, widths and dtype; memory
    that is never written is never touched, so a generous `max_length` costs little.
    """

    def __init__(self, max_length: int) -> None:
        self.max_length = max_length
        self.length = 0
        self.keys: Tensor | None = None  # (R, G, max_length, K)
        self.values: Tensor | None = None  # (R, G, max_length, W)
        # Rows are gathered from one pair of buffers into the other, which takes two thirds of the time of in place.
        self._spare: tuple[Tensor, ...] | None = None

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Add t cells; returns the keys and values of all cells so far: views, good until the next change.

        Shape:
            k (R, G, t, K), v (R, G, t, W) -> (R, G, length, K), (R, G, length, W)
        """
        if self.keys is None or self.values is None:
            self.keys = k.new_empty(*k.shape[:2], self.max_length, k.shape[-1])
            self.values = v.new_empty(*v.shape[:2], self.max_length, v.shape[-1])
        end = self.length + k.shape[2]
        self.keys[:, :, self.length : end] = k
        self.values[:, :, self.length : end] = v
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def reorder(self, rows: Tensor) -> None:
        if self.keys is None or self.values is None:
            return
        used, self._spare = self._spare, (self.keys, self.values)
        if len(rows) != self.keys.shape[0]:
            used = self._spare = None
        if used is None:
            used = tuple(buffer.new_empty(len(rows), *buffer.shape[1:]) for buffer in (self.keys, self.values))
        for old, new in zip((self.keys, self.values), used, strict=True):
            torch.index_select(old[:, :, : self.length], 0, rows, out=new[:, :, : self.length])
        self.keys, self.values = used

    @property
    def nbytes(self) -> int:
        buffers = (self.keys, self.values, *(self._spare or ()))
        return sum(buffer.nbytes for buffer in buffers if buffer is not None)


class DecoderState:
    """Everything that `extend` needs besides the new ids.

    Args:
        layers: the number of decoder layers.
        cross: per layer the keys (B, G, S, K) and values (B, G, S, W) of the source; empty without a source.
        memory_valid: (B, S) bool, or None when no source cell is padding.
        sentences: B.
        beams: rows per sentence.
        max_length: the most cells a row may hold.
        device: where the rows live.
    """

    def __init__(
        self,
        layers: int,
        cross: list[tuple[Tensor, Tensor]],
        memory_valid: Tensor | None,
        sentences: int,
        beams: int,
        max_length: int,
        device: torch.device,
    ) -> None:
        self.beams = beams
        self.max_length = max_length
        self.length = 0  # cells so far, padding included
        self.cross = cross
        self.memory_valid = memory_valid
        self.caches = [KeyValueCache(max_length) for _ in range(layers)]
        self._next_at = torch.zeros(sentences * beams, dtype=torch.int64, device=device)  # real tokens so far
        self._at = torch.empty(sentences * beams, 0, dtype=torch.int64, device=device)  # (R, length)
        self._valid: Tensor | None = None  # (R, length) bool; None while no cell was padding

    @property
    def rows(self) -> int:
        """R = sentences × beams."""
        return self._next_at.shape[0]

    @property
    def key_at(self) -> Tensor:
        """(R, length) int64: the position of every cell so far."""
        return self._at

    @property
    def key_valid(self) -> Tensor | None:
        """(R, length) bool: which cells so far are real tokens; None when all are."""
        return self._valid

    def append(self, cells: int, valid: Tensor | None) -> Tensor:
        """Make room for new cells; returns their positions, (R, cells) int64, 0 at padding.

        Args:
            cells: t, the number of new cells in each row.
            valid: (R, t) bool; None when all are real tokens.
        """
        assert self.length + cells <= self.max_length, f"more than max_length = {self.max_length} cells"
        device = self._next_at.device
        if valid is None:
            at = self._next_at[:, None] + torch.arange(cells, device=device)
            self._next_at = self._next_at + cells
        else:
            count = valid.cumsum(1)
            at = torch.where(valid, self._next_at[:, None] + count - 1, 0)
            self._next_at = self._next_at + count[:, -1]
        if valid is not None or self._valid is not None:
            past, new = self._valid, valid
            past = torch.ones(self.rows, self.length, dtype=torch.bool, device=device) if past is None else past
            new = torch.ones(self.rows, cells, dtype=torch.bool, device=device) if new is None else new
            self._valid = torch.cat((past, new), 1)
        self._at = torch.cat((self._at, at), 1)
        self.length += cells
        return at

    def reorder(self, rows: Tensor) -> None:
        """Row r goes on from old row rows[r] of the same sentence; the source's keys and values stay.

        Args:
            rows: (R,) int64.
        """
        for cache in self.caches:
            cache.reorder(rows)
        self._next_at = self._next_at[rows]
        self._at = self._at[rows]
        self._valid = None if self._valid is None else self._valid[rows]

    def keep(self, sentences: Tensor) -> None:
        """Only these sentences go on, in this order, each with all its beams.

        Args:
            sentences: (B',) int64 numbers among the sentences still here.
        """
        beams = torch.arange(self.beams, device=sentences.device)
        self.reorder((sentences[:, None] * self.beams + beams).flatten())
        self.cross = [(k.index_select(0, sentences), v.index_select(0, sentences)) for k, v in self.cross]
        self.memory_valid = None if self.memory_valid is None else self.memory_valid[sentences]

    def spread(self, beams: int) -> None:
        """Each row becomes that many beams of its sentence, all with the same past."""
        assert self.beams == 1, "these rows are beams already"
        sentences = torch.arange(self.rows, device=self._next_at.device)
        self.beams = beams
        if beams > 1:
            self.reorder(sentences.repeat_interleave(beams))

    @property
    def nbytes(self) -> int:
        """Bytes held by keys and values."""
        return sum(cache.nbytes for cache in self.caches) + sum(k.nbytes + v.nbytes for k, v in self.cross)
