"""The table of a sweep for people and programs: terminal, Markdown, CSV."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from transformer_kit.ablation.table import SAMPLES, Row
from transformer_kit.console import csv_table, duration, markdown_table, print_table

CSV, MARKDOWN = "table.csv", "table.md"


def for_people(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Columns and cells: the axes, then parameters, what was measured (BLEU with its mark), time, status."""
    axes, measured = _axes(rows), _measured(rows)
    columns = [*axes, "parameters", *measured, "time", "status"]
    cells = []
    for row in rows:
        outcome = row.outcome
        figures = {
            "perplexity": "" if outcome.perplexity is None else f"{outcome.perplexity:.3f}",
            "BLEU": "" if outcome.bleu is None else f"{outcome.bleu:.2f}{row.mark and ' '}{row.mark}",
            "accuracy": "" if outcome.accuracy is None else f"{outcome.accuracy:.2%}",
        }
        cells.append(
            [
                *_settings(row, axes),
                "" if outcome.parameters is None else f"{outcome.parameters:,}",
                *(figures[name] for name in measured),
                "" if outcome.seconds is None else duration(outcome.seconds),
                outcome.status if outcome.error is None else f"{outcome.status}: {outcome.error}",
            ]
        )
    return columns, cells


def notes(rows: Sequence[Row]) -> list[str]:
    """What the reader of the table has to know: the scores' signature, and what the marks mean."""
    signatures = dict.fromkeys(row.outcome.signature for row in rows if row.outcome.signature)
    lines = [f"BLEU: {signature}" for signature in signatures]
    if any(row.p_value is not None for row in rows):
        lines.append(
            f"Against the first row: * p < 0.05, ** p < 0.01 (paired bootstrap, {SAMPLES:,} draws; "
            "one seed each, so this says nothing about other seeds)"
        )
    return lines


def for_programs(rows: Sequence[Row]) -> str:
    """CSV with every digit; empty where nothing is known."""
    axes = _axes(rows)
    figured = ["parameters", "perplexity", "bleu", "accuracy", "difference", "p_value", "seconds"]
    columns = [*axes, *figured, "status", "error", "run"]
    cells = []
    for row in rows:
        outcome = row.outcome
        scores = (outcome.perplexity, outcome.bleu, outcome.accuracy)
        figures = (outcome.parameters, *scores, row.difference, row.p_value, outcome.seconds)
        known = ["" if figure is None else repr(figure) for figure in figures]
        cells.append([*_settings(row, axes), *known, outcome.status, outcome.error or "", row.point.name])
    return csv_table(columns, cells)


def show(rows: Sequence[Row], stream: TextIO, title: str = "") -> None:
    """Print the table and its notes."""
    columns, cells = for_people(rows)
    print_table(columns, cells, title=title, stream=stream)
    for line in notes(rows):
        print(line, file=stream)


def write(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Write `table.csv` and `table.md` into a folder that is made if need be; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    columns, cells = for_people(rows)
    markdown = "\n\n".join([markdown_table(columns, cells), *notes(rows)]) + "\n"
    paths = [folder / CSV, folder / MARKDOWN]
    for path, text in zip(paths, (for_programs(rows), markdown), strict=True):
        temporary = path.with_suffix(f"{path.suffix}.tmp")  # a table is whole, or it is the one before
        temporary.write_text(text, encoding="utf-8", newline="\n")
        temporary.replace(path)
    return paths


def _measured(rows: Sequence[Row]) -> list[str]:
    """What is shown: perplexity and BLEU of translators; without BLEU, accuracy, and perplexity if it is known."""
    outcomes = [row.outcome for row in rows]
    if any(one.bleu is not None for one in outcomes) or all(one.accuracy is None for one in outcomes):
        return ["perplexity", "BLEU"]
    return [*(["perplexity"] if any(one.perplexity is not None for one in outcomes) else []), "accuracy"]


def _axes(rows: Sequence[Row]) -> list[str]:
    """The keys that differ between the points; the run itself where there is but one."""
    return list(dict.fromkeys(key for row in rows for key in row.point.values)) or ["run"]


def _settings(row: Row, axes: Sequence[str]) -> list[str]:
    return [row.point.values.get(axis, "") if row.point.values else row.point.name for axis in axes]
