"""Batches of pairs: in training from a `BucketStream`, in validation every pair once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import torch

from transformer_kit.batch import Batch, Specials, Tokens
from transformer_kit.data.bucket_stream import BucketStream
from transformer_kit.data.buckets import by_length, cut, sample_seeds
from transformer_kit.data.dataset import ParallelDataset, TrainingCorpus
from transformer_kit.data.encoding import resample
from transformer_kit.data.options import BatchOptions
from transformer_kit.data.ragged import Ints, Ragged
from transformer_kit.data.tokenizer import Tokenizers
from transformer_kit.data.tokenizer_options import SamplingOptions

SIDES = ("source", "target")


def make_batch(source: Ragged, target: Ragged, sample_ids: Ints, specials: Sequence[Specials]) -> Batch:
    """A padded batch of B pairs: the encoder reads `source EOS`, the decoder `start target` to predict `target EOS`.

    Args:
        specials: the special ids of source and target.

    Shape: source (B, S), S the longest source plus one; target and labels (B, T), T the longest target plus one.
    """
    begin, labels = _blocks(target, specials[-1])
    lengths = torch.from_numpy(target.lengths + 1)
    counted = labels.valid
    return Batch(
        source=_blocks(source, specials[0])[1],
        target=Tokens(begin, counted, labels.at, labels.full, behind=True),
        labels=labels.ids,
        counted=counted,
        num_labels=int(lengths.sum()),
        sample_ids=torch.from_numpy(np.asarray(sample_ids, np.int64)),
    )


def _blocks(rows: Ragged, specials: Specials) -> tuple[torch.Tensor, Tokens]:
    # Two (B, L) blocks with L the longest row plus one: `start row` and `row EOS`.
    lengths = rows.lengths
    width = int(lengths.max()) + 1
    at = np.arange(width)
    inside = at < lengths[:, None]  # (B, L): cells of the rows themselves, without EOS
    end = np.full(inside.shape, specials.pad, np.int64)
    end[inside] = rows.flat
    end[np.arange(len(rows)), lengths] = specials.eos
    begin = np.full(inside.shape, specials.pad, np.int64)
    begin[:, 0] = specials.start
    begin[:, 1:][inside[:, :-1]] = rows.flat
    valid = at <= lengths[:, None]
    tokens = Tokens(
        torch.from_numpy(end),
        torch.from_numpy(valid),
        torch.from_numpy(np.where(valid, at, 0)),
        full=bool((lengths + 1 == width).all()),
        behind=True,
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
    specials = [dataset.about.specials[side] for side in SIDES]
    for start, end in cut(costs, tokens):
        rows = order[start:end]
        sides = [dataset.ids(side, rows) for side in SIDES]
        if max_length is not None:
            sides = [side.cut(max_length - 1) for side in sides]
        yield make_batch(sides[0], sides[1], rows, specials)


class BatchStream(BucketStream[tuple[Ragged, Ragged]]):
    """Endless training batches over a mixture of parallel corpora.

    Args:
        corpora: the mixture.
        options, temperature, seed: see `BucketStream`.
        sampling: subword sampling; encodes each pool anew by (seed, epoch, sample id) when its alpha is above 0.
        tokenizers: of the corpora.
    """

    noun = "pairs"

    def __init__(
        self,
        corpora: Sequence[TrainingCorpus[ParallelDataset]],
        options: BatchOptions,
        *,
        temperature: float,
        seed: int,
        sampling: SamplingOptions,
        tokenizers: Tokenizers,
    ) -> None:
        self.corpora, self.sampling, self.tokenizers = list(corpora), sampling, tokenizers
        self._specials = tokenizers.source.specials, tokenizers.target.specials
        super().__init__(
            [np.maximum(one.dataset.source_lengths, one.dataset.target_lengths) for one in corpora],
            [one.weight for one in corpora],
            options,
            temperature=temperature,
            seed=seed,
            extra=1,
        )

    def _fetch(self, ids: Ints) -> tuple[Ragged, Ragged]:
        source, target = (self._gather(ids, partial(self._side, side)) for side in SIDES)
        return source, target

    def _lengths(self, pool: tuple[Ragged, Ragged]) -> tuple[Ints, Ints]:
        return pool[0].lengths, pool[1].lengths

    def _collate(self, pool: tuple[Ragged, Ragged], rows: Ints, ids: Ints) -> Batch:
        return make_batch(pool[0].gather(rows), pool[1].gather(rows), ids, self._specials)

    def _side(self, side: str, number: int, rows: Ints) -> Ragged:
        dataset = self.corpora[number].dataset
        if self.sampling.alpha == 0:
            return dataset.ids(side, rows)
        tokenizer = self.tokenizers.source if side == "source" else self.tokenizers.target
        seeds = sample_seeds(self.seed, self.epoch, SIDES.index(side), rows + self._bases[number])
        return resample(tokenizer, dataset.normal(side, rows), seeds, self.sampling.alpha, dataset.about.head[side])
