"""Rows of different lengths in two flat arrays, in memory or mapped from files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.integer]


@dataclass(frozen=True)
class Ragged:
    """Row i is `flat[offsets[i] : offsets[i + 1]]`.

    Attributes:
        flat: all rows' values behind each other.
        offsets: (rows + 1,) int64.
    """

    flat: Ints
    offsets: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> Ints:
        return self.flat[self.offsets[row] : self.offsets[row + 1]]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """(rows,) int64."""
        return np.diff(self.offsets)

    def gather(self, rows: Ints) -> Ragged:
        """The chosen rows, in the given order, in memory."""
        starts = self.offsets[rows]
        offsets = offsets_of(self.offsets[rows + 1] - starts)
        # Value k of the result stands `starts - offsets` further right in `flat`, a shift that is constant in each row.
        where = np.repeat(starts - offsets[:-1], np.diff(offsets)) + np.arange(offsets[-1])
        return Ragged(np.asarray(self.flat[where]), offsets)

    def cut(self, longest: int | Ints) -> Ragged:
        """Rows shortened to at most `longest` values, one number for all or one for each."""
        lengths = self.lengths
        shorter = np.minimum(lengths, longest)
        if (shorter == lengths).all():
            return self
        return Ragged(self.flat[within(lengths) < np.repeat(shorter, lengths)], offsets_of(shorter))


def offsets_of(lengths: Ints | NDArray[np.bool_]) -> NDArray[np.int64]:
    """(rows + 1,): where each row starts, and the end."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def from_lists(rows: Sequence[Sequence[int]]) -> Ragged:
    """int32 rows in memory."""
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    flat = np.fromiter(chain.from_iterable(rows), np.int32, int(lengths.sum()))
    return Ragged(flat, offsets_of(lengths))


def from_bytes(rows: Sequence[bytes]) -> Ragged:
    """uint8 rows in memory."""
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    return Ragged(np.frombuffer(b"".join(rows), np.uint8), offsets_of(lengths))


def concatenate(parts: Sequence[Ragged]) -> Ragged:
    """The rows of all parts, in order."""
    if len(parts) == 1:
        return parts[0]
    lengths = np.concatenate([part.lengths for part in parts])
    return Ragged(np.concatenate([part.flat for part in parts]), offsets_of(lengths))


def filtered(rows: Ragged, keep: NDArray[np.bool_]) -> Ragged:
    """The rows without the values at which `keep`, shaped like `rows.flat`, is False."""
    return Ragged(rows.flat[keep], offsets_of(keep)[rows.offsets])


def column(values: Ints) -> Ragged:
    """Rows of one value each."""
    return Ragged(values, np.arange(len(values) + 1))


def beside(parts: Sequence[Ragged]) -> Ragged:
    """Row i is row i of every part, one behind the other; int64 rows in memory."""
    lengths = np.stack([part.lengths for part in parts])  # (parts, rows)
    offsets = offsets_of(lengths.sum(axis=0))
    starts = offsets[:-1] + np.cumsum(lengths, axis=0) - lengths
    flat = np.empty(offsets[-1], np.int64)
    for part, length, start in zip(parts, lengths, starts, strict=True):
        flat[np.repeat(start, length) + within(length)] = part.flat
    return Ragged(flat, offsets)


def within(lengths: Ints) -> NDArray[np.int64]:
    """(Σ lengths,): where in its row each value stands, from 0."""
    return np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)


class RaggedWriter:
    """Appends rows to `NAME.values` and `NAME.offsets`, holding none of them in memory."""

    def __init__(self, folder: Path, name: str, dtype: str) -> None:
        self.dtype = dtype
        self._values = open(folder / f"{name}.values", "wb")  # noqa: SIM115  # closed by `close`
        self._offsets = open(folder / f"{name}.offsets", "wb")  # noqa: SIM115  # closed by `close`
        self._end = 0
        np.zeros(1, np.int64).tofile(self._offsets)

    def append(self, rows: Ragged) -> None:
        rows.flat.astype(self.dtype).tofile(self._values)
        (rows.offsets[1:] + self._end).tofile(self._offsets)
        self._end += int(rows.offsets[-1])

    def close(self) -> None:
        self._values.close()
        self._offsets.close()


def map_ragged(folder: Path, name: str, dtype: str) -> Ragged:
    """What a `RaggedWriter` wrote, mapped into memory."""
    return Ragged(_map(folder / f"{name}.values", dtype), _map(folder / f"{name}.offsets", "int64"))


def _map(path: Path, dtype: str) -> NDArray:
    if path.stat().st_size == 0:  # nothing to map
        return np.zeros(0, dtype)
    return np.memmap(path, dtype, mode="r").view(np.ndarray)  # a plain array slices faster
