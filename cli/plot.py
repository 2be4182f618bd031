"""`tkit plot`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from transformer_kit.cli.translate import sink
from transformer_kit.errors import ConfigError

DEFAULT_OUTPUT = Path("curves.png")


class Axis(StrEnum):
    """What x counts."""

    steps = "steps"
    tokens = "tokens"
    hours = "hours"


def plot(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Run folders, also of runs that go on.", show_default=False)
    ],
    metric: Annotated[
        list[str] | None,
        typer.Option(
            "--metric",
            help="What to draw, as metrics.jsonl calls it; may be repeated. Default: loss, perplexity, bleu or "
            "accuracy, lr, grad_norm, tokens_per_second, as far as they were logged.",
            show_default=False,
        ),
    ] = None,
    x: Annotated[Axis, typer.Option("--x", help="What x counts: updates, target tokens or hours.")] = Axis.steps,
    label: Annotated[
        list[str] | None,
        typer.Option("--label", help="A name for each run, in their order; repeated.", show_default=False),
    ] = None,
    seeds: Annotated[
        bool, typer.Option("--seeds", help="Draw runs that differ in their seed alone as their mean and range.")
    ] = False,
    norms: Annotated[
        bool, typer.Option("--norms", help="Draw what trainer.watch logged: norms by module, a row for each run.")
    ] = False,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="The picture: a name that ends in .png, .svg or .pdf.")
    ] = DEFAULT_OUTPUT,
) -> None:
    """Draw the curves of one or several runs.

    Training is a thin line, validation a thick one with dots; the legend names runs by what tells their folders apart.
    """
    from transformer_kit.tasks import plot as tasks
    from transformer_kit.tasks.figure import FORMATS, draw, draw_norms, save

    kind = output.suffix.lower().removeprefix(".")
    if kind not in FORMATS:
        raise ConfigError(f"-o {output}: a picture's name ends in {', '.join(f'.{name}' for name in FORMATS)}")
    if norms and (metric or seeds):
        raise ConfigError("--norms draws norms alone: drop --metric and --seeds")
    found = tasks.read_runs(runs, label or [])
    if norms:
        figure = draw_norms(tasks.norms(found, x.value))
    else:
        figure = draw(tasks.chart(found, x.value, metric or [], seeds=seeds))
    with sink(output) as out:
        save(figure, out, kind)
    print(output)
