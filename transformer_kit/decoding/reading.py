"""Text in, what a model makes of it out: vectors, or labels with probabilities. N lines give N answers in order.

Lines are sorted by length within a chunk and read in batches of similar length; in fp32 no answer depends on that but
for the last digits. A line of more tokens than the model takes is cut to the first of them, which a warning counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from transformer_kit.batch import Batch, Tokens, pad
from transformer_kit.data.ragged import Ragged, from_lists
from transformer_kit.decoding.lines import Counted, in_order
from transformer_kit.decoding.options import DecodingOptions
from transformer_kit.decoding.translator import is_blank
from transformer_kit.errors import ConfigError, RunError
from transformer_kit.logs import get_logger
from transformer_kit.models.base import Model
from transformer_kit.models.classifier import Pooling, pool

log = get_logger(__name__)

POOLINGS = ("mean", "first", "last")
Vector = NDArray[np.float32]


class Encoder(Protocol):
    """The part of a tokenizer that reads lines."""

    def encode(self, lines: list[str]) -> list[list[int]]: ...


@dataclass(frozen=True)
class Frame:
    """What stands around the tokens of a text, and how a model sees it.

    Attributes:
        before, after: ids in front and behind.
        pad: of padding cells.
        most: the most tokens of a row, these ids included.
        prefix: the row is a prefix, whose cells see each other in both directions.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]
    pad: int
    most: int
    prefix: bool = False

    @property
    def room(self) -> int:
        """The most tokens of a text."""
        return max(0, self.most - len(self.before) - len(self.after))

    def rows(self, texts: Sequence[Sequence[int]]) -> list[list[int]]:
        """The rows of some texts, cut to what there is room for."""
        return [[*self.before, *ids[: self.room], *self.after] for ids in texts]

    def tokens(self, rows: Sequence[Sequence[int]]) -> Tokens:
        tokens = pad(rows, self.pad)
        return replace(tokens, prefix=tokens.valid) if self.prefix else tokens


class Embedder:
    """One vector for each line.

    Args:
        model: in evaluation mode while it works.
        encoder: the tokenizer.
        frame: of a text.
        pooling: `mean` of the states of all real cells of the row, those of BOS and EOS included (as sentence-
            transformers does), or the state of its `first` or `last` one.
        normalize: make the vectors of length 1.
        options: their `batch_tokens`, `chunk` and `precision` are used.

    Raises:
        ConfigError: an option out of range.
    """

    def __init__(
        self, model: Model, encoder: Encoder, frame: Frame, pooling: Pooling, normalize: bool, options: DecodingOptions
    ) -> None:
        problems = [f"decoding.{key} {message}" for key, message in options.problems()]
        if pooling not in POOLINGS:
            problems.append(f"pooling is {pooling!r}; valid are {', '.join(POOLINGS)}")
        if problems:
            raise ConfigError(problems)
        self.model, self.encoder, self.frame = model, encoder, frame
        self.pooling, self.normalize, self.options = pooling, normalize, options

    @property
    def dim(self) -> int:
        """The width of a vector."""
        return self.model.dim

    def embed(self, lines: Sequence[str]) -> NDArray[np.float32]:
        """(N, D) float32; a line without any token, not even BOS, gives zeros."""
        vectors = list(self.embed_chunks(portions(lines, self.options.chunk)))
        return np.stack(vectors) if vectors else np.zeros((0, self.dim), np.float32)

    def embed_chunks(self, chunks: Iterable[Sequence[str]]) -> Iterator[Vector]:
        """As `embed` for lines that come in portions, each answered before the next is asked for."""
        seen, cut = 0, Counted()
        try:
            for chunk in chunks:
                texts = self.encoder.encode(list(chunk))
                for index, ids in enumerate(texts):
                    if len(ids) > self.frame.room:
                        cut.add(seen + index + 1)
                yield from self._chunk(self.frame.rows(texts))
                seen += len(chunk)
        finally:
            if cut.count:
                log.warning(
                    "%d line(s) had more than %d tokens, the model's limit, and were cut to that (first: line %d)",
                    cut.count,
                    self.frame.room,
                    cut.first,
                )

    def _chunk(self, rows: list[list[int]]) -> Iterator[Vector]:
        costs = {index: len(row) for index, row in enumerate(rows) if row}
        zeros = np.zeros(self.dim, np.float32)

        def work(batch: list[int]) -> list[Vector]:
            return list(self._read([rows[i] for i in batch]))

        return in_order(len(rows), costs, self.options.batch_tokens, work, zeros)

    def _read(self, rows: list[list[int]]) -> NDArray[np.float32]:
        def vectors() -> Tensor:
            tokens = self.frame.tokens(rows).to(_device(self.model))
            found = pool(self.model.read(tokens).hidden.float(), tokens, self.pooling)
            return torch.nn.functional.normalize(found, dim=1) if self.normalize else found

        found = evaluated(self.model, self.options.precision, vectors)
        if not bool(found.isfinite().all()):
            raise RunError("a line has no vector: the model's outputs are not numbers; was it trained?")
        return found.numpy()


@dataclass(frozen=True)
class Verdict:
    """What a classifier says of a line.

    Attributes:
        label: the most probable one.
        probability: its probability.
        probabilities: of every label.
    """

    label: str
    probability: float
    probabilities: dict[str, float]


class LineClassifier:
    """A label for each line.

    Args:
        model: a classifier.
        tokens: from texts, or pairs of texts, to what the model reads.
        fit: cuts texts, or pairs of texts, to what there is room for.
        encoder: the tokenizer.
        labels: the names of its classes.
        pairs: a line holds two texts with a tab between them.
        options: their `batch_tokens`, `chunk` and `precision` are used.
    """

    def __init__(
        self,
        model: Model,
        tokens: Callable[[Ragged, Ragged | None], Tokens],
        fit: Callable[[Ragged, Ragged | None], tuple[Ragged, Ragged | None]],
        encoder: Encoder,
        labels: Sequence[str],
        pairs: bool,
        options: DecodingOptions,
    ) -> None:
        if problems := options.problems():
            raise ConfigError([f"decoding.{key} {message}" for key, message in problems])
        self.model, self.tokens, self.fit, self.encoder = model, tokens, fit, encoder
        self.labels, self.pairs, self.options = list(labels), pairs, options

    def classify(self, lines: Sequence[str]) -> list[Verdict | None]:
        """A verdict for each line; None for a line without content."""
        return list(self.classify_chunks(portions(lines, self.options.chunk)))

    def classify_chunks(self, chunks: Iterable[Sequence[str]]) -> Iterator[Verdict | None]:
        """As `classify` for lines that come in portions, each answered before the next is asked for."""
        seen, single, cut = 0, Counted(), Counted()
        try:
            for chunk in chunks:
                yield from self._chunk(chunk, seen, single, cut)
                seen += len(chunk)
        finally:
            if cut.count:
                log.warning(
                    "%d line(s) had more tokens than the model was trained to read and were cut (first: line %d)",
                    cut.count,
                    cut.first,
                )
            if single.count:
                log.warning(
                    "%d line(s) hold no tab between two texts: the second was taken to be empty (first: line %d)",
                    single.count,
                    single.first,
                )

    def judge(
        self, first: Sequence[str], second: Sequence[str] | None, cut: Callable[[int], None] | None = None
    ) -> Iterator[Verdict]:
        """A verdict for each text or pair of texts, blank ones too, in order and as soon as they are there.

        Args:
            cut: told the index of each that had to be cut.
        """
        whole, beside = self._encode(first), None if second is None else self._encode(second)
        one, other = self.fit(whole, beside)
        if cut is not None:
            shorter = one.lengths < whole.lengths
            if other is not None and beside is not None:
                shorter |= other.lengths < beside.lengths
            for index in shorter.nonzero()[0].tolist():
                cut(index)
        lengths = one.lengths + (0 if other is None else other.lengths) + 3  # three marks at most

        def work(batch: list[int]) -> list[Verdict]:
            rows = np.array(batch)
            return self._read(one.gather(rows), None if other is None else other.gather(rows))

        costs = dict(enumerate(lengths.tolist()))
        return in_order(len(first), costs, self.options.batch_tokens, work)

    def _chunk(self, lines: Sequence[str], seen: int, single: Counted, cut: Counted) -> Iterator[Verdict | None]:
        full = [index for index, line in enumerate(lines) if not is_blank(line)]
        first, second = [lines[i] for i in full], None
        if self.pairs:
            parts = [line.partition("\t") for line in first]
            for index, (_, tab, _) in zip(full, parts, strict=True):
                if not tab:
                    single.add(seen + index + 1)
            first, second = [part[0] for part in parts], [part[2] for part in parts]
        verdicts = self.judge(first, second, lambda index: cut.add(seen + full[index] + 1))
        given = set(full)
        for index in range(len(lines)):
            yield next(verdicts) if index in given else None

    def _encode(self, lines: Sequence[str]) -> Ragged:
        return from_lists(self.encoder.encode(list(lines)))

    def _read(self, first: Ragged, second: Ragged | None) -> list[Verdict]:
        def logits() -> Tensor:
            tokens = self.tokens(first, second).to(_device(self.model))
            nothing = torch.zeros(len(first), 1, dtype=torch.int64)  # labels that nobody looks at
            batch = Batch(None, tokens, nothing, nothing.bool(), 0, nothing[:, 0])
            return self.model(batch).hidden[:, 0]

        found = evaluated(self.model, self.options.precision, logits).double().softmax(1)
        if not bool(found.isfinite().all()):
            raise RunError("a line has no probabilities: the model's outputs are not numbers; was it trained?")
        best = found.argmax(1).tolist()
        return [
            Verdict(self.labels[at], row[at], dict(zip(self.labels, row, strict=True)))
            for at, row in zip(best, found.tolist(), strict=True)
        ]


def portions(lines: Iterable[str], size: int) -> Iterator[list[str]]:
    """Lines in portions of at most `size`."""
    source = iter(lines)
    return iter(lambda: list(islice(source, size)), [])


def evaluated(model: torch.nn.Module, precision: str, work: Callable[[], Tensor]) -> Tensor:
    """What `work` gives, on the CPU, with the model in evaluation mode, without gradients, in `fp32` or `bf16`."""
    was_training = model.training
    model.eval()
    try:
        with torch.inference_mode(), torch.autocast(_device(model).type, torch.bfloat16, precision == "bf16"):
            return work().cpu()
    finally:
        model.train(was_training)


def _device(model: torch.nn.Module) -> torch.device:
    return next(model.parameters()).device
