"""`tkit train`."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from transformer_kit.cli import hydra_bridge
from transformer_kit.cli.hydra_bridge import Cfg, ConfigDirs, Overrides, Resolve

if TYPE_CHECKING:
    from transformer_kit.config.schema import Config
    from transformer_kit.tasks.submit import Submitted
    from transformer_kit.tasks.train import Trained


def train(
    overrides: Overrides = None,
    config_dir: ConfigDirs = None,
    cfg: Cfg = None,
    resolve: Resolve = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Build it on ranks that are not there (trainer.devices=256); print what each holds."
        ),
    ] = False,
) -> None:
    """Train a model, or go on with the run that the same command started.

    The run's folder is named by the recipe and the overrides that change the result. Data are prepared first if they
    are not yet. Ctrl-C saves the state; the same command goes on from there. With +cluster=slurm a job trains it.
    """
    given, folders = overrides or [], config_dir or []
    if cfg is not None:
        hydra_bridge.show("train", given, folders, resolve=resolve)
        return
    if dry_run:
        from transformer_kit.cli.dry_run_report import show as show_plan
        from transformer_kit.config.compose import compose
        from transformer_kit.tasks.dry_run import dry_run as plan

        show_plan(plan(compose("train", given, folders, check=False)))  # it reads no data, so no variable need be set
        return
    trained = hydra_bridge.run("train", given, folders, functools.partial(_task, given, folders))
    if trained is None:  # another rank than 0
        return
    from transformer_kit.cli.train_report import show, show_job
    from transformer_kit.tasks.train import Trained

    if isinstance(trained, Trained):
        show(trained)
    else:
        show_job(trained)


def _task(overrides: Sequence[str], config_dirs: Sequence[Path], config: Config) -> Trained | Submitted | None:
    if config.cluster is not None:
        from transformer_kit.tasks.submit import submit

        return submit(config, overrides, config_dirs)
    from transformer_kit.console import progress
    from transformer_kit.tasks.ranks import train_on_ranks

    return train_on_ranks(config, progress())
