"""What preparing found, as tables and as plain data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from transformer_kit.data.buckets import Padding, padding
from transformer_kit.data.dataset import ParallelDataset
from transformer_kit.data.prepare import Prepared

Table = tuple[str, list[str], list[list[str]]]  # title, columns, rows


@dataclass(frozen=True)
class CorpusReport:
    """One prepared corpus: its split, its numbers (see `Counts`), its flaws, and how it fills batches."""

    split: str
    dataset: ParallelDataset
    padding: Padding

    @property
    def name(self) -> str:
        return ", ".join(self.dataset.about.names)


@dataclass(frozen=True)
class Report:
    """All prepared corpora.

    Attributes:
        tokens: the token budget of the batches.
    """

    corpora: list[CorpusReport]
    tokens: int
    languages: tuple[str, str]

    def tables(self) -> list[Table]:
        """Text, and pairs: each as title, columns and rows."""
        text_columns = ["split", "corpus", "side", "lines", "words", "tokens", "tokens/word", "unknown"]
        pair_columns = ["split", "corpus", "read", "kept", "filtered", "over budget", "batches", "padding efficiency"]
        return [
            ("Text", text_columns, [row for corpus in self.corpora for row in self._text_rows(corpus)]),
            (f"Pairs, batches of {self.tokens:,} tokens", pair_columns, [_pair_row(corpus) for corpus in self.corpora]),
        ]

    def _text_rows(self, corpus: CorpusReport) -> Iterator[list[str]]:
        counts = corpus.dataset.about.counts
        for language, side in zip(self.languages, (counts.source, counts.target), strict=True):
            ratio = f"{side.tokens / side.words:.3f}" if side.words else "-"
            unknown = f"{100 * side.unknown / side.tokens:.3f} %" if side.tokens else "-"
            numbers = [f"{number:,}" for number in (counts.kept, side.words, side.tokens)]
            yield [corpus.split, corpus.name, language, *numbers, ratio, unknown]

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
        return {"tokens": self.tokens, "languages": list(self.languages), "corpora": corpora}


def report(prepared: Prepared) -> Report:
    """Read the numbers of prepared data."""
    data = prepared.data
    splits = [("train", corpus.dataset) for corpus in prepared.train]
    splits += [("valid", prepared.valid)] if prepared.valid is not None else []
    corpora = [
        CorpusReport(split, dataset, padding(dataset.source_lengths, dataset.target_lengths, data.batch.tokens))
        for split, dataset in splits
    ]
    return Report(corpora, data.batch.tokens, (data.source_language, data.target_language))


def _pair_row(corpus: CorpusReport) -> list[str]:
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
