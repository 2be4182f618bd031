"""Length-bucketed batches under a token budget.

- Budget: rows × the longest side of the batch, with BOS or EOS and padding counted, is at most `tokens`.
- Training: a pair that alone is over the budget is left out of the epoch and counted. Validation: it is its own batch.
- An epoch's pairs are shuffled, taken in pools, sorted by length inside a pool, cut into batches, and the batches are
  shuffled. Every draw comes from (seed, epoch, ...), so a cursor of a few numbers is enough to go on anywhere.
- An epoch draws as many pairs as the corpora hold together. A corpus of n pairs and weight w gets a share proportional
  to w · n^(1/temperature) and is walked through evenly: no pair is drawn again before all others of its corpus were.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from transformer_kit.batch import Batch, Tokens
from transformer_kit.data.buckets import by_length, cut, quotas, sample_seeds
from transformer_kit.data.dataset import ParallelDataset, TrainingCorpus
from transformer_kit.data.encoding import resample
from transformer_kit.data.options import BatchOptions, SamplingOptions
from transformer_kit.data.ragged import Ints, Ragged, concatenate
from transformer_kit.data.tokenizer import BOS_ID, EOS_ID, PAD_ID, Tokenizers
from transformer_kit.errors import DataError
from transformer_kit.logs import get_logger

log = get_logger(__name__)
ORDER, PASS, SHUFFLE = 1, 2, 3  # what a random draw is for


def make_batch(source: Ragged, target: Ragged, sample_ids: Ints) -> Batch:
    """The padded batch of B pairs: the encoder reads `source EOS`, the decoder `BOS target` and predicts `target EOS`.

    Shape: source (B, S), S the longest source plus one; target and labels (B, T), T the longest target plus one.
    """
    begin, labels = _blocks(target)
    lengths = torch.from_numpy(target.lengths + 1)
    counted = labels.valid
    return Batch(
        source=_blocks(source)[1],
        target=Tokens(begin, counted, labels.at, labels.full),
        labels=labels.ids,
        counted=counted,
        num_labels=int(lengths.sum()),
        sample_ids=torch.from_numpy(np.asarray(sample_ids, np.int64)),
    )


def _blocks(rows: Ragged) -> tuple[torch.Tensor, Tokens]:
    # Two (B, L) blocks with L the longest row plus one: `BOS row` and `row EOS`.
    lengths = rows.lengths
    width = int(lengths.max()) + 1
    at = np.arange(width)
    inside = at < lengths[:, None]  # (B, L): cells of the rows themselves, without EOS
    end = np.full(inside.shape, PAD_ID, np.int64)
    end[inside] = rows.flat
    end[np.arange(len(rows)), lengths] = EOS_ID
    begin = np.full(inside.shape, PAD_ID, np.int64)
    begin[:, 0] = BOS_ID
    begin[:, 1:][inside[:, :-1]] = rows.flat
    valid = at <= lengths[:, None]
    tokens = Tokens(
        torch.from_numpy(end),
        torch.from_numpy(valid),
        torch.from_numpy(np.where(valid, at, 0)),
        full=bool((lengths + 1 == width).all()),
    )
    return torch.from_numpy(begin), tokens


def eval_batches(dataset: ParallelDataset, tokens: int, max_length: int | None = None) -> Iterator[Batch]:
    """Every pair of a data set once, sorted by length. A pair over the budget is its own batch.

    Args:
        max_length: both sides are cut to this many tokens, BOS or EOS included (what a position table holds).
    """
    source, target = dataset.source_lengths, dataset.target_lengths
    order = by_length(source, target)
    costs = np.maximum(source, target)[order].astype(np.int64) + 1
    if max_length is not None:
        costs = np.minimum(costs, max_length)
    for start, end in cut(costs, tokens):
        rows = order[start:end]
        sides = [dataset.ids(side, rows) for side in ("source", "target")]
        if max_length is not None:
            sides = [side.cut(max_length - 1) for side in sides]
        yield make_batch(sides[0], sides[1], rows)


class BatchStream:
    """Endless training batches over a mixture of corpora.

    `state_dict()` taken after a batch resumes at the next one.

    Args:
        corpora: the mixture.
        options: budget and pool.
        temperature: above 1 draws small corpora more often than their size says.
        seed: another seed gives another order.
        sampling: subword sampling; encodes each pool anew by (seed, epoch, sample id) when its alpha is above 0.
        tokenizers: needed for sampling only.

    Attributes:
        epoch: how many epochs are complete.
        over_budget: pairs left out so far in this epoch, as they alone were over the budget.

    Raises:
        DataError: no pair fits the budget.
    """

    def __init__(
        self,
        corpora: Sequence[TrainingCorpus],
        options: BatchOptions,
        *,
        temperature: float,
        seed: int,
        sampling: SamplingOptions,
        tokenizers: Tokenizers,
    ) -> None:
        self.corpora, self.options, self.seed = list(corpora), options, seed
        self.sampling, self.tokenizers = sampling, tokenizers
        sizes = np.array([len(corpus.dataset) for corpus in corpora])
        self._bases = np.concatenate(([0], np.cumsum(sizes)))  # the first global sample id of each corpus
        # Narrow where possible: at tens of millions of pairs the order of an epoch is what takes memory.
        self._id_type: type[np.signedinteger] = np.int32 if self._bases[-1] < 1 << 31 else np.int64
        self._quotas = quotas(sizes, np.array([corpus.weight for corpus in corpora]), temperature)
        self.epoch = self._pool = self._next = self._batch = 0
        self.over_budget = 0
        long = sum(self._too_long(corpus.dataset) for corpus in corpora)
        counted = f"{long:,} of {sizes.sum():,} training pairs are longer than data.batch.tokens={options.tokens:,}"
        if long == sizes.sum():
            raise DataError(f"{counted}: 0 pairs left; raise data.batch.tokens")
        if long:
            log.warning(f"{counted} allows and are left out of each epoch")

    def _too_long(self, dataset: ParallelDataset) -> int:
        return int((np.maximum(dataset.source_lengths, dataset.target_lengths) >= self.options.tokens).sum())

    def state_dict(self) -> dict[str, Any]:
        """The cursor, as plain numbers: epoch, batch within the epoch, and where that is in terms of pools."""
        return {"epoch": self.epoch, "batch": self._batch, "pool": self._pool, "batch_in_pool": self._next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self._batch = int(state["epoch"]), int(state["batch"])
        self._pool, self._next = int(state["pool"]), int(state["batch_in_pool"])

    def __iter__(self) -> Iterator[Batch]:
        order, order_epoch, barren = self._order(self.epoch), self.epoch, 0
        while True:
            if order_epoch != self.epoch:
                order, order_epoch = self._order(self.epoch), self.epoch
            size = self.options.pool
            ids = order[self._pool * size : (self._pool + 1) * size]
            last = (self._pool + 1) * size >= len(order)
            source, target = self._encode(ids)
            spans, by = self._plan(source, target)
            barren = 0 if spans else barren + len(ids)
            if barren > 2 * len(order):  # only sampling can come here: its lengths change from epoch to epoch
                raise DataError("no training pair fits data.batch.tokens with this subword sampling; raise it")
            if self._next >= len(spans):  # nothing of this pool fits the budget
                self._turn(last)
                continue
            for start, end in spans[self._next :]:
                rows = np.sort(by[start:end])
                batch = make_batch(source.gather(rows), target.gather(rows), ids[rows])
                self._next += 1
                self._batch += 1
                if self._next == len(spans):
                    self._turn(last)
                yield batch  # the cursor already stands behind it

    def _turn(self, last: bool) -> None:
        # Move the cursor behind a pool; behind the last one an epoch is complete.
        self._next = 0
        self._pool += 1
        if last:
            self.epoch += 1
            self._pool = self._batch = 0

    def _order(self, epoch: int) -> Ints:
        # (pairs of an epoch,): the global ids drawn in this epoch, shuffled.
        self.over_budget = 0
        drawn: list[Ints] = []
        for number, quota in enumerate(self._quotas.tolist()):
            base, size = int(self._bases[number]), int(self._bases[number + 1] - self._bases[number])
            if quota == size:
                drawn.append(np.arange(base, base + size, dtype=self._id_type))
                continue
            # The corpus is an endless row of shuffled passes; each epoch takes the next `quota` of it.
            first, stop = epoch * quota, (epoch + 1) * quota
            for turn in range(first // size, -(-stop // size)):
                shuffled = self._random(PASS, number, turn).permutation(size)
                drawn.append((shuffled[max(0, first - turn * size) : stop - turn * size] + base).astype(self._id_type))
        order: Ints = np.concatenate(drawn)
        self._random(ORDER, epoch).shuffle(order)
        return order

    def _random(self, *what: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, *what])

    def _encode(self, ids: Ints) -> tuple[Ragged, Ragged]:
        # The pool's rows, in the order of `ids`.
        owner = np.searchsorted(self._bases, ids, side="right") - 1
        grouped = np.argsort(owner, kind="stable")
        sides: dict[str, list[Ragged]] = {"source": [], "target": []}
        for number, corpus in enumerate(self.corpora):
            rows = ids[owner == number] - self._bases[number]
            for side, parts in sides.items():
                parts.append(self._side(corpus.dataset, side, rows, rows + self._bases[number]))
        source, target = (concatenate(parts) for parts in sides.values())
        if len(self.corpora) == 1:
            return source, target
        back = np.argsort(grouped)
        return source.gather(back), target.gather(back)

    def _side(self, dataset: ParallelDataset, side: str, rows: Ints, ids: Ints) -> Ragged:
        if self.sampling.alpha == 0:
            return dataset.ids(side, rows)
        tokenizer = self.tokenizers.source if side == "source" else self.tokenizers.target
        tag = dataset.about.tag if side == "source" else []
        seeds = sample_seeds(self.seed, self.epoch, 0 if side == "source" else 1, ids)
        return resample(tokenizer, dataset.normal(side, rows), seeds, self.sampling.alpha, tag)

    def _plan(self, source: Ragged, target: Ragged) -> tuple[list[tuple[int, int]], NDArray[np.int64]]:
        # Spans of batches in shuffled order, and the order of rows that they cut.
        lengths = source.lengths, target.lengths
        costs = np.maximum(*lengths) + 1
        by = by_length(*lengths)
        by = by[costs[by] <= self.options.tokens]
        if self._next == 0:
            self.over_budget += len(source) - len(by)
        spans = cut(costs[by], self.options.tokens)
        shuffled = self._random(SHUFFLE, self.epoch, self._pool).permutation(len(spans))
        return [spans[number] for number in shuffled], by
