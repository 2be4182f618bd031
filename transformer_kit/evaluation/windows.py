"""Running text under a stated rule of how much context a token is predicted from.

- `windows`: the text is cut into windows of `length` tokens that do not overlap. Every token but the first of the text
  is predicted once, from what is before it in its window: from one token at a window's beginning, `length` at its end.
- `stride=N`: each window predicts N tokens, the last of its `length`; they see the up to `length` − N tokens of the
  window that stand before them, and each other.

With N = `length` the second rule is the first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from transformer_kit.batch import Batch
from transformer_kit.data.ragged import Ragged, offsets_of
from transformer_kit.data.rows import TextRows
from transformer_kit.evaluation.perplexity import Likelihood


@dataclass(frozen=True)
class ContextRule:
    """How a text is cut into windows.

    Attributes:
        length: the most tokens that a window reads.
        stride: how many tokens each window predicts, 1 to `length`.
    """

    length: int
    stride: int

    def __str__(self) -> str:
        if self.stride == self.length:
            return f"windows of {self.length} tokens, none overlapping"
        seen = self.length - self.stride
        return (
            f"windows of {self.length} tokens, stride {self.stride}: each predicts its last {self.stride}, from up to "
            f"{seen} before them and each other"
        )

    def spans(self, tokens: int) -> Iterator[tuple[int, int, int]]:
        """(start, end, first): a window reads tokens start to end − 1 and predicts tokens first to end."""
        for first in range(1, tokens, self.stride):
            end = min(first + self.stride, tokens) - 1
            yield max(0, first + self.stride - 1 - self.length), end, first


@dataclass(frozen=True)
class Running:
    """A text that is read from beginning to end.

    Attributes:
        ids: (N,) its tokens.
        document: (N,) the number of each one's document, where a token sees its own document alone; None: it sees all.
    """

    ids: NDArray[np.int64]
    document: NDArray[np.int64] | None


def window_batches(
    texts: Sequence[Running], rule: ContextRule, collate: Callable[[TextRows], Batch], budget: int
) -> Iterator[Batch]:
    """Batches in which each token but the first of a text is counted once.

    Args:
        texts: with documents in all of them or in none.
        rule: the windows.
        collate: from rows, of which all tokens but the last are read, to the batch that predicts all but the first.
        budget: rows × the longest of a batch is at most this, or the batch is one row.
    """
    waiting: list[tuple[Running, int, int, int]] = []
    longest = made = 0
    for text in texts:
        for start, end, first in rule.spans(len(text.ids)):
            if waiting and (len(waiting) + 1) * max(longest, end - start) > budget:
                yield _batch(waiting, collate, made)
                made += len(waiting)
                waiting, longest = [], 0
            waiting.append((text, start, end, first))
            longest = max(longest, end - start)
    if waiting:
        yield _batch(waiting, collate, made)


def _batch(
    windows: Sequence[tuple[Running, int, int, int]], collate: Callable[[TextRows], Batch], number: int
) -> Batch:
    offsets = offsets_of(np.array([end - start + 1 for _, start, end, _ in windows]))
    ids = Ragged(np.concatenate([text.ids[start : end + 1] for text, start, end, _ in windows]), offsets)
    documents = [text.document[start : end + 1] for text, start, end, _ in windows if text.document is not None]
    document = Ragged(np.concatenate(documents), offsets) if documents else None
    count = len(windows)
    rows = TextRows(ids, document, np.zeros(count, np.int64), np.arange(number, number + count), packed=True)
    batch = collate(rows)
    # label k of a row is token start + k + 1; those before `first` are context
    behind = torch.tensor([first - start - 1 for _, start, _, first in windows])
    counted = batch.counted & (torch.arange(batch.counted.shape[1]) >= behind[:, None])
    return replace(batch, counted=counted, num_labels=int(counted.sum()))


@dataclass(frozen=True)
class TextScores:
    """How well a model predicts a text.

    Attributes:
        likelihood: over the tokens that were predicted.
        characters, bytes: of the text, in UTF-8.
        rule: how much context a token had, in words.
        whole: whether the tokens that were predicted are the text; bits per character mean something only then.
    """

    likelihood: Likelihood
    characters: int
    bytes: int
    rule: str
    whole: bool = True

    @property
    def bits_per_character(self) -> float:
        """Σ −log₂ p(token) / characters."""
        return self.likelihood.nll / math.log(2) / self.characters

    @property
    def bits_per_byte(self) -> float:
        """Σ −log₂ p(token) / bytes."""
        return self.likelihood.nll / math.log(2) / self.bytes
