"""From prepared data of any kind to training and validation batches.

Pairs make their batches themselves; documents and texts with labels leave it to a `collate`, which an objective gives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from transformer_kit.batch import Batch
from transformer_kit.data.batching import BatchStream, eval_batches
from transformer_kit.data.bucket_stream import BucketStream
from transformer_kit.data.buckets import by_length, cut, sample_seeds
from transformer_kit.data.dataset import DocumentDataset, LabelDataset, TrainingCorpus
from transformer_kit.data.options import DataOptions, DocumentsOptions, LabelsOptions
from transformer_kit.data.packing import NOISE, PackedStream, packed_validation
from transformer_kit.data.prepare import Prepared
from transformer_kit.data.ragged import Ints, Ragged
from transformer_kit.data.rows import Collate, LabelRows, TextRows


class Stream(Protocol):
    """Endless batches; `state_dict()` taken after a batch resumes at the next one."""

    epoch: int

    def __iter__(self) -> Iterator[Batch]: ...

    def dealt(self, rank: int, ranks: int) -> Iterator[Batch | None]: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def training_stream(prepared: Prepared, *, seed: int, collate: Collate) -> Stream:
    """The training batches of prepared data.

    Args:
        seed: another seed gives another order, other blocks and other noise.
        collate: makes a batch of documents' or labelled texts' rows; pairs need none.

    Raises:
        DataError: nothing fits the budget, or there is nothing to predict.
    """
    data = prepared.data
    if data.kind == "pairs":
        return BatchStream(
            prepared.train,
            data.batch,
            temperature=data.temperature,
            seed=seed,
            sampling=prepared.tokenizer.sampling,
            tokenizers=prepared.tokenizers,
        )
    if data.kind == "labels":
        return LabelStream(prepared.train[0].dataset, data, seed=seed, collate=collate)
    if data.pack:
        return PackedStream(prepared.train, data, seed=seed, collate=collate)
    return PieceStream(prepared.train, data, seed=seed, collate=collate)


def validation_batches(
    dataset: Any, data: DataOptions, collate: Collate, max_length: int | None = None
) -> Iterator[Batch]:
    """Every row of a data set once; equal in every call.

    Args:
        dataset: of the kind that `data` is about.
        max_length: the most tokens of a row that the model takes; longer rows are cut (documents: into more rows).
    """
    if data.kind == "pairs":
        yield from eval_batches(dataset, data.batch.budget, max_length)
        return
    longest = data.max_length if data.kind == "labels" else data.length
    longest = longest if max_length is None else min(longest, max_length)
    if data.kind == "labels":
        rows: Iterator[TextRows | LabelRows] = _labelled(dataset, data.batch.budget, longest)
    elif data.pack:
        rows = packed_validation(dataset, data, longest)
    else:
        rows = _pieces(dataset, data.batch.budget, longest)
    yield from map(collate, rows)


def longest_row(prepared: Prepared) -> int:
    """The most tokens of a training row, BOS or EOS included: no smaller budget takes every row."""
    data = prepared.data
    if data.kind == "labels":
        return data.max_length
    if data.kind == "documents":
        return data.length
    longest = [
        max(int(side.max(initial=0)) for side in (one.dataset.source_lengths, one.dataset.target_lengths))
        for one in prepared.train
    ]
    return max(longest) + 1


class PieceStream(BucketStream[Ragged]):
    """Endless batches of documents, each in pieces of at most `data.length` tokens."""

    noun = "documents"

    def __init__(
        self,
        corpora: Sequence[TrainingCorpus[DocumentDataset]],
        data: DocumentsOptions,
        *,
        seed: int,
        collate: Collate,
    ) -> None:
        self.collate = collate
        self._pieces = [one.dataset.pieces(data.length) for one in corpora]
        weights = [one.weight for one in corpora]
        lengths = [pieces.lengths for pieces in self._pieces]
        super().__init__(lengths, weights, data.batch, temperature=data.temperature, seed=seed, extra=0)

    def _fetch(self, ids: Ints) -> Ragged:
        return self._gather(ids, lambda number, rows: self._pieces[number].gather(rows))

    def _lengths(self, pool: Ragged) -> tuple[Ints, Ints]:
        return pool.lengths, pool.lengths

    def _collate(self, pool: Ragged, rows: Ints, ids: Ints) -> Batch:
        seeds = sample_seeds(self.seed, self.epoch, NOISE, ids)
        return self.collate(TextRows(pool.gather(rows), None, seeds, ids, packed=False))


def _pieces(dataset: DocumentDataset, tokens: int, longest: int) -> Iterator[TextRows]:
    pieces = dataset.pieces(longest)
    order = by_length(pieces.lengths, pieces.lengths)
    for start, end in cut(pieces.lengths[order], tokens):
        rows = order[start:end]
        yield TextRows(pieces.gather(rows), None, sample_seeds(0, 0, NOISE, rows), rows, packed=False)


class LabelStream(BucketStream[Ints]):
    """Endless batches of labelled texts of at most `data.max_length` tokens. A pool is the rows' numbers."""

    noun = "texts"

    def __init__(self, dataset: LabelDataset, data: LabelsOptions, *, seed: int, collate: Collate) -> None:
        self.dataset, self.collate = dataset, collate
        self._marks = marks(dataset)
        self._longest = data.max_length - self._marks
        self._all = label_lengths(dataset, self._longest)
        super().__init__([self._all], [1.0], data.batch, temperature=1.0, seed=seed, extra=self._marks)

    def _fetch(self, ids: Ints) -> Ints:
        return ids

    def _lengths(self, pool: Ints) -> tuple[Ints, Ints]:
        return self._all[pool], self._all[pool]

    def _collate(self, pool: Ints, rows: Ints, ids: Ints) -> Batch:
        return self.collate(label_rows(self.dataset, ids, self._longest, self.seed, self.epoch))


def _labelled(dataset: LabelDataset, tokens: int, longest: int) -> Iterator[LabelRows]:
    added = marks(dataset)
    lengths = label_lengths(dataset, longest - added)
    order = by_length(lengths, lengths)
    for start, end in cut(lengths[order] + added, tokens):
        yield label_rows(dataset, order[start:end], longest - added, 0, 0)


def marks(dataset: LabelDataset) -> int:
    """The most special tokens that go around and between the texts of a row."""
    return 3 if dataset.paired else 2


def label_lengths(dataset: LabelDataset, longest: int) -> Ints:
    """(rows,) the tokens that stay of each row's texts, without special tokens."""
    return np.sum(dataset.limits(np.arange(len(dataset)), longest), axis=0)


def label_rows(dataset: LabelDataset, ids: Ints, longest: int, seed: int, epoch: int) -> LabelRows:
    """Some rows, their texts cut so that `longest` tokens fit."""
    first, *second = dataset.rows(ids, longest)
    labels = dataset.labels[ids].astype(np.int64)
    return LabelRows(first, second[0] if second else None, labels, sample_seeds(seed, epoch, NOISE, ids), ids)
