"""`tkit embed`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from transformer_kit.cli.translate import Checkpoint, RunOption, UseOverrides, sink, source_lines


class Pooling(StrEnum):
    """What becomes the vector of a line."""

    mean = "mean"
    first = "first"
    last = "last"


def embed(
    model: RunOption,
    overrides: UseOverrides = None,
    source: Annotated[
        Path | None,
        typer.Option("-i", "--input", help="Lines, plain or gzip; stdin by default.", show_default=False),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help="NAME.npy: one array (lines, width), float32; otherwise as stdout.",
            show_default=False,
        ),
    ] = None,
    pooling: Annotated[
        Pooling,
        typer.Option("--pooling", help="The mean of the states of all tokens, BOS and EOS too, or one token's state."),
    ] = Pooling.mean,
    normalize: Annotated[bool, typer.Option("--normalize", help="Make the vectors of length 1.")] = False,
    checkpoint: Checkpoint = None,
) -> None:
    """Turn each line into a vector: N lines give N rows, as JSON lists or as a NumPy array."""
    from transformer_kit.tasks import embed as tasks

    with source_lines(source) as lines, sink(output) as out:
        embedder = tasks.make_embedder(model, overrides or [], checkpoint, pooling=pooling.value, normalize=normalize)
        if output is not None and output.suffix == ".npy":
            tasks.embed_array(lines, out, embedder)
        else:
            tasks.embed_pipe(lines, out, embedder)
