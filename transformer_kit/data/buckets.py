"""Which rows go into which batch: the arithmetic of budgets, mixtures and padding, on lengths alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from transformer_kit.data.ragged import Ints

GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # the step of SplitMix64


def cut(costs: Ints, tokens: int) -> list[tuple[int, int]]:
    """Spans of consecutive rows with rows × highest cost ≤ tokens, each as long as possible; one row at least.

    Args:
        costs: (rows,) the longer side of each row with BOS or EOS.
    """
    spans, start = [], 0
    while start < len(costs):
        window = np.maximum.accumulate(costs[start : start + max(1, tokens // int(costs[start]))])
        fitting = int(np.searchsorted(window * np.arange(1, len(window) + 1), tokens, side="right"))
        end = start + max(1, fitting)
        spans.append((start, end))
        start = end
    return spans


def by_length(sources: Ints, targets: Ints) -> NDArray[np.int64]:
    """An order that puts pairs of similar lengths side by side; equal pairs keep their order.

    The longer side decides; among equals the difference of the sides rises and falls in turn, so that it has no jumps.
    """
    longer = np.maximum(sources, targets).astype(np.int64)
    return np.lexsort((np.where(longer % 2 == 0, 1, -1) * (targets - sources), longer))


@dataclass(frozen=True)
class Padding:
    """How a corpus fills batches of a token budget.

    Attributes:
        batches: how many there are.
        efficiency: real tokens of both sides (with EOS) per cell of the padded blocks.
        over_budget: pairs that alone are over the budget; training leaves them out of each epoch.
    """

    batches: int
    efficiency: float
    over_budget: int


def padding(sources: Ints, targets: Ints, tokens: int) -> Padding:
    """The padding of one corpus in batches of its own.

    Args:
        sources, targets: (rows,) lengths without EOS.
        tokens: the budget.
    """
    fits = np.maximum(sources, targets) < tokens
    source, target = sources[fits].astype(np.int64), targets[fits].astype(np.int64)
    order = by_length(source, target)
    source, target = source[order] + 1, target[order] + 1
    spans = cut(np.maximum(source, target), tokens)
    if not spans:
        return Padding(0, 0.0, len(sources))
    starts = np.array([start for start, _ in spans])
    rows = np.diff(np.append(starts, len(source)))
    cells = rows * (np.maximum.reduceat(source, starts) + np.maximum.reduceat(target, starts))
    return Padding(len(spans), float((source.sum() + target.sum()) / cells.sum()), len(sources) - len(source))


def quotas(sizes: NDArray[np.int64], weights: NDArray[np.float64], temperature: float) -> NDArray[np.int64]:
    """How many pairs of each corpus an epoch draws: Σ sizes in all, in proportion to weight · size^(1/temperature)."""
    shares = weights * sizes ** (1.0 / temperature)
    exact = shares / shares.sum() * sizes.sum()
    whole = np.floor(exact + 1e-9).astype(np.int64)
    missing = int(sizes.sum() - whole.sum())
    whole[np.argsort(whole - exact, kind="stable")[:missing]] += 1  # to the largest remainders
    return whole


def passes(size: int, quota: int, epoch: int) -> Iterator[tuple[int, int, int]]:
    """What an epoch takes of a corpus of `size` rows: pass, and from where to where in its order.

    The corpus is an endless row of shuffled passes; each epoch takes the next `quota` rows of it.
    """
    first, stop = epoch * quota, (epoch + 1) * quota
    for turn in range(first // size, -(-stop // size)):
        yield turn, max(0, first - turn * size), min(size, stop - turn * size)


def sample_seeds(seed: int, epoch: int, side: int, ids: Ints) -> NDArray[np.int64]:
    """(rows,) 31-bit seeds that depend on all four."""
    start = np.random.SeedSequence([seed, epoch, side]).generate_state(1, np.uint64)[0]
    return (mixed(start + (np.asarray(ids).astype(np.uint64) + np.uint64(1)) * GOLDEN) >> np.uint64(33)).astype(
        np.int64
    )


def mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Each number turned into 64 random bits, one to one (the finaliser of SplitMix64)."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        values = (values ^ (values >> np.uint64(shift))) * np.uint64(factor)
    return values ^ (values >> np.uint64(31))
