from __future__ import annotations

import numpy as np
import pytest
from test_scores import HYPOTHESES, REFERENCE, REFERENCES, spoilt

from transformer_kit.errors import DataError
from transformer_kit.evaluation.bleu import METRICS, Metric
from transformer_kit.evaluation.significance import bootstrap, paired_bootstrap


def metric(name: str = "bleu") -> Metric:
    return Metric(name, lowercase=False, language="en")


@pytest.mark.parametrize("name", METRICS)
def test_the_value_is_the_corpus_score(name: str) -> None:
    found = bootstrap(HYPOTHESES, REFERENCES, metric(name), samples=31, seed=1)
    assert found.value == pytest.approx(metric(name).score(HYPOTHESES, REFERENCES).value, abs=1e-6)
    assert found.low < found.value < found.high


def test_draws_equal_scoring_the_drawn_sentences() -> None:
    found = bootstrap(HYPOTHESES, [REFERENCE], metric(), samples=41, seed=7)
    counts = np.random.default_rng(7).multinomial(31, np.full(31, 1 / 31), size=41)
    drawn = []
    for row in counts:
        rows = [i for i, count in enumerate(row) for _ in range(count)]
        drawn.append(metric().score([HYPOTHESES[i] for i in rows], [[REFERENCE[i] for i in rows]]).value)
    assert (found.low, found.high) == pytest.approx(tuple(np.percentile(drawn, (2.5, 97.5))), abs=1e-6)


def test_a_seed_gives_the_same_interval_and_another_seed_another() -> None:
    first, again, other = (bootstrap(HYPOTHESES, [REFERENCE], metric(), samples=53, seed=s) for s in (3, 3, 4))
    assert first == again
    assert first != other


def test_equal_systems_do_not_differ() -> None:
    found = paired_bootstrap(HYPOTHESES, HYPOTHESES, [REFERENCE], metric(), samples=53, seed=1)
    assert found.p_value == 1.0
    assert found.difference.low == found.difference.high == found.difference.value == 0.0


def test_a_clear_gain_is_significant_and_has_its_sign() -> None:
    worse = spoilt(spoilt(HYPOTHESES, 8), 9)
    gain = paired_bootstrap(worse, HYPOTHESES, [REFERENCE], metric(), samples=99, seed=1)
    loss = paired_bootstrap(HYPOTHESES, worse, [REFERENCE], metric(), samples=99, seed=1)
    assert gain.p_value == loss.p_value == pytest.approx(1 / 100)
    assert gain.difference.value == pytest.approx(gain.system.value - gain.baseline.value)
    assert gain.difference.low > 0
    assert loss.difference.high < 0


def test_noise_of_equal_size_is_not_significant() -> None:
    one, other = spoilt(REFERENCE, 11), spoilt(REFERENCE, 14)
    found = paired_bootstrap(one, other, [REFERENCE], metric(), samples=99, seed=1)
    assert found.p_value > 0.05
    assert found.difference.low < 0 < found.difference.high


def test_sides_of_different_length_are_refused() -> None:
    with pytest.raises(DataError, match="30 hypotheses"):
        paired_bootstrap(HYPOTHESES, HYPOTHESES[1:], [REFERENCE], metric(), samples=11, seed=1)
