"""What a user chooses about corpora and batches. The defaults stand in conf/data.

There are three kinds of data, told apart by `kind`: pairs of lines, documents of running text, texts with labels.
The corpora alone carry defaults: they are items of a list, for which a YAML file cannot hold any.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal

Problems = list[tuple[str, str]]
TAG = re.compile(r"<(?!0x[0-9A-F]{2}>)[^\s<>]+>")  # <0x0A> is how a byte is spelt
RESERVED = re.compile("<pad>|<unk>|<s>|</s>|<mask>|<extra_id_[0-9]+>")
NO_CORPUS = (
    "data.train: no corpus is given; for example data.train=[{source: train.en, target: train.de}] for pairs, "
    "data.train=[{text: train.txt}] for documents, data.train=[{tsv: train.tsv}] for labels"
)
PATH = {"path": True}  # relative ones resolve against the current folder


@dataclass
class CorpusOptions:
    """One line-parallel corpus: two files, or one file of `source TAB target` lines; plain or gzip.

    Attributes:
        name: how reports call it; its file name when absent.
        source, target: the two files (relative paths resolve against the current folder).
        tsv: the one file, instead of `source` and `target`.
        weight: how often it is drawn, relative to the other corpora of the mixture (> 0).
        tag: a marker such as `<2de>` that becomes one control piece in front of each source; text never produces it.
        prefix: plain text put in front of each source line.
    """

    name: str | None = None
    source: str | None = field(default=None, metadata=PATH)
    target: str | None = field(default=None, metadata=PATH)
    tsv: str | None = field(default=None, metadata=PATH)
    weight: float = 1.0
    tag: str | None = None
    prefix: str | None = None

    def problems(self) -> Problems:
        found: Problems = []
        if self.tsv is not None:
            if self.source is not None or self.target is not None:
                found.append(("tsv", "give either `tsv`, or `source` and `target`, not both"))
        else:
            for side in ("source", "target"):
                if getattr(self, side) is None:
                    found.append((side, "no file is given; set it (or set `tsv`)"))
        if not 0 < self.weight < float("inf"):
            found.append(("weight", f"must be greater than 0, not {self.weight}"))
        if self.tag is not None and (not TAG.fullmatch(self.tag) or RESERVED.fullmatch(self.tag)):
            names = RESERVED.pattern.replace("|", ", ")
            found.append(("tag", f"must look like <2de> and be none of {names}; it is {self.tag!r}"))
        return found


@dataclass
class FilterOptions:
    """Which training pairs stay. Lengths count pieces, without BOS and EOS. Validation pairs are never filtered.

    Attributes:
        min_length: the fewest pieces of either side; pairs with an empty side always go.
        max_length: the most pieces of either side, or null.
        max_ratio: the longer side may be at most this many times the shorter one, or null.
    """

    min_length: int
    max_length: int | None
    max_ratio: float | None

    def problems(self) -> Problems:
        found: Problems = []
        if self.min_length < 1:
            found.append(("min_length", f"must be at least 1, not {self.min_length}"))
        if self.max_length is not None and self.max_length < max(1, self.min_length):
            found.append(("max_length", f"must be at least min_length ({self.min_length}), not {self.max_length}"))
        if self.max_ratio is not None and not self.max_ratio >= 1:
            found.append(("max_ratio", f"must be at least 1, not {self.max_ratio}"))
        return found


@dataclass
class BatchOptions:
    """How rows become batches.

    Attributes:
        tokens: rows × the longest side of the batch (with BOS or EOS, padding counted) is at most this; `auto`: what
            the memory holds when a run begins (`training/budget.py`).
        pool: how many shuffled rows are sorted by length together; more means less padding and coarser shuffling.
            Packed blocks are of one length and need none.
    """

    tokens: int | Literal["auto"]
    pool: int

    @property
    def budget(self) -> int:
        """`tokens` as the number that it is by the time batches are made."""
        assert isinstance(self.tokens, int), "auto has become a number before"
        return self.tokens

    def problems(self) -> Problems:
        found: Problems = []
        if isinstance(self.tokens, int) and self.tokens < 2:
            found.append(("tokens", f"must be at least 2, not {self.tokens}"))
        if self.pool < 1:
            found.append(("pool", f"must be at least 1, not {self.pool}"))
        return found


@dataclass
class GenerateOptions:
    """A corpus that is written by a program instead of read from files.

    Attributes:
        name: which corpus; `demo_phrases` is the one there is.
        seed: another seed writes other lines.
    """

    name: str
    seed: int

    def problems(self) -> Problems:
        found: Problems = []
        if self.name != "demo_phrases":
            found.append(("name", f"must be demo_phrases, not {self.name}"))
        if self.seed < 0:
            found.append(("seed", f"must be at least 0, not {self.seed}"))
        return found


@dataclass
class PairsOptions:
    """Line-parallel corpora.

    Attributes:
        kind: `pairs`.
        source_language, target_language: ISO 639-1 codes; they choose the Moses rules and name the sides.
        train, valid, test: the corpora of each split. Several training corpora form a mixture.
        temperature: a corpus of n pairs and weight w is drawn with probability proportional to w · n^(1/temperature).
        generate: corpora written by a program, in place of the three lists.
        cache: the folder of prepared data.
        workers: processes that encode text (1 = none but this one).
    """

    kind: Literal["pairs"]
    source_language: str
    target_language: str
    train: list[CorpusOptions]
    valid: list[CorpusOptions]
    test: list[CorpusOptions]
    temperature: float
    generate: GenerateOptions | None
    cache: str = field(metadata=PATH)
    filter: FilterOptions
    batch: BatchOptions
    workers: int

    def problems(self) -> Problems:
        found: Problems = []
        if self.generate is not None:
            found += under("generate", self.generate.problems())
            if {self.source_language, self.target_language} != {"en", "de"}:
                found.append(("generate", "the languages of demo_phrases are en and de, in either direction"))
            if self.train or self.valid or self.test:
                found.append(("generate", "generated data leave no room for `train`, `valid` and `test`: drop one"))
        found += _splits(self.train, self.valid, self.test)
        found += _language("source_language", self.source_language)
        found += _language("target_language", self.target_language)
        found += _temperature(self.temperature) + _workers(self.workers)
        return found + under("filter", self.filter.problems()) + under("batch", self.batch.problems())


@dataclass
class TextCorpusOptions:
    """One file of running text, plain or gzip.

    Attributes:
        name: how reports call it; its file name when absent.
        text: the file.
        weight: how often it is drawn, relative to the other corpora of the mixture (> 0).
        start, end: where the part that is taken begins and ends, as shares of the file's characters; only where a whole
            file is a document (`unit: file`).
        column: take only this tab-separated column of each line, counted from 1; only where lines are documents.
    """

    name: str | None = None
    text: str | None = field(default=None, metadata=PATH)
    weight: float = 1.0
    start: float = 0.0
    end: float = 1.0
    column: int | None = None

    def problems(self) -> Problems:
        found: Problems = []
        if self.text is None:
            found.append(("text", "no file is given; set it"))
        if not 0 < self.weight < float("inf"):
            found.append(("weight", f"must be greater than 0, not {self.weight}"))
        if not 0 <= self.start < self.end <= 1:
            found.append(("start", f"0 <= start < end <= 1 must hold, not {self.start} and {self.end}"))
        if self.column is not None and self.column < 1:
            found.append(("column", f"columns count from 1, not {self.column}"))
        return found


class Unit(Enum):
    """What one document is: a line, the lines up to a blank one, or the whole file."""

    line = "line"
    block = "block"
    file = "file"


@dataclass
class DocumentsOptions:
    """Running text.

    Attributes:
        kind: `documents`.
        language: ISO 639-1 code; chooses the Moses rules.
        train, valid, test: the files of each split. Several training files form a mixture.
        unit: what one document is. Blank documents are left out.
        bos, eos: whether each document begins with BOS and ends with EOS.
        length: the tokens that a packed block predicts, or the most tokens of a row that is not packed.
        pack: true: documents follow each other in one stream that is cut into blocks; each token but the stream's first
            is predicted once. false: each document is a row, or several where it is longer than `length`.
        mask_documents: whether the cells of a packed block see their own document alone.
        temperature: as for pairs; packed corpora are measured in blocks, others in rows.
        cache: the folder of prepared data.
        workers: processes that encode text (1 = none but this one).
    """

    kind: Literal["documents"]
    language: str
    train: list[TextCorpusOptions]
    valid: list[TextCorpusOptions]
    test: list[TextCorpusOptions]
    unit: Unit
    bos: bool
    eos: bool
    length: int
    pack: bool
    mask_documents: bool
    temperature: float
    cache: str = field(metadata=PATH)
    batch: BatchOptions
    workers: int

    def problems(self) -> Problems:
        found = _splits(self.train, self.valid, self.test)
        for split in ("train", "valid", "test"):
            for number, corpus in enumerate(getattr(self, split)):
                if self.unit is not Unit.file and (corpus.start, corpus.end) != (0, 1):
                    found.append((f"{split}.{number}.start", "a part of a file can be taken only with unit: file"))
                if self.unit is not Unit.line and corpus.column is not None:
                    found.append((f"{split}.{number}.column", "a column can be taken only with unit: line"))
        found += _language("language", self.language)
        if self.length < 1:
            found.append(("length", f"must be at least 1, not {self.length}"))
        if self.mask_documents and not self.pack:
            found.append(("mask_documents", "rows that are not packed hold one document each: set it to false"))
        found += _temperature(self.temperature) + _workers(self.workers) + under("batch", self.batch.problems())
        return found + _room(self.batch, "length", self.length)


@dataclass
class LabelCorpusOptions:
    """One file of tab-separated columns, plain or gzip.

    Attributes:
        name: how reports call it; its file name when absent.
        tsv: the file.
    """

    name: str | None = None
    tsv: str | None = field(default=None, metadata=PATH)

    def problems(self) -> Problems:
        return [] if self.tsv is not None else [("tsv", "no file is given; set it")]


@dataclass
class ColumnOptions:
    """Which columns hold what, counted from 1.

    Attributes:
        text: the text.
        second: the second text of each pair; null where there are no pairs.
        label: the label.
    """

    text: int
    second: int | None
    label: int

    def problems(self) -> Problems:
        numbers = {key: number for key, number in vars(self).items() if number is not None}
        found = [(key, f"columns count from 1, not {number}") for key, number in numbers.items() if number < 1]
        if len(set(numbers.values())) < len(numbers):
            found.append(("label", f"each column can serve once: {', '.join(f'{k} {n}' for k, n in numbers.items())}"))
        return found


@dataclass
class LabelsOptions:
    """Texts, or pairs of texts, with labels. The labels are those of the training text, sorted.

    Attributes:
        kind: `labels`.
        language: ISO 639-1 code; chooses the Moses rules.
        train, valid, test: the files of each split.
        columns: what stands where.
        max_length: the most tokens of a row, marks around the texts included; longer texts are cut at the end, of a
            pair the longer one first.
        cache: the folder of prepared data.
        workers: processes that encode text (1 = none but this one).
    """

    kind: Literal["labels"]
    language: str
    train: list[LabelCorpusOptions]
    valid: list[LabelCorpusOptions]
    test: list[LabelCorpusOptions]
    columns: ColumnOptions
    max_length: int
    cache: str = field(metadata=PATH)
    batch: BatchOptions
    workers: int

    def problems(self) -> Problems:
        found = _splits(self.train, self.valid, self.test) + _language("language", self.language)
        found += under("columns", self.columns.problems())
        if self.max_length < 5:
            found.append(("max_length", f"must be at least 5, not {self.max_length}"))
        found += _workers(self.workers) + under("batch", self.batch.problems())
        return found + _room(self.batch, "max_length", self.max_length)


DataOptions = PairsOptions | DocumentsOptions | LabelsOptions


def _splits(train: Sequence[Any], valid: Sequence[Any], test: Sequence[Any]) -> Problems:
    splits = {"train": train, "valid": valid, "test": test}
    return [
        problem
        for split, corpora in splits.items()
        for number, corpus in enumerate(corpora)
        for problem in under(f"{split}.{number}", corpus.problems())
    ]


def _language(key: str, language: str) -> Problems:
    return [] if language.isalpha() else [(key, f"must be a language code such as en, not {language!r}")]


def _temperature(temperature: float) -> Problems:
    good = 0 < temperature < float("inf")
    return [] if good else [("temperature", f"must be greater than 0, not {temperature}")]


def _workers(workers: int) -> Problems:
    return [] if workers >= 1 else [("workers", f"must be at least 1, not {workers}")]


def _room(batch: BatchOptions, key: str, length: int) -> Problems:
    if not isinstance(batch.tokens, int) or batch.tokens >= length:
        return []
    return [("batch.tokens", f"must be at least {key} ({length}), not {batch.tokens}")]


def under(key: str, found: Problems) -> Problems:
    """The problems of a part, told under its key."""
    return [(f"{key}.{name}", message) for name, message in found]
