"""Hydra inside a Typer command: the options that commands share, and the three ways to use a configuration.

    show(...)    prints it                                        (--cfg job)
    run(...)     one run: composed and checked, then the task
    sweep(...)   several: Hydra's sweeper and launcher, one call for each point

The configuration is composed first, where every error is found and told at once; Hydra's own main function, which
would stop at the first one, is entered only then. It owns no folder and no log.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from transformer_kit.logs import get_logger

if TYPE_CHECKING:
    from transformer_kit.config.schema import Config

T = TypeVar("T")
log = get_logger(__name__)

CONFIG_PATH = "pkg://transformer_kit.conf"
NUMBER = "ablation.point"  # the key by which Hydra is told which points to run


class Shown(StrEnum):
    """What `--cfg` can print."""

    job = "job"


Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="OVERRIDE",
        help="GROUP=NAME, KEY=VALUE or +recipe=NAME; for example model/position=rope trainer.steps=2000.",
        show_default=False,
    ),
]
ConfigDirs = Annotated[
    list[Path] | None,
    typer.Option(
        "--config-dir",
        help="A folder with your own groups, recipes/ and variants/; may be repeated. Also: TKIT_CONFIG_PATH.",
        show_default=False,
    ),
]
Cfg = Annotated[Shown | None, typer.Option("--cfg", help="Print the configuration and exit.", show_default=False)]
Resolve = Annotated[bool, typer.Option("--resolve", help="With --cfg: put environment values in.")]


def show(entry: str, overrides: Sequence[str], config_dirs: Sequence[Path], *, resolve: bool = False) -> None:
    """Print the complete configuration as YAML, as a run folder would hold it.

    Raises:
        ConfigError: with one line per problem; with `resolve`, environment variables that are not set are problems.
    """
    from transformer_kit.config.compose import compose
    from transformer_kit.config.plain import with_env
    from transformer_kit.config.saved import dump
    from transformer_kit.errors import ConfigError

    config = compose(entry, overrides, config_dirs, check=False)
    problems: list[str] = []
    data = with_env(config.plain(), problems) if resolve else config.plain()
    if problems:
        raise ConfigError(problems)
    print(dump(data), end="")


def run(entry: str, overrides: Sequence[str], config_dirs: Sequence[Path], task: Callable[[Config], T]) -> T:
    """Compose, check, and call `task` with the configuration, inside Hydra.

    Raises:
        ConfigError: with one line per problem, before the task is called.
        Exception: whatever the task raises.
    """
    from transformer_kit.config.compose import compose, hydra_arguments

    config = compose(entry, overrides, config_dirs)
    outcome: list[T] = []
    failure: list[Exception] = []

    def job(_: object) -> None:
        try:
            outcome.append(task(config))
        except Exception as error:  # raised again below: Hydra would print it and leave
            failure.append(error)

    _enter(entry, job, [*hydra_arguments(overrides, config_dirs), "hydra.mode=RUN"])
    if failure:
        raise failure[0]
    return outcome[0]


def sweep(
    overrides: Sequence[str],
    config_dirs: Sequence[Path],
    point: Callable[[list[str]], object],
    folder: Path,
    chosen: Sequence[int] | None = None,
) -> None:
    """Call `point` with the overrides of each point of a sweep, through Hydra's sweeper and launcher.

    Hydra is given numbers, one axis: so any points of a grid, those that are left, can be launched together.

    Args:
        overrides: with several values where an axis is meant.
        config_dirs: the user's folders.
        point: trains one point in a process of its own and leaves its result in the point's run folder. A function of
            a module (or a `functools.partial` of one), as launchers for clusters send it to other machines. What it
            raises is logged, and the sweep goes on.
        folder: what a sweeper or launcher writes goes here.
        chosen: the numbers of the points, in the order of `expand`; None for all.

    Raises:
        ConfigError: with one line per problem of any point, before the first one starts.
    """
    from transformer_kit.config.compose import hydra_arguments
    from transformer_kit.config.overrides import of_training, quoted
    from transformer_kit.config.points import compose_points, expand

    compose_points(overrides, config_dirs)
    points = [of_training(each) for each in expand(overrides)]
    numbers = range(len(points)) if chosen is None else chosen
    arguments = hydra_arguments([text for text in overrides if text.startswith("hydra")], config_dirs)
    arguments += [quoted(f"hydra.sweep.dir={folder}"), f"+{NUMBER}={','.join(map(str, numbers))}"]
    _enter("ablate", functools.partial(_sweep_job, point, points), [*arguments, "hydra.mode=MULTIRUN"])


def _sweep_job(point: Callable[[list[str]], object], points: Sequence[list[str]], composed: Any) -> None:
    overrides = points[composed.ablation.point]
    try:
        point(overrides)
    except Exception as error:
        log.error("%s failed: %s: %s", " ".join(overrides), type(error).__name__, error)


def _enter(entry: str, job: Callable[[Any], None], arguments: Sequence[str]) -> None:
    """Hydra's main function under a lent command line."""
    import hydra

    with _lent(arguments):
        hydra.main(config_path=CONFIG_PATH, config_name=entry, version_base="1.3")(job)()


@contextmanager
def _lent(arguments: Sequence[str]) -> Iterator[None]:
    """`sys.argv` for Hydra, and its errors raised instead of printed; both put back."""
    argv, full_error = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv = ["tkit", *arguments]
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield
    finally:
        sys.argv = argv
        if full_error is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = full_error
