from __future__ import annotations

import numpy as np
import pytest

from transformer_kit.errors import DataError
from transformer_kit.evaluation.classification import classification_scores

LABELS = ["no", "maybe", "yes", "never seen"]


def test_scores_counted_by_hand() -> None:
    gold = [0, 0, 0, 1, 1, 2, 2, 2, 2]
    predicted = [0, 0, 1, 1, 2, 2, 2, 2, 0]
    found = classification_scores(gold, predicted, LABELS)
    assert found.examples == 9
    assert found.accuracy == pytest.approx(6 / 9)
    assert found.interval is None
    assert found.confusion.tolist() == [[2, 1, 0, 0], [0, 1, 1, 0], [1, 0, 3, 0], [0, 0, 0, 0]]
    rows = [(c.label, c.precision, c.recall, c.f1, c.support) for c in found.classes]
    assert rows == [
        ("no", pytest.approx(2 / 3), pytest.approx(2 / 3), pytest.approx(2 / 3), 3),
        ("maybe", 0.5, 0.5, 0.5, 2),
        ("yes", 0.75, 0.75, 0.75, 4),
        ("never seen", 0.0, 0.0, 0.0, 0),
    ]
    assert found.macro_f1 == pytest.approx((2 / 3 + 0.5 + 0.75) / 3)


def test_a_class_that_is_only_given_or_only_had_counts_as_zero() -> None:
    found = classification_scores([0, 0, 1], [0, 2, 0], LABELS)
    assert [c.f1 for c in found.classes] == [0.5, 0.0, 0.0, 0.0]
    assert found.macro_f1 == pytest.approx(0.5 / 3)


def test_the_interval_is_a_bootstrap_over_examples() -> None:
    rng = np.random.default_rng(3)
    gold = rng.integers(0, 3, 500)
    predicted = np.where(rng.random(500) < 0.8, gold, (gold + 1) % 3)
    found = classification_scores(gold.tolist(), predicted.tolist(), LABELS, bootstrap=4000, seed=2)
    assert found.interval is not None
    right = gold == predicted
    drawn = [right[rng.integers(0, 500, 500)].mean() for _ in range(4000)]
    low, high = np.percentile(drawn, (2.5, 97.5))
    assert found.interval.low == pytest.approx(low, abs=0.006)
    assert found.interval.high == pytest.approx(high, abs=0.006)
    assert (
        classification_scores(gold.tolist(), predicted.tolist(), LABELS, bootstrap=4000, seed=2).interval
        == found.interval
    )


def test_no_example_is_refused() -> None:
    with pytest.raises(DataError, match="no example"):
        classification_scores([], [], LABELS)
