"""Running text: rows are documents, which are lines, blocks of lines between blank ones, or whole files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from transformer_kit.data.corpus import (
    Flaws,
    RawChunk,
    block_chunks,
    decode_lines,
    decode_text,
    raw_chunks,
    whole_file,
)
from transformer_kit.data.dataset import DocumentDataset
from transformer_kit.data.encoding import Counts, Encoder, Reader, count, is_blank
from transformer_kit.data.forms import Form
from transformer_kit.data.options import DocumentsOptions, TextCorpusOptions, Unit
from transformer_kit.data.ragged import Ragged, from_lists
from transformer_kit.data.tokenizer import Tokenizer, Tokenizers
from transformer_kit.errors import DataError


class Documents(Form):
    """One file of text. Blank documents are left out in every split."""

    noun, texts, mixture = "documents", ("text",), True
    remedy = "check the files, and start and end if they are given"

    def __init__(self, data: DocumentsOptions) -> None:
        self.data = data
        self.languages = [data.language]

    def files(self, corpus: TextCorpusOptions) -> list[Path]:
        assert corpus.text is not None
        return [Path(corpus.text).expanduser()]

    def identity(self, corpus: TextCorpusOptions) -> list[Any]:
        return [corpus.start, corpus.end, corpus.column]

    def settings(self, training: bool) -> list[Any]:
        return [self.data.unit.value, self.data.bos, self.data.eos]

    def chunks(self, paths: list[Path], size: int) -> Iterator[RawChunk]:
        if self.data.unit is Unit.file:
            return whole_file(paths[0])
        return block_chunks(paths[0], size) if self.data.unit is Unit.block else raw_chunks(paths, size)

    def reader(self, corpus: TextCorpusOptions) -> Reader:
        paths = [str(path) for path in self.files(corpus)]
        return DocumentReader(paths, self.data.unit, corpus.start, corpus.end, corpus.column)

    def encoder(self, corpus: TextCorpusOptions, tokenizers: Tokenizers, training: bool) -> Encoder:
        return DocumentEncoder(self.reader(corpus), tokenizers.source, self.data.bos, self.data.eos)

    def columns(self, ids: str, training: bool) -> dict[str, str]:
        return {"text.ids": ids}

    def open(self, folder: Path, tokenizer: str) -> DocumentDataset:
        return DocumentDataset(folder, tokenizer)


@dataclass(frozen=True)
class DocumentReader(Reader):
    """Documents.

    Attributes:
        unit: what one is.
        start, end: the part that is taken, as shares of the file's characters.
        column: the tab-separated column of each line that is taken, counted from 1; None takes the line.
    """

    unit: Unit
    start: float
    end: float
    column: int | None

    def texts(self, chunk: RawChunk, flaws: list[Flaws]) -> list[list[str]]:
        if self.unit is Unit.file:
            return [[self._part(chunk, flaws[0])]]
        lines = self._lines(chunk, flaws[0])
        return [lines if self.unit is Unit.line else blocks(lines)]

    def lines(self, chunk: RawChunk) -> list[list[str]]:
        if self.unit is Unit.file:
            return [self._part(chunk, Flaws()).split("\n")]
        return [self._lines(chunk, Flaws())]

    def _lines(self, chunk: RawChunk, flaws: Flaws) -> list[str]:
        lines = decode_lines(chunk.blocks[0], chunk.first_line, flaws)
        if self.column is None:
            return lines
        split = [line.split("\t") for line in lines]
        for number, cells in enumerate(split, chunk.first_line):
            if len(cells) < self.column:
                raise DataError(
                    f"{self.paths[0]}, line {number}: {len(cells)} column(s), but `column` is {self.column}"
                )
        return [cells[self.column - 1] for cells in split]

    def _part(self, chunk: RawChunk, flaws: Flaws) -> str:
        text = decode_text(chunk.blocks[0], chunk.first_line, flaws)
        return text[int(len(text) * self.start) : int(len(text) * self.end)]


def blocks(lines: list[str]) -> list[str]:
    """The runs of lines between blank ones, each as one text without a last line feed."""
    return ["\n".join(run) for blank, run in groupby(lines, is_blank) if not blank]


@dataclass(frozen=True)
class DocumentEncoder(Encoder):
    """Ids of documents, between BOS and EOS where they are wanted."""

    tokenizer: Tokenizer
    bos: bool
    eos: bool

    def encode(self, texts: list[list[str]], first_line: int) -> tuple[dict[str, Ragged], Counts]:
        documents = [text for text in texts[0] if not is_blank(text)]
        counts = Counts(read=len(texts[0]), kept=len(documents))
        if counts.kept < counts.read:
            counts.dropped = {"blank": counts.read - counts.kept}
        rows = self.tokenizer.cut(self.tokenizer.normalize(documents))
        counts.texts["text"] = count(documents, from_lists(rows), self.tokenizer)
        first = [self.tokenizer.bos_id] if self.bos else []
        last = [self.tokenizer.eos_id] if self.eos else []
        return {"text.ids": from_lists([first + row + last for row in rows] if first or last else rows)}, counts
