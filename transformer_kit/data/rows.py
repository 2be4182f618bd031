"""What the streams of text give an objective, which makes a batch of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from transformer_kit.batch import Batch
from transformer_kit.data.ragged import Ints, Ragged


@dataclass(frozen=True)
class TextRows:
    """B rows of running text.

    Attributes:
        ids: token ids. Packed: a block of the stream of documents, `length` + 1 tokens (the last block of a pass may be
            shorter), of which the last token is the next block's first. Otherwise a document, or a piece of one.
        document: the number of each token's document, shaped like `ids`; None where a row is one document.
        seeds: (B,) int64, one seed a row for what an objective draws; the same in every validation.
        sample_ids: (B,) int64.
        packed: whether the rows are blocks.
    """

    ids: Ragged
    document: Ragged | None
    seeds: NDArray[np.int64]
    sample_ids: Ints
    packed: bool

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class LabelRows:
    """B texts, or pairs of texts, with a label each.

    Attributes:
        first: token ids, without special tokens.
        second: of the second text of each pair; None where there are no pairs.
        labels: (B,) int64, numbers of labels.
        seeds, sample_ids: as in `TextRows`.
    """

    first: Ragged
    second: Ragged | None
    labels: NDArray[np.int64]
    seeds: NDArray[np.int64]
    sample_ids: Ints

    def __len__(self) -> int:
        return len(self.first)


Collate = Callable[[TextRows | LabelRows], Batch]
"""Makes the batch that an objective learns from."""
