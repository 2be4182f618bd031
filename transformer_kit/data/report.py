"""What preparing found, as tables and as plain data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from transformer_kit.data.buckets import Padding, padding
from transformer_kit.data.dataset import Dataset, DocumentDataset, LabelDataset, ParallelDataset
from transformer_kit.data.options import DataOptions
from transformer_kit.data.packing import count_blocks
from transformer_kit.data.prepare import Prepared, form_of
from transformer_kit.data.streams import label_lengths, marks

Table = tuple[str, list[str], list[list[str]]]  # title, columns, rows
LABELS = 20  # shown at most


@dataclass(frozen=True)
class CorpusReport:
    """One prepared corpus: its split, its numbers (see `Counts`), its flaws, and how it fills batches."""

    split: str
    dataset: Dataset
    padding: Padding

    @property
    def name(self) -> str:
        return ", ".join(self.dataset.about.names)


@dataclass(frozen=True)
class Report:
    """All prepared corpora.

    Attributes:
        kind: of the data.
        noun: what a row is called.
        tokens: the token budget of the batches.
        sides: what each text of a row is called: a language, `text`, or `first` and `second`.
    """

    corpora: list[CorpusReport]
    kind: str
    noun: str
    tokens: int
    sides: list[str]

    def tables(self) -> list[Table]:
        """Text, rows and, where there are any, labels: each as title, columns and rows."""
        lines = "lines" if self.kind == "pairs" else self.noun
        text_columns = ["split", "corpus", "side", lines, "words", "characters", "tokens", "tokens/word", "unknown"]
        row_columns = ["split", "corpus", "read", "kept", "filtered", "over budget", "batches", "padding efficiency"]
        title = f"{self.noun.capitalize()}, batches of {self.tokens:,} tokens"
        tables = [
            ("Text", text_columns, [row for corpus in self.corpora for row in self._text_rows(corpus)]),
            (title, row_columns, [_row(corpus) for corpus in self.corpora]),
        ]
        if self.kind == "labels":
            tables.append(("Labels", ["split", "corpus", "label", "texts", "share"], list(self._label_rows())))
        return tables

    def _text_rows(self, corpus: CorpusReport) -> Iterator[list[str]]:
        counts = corpus.dataset.about.counts
        for side, text in zip(self.sides, counts.texts.values(), strict=True):
            ratio = f"{text.tokens / text.words:.3f}" if text.words else "-"
            unknown = f"{100 * text.unknown / text.tokens:.3f} %" if text.tokens else "-"
            numbers = [f"{number:,}" for number in (counts.kept, text.words, text.characters, text.tokens)]
            yield [corpus.split, corpus.name, side, *numbers, ratio, unknown]

    def _label_rows(self) -> Iterator[list[str]]:
        for corpus in self.corpora:
            counts = corpus.dataset.about.counts
            often = sorted(counts.labels.items(), key=lambda item: -item[1])
            for label, number in often[:LABELS]:
                yield [corpus.split, corpus.name, label, f"{number:,}", f"{100 * number / counts.kept:.1f} %"]
            if len(often) > LABELS:
                rest = sum(number for _, number in often[LABELS:])
                name = f"{len(often) - LABELS} others"
                yield [corpus.split, corpus.name, name, f"{rest:,}", f"{100 * rest / counts.kept:.1f} %"]

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        corpora = [
            {
                "split": corpus.split,
                "name": corpus.name,
                "folder": str(corpus.dataset.folder),
                **asdict(corpus.dataset.about.counts),
                "warnings": corpus.dataset.about.warnings,
                **asdict(corpus.padding),
            }
            for corpus in self.corpora
        ]
        return {"kind": self.kind, "tokens": self.tokens, "sides": self.sides, "corpora": corpora}


def report(prepared: Prepared) -> Report:
    """Read the numbers of prepared data."""
    data = prepared.data
    splits: list[tuple[str, Dataset]] = [("train", corpus.dataset) for corpus in prepared.train]
    splits += [("valid", prepared.valid)] if prepared.valid is not None else []
    form = form_of(data)
    sides = form.languages if data.kind == "pairs" else list(form.texts) if len(form.texts) > 1 else ["text"]
    corpora = [CorpusReport(split, dataset, _padding(dataset, data)) for split, dataset in splits]
    return Report(corpora, data.kind, form.noun, data.batch.budget, sides)


def _padding(dataset: Dataset, data: DataOptions) -> Padding:
    tokens = data.batch.budget
    if isinstance(dataset, ParallelDataset):
        return padding(dataset.source_lengths, dataset.target_lengths, tokens)
    if isinstance(dataset, LabelDataset):
        assert data.kind == "labels"
        lengths = label_lengths(dataset, data.max_length - marks(dataset)) + marks(dataset) - 1
        return padding(lengths, lengths, tokens)
    assert isinstance(dataset, DocumentDataset)
    assert data.kind == "documents"
    if data.pack:
        blocks = count_blocks(dataset.ids, data.length)
        predicted = max(0, len(dataset.ids.flat) - 1)
        return Padding(-(-blocks // (tokens // data.length)), predicted / max(1, blocks * data.length), 0)
    lengths = dataset.pieces(data.length).lengths - 1
    return padding(lengths, lengths, tokens)


def _row(corpus: CorpusReport) -> list[str]:
    counts, padded = corpus.dataset.about.counts, corpus.padding
    reasons = [f"{reason} {count:,}" for reason, count in counts.dropped.items()]
    reasons += [f"{counts.empty:,} with an empty side stay"] if counts.empty else []
    return [
        corpus.split,
        corpus.name,
        f"{counts.read:,}",
        f"{counts.kept:,}",
        ", ".join(reasons) or "none",
        f"{padded.over_budget:,}",
        f"{padded.batches:,}",
        f"{100 * padded.efficiency:.1f} %",
    ]
