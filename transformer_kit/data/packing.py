"""Documents as one stream of tokens, cut into blocks.

- A pass through a corpus is its documents in random order, behind each other. A block reads `length` tokens and
  predicts the token behind each, so it holds `length` + 1, and its last token is the next block's first: each token but
  the stream's first is predicted once. The first block predicts fewer, a number drawn for the pass, so that the same
  windows do not come again; the last one predicts what is left.
- The blocks of an epoch, over all corpora, are shuffled. A corpus of n blocks and weight w gets a share proportional to
  w · n^(1/temperature) of them.
- In validation the documents keep their order, and the first block is as long as the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transformer_kit.batch import Batch
from transformer_kit.data.bucket_stream import ORDER, PASS
from transformer_kit.data.buckets import passes, quotas, sample_seeds
from transformer_kit.data.dataset import DocumentDataset, TrainingCorpus
from transformer_kit.data.dealt import Dealt
from transformer_kit.data.options import DocumentsOptions
from transformer_kit.data.ragged import Ints, Ragged, concatenate, offsets_of, within
from transformer_kit.data.rows import Collate, TextRows
from transformer_kit.errors import DataError

NOISE = 2  # what a row's seed is for; 0 and 1 are the sides of pairs


@dataclass(frozen=True)
class Pass:
    """Blocks of a stream of documents.

    Attributes:
        documents: what is read.
        order: (documents,) the order of the documents.
        starts: (documents + 1,) where each of them starts in the stream, and its end.
        length: the tokens that a block predicts.
        head: the tokens that the first block predicts, from 1 to `length`.
    """

    documents: Ragged
    order: Ints
    starts: NDArray[np.int64]
    length: int
    head: int

    @classmethod
    def shuffled(cls, documents: Ragged, length: int, draw: np.random.Generator) -> Pass:
        order = draw.permutation(len(documents))
        return cls(documents, order, offsets_of(documents.lengths[order]), length, int(draw.integers(1, length + 1)))

    @classmethod
    def straight(cls, documents: Ragged, length: int) -> Pass:
        return cls(documents, np.arange(len(documents)), documents.offsets, length, length)

    def __len__(self) -> int:
        left = int(self.starts[-1]) - 1 - self.head  # to predict behind the first block
        return 1 + max(0, -(-left // self.length))

    def blocks(self, numbers: Ints) -> tuple[Ragged, Ragged]:
        """The tokens of some blocks, and the number of each token's document within its block, from 0."""
        ends = self.head + numbers.astype(np.int64) * self.length  # the last token that a block predicts
        begins = np.maximum(ends - self.length, 0)
        ends = np.minimum(ends, self.starts[-1] - 1)
        lengths = ends - begins + 1
        offsets = offsets_of(lengths)
        at = np.repeat(begins, lengths) + within(lengths)
        place = np.searchsorted(self.starts, at, side="right") - 1  # in the order; documents without tokens hold none
        ids = self.documents.flat[self.documents.offsets[self.order[place]] + at - self.starts[place]]
        return Ragged(ids, offsets), Ragged(place - np.repeat(place[offsets[:-1]], lengths), offsets)


def count_blocks(documents: Ragged, length: int) -> int:
    """How many blocks there are at least; a pass has one more where its first and last one share a block's length."""
    return -(-(int(documents.offsets[-1]) - 1) // length)


class PackedStream(Dealt):
    """Endless batches of blocks.

    `state_dict()` taken after a batch resumes at the next one.

    Args:
        corpora: the mixture.
        data: length, budget, temperature and whether documents are told apart.
        seed: another seed gives other blocks in another order.
        collate: makes the batch of some rows.

    Attributes:
        epoch: how many epochs are complete.

    Raises:
        DataError: a corpus has nothing to predict.
    """

    def __init__(
        self,
        corpora: Sequence[TrainingCorpus[DocumentDataset]],
        data: DocumentsOptions,
        *,
        seed: int,
        collate: Collate,
    ) -> None:
        self.corpora, self.data, self.seed, self.collate = list(corpora), data, seed, collate
        for one in corpora:
            check_stream(one.dataset)
        sizes = np.array([count_blocks(one.dataset.ids, data.length) for one in corpora])
        self._bases = np.concatenate(([0], np.cumsum(sizes + 1)))  # the first sample id of each corpus
        self._sizes = sizes.tolist()
        self._quotas = quotas(sizes, np.array([one.weight for one in corpora]), data.temperature).tolist()
        self._rows = data.batch.budget // data.length
        self.epoch = self._batch = 0

    def state_dict(self) -> dict[str, Any]:
        """The cursor: epoch, and batch within the epoch."""
        return {"epoch": self.epoch, "batch": self._batch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self._batch = int(state["epoch"]), int(state["batch"])

    def dealt(self, rank: int, ranks: int) -> Iterator[Batch | None]:
        plan, plan_epoch, given = _Epoch(self, self.epoch), self.epoch, 0
        while True:
            if plan_epoch != self.epoch:
                plan, plan_epoch = _Epoch(self, self.epoch), self.epoch
            start = self._batch * self._rows
            batch = self.collate(plan.rows(start, start + self._rows)) if given % ranks == rank else None
            given += 1
            self._batch += 1
            if start + self._rows >= len(plan):
                self.epoch += 1
                self._batch = 0
            yield batch  # the cursor already stands behind it


class _Epoch:
    # The blocks of one epoch in their order: row i is block `number[i]` of pass `owner[i]`.

    def __init__(self, stream: PackedStream, epoch: int) -> None:
        self.masked, self.seed, self.epoch = stream.data.mask_documents, stream.seed, epoch
        self.passes: list[tuple[Pass, int]] = []  # each with the first sample id of its corpus
        owner: list[Ints] = []
        number: list[Ints] = []
        for corpus, (size, quota) in enumerate(zip(stream._sizes, stream._quotas, strict=True)):
            for turn, first, stop in passes(size, quota, epoch):
                draw = np.random.default_rng([stream.seed, PASS, corpus, turn])
                made = Pass.shuffled(stream.corpora[corpus].dataset.ids, stream.data.length, draw)
                # The last place of a pass stands for two blocks where it has one more than `count_blocks` says.
                taken = draw.permutation(len(made))[first : None if stop == size else stop]
                owner.append(np.full(len(taken), len(self.passes), np.int32))
                number.append(taken)
                self.passes.append((made, int(stream._bases[corpus])))
        order = np.random.default_rng([stream.seed, ORDER, epoch]).permutation(sum(map(len, owner)))
        self.owner, self.number = np.concatenate(owner)[order], np.concatenate(number)[order]

    def __len__(self) -> int:
        return len(self.owner)

    def rows(self, start: int, stop: int) -> TextRows:
        owner, number = self.owner[start:stop], self.number[start:stop]
        here = np.unique(owner)
        found = [self.passes[one][0].blocks(number[owner == one]) for one in here]
        ids, document = (concatenate([pair[part] for pair in found]) for part in (0, 1))
        if len(here) > 1:
            back = np.argsort(np.argsort(owner, kind="stable"))
            ids, document = ids.gather(back), document.gather(back)
        sample_ids = number + np.array([self.passes[one][1] for one in here])[np.searchsorted(here, owner)]
        seeds = sample_seeds(self.seed, self.epoch, NOISE, sample_ids)
        return TextRows(ids, document if self.masked else None, seeds, sample_ids, packed=True)


def packed_validation(dataset: DocumentDataset, data: DocumentsOptions, length: int) -> Iterator[TextRows]:
    """The stream of a data set in order, in blocks that predict `length` tokens each.

    Raises:
        DataError: there is nothing to predict.
    """
    check_stream(dataset)
    stream = Pass.straight(dataset.ids, length)
    rows = data.batch.budget // length
    for start in range(0, len(stream), rows):
        numbers = np.arange(start, min(start + rows, len(stream)))
        ids, document = stream.blocks(numbers)
        seeds = sample_seeds(0, 0, NOISE, numbers)
        yield TextRows(ids, document if data.mask_documents else None, seeds, numbers, packed=True)


def check_stream(dataset: DocumentDataset) -> None:
    if len(dataset.ids.flat) < 2:
        names = ", ".join(dataset.about.names)
        raise DataError(f"{names}: fewer than 2 tokens, so there is nothing to predict; give more text")
