"""How often a classifier is right, in all and class by class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from transformer_kit.errors import DataError
from transformer_kit.evaluation.significance import Interval


@dataclass(frozen=True)
class ClassScores:
    """One class.

    Attributes:
        label: its name.
        precision: of the examples that were given this label, the share that has it; 0 if none was given it.
        recall: of the examples that have this label, the share that was given it; 0 if none has it.
        f1: 2 · precision · recall / (precision + recall); 0 where both are 0.
        support: how many examples have it.
    """

    label: str
    precision: float
    recall: float
    f1: float
    support: int


@dataclass(frozen=True)
class ClassificationScores:
    """All classes.

    Attributes:
        examples: how many were scored.
        accuracy: the share that was right, 0 to 1.
        interval: 95 % of a bootstrap over the examples; None where none was asked for.
        macro_f1: the plain mean of the classes' F1, over the classes that an example has or was given.
        classes: one each, in the order of the labels.
        confusion: (classes, classes) int64; row: the label an example has, column: the one it was given.
    """

    examples: int
    accuracy: float
    interval: Interval | None
    macro_f1: float
    classes: list[ClassScores]
    confusion: np.ndarray


def classification_scores(
    gold: Sequence[int], predicted: Sequence[int], labels: Sequence[str], *, bootstrap: int = 0, seed: int = 1
) -> ClassificationScores:
    """Score predictions.

    Args:
        gold, predicted: numbers of labels, one each per example.
        labels: the names of all classes.
        bootstrap: resamples of the examples for the interval of the accuracy; 0 for none.
        seed: of the resampling.

    Raises:
        DataError: there is no example.
    """
    assert len(gold) == len(predicted), "one prediction per example"
    if not len(gold):
        raise DataError("there is no example to score: the data set is empty")
    confusion = np.zeros((len(labels), len(labels)), dtype=np.int64)
    np.add.at(confusion, (np.asarray(gold), np.asarray(predicted)), 1)
    right, has, given = confusion.diagonal(), confusion.sum(1), confusion.sum(0)
    # 2PR / (P + R) = 2 right / (has + given), which needs no care for classes without precision
    precision, recall, f1 = (
        np.divide(top, bottom, out=np.zeros(len(labels)), where=bottom > 0)
        for top, bottom in ((right, given), (right, has), (2 * right, has + given))
    )
    classes = [
        ClassScores(label, float(p), float(r), float(f), int(n))
        for label, p, r, f, n in zip(labels, precision, recall, f1, has, strict=True)
    ]
    examples, accuracy = len(gold), float(right.sum() / len(gold))
    interval = None
    if bootstrap:
        # n examples drawn anew, each right with probability `accuracy`: a binomial number of them is right
        drawn = np.random.default_rng(seed).binomial(examples, accuracy, size=bootstrap) / examples
        low, high = np.percentile(drawn, (2.5, 97.5))
        interval = Interval(accuracy, float(low), float(high))
    return ClassificationScores(examples, accuracy, interval, float(f1[has + given > 0].mean()), classes, confusion)
