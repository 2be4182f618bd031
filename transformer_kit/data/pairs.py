"""Parallel text: rows are pairs of lines, a source and a target."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transformer_kit.data.corpus import (
    FileFacts,
    Flaws,
    RawChunk,
    check_parallel,
    corpus_files,
    corpus_name,
    decode_chunk,
    raw_chunks,
)
from transformer_kit.data.dataset import ParallelDataset
from transformer_kit.data.encoding import Counts, Encoder, Reader, bytes_of, count, is_blank
from transformer_kit.data.forms import Form
from transformer_kit.data.options import CorpusOptions, FilterOptions, PairsOptions
from transformer_kit.data.ragged import Ragged, from_lists
from transformer_kit.data.tokenizer import Tokenizers

REASONS = ("empty side", "too short", "too long", "length ratio")


class Pairs(Form):
    """Two line-parallel files, or one of tab-separated columns."""

    noun, texts, mixture = "pairs", ("source", "target"), True
    remedy = "loosen data.filter (min_length, max_length, max_ratio) or check the files"

    def __init__(self, data: PairsOptions, normal: bool) -> None:
        self.data, self.normal = data, normal
        self.languages = [data.source_language, data.target_language]

    def files(self, corpus: CorpusOptions) -> list[Path]:
        return corpus_files(corpus)

    def name(self, corpus: CorpusOptions) -> str:
        return corpus_name(corpus)

    def check(self, paths: list[Path], facts: list[FileFacts]) -> int:
        return check_parallel(paths, facts)

    def identity(self, corpus: CorpusOptions) -> list[Any]:
        return [corpus.tag, corpus.prefix]

    def settings(self, training: bool) -> list[Any]:
        return [asdict(self.data.filter) if training else None, self.normal and training]

    def chunks(self, paths: list[Path], size: int) -> Iterator[RawChunk]:
        return raw_chunks(paths, size)

    def reader(self, corpus: CorpusOptions) -> Reader:
        return PairReader([str(path) for path in self.files(corpus)])

    def tokenizers_of(self, corpus: CorpusOptions, tokenizers: Tokenizers) -> Tokenizers:
        return tokenizers.marked(corpus.tag, corpus.prefix)

    def encoder(self, corpus: CorpusOptions, tokenizers: Tokenizers, training: bool) -> Encoder:
        filters = self.data.filter if training else None
        return PairEncoder(self.reader(corpus), tokenizers, filters, self.normal and training)

    def columns(self, ids: str, training: bool) -> dict[str, str]:
        kinds = {"ids": ids, "text": "uint8"} | ({"normal": "uint8"} if self.normal and training else {})
        return {f"{side}.{kind}": dtype for side in self.texts for kind, dtype in kinds.items()}

    def open(self, folder: Path, tokenizer: str) -> ParallelDataset:
        return ParallelDataset(folder, tokenizer)


class PairReader(Reader):
    def texts(self, chunk: RawChunk, flaws: list[Flaws]) -> list[list[str]]:
        return list(decode_chunk(chunk, self.paths, flaws))


@dataclass(frozen=True)
class PairEncoder(Encoder):
    """Ids of both sides.

    Attributes:
        tokenizers: marked with the corpus's tag and prefix.
        filter: what stays; None keeps all.
        keep_normal: keep the text after the rule as well (subword sampling encodes it again each epoch).
    """

    tokenizers: Tokenizers
    filter: FilterOptions | None
    keep_normal: bool

    def encode(self, texts: list[list[str]], first_line: int) -> tuple[dict[str, Ragged], Counts]:
        both = [self.tokenizers.source, self.tokenizers.target]
        read = len(texts[0])
        blank = np.fromiter((is_blank(a) or is_blank(b) for a, b in zip(*texts, strict=True)), bool, read)
        normal = [tokenizer.normalize(lines) for tokenizer, lines in zip(both, texts, strict=True)]
        ids = [tokenizer.cut(lines) for tokenizer, lines in zip(both, normal, strict=True)]
        why = self._judge(ids, blank)
        keep = np.flatnonzero(why < 0).tolist()
        counts = Counts(read=read, kept=len(keep))
        if self.filter is None:
            counts.empty = int(blank.sum())
        else:
            found = np.bincount(why[why >= 0], minlength=len(REASONS)).tolist()
            counts.dropped = {reason: number for reason, number in zip(REASONS, found, strict=True) if number}
        columns: dict[str, Ragged] = {}
        for number, side in enumerate(("source", "target")):
            head = both[number].head_ids
            kept = [texts[number][row] for row in keep]
            plain = from_lists([ids[number][row] for row in keep])
            counts.texts[side] = count(kept, plain, both[number])
            columns[f"{side}.ids"] = from_lists([head + ids[number][row] for row in keep]) if head else plain
            columns[f"{side}.text"] = bytes_of(kept)
            if self.keep_normal:
                columns[f"{side}.normal"] = bytes_of([normal[number][row] for row in keep])
        return columns, counts

    def _judge(self, ids: list[list[list[int]]], blank: NDArray[np.bool_]) -> NDArray[np.int64]:
        # (pairs,): the number of the first reason of `REASONS` to drop a pair, or −1.
        why = np.full(len(blank), -1)
        if self.filter is None:
            return why
        lengths = np.array([[len(row) for row in side] for side in ids], np.int64).reshape(2, -1)
        short, long = lengths.min(0), lengths.max(0)
        if self.filter.max_ratio is not None:
            why[long > self.filter.max_ratio * short] = 3
        if self.filter.max_length is not None:
            why[long > self.filter.max_length] = 2
        why[short < self.filter.min_length] = 1
        why[blank | (short == 0)] = 0
        return why
