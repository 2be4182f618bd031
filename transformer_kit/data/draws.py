"""Random numbers that one seed a row decides, and nothing else: not the rows beside it, not the process.

Source: Steele, Lea and Flood 2014, Fast Splittable Pseudorandom Number Generators (SplitMix64).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from transformer_kit.data.buckets import GOLDEN, mixed
from transformer_kit.data.ragged import Ints, within


def uniform(seeds: Ints, lengths: Ints, stream: int) -> NDArray[np.float64]:
    """(Σ lengths,): numbers in (0, 1), `lengths[i]` of them by seed i.

    Args:
        seeds: (rows,) from 0 to 2³² − 2.
        lengths: (rows,) how many numbers each row needs; the first ones are the same whatever their number.
        stream: what they are for, >= 0; streams of one seed have nothing in common, nor have those of near seeds.
    """
    starts = mixed((seeds.astype(np.uint64) + np.uint64((stream << 32) + 1)) * GOLDEN)
    bits = mixed(np.repeat(starts, lengths) + within(lengths).astype(np.uint64) * GOLDEN)
    return ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def ranks(seeds: Ints, lengths: Ints, stream: int) -> NDArray[np.int64]:
    """(Σ lengths,): a permutation of 0 … n − 1 for each row, each equally probable. Arguments as for `uniform`."""
    rows = np.repeat(np.arange(len(lengths)), lengths)
    order = np.lexsort((uniform(seeds, lengths, stream), rows))
    found = np.empty(len(order), np.int64)
    found[order] = within(lengths)
    return found


def segments(seeds: Ints, sizes: Ints, parts: Ints, stream: int) -> NDArray[np.int64]:
    """(Σ parts,): each row's size cut into lengths of at least 1, every way to cut it equally probable.

    Args:
        sizes: (rows,) what to cut.
        parts: (rows,) into how many, 1 ≤ parts ≤ size; 0 where the size is 0.
    """
    begins = np.ones(sizes.sum(), bool)
    gaps = np.maximum(sizes - 1, 0)  # places between neighbours; parts − 1 of them are cuts
    begins[within(sizes) > 0] = ranks(seeds, gaps, stream) < np.repeat(parts - 1, gaps)
    return np.diff(np.append(np.flatnonzero(begins), len(begins)))
