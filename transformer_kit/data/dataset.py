"""Prepared rows on disk, mapped into memory.

A folder holds `<column>.values` and `<column>.offsets` (see `ragged.py`) for each column, such as `source.ids`;
`about.json` is written last and lists every file's size, so a folder cut short is told from a whole one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from transformer_kit.data.encoding import Counts, EncodedChunk, TextCounts
from transformer_kit.data.ragged import Ints, Ragged, RaggedWriter, map_ragged, within
from transformer_kit.data.tokenizer import check_fingerprint
from transformer_kit.errors import DataError
from transformer_kit.specials import Specials

FORMAT = 2
ABOUT = "about.json"
Kind = TypeVar("Kind", bound="Dataset", covariant=True)


@dataclass(frozen=True)
class About:
    """What `about.json` says of a prepared corpus.

    Attributes:
        key: the fingerprint of text, tokenizer and options.
        tokenizer: the fingerprint of the tokenizers.
        names: the corpora in it.
        columns: column -> type of its values.
        specials: the special ids of each text of a row, by its name.
        head: the ids in front of each row of a text (a tag).
        labels: the names of the labels; None where there are none.
        counts: what was read, kept and dropped.
        warnings: flaws of the text.
    """

    key: str
    tokenizer: str
    names: list[str]
    columns: dict[str, str]
    specials: dict[str, Specials]
    head: dict[str, list[int]]
    labels: list[str] | None
    counts: Counts
    warnings: list[str]


class Dataset:
    """Rows of one kind of data.

    Args:
        folder: what `DatasetWriter` wrote.
        tokenizer: the fingerprint that the caller expects; None accepts any.

    Raises:
        DataError: the folder is incomplete, or made with another tokenizer.
    """

    def __init__(self, folder: Path | str, tokenizer: str | None = None) -> None:
        self.folder = Path(folder)
        self.about = read_about(self.folder)
        check_fingerprint(self.about.tokenizer, tokenizer, str(self.folder))

    def __len__(self) -> int:
        return len(self.column(next(iter(self.about.columns))))

    def column(self, name: str) -> Ragged:
        """All rows of a column."""
        return self._columns[name]

    @cached_property
    def _columns(self) -> Mapping[str, Ragged]:
        return {name: map_ragged(self.folder, name, dtype) for name, dtype in self.about.columns.items()}


class ParallelDataset(Dataset):
    """Pairs of id sequences, without BOS and EOS, and their text. A side is `source` or `target`."""

    def source(self, row: int) -> Ints:
        """The ids that an encoder reads, with the corpus's tag, without EOS."""
        return self.column("source.ids")[row]

    def target(self, row: int) -> Ints:
        return self.column("target.ids")[row]

    def text(self, row: int) -> tuple[str, str]:
        """Source and target line as the user wrote them, without prefix."""
        source, target = (self.column(f"{side}.text")[row].tobytes().decode() for side in ("source", "target"))
        return source, target

    def texts(self) -> Iterator[tuple[str, str]]:
        """All pairs of lines, in order."""
        return (self.text(row) for row in range(len(self)))

    def normal(self, side: str, rows: Ints) -> Ragged:
        """UTF-8 text of some rows after prefix and text rule; only there when it was prepared for subword sampling."""
        assert f"{side}.normal" in self.about.columns, "prepared without subword sampling"
        return self.column(f"{side}.normal").gather(rows)

    def ids(self, side: str, rows: Ints) -> Ragged:
        """Ids of some rows, in memory."""
        return self.column(f"{side}.ids").gather(rows)

    @cached_property
    def source_lengths(self) -> Ints:
        """(rows,) int32, without EOS."""
        return self.column("source.ids").lengths.astype(np.int32)

    @cached_property
    def target_lengths(self) -> Ints:
        return self.column("target.ids").lengths.astype(np.int32)


class DocumentDataset(Dataset):
    """Documents, with the BOS and EOS that they were prepared with."""

    @property
    def ids(self) -> Ragged:
        """One row per document; `ids.flat` is the stream of all of them."""
        return self.column("text.ids")

    def pieces(self, length: int) -> Ragged:
        """The documents cut into rows of at most `length` tokens, of which only a document's last one is shorter."""
        counts = -(-self.ids.lengths // length)
        starts = np.repeat(self.ids.offsets[:-1], counts) + within(counts) * length
        return Ragged(self.ids.flat, np.append(starts, self.ids.offsets[-1]))

    @property
    def characters(self) -> int:
        """Of the documents' text, as it stands in the files; line feeds between documents are no part of it."""
        return self.about.counts.texts["text"].characters

    @property
    def bytes(self) -> int:
        """Of the same text as UTF-8."""
        return self.about.counts.texts["text"].bytes


class LabelDataset(Dataset):
    """Texts or pairs of texts, without special tokens, and the numbers of their labels."""

    @property
    def paired(self) -> bool:
        return "second.ids" in self.about.columns

    @property
    def labels(self) -> Ints:
        """(rows,) int32."""
        return self.column("label").flat

    def limits(self, rows: Ints, longest: int) -> list[Ints]:
        """How many tokens of each text stay where `longest` fit together; of a pair the longer text is cut first."""
        first = self.column("first.ids").lengths[rows]
        return shares(first, self.column("second.ids").lengths[rows] if self.paired else None, longest)

    def rows(self, rows: Ints, longest: int) -> list[Ragged]:
        """The texts of some rows, cut as `limits` says."""
        names = ("first.ids", "second.ids") if self.paired else ("first.ids",)
        limits = self.limits(rows, longest)
        return [self.column(name).gather(rows).cut(limit) for name, limit in zip(names, limits, strict=True)]


def shares(first: Ints, second: Ints | None, longest: int) -> list[Ints]:
    """How many tokens of each text stay where `longest` fit together; of a pair the longer text is cut first.

    Args:
        first, second: the lengths of the texts; `second` None where there are no pairs.
    """
    if second is None:
        return [np.minimum(first, longest)]
    half = longest // 2
    kept = np.minimum(first, np.maximum(longest - half, longest - second))
    return [kept, np.minimum(second, longest - kept)]


class DatasetWriter:
    """Appends encoded chunks to a folder; `finish` completes it."""

    def __init__(self, folder: Path, columns: Mapping[str, str]) -> None:
        self.folder = folder
        self._writers = {name: RaggedWriter(folder, name, dtype) for name, dtype in columns.items()}

    def append(self, chunk: EncodedChunk) -> None:
        for name, writer in self._writers.items():
            writer.append(chunk.columns[name])

    def finish(self, about: About) -> None:
        self.close()
        sizes = {path.name: path.stat().st_size for path in sorted(self.folder.iterdir())}
        record = {"format": FORMAT, **asdict(about), "sizes": sizes}
        (self.folder / ABOUT).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()


def read_about(folder: Path) -> About:
    """What a folder holds.

    Raises:
        DataError: it is not a prepared corpus, or some of its files are missing or cut short.
    """
    damaged = f"{folder}: not a complete prepared corpus; delete the folder, it will be made again"
    try:
        record: dict[str, Any] = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        if record.pop("format") != FORMAT:
            raise DataError(f"{folder}: prepared by another version; delete the folder, it will be made again")
        for name, size in record.pop("sizes").items():
            if (folder / name).stat().st_size != size:
                raise DataError(damaged)
        counts, specials = record.pop("counts"), record.pop("specials")
        texts = {name: TextCounts(**numbers) for name, numbers in counts.pop("texts").items()}
        return About(
            **record,
            counts=Counts(**counts, texts=texts),
            specials={name: Specials(**ids | {"sentinels": tuple(ids["sentinels"])}) for name, ids in specials.items()},
        )
    except (OSError, ValueError, KeyError, TypeError):
        raise DataError(damaged) from None


@dataclass(frozen=True)
class TrainingCorpus(Generic[Kind]):
    """One corpus of a mixture and its weight."""

    dataset: Kind
    weight: float
