"""Whether a difference between two systems could be chance, and how sure one score is: bootstrap resampling.

The sentences of the test set are drawn again, with replacement, many times; each metric is computed from per-sentence
counts, which are summed once per draw, so a thousand draws cost little more than one score.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from transformer_kit.evaluation.bleu import Metric, check_lines


@dataclass(frozen=True)
class Interval:
    """A score with its 95 % confidence interval by the percentiles of the draws."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Comparison:
    """Two systems on one test set.

    Attributes:
        baseline, system: their scores.
        difference: system − baseline with its 95 % interval.
        p_value: the probability of so large a difference, in either direction, if there were none.
    """

    baseline: Interval
    system: Interval
    difference: Interval
    p_value: float


def bootstrap(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], metric: Metric, *, samples: int, seed: int
) -> Interval:
    """A corpus score with its confidence interval.

    Args:
        samples: the number of draws, at least 1.
        seed: of the draws; equal seeds give equal draws for test sets of equal length.

    Raises:
        DataError: the sides differ in length or are empty.

    Source:
        Koehn 2004, "Statistical Significance Tests for Machine Translation Evaluation", section 3.
    """
    stats = _sentence_stats(hypotheses, references, metric)
    drawn = _scores(_draws(len(stats), samples, seed) @ stats, metric)
    return _interval(_score(stats.sum(0), metric), drawn)


def paired_bootstrap(
    baseline: Sequence[str],
    system: Sequence[str],
    references: Sequence[Sequence[str]],
    metric: Metric,
    *,
    samples: int,
    seed: int,
) -> Comparison:
    """Compare two systems by the same draws.

    p = (1 + #{|d − mean(d)| ≥ |D|}) / (1 + samples) over the draws' differences d, with D the true difference; equal
    outputs give 1.

    Raises:
        DataError: the sides differ in length or are empty.

    Source:
        Koehn 2004, section 4; shifted to the null hypothesis as in Riezler and Maxwell 2005.
    """
    first, second = _sentence_stats(baseline, references, metric), _sentence_stats(system, references, metric)
    draws = _draws(len(first), samples, seed)
    drawn_first, drawn_second = _scores(draws @ first, metric), _scores(draws @ second, metric)
    before, after = _score(first.sum(0), metric), _score(second.sum(0), metric)
    change, drawn = after - before, drawn_second - drawn_first
    extreme = int((np.abs(drawn - drawn.mean()) >= abs(change) - 1e-9).sum())
    return Comparison(
        _interval(before, drawn_first),
        _interval(after, drawn_second),
        _interval(change, drawn),
        (1 + extreme) / (1 + samples),
    )


def _sentence_stats(hypotheses: Sequence[str], references: Sequence[Sequence[str]], metric: Metric) -> np.ndarray:
    """(sentences, counts): what the metric sums over sentences."""
    check_lines(hypotheses, references)
    prepared = [metric.prepare(lines) for lines in references]
    # sacreBLEU's own significance tests are built on these two methods; it offers no public form of them.
    stats = metric.scorer._extract_corpus_statistics(metric.prepare(hypotheses), prepared)
    return np.asarray(stats, dtype=np.float64)


def _score(total: np.ndarray, metric: Metric) -> float:
    return float(metric.scorer._compute_score_from_stats(total.tolist()).score)


def _scores(totals: np.ndarray, metric: Metric) -> np.ndarray:
    return np.array([_score(total, metric) for total in totals])


def _draws(sentences: int, samples: int, seed: int) -> np.ndarray:
    """(samples, sentences): how often each sentence is drawn."""
    rng = np.random.default_rng(seed)
    return rng.multinomial(sentences, np.full(sentences, 1 / sentences), size=samples).astype(np.float64)


def _interval(value: float, drawn: np.ndarray) -> Interval:
    low, high = np.percentile(drawn, (2.5, 97.5))
    return Interval(value, float(low), float(high))
