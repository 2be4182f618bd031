"""One chunk of raw lines to columns of a prepared corpus: the work that the processes of `workers.py` share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from transformer_kit.data.corpus import Flaws, RawChunk
from transformer_kit.data.ragged import Ragged, from_bytes, from_lists
from transformer_kit.data.text_rules import TextRule
from transformer_kit.data.tokenizer import Tokenizer


@dataclass
class TextCounts:
    """Numbers of one text of each row that stayed: pieces without special tokens, words between spaces, unknown pieces,
    characters, bytes of UTF-8."""

    tokens: int = 0
    words: int = 0
    unknown: int = 0
    characters: int = 0
    bytes: int = 0

    def add(self, other: TextCounts) -> None:
        for name, number in vars(other).items():
            setattr(self, name, getattr(self, name) + number)


@dataclass
class Counts:
    """Numbers of one corpus.

    Attributes:
        read, kept: rows (pairs, documents, texts with labels).
        dropped: reason -> rows.
        empty: rows with an empty text that stayed.
        texts: the numbers of each text of a row, by its name.
        labels: label -> rows.
    """

    read: int = 0
    kept: int = 0
    empty: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    texts: dict[str, TextCounts] = field(default_factory=dict)
    labels: dict[str, int] = field(default_factory=dict)

    def add(self, other: Counts) -> None:
        self.read += other.read
        self.kept += other.kept
        self.empty += other.empty
        for mine, more in ((self.dropped, other.dropped), (self.labels, other.labels)):
            for name, count in more.items():
                mine[name] = mine.get(name, 0) + count
        for name, counts in other.texts.items():
            self.texts.setdefault(name, TextCounts()).add(counts)


@dataclass(frozen=True)
class EncodedChunk:
    """The rows that stayed, by columns (`source.ids`), with their numbers and the flaws of each file."""

    columns: dict[str, Ragged]
    counts: Counts
    flaws: list[Flaws]


@dataclass(frozen=True)
class Reader(ABC):
    """From raw lines to texts; travels to worker processes.

    Attributes:
        paths: the corpus's files, for messages.
    """

    paths: list[str]

    @abstractmethod
    def texts(self, chunk: RawChunk, flaws: list[Flaws]) -> list[list[str]]:
        """Each text of the rows, column by column.

        Args:
            flaws: one per file; counts are added here.
        """

    def lines(self, chunk: RawChunk) -> list[list[str]]:
        """What of it trains a vocabulary, column by column."""
        return self.texts(chunk, [Flaws() for _ in self.paths])


@dataclass(frozen=True)
class Encoder(ABC):
    """Encodes the chunks of one corpus; travels to worker processes."""

    reader: Reader

    def __call__(self, chunk: RawChunk) -> EncodedChunk:
        flaws = [Flaws() for _ in self.reader.paths]
        columns, counts = self.encode(self.reader.texts(chunk, flaws), chunk.first_line)
        return EncodedChunk(columns, counts, flaws)

    @abstractmethod
    def encode(self, texts: list[list[str]], first_line: int) -> tuple[dict[str, Ragged], Counts]:
        """The columns of the rows that stay, and their numbers.

        Args:
            texts: what the reader gave.
            first_line: the number of the first of them.
        """


def is_blank(text: str) -> bool:
    return not text or text.isspace()


def bytes_of(texts: Sequence[str]) -> Ragged:
    return from_bytes([text.encode() for text in texts])


def count(texts: Sequence[str], ids: Ragged, tokenizer: Tokenizer) -> TextCounts:
    """The numbers of some texts and their ids."""
    return TextCounts(
        tokens=len(ids.flat),
        words=sum(len(text.split()) for text in texts),
        unknown=int(np.count_nonzero(ids.flat == tokenizer.unk_id)) if tokenizer.unk_id is not None else 0,
        characters=sum(map(len, texts)),
        bytes=sum(len(text.encode("utf-8", "replace")) for text in texts),
    )


@dataclass(frozen=True)
class TrainingText:
    """The lines of a chunk that train a vocabulary, after the text rule; travels to worker processes.

    Attributes:
        prefix: stands in front of each line of the first side.
        rules: of each side.
        sides: which sides are wanted, by number.
        before: lines of the corpora before this one.
        take, total: of `total` lines of all corpora `take` are chosen, evenly spaced.
    """

    reader: Reader
    prefix: str
    rules: list[TextRule]
    sides: list[int]
    before: int
    take: int
    total: int

    def __call__(self, chunk: RawChunk) -> list[str]:
        texts = self.reader.lines(chunk)
        first = self.before + chunk.first_line - 1
        # Line i is chosen when i·take/total passes a whole number.
        passed = (first + np.arange(len(texts[0]) + 1)) * self.take // self.total
        chosen = np.flatnonzero(np.diff(passed)).tolist()
        lines: list[str] = []
        for side in self.sides:
            prefix = self.prefix if side == 0 else ""
            lines += self.rules[side].apply([prefix + texts[side][row] for row in chosen])
        return lines


def resample(tokenizer: Tokenizer, normal: Ragged, seeds: NDArray[np.int64], alpha: float, head: list[int]) -> Ragged:
    """Ids of random segmentations of rows of UTF-8 text.

    Args:
        seeds: (rows,) one seed each.
        alpha: as in `SamplingOptions`.
        head: ids to put in front of each row.
    """
    lines = [normal[row].tobytes().decode() for row in range(len(normal))]
    ids = tokenizer.sample(lines, seeds.tolist(), alpha)
    return from_lists([head + row for row in ids] if head else ids)
