"""What a masked language model puts in the place of a mask. N lines give N answers in order.

- Every mask of a line is filled independently of the others; the fills of the line are the k best combinations.
- A mask stands for one token. It is put where that token would be: where the tokenizer joins a space to the word behind
  it, the space in front of a mask is part of the token.
- A line without a mask is given back as it is, with probability 1, and counted in a warning; so is one whose masks are
  further apart than the model reads. Of any other line of more tokens it reads those around the masks, and counts it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from transformer_kit.decoding.lines import Counted, in_order
from transformer_kit.decoding.options import DecodingOptions
from transformer_kit.decoding.reading import Frame, evaluated, portions
from transformer_kit.decoding.topk import top_k
from transformer_kit.errors import ConfigError, RunError
from transformer_kit.logs import get_logger
from transformer_kit.models.base import Model

log = get_logger(__name__)

_PROBES = "etaoinsrhd"  # letters that words begin with


class Codec(Protocol):
    """The part of a tokenizer that filling masks uses."""

    def encode(self, lines: list[str]) -> list[list[int]]: ...

    def decode(self, rows: list[list[int]], *, detokenize: bool) -> list[str]: ...


@dataclass(frozen=True)
class Fill:
    """One way to fill the masks of a line.

    Attributes:
        text: what is put in; with several masks, their texts with a space between them.
        probability: of these tokens in these places.
        line: the line with them.
    """

    text: str
    probability: float
    line: str


class MaskFiller:
    """The most probable fills of each line.

    Args:
        model: an encoder with a head over the vocabulary; in evaluation mode while it works.
        codec: the tokenizer.
        frame: of a text.
        mask_id: the id of the mask.
        barred: ids that no mask is filled with.
        mask: how a mask is written in a line.
        fills: k, the fills of a line.
        options: their `batch_tokens`, `chunk`, `precision` and `detokenize` are used.

    Raises:
        ConfigError: an option out of range.
    """

    def __init__(
        self,
        model: Model,
        codec: Codec,
        frame: Frame,
        mask_id: int,
        barred: frozenset[int],
        mask: str,
        fills: int,
        options: DecodingOptions,
    ) -> None:
        problems = [f"decoding.{key} {message}" for key, message in options.problems()]
        if fills < 1:
            problems.append(f"the number of fills is {fills}; at least 1 is needed")
        if not mask.strip():
            problems.append("the mask is written as white space; give it a visible name")
        if problems:
            raise ConfigError(problems)
        self.model, self.codec, self.frame = model, codec, frame
        self.mask_id, self.barred, self.mask, self.fills = mask_id, sorted(barred), mask, fills
        self.options = options
        self._joins = _joins_spaces(codec)

    def fill(self, lines: Sequence[str]) -> list[list[Fill]]:
        """The fills of each line, best first: `fills` of them, or as many as there are."""
        return list(self.fill_chunks(portions(lines, self.options.chunk)))

    def fill_chunks(self, chunks: Iterable[Sequence[str]]) -> Iterator[list[Fill]]:
        """As `fill` for lines that come in portions, each answered before the next is asked for."""
        seen, problems = 0, _Problems()
        try:
            for chunk in chunks:
                yield from self._chunk(chunk, seen, problems)
                seen += len(chunk)
        finally:
            problems.report(self.mask, self.frame.room)

    def _chunk(self, lines: Sequence[str], seen: int, problems: _Problems) -> Iterator[list[Fill]]:
        rows: dict[int, list[int]] = {}
        around: dict[int, tuple[list[int], list[int]]] = {}  # what the model does not read, in front and behind
        for index, line in enumerate(lines):
            if self.mask not in line:
                problems.plain.add(seen + index + 1)
                continue
            ids = self.encode(line)
            start, end = self._window(ids)
            if start == end:
                problems.apart.add(seen + index + 1)
                continue
            if end - start < len(ids):
                problems.long.add(seen + index + 1)
            rows[index], around[index] = ids[start:end], (ids[:start], ids[end:])
        costs = {index: len(ids) + len(self.frame.before) + len(self.frame.after) for index, ids in rows.items()}

        def work(batch: list[int]) -> list[list[Fill]]:
            return self._fill([rows[i] for i in batch], [around[i] for i in batch])

        nothing: list[Fill] = []
        answers = in_order(len(lines), costs, self.options.batch_tokens, work, nothing)
        for index, answer in enumerate(answers):
            yield answer if index in rows else [Fill("", 1.0, lines[index])]

    def _window(self, ids: Sequence[int]) -> tuple[int, int]:
        """The tokens of a line that are read, start to end − 1: from its beginning where all masks are among those."""
        room, masks = self.frame.room, [at for at, token in enumerate(ids) if token == self.mask_id]
        first, last = masks[0], masks[-1]
        if last < room:
            return 0, min(room, len(ids))
        if last - first >= room:
            return 0, 0
        start = min(len(ids) - room, (first + last + 1 - room) // 2)
        return start, start + room

    def encode(self, line: str) -> list[int]:
        """The tokens of a line, each mask written in it as the mask's id."""
        first, *others = line.split(self.mask)
        ids = self.codec.encode([self._left(first)])[0]
        for number, part in enumerate(others, 1):
            last = number == len(others)
            ids = [*ids, self.mask_id, *self._behind(part if last else self._left(part))]
        return ids

    def _left(self, text: str) -> str:
        """What stands in front of a mask, without a space that belongs to the mask's token."""
        return text[:-1] if self._joins and text.endswith(" ") else text

    def _behind(self, text: str) -> list[int]:
        """The tokens of a text that goes on behind something, as what stands behind a letter."""
        if not text:
            return []
        letter, whole, alone = self.codec.encode(["a", "a" + text, text])
        return whole[len(letter) :] if whole[: len(letter)] == letter else alone

    def _fill(self, texts: list[list[int]], around: list[tuple[list[int], list[int]]]) -> list[list[Fill]]:
        """The fills of some lines with masks.

        Args:
            texts: what is read of them.
            around: what stands in front of that, and behind.
        """
        rows = self.frame.rows(texts)
        places = [[at for at, token in enumerate(ids) if token == self.mask_id] for ids in texts]

        def logits() -> Tensor:
            tokens = self.frame.tokens(rows).to(next(self.model.parameters()).device)
            hidden = self.model.read(tokens).hidden
            shift = len(self.frame.before)
            where = [(row, at + shift) for row, found in enumerate(places) for at in found]
            rows_at, cells_at = (torch.tensor(part, device=hidden.device) for part in zip(*where, strict=True))
            return self.model.logits(hidden[rows_at, cells_at])

        scores = evaluated(self.model, self.options.precision, logits).double()
        found = scores.index_fill(1, torch.tensor(self.barred, dtype=torch.int64), -torch.inf).softmax(1)
        if not bool(found.isfinite().all()):
            raise RunError("a mask has no probabilities: the model's outputs are not numbers; was it trained?")
        values, ids = top_k(found, min(self.fills, found.shape[1]))
        best = iter(zip(values.tolist(), ids.tolist(), strict=True))
        wholes = [(front + text + behind, len(front)) for text, (front, behind) in zip(texts, around, strict=True)]
        return [
            self._combined(whole, [shift + place for place in at], [next(best) for _ in at])
            for (whole, shift), at in zip(wholes, places, strict=True)
        ]

    def _combined(self, text: list[int], places: list[int], best: list[tuple[list[float], list[int]]]) -> list[Fill]:
        """The k best combinations of what fills each mask of one line."""
        chosen: list[tuple[float, list[int]]] = [(1.0, [])]
        for values, ids in best:
            longer = [
                (share * value, [*before, token])
                for share, before in chosen
                for value, token in zip(values, ids, strict=True)
                if value > 0
            ]
            chosen = sorted(longer, key=lambda pair: -pair[0])[: self.fills]
        filled = []
        for _, tokens in chosen:
            whole = list(text)
            for at, token in zip(places, tokens, strict=True):
                whole[at] = token
            filled.append(whole)
        detokenize = self.options.detokenize
        lines = self.codec.decode(filled, detokenize=detokenize)
        pieces = iter(self.codec.decode([[token] for _, tokens in chosen for token in tokens], detokenize=detokenize))
        return [
            Fill(" ".join(_bare(next(pieces)) for _ in tokens), share, line)
            for (share, tokens), line in zip(chosen, lines, strict=True)
        ]


class _Problems:
    """Lines that are not read as they are, counted for the warnings at the end."""

    def __init__(self) -> None:
        self.plain, self.apart, self.long = Counted(), Counted(), Counted()

    def report(self, mask: str, room: int) -> None:
        for lines, what in (
            (self.plain, f"hold no {mask} and are given back as they are"),
            (
                self.apart,
                f"hold masks more than {room} tokens apart, the model's limit, and are given back as they are",
            ),
            (self.long, f"had more than {room} tokens, the model's limit, and were read around their masks alone"),
        ):
            if lines.count:
                log.warning("%d line(s) %s (first: line %d)", lines.count, what, lines.first)


def _bare(text: str) -> str:
    """Without the space that a piece may bring along; a space by itself stays."""
    return text.strip() or text


def _joins_spaces(codec: Codec) -> bool:
    """Whether a space and the word behind it can be one token, so that it is no token of its own between words."""
    apart, *joined = codec.encode(["a ", *(f"a {letter}" for letter in _PROBES)])
    return any(row[: len(apart)] != apart for row in joined)
