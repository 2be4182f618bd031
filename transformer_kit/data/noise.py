"""Noise that turns rows of ids into something to predict: masked tokens, corrupted spans, infilling.

A row's noise depends on the row and its seed alone. All rows of a batch are treated at once: what is decided row by
row (how many, which, how long) are short arrays, what is done to the tokens are operations on the flat one.
Shares of a row are rounded to whole tokens, halves up.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from transformer_kit.data.draws import ranks, segments, uniform
from transformer_kit.data.ragged import Ints, Ragged, beside, column, offsets_of, within

Bools = NDArray[np.bool_]


def mask_tokens(
    rows: Ragged, seeds: Ints, *, rate: float, masked: float, replaced: float, mask: int, ordinary: Bools
) -> tuple[Ragged, Ragged, Bools]:
    """Choose a share of each row's ordinary tokens; most become the mask, some a random token, the others stay.

    Args:
        rows: ids; tokens that are not ordinary are neither chosen nor counted.
        seeds: (rows,).
        rate: the share that is chosen, in [0, 1]; one token at least where there is any ordinary one.
        masked, replaced: how probable it is that a chosen token becomes the mask, or an ordinary token drawn from all;
            at most 1 together.
        mask: the id that stands for a masked token.
        ordinary: (V,) the ids that text is made of.

    Returns:
        inputs; labels, which are the rows themselves; and (Σ lengths,) which tokens were chosen.

    Source:
        Devlin et al. 2019, BERT, section 3.1, task 1: rate 0.15, masked 0.8, replaced 0.1.
    """
    ids = rows.flat.astype(np.int64)
    able = np.flatnonzero(ordinary[ids])
    sizes = np.bincount(_owners(rows.lengths)[able], minlength=len(rows))
    counts = np.clip(_rounded(rate * sizes), np.minimum(sizes, 1), sizes)
    chosen = np.zeros(len(ids), bool)
    chosen[able] = ranks(seeds, sizes, 0) < np.repeat(counts, sizes)
    fate = uniform(seeds, counts, 1)
    text = np.flatnonzero(ordinary)
    drawn = text[(uniform(seeds, counts, 2) * len(text)).astype(np.int64)]
    ids[chosen] = np.where(fate < masked, mask, np.where(fate < masked + replaced, drawn, ids[chosen]))
    return Ragged(ids, rows.offsets), rows, chosen


def corrupt_spans(
    rows: Ragged, seeds: Ints, *, density: float, mean_length: float, sentinels: Ints
) -> tuple[Ragged, Ragged]:
    """Replace spans of each row by sentinels; the target tells what each of them stood for.

    A row is cut into kept span, noise span, kept span, … noise span, none of them empty: first `density` of its tokens
    are noise (one at least, and not all), then both kinds are cut at random into noise / `mean_length` spans (fewer
    where a span would be empty or the sentinels run out). A row of fewer than two tokens stays as it is.

        row      a b c d e f g h
        inputs   a b 〈0〉 e f g 〈1〉
        targets  〈0〉 c d 〈1〉 h 〈2〉

    Args:
        rows: ids without sentinels.
        seeds: (rows,).
        density: share of noise, in (0, 1).
        mean_length: tokens of a noise span on average, at least 1.
        sentinels: their ids in the order of use, at least two.

    Returns:
        inputs and targets, without BOS and EOS.

    Source:
        Raffel et al. 2020, T5, sections 3.1.4 and 3.3.4: density 0.15, mean length 3.
    """
    lengths = rows.lengths
    able = lengths > 1
    noise = np.where(able, np.clip(_rounded(density * lengths), 1, lengths - 1), 0)
    kept = np.where(able, lengths - noise, 0)
    most = np.minimum(np.minimum(noise, kept), len(sentinels) - 1)
    spans = np.minimum(np.maximum(_rounded(noise / mean_length), 1), most)
    pieces = np.stack([segments(seeds, kept, spans, 0), segments(seeds, noise, spans, 1)], axis=1).ravel()
    cells = np.flatnonzero(np.repeat(able, lengths))  # of the rows that were cut
    noisy = np.zeros(len(rows.flat), bool)
    noisy[cells] = np.repeat(np.arange(len(pieces)) % 2 == 1, pieces)
    begins = cells[offsets_of(pieces)[:-1]]
    marks = sentinels[within(spans)]
    inputs = _marked(rows.flat, ~noisy, begins[1::2], marks)
    targets = _marked(rows.flat, noisy, begins[0::2], marks)
    return (
        Ragged(inputs, offsets_of(lengths - noise + spans)),
        beside([Ragged(targets, offsets_of(noise + spans)), column(sentinels[spans])]),
    )


def infill(rows: Ragged, seeds: Ints, *, rate: float, mean_length: float, mask: int) -> Ragged:
    """Replace spans of each row by one mask each; where a span has no tokens, a mask is put in.

    Span lengths are drawn from Poisson(mean_length) until they cover `rate` of the row (one token at least), the last
    one cut to fit; the spans then stand in random order, anywhere among the tokens that are left. No row gets longer.

    Args:
        rows: ids.
        seeds: (rows,).
        rate: share of the tokens that are replaced, in (0, 1].
        mean_length: λ of the Poisson distribution, above 0.
        mask: the id that stands for a span.

    Source:
        Lewis et al. 2020, BART, section 2.2 (text infilling) and appendix A: rate 0.3, mean length 3.
    """
    lengths = rows.lengths
    budget = np.clip(_rounded(rate * lengths), np.minimum(lengths, 1), lengths)
    spans, sizes = _poisson_spans(seeds, budget, mean_length)
    slots = lengths - budget + spans
    order = ranks(seeds, slots, 2)
    spanned = order < np.repeat(spans, slots)
    covered = np.ones(len(order), np.int64)  # tokens of the row that each slot stands for
    covered[spanned] = sizes[(order + np.repeat(offsets_of(spans)[:-1], slots))[spanned]]
    ids = np.full(len(order), mask, np.int64)
    ids[~spanned] = rows.flat[offsets_of(covered)[:-1][~spanned]]
    return Ragged(ids, offsets_of(slots))


def _poisson_spans(seeds: Ints, budget: Ints, mean: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draws from Poisson(mean) up to the one with which their sum reaches the budget, which is cut to it.

    A draw is 0 with probability exp(−mean); so before each positive draw stands a geometric number of zeros, and a row
    needs at most as many positive draws as its budget. Zeros that would make the draws more than the budget are left
    out, so that no row gets longer.

    Returns:
        (rows,) how many draws each row has, and (Σ draws,) the draws.
    """
    sizes = np.searchsorted(_positive_poisson(mean), uniform(seeds, budget, 0), side="right") + 1
    zeros = (-np.log(uniform(seeds, budget, 1)) / mean).astype(np.int64)
    left = np.repeat(budget, budget) - _before(sizes, budget)
    needed = left > 0
    sizes, zeros = np.minimum(sizes, left)[needed], zeros[needed]
    positive = np.bincount(_owners(budget)[needed], minlength=len(budget))
    zeros = np.clip(np.repeat(budget - positive, positive) - _before(zeros, positive), 0, zeros)
    values = np.zeros((zeros + 1).sum(), np.int64)
    values[np.cumsum(zeros + 1) - 1] = sizes
    return np.bincount(_owners(positive), zeros + 1, len(budget)).astype(np.int64), values


def _positive_poisson(mean: float) -> NDArray[np.float64]:
    """P(X ≤ k | X > 0) for k = 1, 2, … of a Poisson variable, as far as float64 tells it from 1."""
    k = np.arange(1, int(mean + 12 * math.sqrt(mean)) + 30)
    logs = k * math.log(mean) - mean - np.cumsum(np.log(k))
    return np.cumsum(np.exp(logs)) / -math.expm1(-mean)


def _marked(ids: Ints, keep: Bools, places: Ints, marks: Ints) -> NDArray[np.int64]:
    """The kept ids, and marks in the places, which are not kept."""
    keep, marked = keep.copy(), ids.astype(np.int64)
    keep[places], marked[places] = True, marks
    return marked[keep]


def _before(values: Ints, lengths: Ints) -> NDArray[np.int64]:
    """The sum of the values before each one in its row."""
    sums = np.cumsum(values) - values
    firsts = np.cumsum(lengths) - lengths
    return sums - np.repeat(np.append(sums, 0)[firsts], lengths)


def _owners(lengths: Ints) -> NDArray[np.int64]:
    """(Σ lengths,): the row that each value belongs to."""
    return np.repeat(np.arange(len(lengths)), lengths)


def _rounded(values: NDArray[np.floating]) -> NDArray[np.int64]:
    """To whole numbers, halves up."""
    return np.floor(values + 0.5).astype(np.int64)
