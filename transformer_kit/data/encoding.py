"""One chunk of raw lines to ids and kept text: the work that the processes of `workers.py` share."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from transformer_kit.data.corpus import Flaws, RawChunk, decode_chunk
from transformer_kit.data.options import FilterOptions
from transformer_kit.data.ragged import Ragged, from_bytes, from_lists
from transformer_kit.data.text_rules import TextRule
from transformer_kit.data.tokenizer import UNK_ID, Tokenizer, Tokenizers

REASONS = ("empty side", "too short", "too long", "length ratio")


@dataclass
class SideCounts:
    """Numbers of one side over the pairs that stayed: pieces without tags, words between spaces, unknown pieces."""

    tokens: int = 0
    words: int = 0
    unknown: int = 0

    def add(self, other: SideCounts) -> None:
        self.tokens += other.tokens
        self.words += other.words
        self.unknown += other.unknown


@dataclass
class Counts:
    """Numbers of one corpus.

    Attributes:
        read, kept: pairs.
        dropped: reason -> pairs; a pair goes for the first reason of `REASONS` that applies.
        empty: pairs with an empty side that stayed, as nothing is filtered in validation data.
    """

    read: int = 0
    kept: int = 0
    empty: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    source: SideCounts = field(default_factory=SideCounts)
    target: SideCounts = field(default_factory=SideCounts)

    def add(self, other: Counts) -> None:
        self.read += other.read
        self.kept += other.kept
        self.empty += other.empty
        for reason, count in other.dropped.items():
            self.dropped[reason] = self.dropped.get(reason, 0) + count
        self.source.add(other.source)
        self.target.add(other.target)


@dataclass(frozen=True)
class EncodedSide:
    """The rows that stayed: ids (with the tag), UTF-8 text, and the text after the rule if it is wanted."""

    ids: Ragged
    text: Ragged
    normal: Ragged | None


@dataclass(frozen=True)
class EncodedChunk:
    source: EncodedSide
    target: EncodedSide
    counts: Counts
    flaws: list[Flaws]


@dataclass(frozen=True)
class Encoder:
    """Encodes the chunks of one corpus; travels to worker processes.

    Attributes:
        tokenizers: marked with the corpus's tag and prefix.
        paths: the corpus's files, for messages.
        filter: what stays; None keeps all.
        keep_normal: keep the text after the rule as well (subword sampling encodes it again each epoch).
    """

    tokenizers: Tokenizers
    paths: list[str]
    filter: FilterOptions | None
    keep_normal: bool

    def __call__(self, chunk: RawChunk) -> EncodedChunk:
        flaws = [Flaws() for _ in self.paths]
        sources, targets = decode_chunk(chunk, self.paths, flaws)
        read = len(sources)
        blank = np.fromiter(
            (not (source and target) or source.isspace() or target.isspace()
             for source, target in zip(sources, targets, strict=True)), bool, read
        )  # fmt: skip
        source_normal = self.tokenizers.source.normalize(sources)
        target_normal = self.tokenizers.target.normalize(targets)
        source_ids = self.tokenizers.source.cut(source_normal)
        target_ids = self.tokenizers.target.cut(target_normal)
        why = self._judge(source_ids, target_ids, blank)
        keep = np.flatnonzero(why < 0)
        counts = Counts(read=read, kept=len(keep))
        if self.filter is None:
            counts.empty = int(blank.sum())
        else:
            found = np.bincount(why[why >= 0], minlength=len(REASONS)).tolist()
            counts.dropped = {reason: count for reason, count in zip(REASONS, found, strict=True) if count}
        pick = keep.tolist()
        source = self._side(sources, source_normal, source_ids, pick, self.tokenizers.source.tag_ids, counts.source)
        target = self._side(targets, target_normal, target_ids, pick, [], counts.target)
        return EncodedChunk(source, target, counts, flaws)

    def _judge(self, sources: list[list[int]], targets: list[list[int]], blank: NDArray[np.bool_]) -> NDArray[np.int64]:
        # (pairs,): the number of the reason to drop a pair, or −1.
        why = np.full(len(sources), -1)
        if self.filter is None:
            return why
        lengths = np.array([[len(row) for row in sources], [len(row) for row in targets]], np.int64).reshape(2, -1)
        short, long = lengths.min(0), lengths.max(0)
        if self.filter.max_ratio is not None:
            why[long > self.filter.max_ratio * short] = 3
        if self.filter.max_length is not None:
            why[long > self.filter.max_length] = 2
        why[short < self.filter.min_length] = 1
        why[blank | (short == 0)] = 0
        return why

    def _side(
        self,
        lines: list[str],
        normal: list[str],
        ids: list[list[int]],
        pick: list[int],
        tag: list[int],
        counts: SideCounts,
    ) -> EncodedSide:
        kept_lines = [lines[row] for row in pick]
        kept = [ids[row] for row in pick]
        counts.words = sum(len(line.split()) for line in kept_lines)
        plain = from_lists(kept)
        counts.tokens = len(plain.flat)
        counts.unknown = int(np.count_nonzero(plain.flat == UNK_ID))
        encoded = from_lists([tag + row for row in kept]) if tag else plain
        text = from_bytes([line.encode() for line in kept_lines])
        return EncodedSide(
            encoded, text, from_bytes([normal[row].encode() for row in pick]) if self.keep_normal else None
        )


@dataclass(frozen=True)
class TrainingText:
    """The lines of a chunk that train a vocabulary, after the text rule; travels to worker processes.

    Attributes:
        rules: of source and target.
        sides: which sides are wanted, by number.
        before: pairs of the corpora before this one.
        take, total: of `total` pairs of all corpora `take` are chosen, evenly spaced.
    """

    paths: list[str]
    prefix: str
    rules: list[TextRule]
    sides: list[int]
    before: int
    take: int
    total: int

    def __call__(self, chunk: RawChunk) -> list[str]:
        texts = decode_chunk(chunk, self.paths, [Flaws() for _ in self.paths])
        first = self.before + chunk.first_line - 1
        # Pair i is chosen when i·take/total passes a whole number.
        passed = (first + np.arange(len(texts[0]) + 1)) * self.take // self.total
        chosen = np.flatnonzero(np.diff(passed)).tolist()
        lines: list[str] = []
        for side in self.sides:
            prefix = self.prefix if side == 0 else ""
            lines += self.rules[side].apply([prefix + texts[side][row] for row in chosen])
        return lines


def resample(tokenizer: Tokenizer, normal: Ragged, seeds: NDArray[np.int64], alpha: float, tag: list[int]) -> Ragged:
    """Ids of random segmentations of rows of UTF-8 text.

    Args:
        seeds: (rows,) one seed each.
        alpha: as in `SamplingOptions`.
        tag: ids to put in front of each row.
    """
    lines = [normal[row].tobytes().decode() for row in range(len(normal))]
    ids = tokenizer.sample(lines, seeds.tolist(), alpha)
    return from_lists([tag + row for row in ids] if tag else ids)
