"""What everything that answers lines has in common: batches of similar length, answers in order, lines counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from transformer_kit.decoding.translator import token_batches

A = TypeVar("A")


def in_order(
    lines: int,
    costs: Mapping[int, int],
    budget: int,
    work: Callable[[list[int]], Sequence[A]],
    otherwise: A | None = None,
) -> Iterator[A]:
    """One answer a line; those at the front are given as soon as they are complete.

    Args:
        lines: how many there are.
        costs: the tokens of each line that needs work, by its number from 0.
        budget: rows × the longest of a batch is at most this, or the batch is one line.
        work: the answers for a batch of such lines.
        otherwise: the answer for the other lines, if there are any.
    """
    answers: dict[int, A] = {}
    given = 0
    for batch in token_batches(dict(costs), budget):
        answers.update(zip(batch, work(batch), strict=True))
        while given < lines and (given in answers or given not in costs):
            yield answers.pop(given) if given in answers else _known(otherwise)
            given += 1
    for index in range(given, lines):
        yield answers.pop(index) if index in answers else _known(otherwise)


@dataclass
class Counted:
    """How many lines something happened to, and the first of them; numbers count from 1."""

    count: int = 0
    first: int = 0

    def add(self, line: int) -> None:
        self.first = self.first or line
        self.count += 1


def _known(answer: A | None) -> A:
    assert answer is not None, "every line has a cost, or there is an answer for the others"
    return answer
