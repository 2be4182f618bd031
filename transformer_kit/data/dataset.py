"""Prepared pairs on disk: ids and text, mapped into memory.

A folder holds `<side>.<what>.values` and `.offsets` (see `ragged.py`) for what = ids, text and, for subword sampling,
normal; `about.json` is written last and lists every file's size, so a folder cut short is told from a whole one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from transformer_kit.data.encoding import Counts, EncodedChunk, SideCounts
from transformer_kit.data.ragged import Ints, Ragged, RaggedWriter, map_ragged
from transformer_kit.data.tokenizer import check_fingerprint
from transformer_kit.errors import DataError

FORMAT = 1
ABOUT = "about.json"
SIDES = ("source", "target")


@dataclass(frozen=True)
class About:
    """What `about.json` says of a prepared corpus.

    Attributes:
        key: the fingerprint of text, tokenizer and options.
        tokenizer: the fingerprint of the tokenizers.
        names: the corpora in it.
        tag: the id in front of each source, if any.
        counts: what was read, kept and dropped.
        warnings: flaws of the text.
        dtype: of the ids.
        normal: whether the text after the rule is there.
    """

    key: str
    tokenizer: str
    names: list[str]
    tag: list[int]
    counts: Counts
    warnings: list[str]
    dtype: str
    normal: bool


class ParallelDataset:
    """Pairs of id sequences, without BOS and EOS, and their text.

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
        return len(self._ids["source"])

    def source(self, row: int) -> Ints:
        """The ids that an encoder reads, with the corpus's tag, without EOS."""
        return self._ids["source"][row]

    def target(self, row: int) -> Ints:
        return self._ids["target"][row]

    def text(self, row: int) -> tuple[str, str]:
        """Source and target line as the user wrote them, without prefix."""
        return self._line("source", row), self._line("target", row)

    def texts(self) -> Iterator[tuple[str, str]]:
        """All pairs of lines, in order."""
        return (self.text(row) for row in range(len(self)))

    def normal(self, side: str, rows: Ints) -> Ragged:
        """UTF-8 text of some rows after prefix and text rule; only there when it was prepared for subword sampling."""
        assert self.about.normal, "prepared without subword sampling"
        return map_ragged(self.folder, f"{side}.normal", "uint8").gather(rows)

    def ids(self, side: str, rows: Ints) -> Ragged:
        """Ids of some rows, in memory."""
        return self._ids[side].gather(rows)

    @cached_property
    def source_lengths(self) -> Ints:
        """(rows,) int32, without EOS."""
        return self._ids["source"].lengths.astype(np.int32)

    @cached_property
    def target_lengths(self) -> Ints:
        return self._ids["target"].lengths.astype(np.int32)

    def _line(self, side: str, row: int) -> str:
        return self._text[side][row].tobytes().decode()

    @cached_property
    def _ids(self) -> dict[str, Ragged]:
        return {side: map_ragged(self.folder, f"{side}.ids", self.about.dtype) for side in SIDES}

    @cached_property
    def _text(self) -> dict[str, Ragged]:
        return {side: map_ragged(self.folder, f"{side}.text", "uint8") for side in SIDES}


class DatasetWriter:
    """Appends encoded chunks to a folder; `finish` completes it."""

    def __init__(self, folder: Path, dtype: str, normal: bool) -> None:
        self.folder = folder
        kinds = {"ids": dtype, "text": "uint8"} | ({"normal": "uint8"} if normal else {})
        self._writers = {
            (side, kind): RaggedWriter(folder, f"{side}.{kind}", its) for side in SIDES for kind, its in kinds.items()
        }

    def append(self, chunk: EncodedChunk) -> None:
        for (side, kind), writer in self._writers.items():
            writer.append(getattr(getattr(chunk, side), kind))

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
        counts = record.pop("counts")
        source, target = (SideCounts(**counts.pop(side)) for side in SIDES)
        return About(**record, counts=Counts(**counts, source=source, target=target))
    except (OSError, ValueError, KeyError, TypeError):
        raise DataError(damaged) from None


@dataclass(frozen=True)
class TrainingCorpus:
    """One corpus of a mixture and its weight."""

    dataset: ParallelDataset
    weight: float
