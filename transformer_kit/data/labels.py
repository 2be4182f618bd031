"""Texts, or pairs of texts, with labels, out of tab-separated columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from transformer_kit.data.corpus import Flaws, RawChunk, decode_lines, raw_chunks, read_lines
from transformer_kit.data.dataset import LabelDataset
from transformer_kit.data.encoding import Counts, Encoder, Reader, count, is_blank
from transformer_kit.data.forms import Form
from transformer_kit.data.options import ColumnOptions, LabelCorpusOptions, LabelsOptions
from transformer_kit.data.ragged import Ragged, column, from_lists
from transformer_kit.data.tokenizer import Tokenizer, Tokenizers
from transformer_kit.errors import DataError

LONGEST_NAME = 24


class Labelled(Form):
    """Files of a text, a second one where there are pairs, and a label. Every row stays."""

    noun, mixture = "texts", False
    remedy = "check the files"

    def __init__(self, data: LabelsOptions, labels: list[str] | None) -> None:
        self.data, self.labels = data, labels
        self.texts = ("first",) if data.columns.second is None else ("first", "second")
        self.languages = [data.language for _ in self.texts]

    def files(self, corpus: LabelCorpusOptions) -> list[Path]:
        assert corpus.tsv is not None
        return [Path(corpus.tsv).expanduser()]

    def identity(self, corpus: LabelCorpusOptions) -> list[Any]:
        return []

    def settings(self, training: bool) -> list[Any]:
        return [vars(self.data.columns), None if training else self.labels]

    def vocabulary(self) -> list[Any]:
        return [vars(self.data.columns)]

    def learn(self, corpora: list[LabelCorpusOptions], size: int) -> None:
        found: set[str] = set()
        for corpus in corpora:
            reader = self.reader(corpus)
            for chunk in self.chunks(self.files(corpus), size):
                found.update(reader.texts(chunk, [Flaws()])[-1])
        if len(found) < 2:
            one = f"only the label {brief(*found)!r}" if found else "no label"
            raise DataError(f"data.train holds {one}: two are needed, or there is nothing to tell apart")
        self.labels = sorted(found)

    def chunks(self, paths: list[Path], size: int) -> Iterator[RawChunk]:
        return raw_chunks(paths, size)

    def reader(self, corpus: LabelCorpusOptions) -> Reader:
        return LabelReader([str(path) for path in self.files(corpus)], self.data.columns)

    def encoder(self, corpus: LabelCorpusOptions, tokenizers: Tokenizers, training: bool) -> Encoder:
        assert self.labels is not None, "labels come from the training text, which is prepared first"
        return LabelEncoder(self.reader(corpus), tokenizers.source, self.labels)

    def columns(self, ids: str, training: bool) -> dict[str, str]:
        return {f"{text}.ids": ids for text in self.texts} | {"label": "int32"}

    def open(self, folder: Path, tokenizer: str) -> LabelDataset:
        found = LabelDataset(folder, tokenizer)
        self.labels = found.about.labels
        return found


@dataclass(frozen=True)
class LabelReader(Reader):
    """The columns that are wanted: text, second text, label."""

    columns: ColumnOptions

    def texts(self, chunk: RawChunk, flaws: list[Flaws]) -> list[list[str]]:
        lines = decode_lines(chunk.blocks[0], chunk.first_line, flaws[0])
        return split_labelled(lines, chunk.first_line, self.paths[0], self.columns)


def split_labelled(lines: Sequence[str], first_line: int, path: str, columns: ColumnOptions) -> list[list[str]]:
    """The columns that are wanted, each for itself: text, second text if there is one, label.

    Raises:
        DataError: a line has too few columns, or no label.
    """
    wanted = {key: number for key, number in vars(columns).items() if number is not None}
    split = [line.split("\t") for line in lines]
    for number, cells in enumerate(split, first_line):
        for key, place in wanted.items():
            if len(cells) < place:
                have = f"{len(cells)} column{'s' if len(cells) > 1 else ''}"
                raise DataError(f"{path}, line {number}: {have}, but data.columns.{key} is {place}")
        if is_blank(cells[columns.label - 1]):
            raise DataError(f"{path}, line {number}: no label in column {columns.label}")
    found = [[cells[place - 1] for cells in split] for place in wanted.values()]
    return [*found[:-1], [label.strip() for label in found[-1]]]


def brief(label: str) -> str:
    """A label for a message: texts taken for labels would fill the screen."""
    return label if len(label) <= LONGEST_NAME else f"{label[: LONGEST_NAME - 1]}…"


def read_labelled(path: Path | str, columns: ColumnOptions) -> list[list[str]]:
    """The columns of a file that fits into memory, as `split_labelled` gives them."""
    return split_labelled(read_lines(path), 1, str(path), columns)


@dataclass(frozen=True)
class LabelEncoder(Encoder):
    """Ids of the texts, without special tokens, and the number of each label."""

    tokenizer: Tokenizer
    labels: list[str]

    def encode(self, texts: list[list[str]], first_line: int) -> tuple[dict[str, Ragged], Counts]:
        *texts, names = texts
        numbers = {name: number for number, name in enumerate(self.labels)}
        for line, name in enumerate(names, first_line):
            if name not in numbers:
                known = ", ".join(map(brief, self.labels[:20])) + (", …" if len(self.labels) > 20 else "")
                where = f"{self.reader.paths[0]}, line {line}"
                raise DataError(f"{where}: the label {brief(name)!r} is none of the training text's ({known})")
        found = np.fromiter((numbers[name] for name in names), np.int32, len(names))
        counts = Counts(read=len(names), kept=len(names))
        counts.empty = sum(any(map(is_blank, row)) for row in zip(*texts, strict=True))
        times = np.bincount(found, minlength=len(self.labels)).tolist()
        counts.labels = dict(zip(self.labels, times, strict=True))
        columns = {"label": column(found)}
        for key, lines in zip(("first", "second"), texts, strict=False):
            ids = from_lists(self.tokenizer.cut(self.tokenizer.normalize(lines)))
            columns[f"{key}.ids"] = ids
            counts.texts[key] = count(lines, ids, self.tokenizer)
        return columns, counts
