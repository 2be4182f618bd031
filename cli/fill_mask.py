"""`tkit fill-mask`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from transformer_kit.cli.translate import Checkpoint, RunOption, UseOverrides, sink, source_lines


def fill_mask(
    model: RunOption,
    overrides: UseOverrides = None,
    source: Annotated[
        Path | None,
        typer.Option("-i", "--input", help="Lines with masks, plain or gzip; stdin by default.", show_default=False),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Where fills go; stdout by default.", show_default=False)
    ] = None,
    top: Annotated[int, typer.Option("-k", "--top", help="Fills of each line.")] = 5,
    mask: Annotated[str, typer.Option("--mask-token", help="How a mask is written in the lines.")] = "<mask>",
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON list a line, of text, probability and line.")
    ] = False,
    checkpoint: Checkpoint = None,
) -> None:
    """Fill the masks of each line: text TAB probability TAB filled line, best first.

    With --top 1 each line gives one line; with more, each gives several, behind number TAB. Several masks of a line are
    filled independently of each other: its fills are the best combinations.
    """
    from transformer_kit.tasks import fill_mask as tasks

    with source_lines(source) as lines, sink(output) as out:
        filler = tasks.make_filler(model, overrides or [], checkpoint, fills=top, mask=mask)
        tasks.fill_pipe(lines, out, filler, as_json=as_json)
