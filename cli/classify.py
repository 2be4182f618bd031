"""`tkit classify`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from transformer_kit.cli.translate import Checkpoint, RunOption, UseOverrides, sink, source_lines
from transformer_kit.errors import ConfigError


def classify(
    model: RunOption,
    overrides: UseOverrides = None,
    source: Annotated[
        Path | None,
        typer.Option("-i", "--input", help="Text to classify, plain or gzip; stdin by default.", show_default=False),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Where labels go; stdout by default.", show_default=False)
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every label with its probability, best first.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a line: label, probability, probabilities.")
    ] = False,
    checkpoint: Checkpoint = None,
) -> None:
    """Tell the label of each line: one line in, one line out: label TAB probability.

    Where the run was trained on pairs of texts, a line is first TAB second. A line without content gives an empty line.
    """
    if every and as_json:
        raise ConfigError("give either --all or --json, which holds every label's probability")
    from transformer_kit.tasks import classify as tasks

    with source_lines(source) as lines, sink(output) as out:
        classifier = tasks.make_classifier(model, overrides or [], checkpoint)
        tasks.classify_pipe(lines, out, classifier, "json" if as_json else "all" if every else "best")
