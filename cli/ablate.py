"""`tkit ablate`."""

from __future__ import annotations

import functools
import sys

import typer

from transformer_kit.cli import hydra_bridge
from transformer_kit.cli.hydra_bridge import Cfg, ConfigDirs, Overrides, Resolve


def ablate(
    overrides: Overrides = None,
    config_dir: ConfigDirs = None,
    cfg: Cfg = None,
    resolve: Resolve = False,
) -> None:
    """Train every combination of options and compare them in one table.

    Several values make an axis: `model/residual=pre,post model/position=sinusoidal,rope`. A point that is trained
    already is skipped; one that fails is shown in the table, and the others go on. --cfg prints the first point.
    ablation.workers=2 trains two at once, hydra/launcher=slurm all as one array job, ablation.trials=20 those that
    Optuna chooses.
    """
    given, folders = overrides or [], config_dir or []
    if cfg is not None:
        from transformer_kit.config.points import search_axes

        fixed, axes = search_axes(given)
        first = [*fixed, *(f"{axis.key}={axis.example}" for axis in axes)]
        hydra_bridge.show("ablate", first, folders, resolve=resolve)
        return
    from transformer_kit.ablation.report import show
    from transformer_kit.tasks.ablate import ablate as task

    done = task(given, folders, functools.partial(hydra_bridge.sweep, given, folders))
    show(done.rows, sys.stdout)
    print(f"tables: {', '.join(map(str, done.files))}", file=sys.stderr)
    if done.failed:
        raise typer.Exit(1)
