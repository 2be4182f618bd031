"""Prompts in, continuations out: N lines give N results in order, whatever is in the lines.

- A continuation is the text that its tokens add to the prompt: prompt and continuation, put together, are what the
  tokenizer makes of all tokens.
- It ends at an end token (`eos`), before a stop string (`stop`), or where no token more is allowed (`length`):
  `max_new_tokens`, or, with `overflow` stop, the model's own length, which prompt and continuation share. A prompt that
  leaves no room is then answered with an empty text and counted in a warning. With `overflow` slide a text that fills
  the model goes on from the last half of it, read anew.
- Prompts are sorted by length within a chunk; those of one batch are padded on the left and take their steps together.
- Every row draws from a generator of its own, made from the seed, the number of its line and that of its sample.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from transformer_kit.decoding.generation_options import GenerationOptions
from transformer_kit.decoding.lines import Counted
from transformer_kit.decoding.prompts import Marks, Reader
from transformer_kit.decoding.sampling import next_tokens, penalise
from transformer_kit.decoding.stopping import certain, first_stop
from transformer_kit.decoding.translator import is_blank, token_batches
from transformer_kit.errors import ConfigError, RunError
from transformer_kit.logs import get_logger

log = get_logger(__name__)

_CONTEXT = (
    16  # tokens of the prompt that a continuation is decoded with: whether it begins with a space depends on them
)


@dataclass(frozen=True)
class Generation:
    """One continuation of a prompt.

    Attributes:
        text: without the prompt, the stop string and what the model said behind it.
        tokens: how many were generated; an end token and those of a stop string count.
        finish: `eos`, `stop` or `length`; `empty` where there was nothing to begin with.
    """

    text: str
    tokens: int
    finish: str


EMPTY = Generation("", 0, "empty")


class Encoder(Protocol):
    """The part of a tokenizer that reads prompts."""

    def encode(self, lines: list[str]) -> list[list[int]]: ...


class Decoder(Protocol):
    """The part of a tokenizer that writes continuations."""

    def decode(self, rows: list[list[int]], *, detokenize: bool) -> list[str]: ...


@dataclass
class _Row:
    """One continuation that is being made.

    Attributes:
        prompt: its beginning, with what stands in front and behind.
        random: its own numbers.
        ids: its tokens so far, the end token left out.
        tokens: how many it has, the end token included.
        space: how many tokens more it may get before it ends, or is read anew.
        text: so far; current only where somebody looks at it before the end.
        finish: why it ended, None while it goes on.
    """

    prompt: list[int]
    random: np.random.Generator
    ids: list[int] = field(default_factory=list)
    tokens: int = 0
    space: int = 0
    text: str = ""
    finish: str | None = None


class Generator:
    """Continues prompts with a decoder-only model, or answers them with an encoder–decoder.

    Args:
        model: put into evaluation mode while it works, and back.
        reader: how it reads prompts.
        encoder, decoder: tokenizers of prompts and continuations.
        marks: the ids around a text.
        options: how tokens are chosen.
        max_positions: the most tokens that the model takes: of prompt and continuation together, or on either side.

    Raises:
        ConfigError: an option is out of range.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        reader: Reader[Any],
        encoder: Encoder,
        decoder: Decoder,
        marks: Marks,
        options: GenerationOptions,
        max_positions: int,
    ) -> None:
        if problems := options.problems():
            raise ConfigError([f"generation.{key} {message}" for key, message in problems])
        self.model, self.reader, self.encoder, self.decoder = model, reader, encoder, decoder
        self.marks, self.options, self.max_positions = marks, options, max_positions

    def generate(self, prompts: Sequence[str]) -> list[list[Generation]]:
        """The `num_samples` continuations of each prompt."""
        size, source = self.options.chunk, iter(prompts)
        return list(self.generate_chunks(iter(lambda: list(islice(source, size)), [])))

    def generate_chunks(self, chunks: Iterable[Sequence[str]]) -> Iterator[list[Generation]]:
        """As `generate` for prompts that come in portions, each answered before the next is asked for."""
        seen, problems = 0, _Problems()
        try:
            for chunk in chunks:
                yield from self._chunk(chunk, seen, problems)
                seen += len(chunk)
        finally:
            problems.report(self.max_positions)

    def stream(self, prompt: str) -> Iterator[str]:
        """The first continuation of one prompt, piece by piece; the pieces together are the text of `generate`.

        A piece never ends within a character, nor where a stop string may have begun. Where later
        tokens change what was shown (Moses), the whole text follows on a line of its own.
        """
        problems = _Problems()
        row = self._rows([prompt], 0, problems)[0]
        problems.report(self.max_positions)
        shown = ""
        while row is not None and row.finish is None:
            for _ in self._decode([row], every_step=True):
                text = row.text if row.finish else certain(row.text, self.options.stop)
                if text.startswith(shown):
                    if text != shown:
                        yield text[len(shown) :]
                    shown = text
                elif row.finish:
                    yield "\n" + text

    def _chunk(self, prompts: Sequence[str], seen: int, problems: _Problems) -> Iterator[list[Generation]]:
        """The results of one chunk; a prefix that is complete is yielded before the rest is made."""
        samples = self.options.num_samples
        rows = self._rows(prompts, seen, problems)
        given = 0
        while open_rows := [i for i, row in enumerate(rows) if not _done(row)]:
            costs = {i: sum(self._shape(row)) for i in open_rows if (row := rows[i]) is not None}
            for batch in token_batches(costs, self.options.batch_tokens):
                for _ in self._decode([row for i in batch if (row := rows[i]) is not None]):
                    pass
                while given < len(prompts) and all(map(_done, rows[given * samples : (given + 1) * samples])):
                    yield [_result(row) for row in rows[given * samples : (given + 1) * samples]]
                    given += 1
        for index in range(given, len(prompts)):
            yield [_result(row) for row in rows[index * samples : (index + 1) * samples]]

    def _rows(self, prompts: Sequence[str], seen: int, problems: _Problems) -> list[_Row | None]:
        """`num_samples` rows for each prompt; None where there is nothing to begin with."""
        rows: list[_Row | None] = []
        for index, ids in enumerate(self._encode(prompts, seen, problems)):
            if not ids:
                if self.reader.continues:
                    problems.empty.add(seen + index + 1)
                rows += [None] * self.options.num_samples
                continue
            full = self.reader.continues and not self._slides and len(ids) >= self.max_positions
            if full:
                problems.full.add(seen + index + 1)
            for sample in range(self.options.num_samples):
                # a spawn key: (seed, line, sample) stay apart, whatever their sizes
                random = np.random.default_rng(
                    np.random.SeedSequence(self.options.seed, spawn_key=(seen + index, sample))
                )
                rows.append(_Row(ids, random, finish="length" if full else None))
        return rows

    def _encode(self, prompts: Sequence[str], seen: int, problems: _Problems) -> list[list[int]]:
        """What the model reads for each prompt; nothing for a source without content."""
        before, after = list(self.marks.before), list(self.marks.after)
        if self.reader.continues:
            return [before + ids + after for ids in self.encoder.encode(list(prompts))]
        full = [index for index, prompt in enumerate(prompts) if not is_blank(prompt)]
        rows: list[list[int]] = [[] for _ in prompts]
        most = self.max_positions - len(before) - len(after)
        for index, ids in zip(full, self.encoder.encode([prompts[i] for i in full]), strict=True):
            if len(ids) > most:
                problems.cut.add(seen + index + 1)
            rows[index] = before + ids[:most] + after if ids else []
        return rows

    @property
    def _slides(self) -> bool:
        return self.reader.continues and self.options.overflow == "slide" and self.max_positions > 1

    def _shape(self, row: _Row) -> tuple[int, int]:
        """How many tokens of a row are read before it goes on, and how many it may get then."""
        left, most = self.options.max_new_tokens - row.tokens, self.max_positions
        if not self.reader.continues:
            return len(row.prompt), min(left, most)
        read = len(row.prompt) + len(row.ids)
        read = read if read < most else most // 2
        return read, min(left, most - read)

    @torch.inference_mode()
    def _decode(self, rows: list[_Row], *, every_step: bool = False) -> Iterator[None]:
        """Let rows grow until they end or fill the model; they gain a token in each step. Yields after each step.

        Args:
            every_step: keep their texts current.
        """
        contexts = []
        for row in rows:
            read, row.space = self._shape(row)
            contexts.append((row.prompt + row.ids)[-read:])
        was_training = self.model.training
        self.model.eval()
        try:
            state, logits = self.reader.start(contexts, max(row.space for row in rows))
            seen = self._seen(rows, logits)
            while True:
                last = self._choose(logits, rows, seen)
                for row, token in zip(rows, last.tolist(), strict=True):
                    self._append(row, token)
                self._look(rows, every_step)
                yield
                going = [i for i, row in enumerate(rows) if row.finish is None and row.space]
                if not going:
                    return
                if len(going) < len(rows):
                    stay = torch.tensor(going, device=logits.device)
                    state.keep(stay)
                    last, seen = last[stay], None if seen is None else seen[stay]
                    rows = [rows[i] for i in going]
                logits = self.reader.step(last, state)
        finally:
            self.model.train(was_training)

    def _seen(self, rows: Sequence[_Row], logits: Tensor) -> Tensor | None:
        """(R, V) bool, the tokens that the penalty is for; None where it is off."""
        if self.options.repetition_penalty == 1:
            return None
        seen = torch.zeros_like(logits, dtype=torch.bool)
        for number, row in enumerate(rows):
            before = row.prompt + row.ids if self.reader.continues else row.ids
            seen[number, torch.tensor(before, dtype=torch.int64, device=logits.device)] = True
        return seen

    def _choose(self, logits: Tensor, rows: Sequence[_Row], seen: Tensor | None) -> Tensor:
        """(R,) int64: the next token of each row; `seen` learns of it."""
        if seen is not None:
            logits = penalise(logits, seen, self.options.repetition_penalty)
        logits = logits.index_fill(1, _ids(self.marks.barred - self.marks.ends, logits), -torch.inf)
        early = [number for number, row in enumerate(rows) if row.tokens < self.options.min_new_tokens]
        if early and self.marks.ends:
            logits[torch.tensor(early, device=logits.device)[:, None], _ids(self.marks.ends, logits)] = -torch.inf
        if not bool(logits.amax(1).isfinite().all()):
            raise RunError("no token has a finite score: the model's outputs are not numbers; was it trained?")
        uniform = torch.tensor([row.random.random() for row in rows], dtype=torch.float64)
        chosen = next_tokens(logits, self.options, uniform)
        if seen is not None:
            seen.scatter_(1, chosen[:, None], True)
        return chosen

    def _append(self, row: _Row, token: int) -> None:
        row.tokens += 1
        row.space -= 1
        if token in self.marks.ends:
            row.finish = "eos"
            return
        row.ids.append(token)
        if not row.space and (row.tokens == self.options.max_new_tokens or not self._slides):
            row.finish = "length"

    def _look(self, rows: Sequence[_Row], every_step: bool) -> None:
        """Decode the rows that have ended, or all where the text matters already, and end those with a stop string."""
        stops = self.options.stop
        looked = [row for row in rows if row.finish is not None or every_step or stops]
        for row, text in zip(looked, self._texts(looked), strict=True):
            row.text = text
            if (at := first_stop(text, stops)) is not None:
                row.text, row.finish = text[:at], "stop"

    def _texts(self, rows: Sequence[_Row]) -> list[str]:
        """The text that the tokens of each row add to its prompt."""
        contexts = [row.prompt[-_CONTEXT:] if self.reader.continues else [] for row in rows]
        whole = self._decoded([context + row.ids for context, row in zip(contexts, rows, strict=True)])
        before = self._decoded(contexts)
        # A tokenizer that joins both differently leaves no choice but to decode the continuation by itself.
        apart = [not text.startswith(start) for text, start in zip(whole, before, strict=True)]
        alone = iter(self._decoded([row.ids for row, one in zip(rows, apart, strict=True) if one]))
        return [
            next(alone) if one else text[len(start) :] for one, text, start in zip(apart, whole, before, strict=True)
        ]

    def _decoded(self, rows: list[list[int]]) -> list[str]:
        return self.decoder.decode(rows, detokenize=self.options.detokenize) if rows else []


def _ids(ids: Iterable[int], like: Tensor) -> Tensor:
    return torch.tensor(sorted(ids), dtype=torch.int64, device=like.device)


def _done(row: _Row | None) -> bool:
    return row is None or row.finish is not None


def _result(row: _Row | None) -> Generation:
    if row is None:
        return EMPTY
    assert row.finish is not None
    return Generation(row.text, row.tokens, row.finish)


@dataclass
class _Problems:
    """Lines that could not be answered, or not as they are."""

    empty: Counted = field(default_factory=Counted)
    full: Counted = field(default_factory=Counted)
    cut: Counted = field(default_factory=Counted)

    def report(self, limit: int) -> None:
        for found, message in (
            (self.empty, "%d prompt(s) are empty, and this model knows no token that begins a text (first: line %d)"),
            (self.full, f"%d prompt(s) fill the {limit} tokens that the model holds: no room is left (first: line %d)"),
            (self.cut, f"%d prompt(s) had more tokens than the model's {limit} and were cut to that (first: line %d)"),
        ):
            if found.count:
                log.warning(message, found.count, found.first)
