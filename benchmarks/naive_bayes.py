"""Accuracy of multinomial naive Bayes over words: `python benchmarks/naive_bayes.py train.tsv test.tsv`.

Lines are `text TAB label`; counts with one added; words between spaces, those never seen in training left out.
"""

from __future__ import annotations

import math
import sys
from collections import Counter, defaultdict

from transformer_kit.data.corpus import read_lines


def examples(path: str) -> list[tuple[list[str], str]]:
    cells = [line.rsplit("\t", 1) for line in read_lines(path)]
    return [(text.split(), label) for text, label in cells]


def main(train: str, test: str) -> None:
    words: dict[str, Counter[str]] = defaultdict(Counter)
    labels: Counter[str] = Counter()
    for text, label in examples(train):
        words[label].update(text)
        labels[label] += 1
    vocabulary = set().union(*words.values())
    totals = {label: sum(counts.values()) + len(vocabulary) for label, counts in words.items()}

    def score(text: list[str], label: str) -> float:
        known = [word for word in text if word in vocabulary]
        return math.log(labels[label]) + sum(math.log((words[label][word] + 1) / totals[label]) for word in known)

    given = examples(test)
    right = sum(max(labels, key=lambda label: score(text, label)) == truth for text, truth in given)
    print(f"{right / len(given):.2%} of {len(given):,}")


if __name__ == "__main__":
    main(*sys.argv[1:])
