"""Text in, text out: N lines give N results in order, whatever is in the lines.

- Lines without content (empty, white space, zero-width and control characters alone) give empty translations.
- A line of more pieces than the model has positions for is cut to the first of them; how many lines, and the number of
  the first, are said in one warning. Its neighbours are not affected.
- Lines are sorted by length within a chunk and decoded in batches of similar length; in fp32 no result depends on that.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Protocol

import torch

from transformer_kit.batch import Specials, pad
from transformer_kit.decoding.beam import Hypothesis, beam_search
from transformer_kit.decoding.options import DecodingOptions
from transformer_kit.decoding.scorer import ModelScorer
from transformer_kit.errors import ConfigError, RunError
from transformer_kit.logs import get_logger

log = get_logger(__name__)


class Codec(Protocol):
    """The part of a tokenizer that translation uses."""

    @property
    def specials(self) -> Specials: ...

    @property
    def head_ids(self) -> list[int]: ...

    def encode(self, lines: list[str]) -> list[list[int]]: ...

    def decode(self, rows: list[list[int]], *, detokenize: bool) -> list[str]: ...


class CodecPair(Protocol):
    """The tokenizers of both sides."""

    @property
    def source(self) -> Codec: ...

    @property
    def target(self) -> Codec: ...


@dataclass(frozen=True)
class Candidate:
    """One translation of a line: its text, its score, and the log-probability and length (with EOS) behind it."""

    text: str
    score: float
    log_prob: float
    length: int


EMPTY = Candidate("", 0.0, 0.0, 0)  # what a line without content gives


def is_blank(line: str) -> bool:
    """Whether a line holds only white space, control and format (zero-width) characters."""
    return all(char.isspace() or unicodedata.category(char) in ("Cc", "Cf") for char in line)


class Translator:
    """Translates lines with an encoder–decoder.

    Args:
        model: an encoder–decoder (see `Seq2Seq`); put into evaluation mode while it works, and back.
        tokenizers: of source and target.
        options: how to search.
        max_positions: the most tokens, EOS included, that the model takes on either side.

    Raises:
        ConfigError: an option is out of range.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        tokenizers: CodecPair,
        options: DecodingOptions,
        max_positions: int,
    ) -> None:
        if problems := options.problems():
            raise ConfigError([f"decoding.{key} {message}" for key, message in problems])
        self.model, self.tokenizers, self.options = model, tokenizers, options
        self.max_positions = max_positions
        longest = max_positions if options.max_length is None else min(options.max_length, max_positions)
        self._search = replace(options, max_length=longest)

    def translate(self, lines: Sequence[str]) -> list[str]:
        """The best translation of each line."""
        return [candidates[0].text for candidates in self.translate_stream(lines)]

    def translate_n_best(self, lines: Sequence[str]) -> list[list[Candidate]]:
        """The `n_best` translations of each line, best first; one empty candidate for a line without content."""
        return list(self.translate_stream(lines))

    def translate_stream(self, lines: Iterable[str]) -> Iterator[list[Candidate]]:
        """As `translate_n_best`, line by line in order, reading `options.chunk` lines ahead."""
        source = iter(lines)
        return self.translate_chunks(iter(lambda: list(islice(source, self.options.chunk)), []))

    def translate_chunks(self, chunks: Iterable[Sequence[str]]) -> Iterator[list[Candidate]]:
        """As `translate_stream` for lines that come in portions, each answered before the next is asked for."""
        return self._all(map(self.encode, chunks))

    def translate_ids(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """The best translation of each row of source ids, given without EOS."""
        size = self.options.chunk
        chunks = (rows[start : start + size] for start in range(0, len(rows), size))
        return [candidates[0].text for candidates in self._all(chunks)]

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """The source ids of each line, without EOS; none for a line without content."""
        full = [index for index, line in enumerate(lines) if not is_blank(line)]
        rows: list[list[int]] = [[] for _ in lines]
        for index, ids in zip(full, self.tokenizers.source.encode([lines[i] for i in full]), strict=True):
            rows[index] = ids
        return rows

    def _all(self, chunks: Iterable[Sequence[Sequence[int]]]) -> Iterator[list[Candidate]]:
        seen, cut = 0, _Counted()
        try:
            for chunk in chunks:
                yield from self._chunk(chunk, seen, cut)
                seen += len(chunk)
        finally:
            if cut.count:
                log.warning(
                    "%d line(s) had more than %d pieces, the model's limit, and were cut to that (first: line %d)",
                    cut.count,
                    self.max_positions - 1,
                    cut.first,
                )

    def _chunk(self, sources: Sequence[Sequence[int]], seen: int, cut: _Counted) -> Iterator[list[Candidate]]:
        """The results of one chunk; a prefix that is complete is yielded before the rest is decoded."""
        results: list[list[Candidate] | None] = [None if len(ids) else [EMPTY] for ids in sources]
        rows: dict[int, list[int]] = {}
        room = self.max_positions - 1  # for EOS
        for index, ids in enumerate(sources):
            if len(ids) > room:
                cut.add(seen + index + 1)
            if len(ids):
                rows[index] = [*ids[:room], self.tokenizers.source.specials.eos]
        given, budget = 0, max(1, self.options.batch_tokens // self.options.beam)
        for batch in token_batches({index: len(ids) for index, ids in rows.items()}, budget):
            for index, candidates in zip(batch, self._decode([rows[i] for i in batch]), strict=True):
                results[index] = candidates
            while given < len(results) and (ready := results[given]) is not None:
                yield ready
                given += 1
        for rest in results[given:]:
            assert rest is not None
            yield rest

    def _decode(self, rows: list[list[int]]) -> list[list[Candidate]]:
        target = self.tokenizers.target
        special = target.specials
        was_training = self.model.training
        self.model.eval()
        try:
            device = next(self.model.parameters()).device
            sources = pad(rows, self.tokenizers.source.specials.pad).to(device)
            with torch.inference_mode():
                found = beam_search(
                    ModelScorer(self.model, self.options.precision),  # type: ignore[arg-type]  # a Seq2Seq, known as a module
                    sources,
                    self._search,
                    start_id=special.start,
                    eos_id=special.eos,
                    banned=sorted(special.all - {special.eos, *target.head_ids}),
                )
        finally:
            self.model.train(was_training)
        if not all(found):
            raise RunError("no translation has a finite score: the model's outputs are not numbers; was it trained?")
        texts = iter(
            target.decode([hyp.ids[:-1] for hyps in found for hyp in hyps], detokenize=self.options.detokenize)
        )
        return [[_candidate(hyp, next(texts)) for hyp in hyps] for hyps in found]


def _candidate(hypothesis: Hypothesis, text: str) -> Candidate:
    # Byte pieces can spell a line feed, which would be one line more.
    return Candidate(text.replace("\n", " "), hypothesis.score, hypothesis.log_prob, hypothesis.length)


def token_batches(lengths: dict[int, int], budget: int) -> list[list[int]]:
    """Indices in batches of similar length, longest first; rows × longest is at most the budget or the row alone."""
    batches: list[list[int]] = []
    for index in sorted(lengths, key=lambda i: (-lengths[i], i)):
        if not batches or (len(batches[-1]) + 1) * lengths[batches[-1][0]] > budget:
            batches.append([])
        batches[-1].append(index)
    return batches


@dataclass
class _Counted:
    """How many lines something happened to, and the first of them."""

    count: int = 0
    first: int = 0

    def add(self, line: int) -> None:
        self.first = self.first or line
        self.count += 1
