"""The points of a sweep, and what a search may choose, from the same overrides."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformer_kit.config.compose import compose, parse, parse_one
from transformer_kit.config.overrides import Axis
from transformer_kit.config.schema import Config
from transformer_kit.errors import ConfigError


def expand(overrides: Sequence[str]) -> list[list[str]]:
    """The points of a sweep, each a list of overrides, in the order of Hydra's basic sweeper.

    `a=1,2 b=x,y` makes four points, the last axis fastest; `range(…)`, `choice(…)` and `+variant=a,b` are axes as well.

    Raises:
        ConfigError: what cannot be parsed.
    """
    problems: list[str] = []
    axes: dict[str, list[str]] = {}
    parse(overrides, problems, sweep=True)
    if problems:
        raise ConfigError(problems)
    for text in overrides:
        item = parse_one(text)
        key = item.get_key_element()
        if not item.is_sweep_override():
            axes[key] = [str(item.input_line)]
        elif item.is_discrete_sweep():
            axes[key] = [f"{key}={value}" for value in item.sweep_string_iterator()]
        else:
            problems.append(
                f"{text}: an interval has no end of points; use range(start,stop,step), or give ablation.trials"
            )
    if problems:
        raise ConfigError(problems)
    return [list(point) for point in itertools.product(*axes.values())]


def search_axes(overrides: Sequence[str]) -> tuple[list[str], list[Axis]]:
    """What is fixed in a search, and what it may choose: `a=1,2`, `range(…)`, `interval(…)`, `int(interval(…))`.

    `tag(log, interval(1e-5,1e-2))` is drawn evenly in its logarithm.

    Raises:
        ConfigError: what cannot be parsed, an interval without width, or a logarithm of what is not above 0.
    """
    problems: list[str] = []
    parse(overrides, problems, sweep=True)
    if problems:
        raise ConfigError(problems)
    fixed: list[str] = []
    axes: list[Axis] = []
    for text in overrides:
        item = parse_one(text)
        key = item.get_key_element()
        swept: Any = item.value()
        if not item.is_sweep_override():
            fixed.append(str(item.input_line))
        elif item.is_discrete_sweep():
            axes.append(Axis(key, tuple(str(value) for value in item.sweep_string_iterator())))
        else:
            whole, log = isinstance(swept.start, int), "log" in swept.tags
            axis = Axis(key, low=float(swept.start), high=float(swept.end), log=log, whole=whole)
            if not axis.low < axis.high or (log and axis.low <= 0):
                problems.append(f"{text}: the first end must be below the second{', and above 0' if log else ''}")
            axes.append(axis)
    if problems:
        raise ConfigError(problems)
    return fixed, axes


def compose_points(overrides: Sequence[str], config_dirs: Sequence[str | Path] = ()) -> list[Config]:
    """The training configuration of every point of a sweep, in the order of `expand`.

    Raises:
        ConfigError: with one line per problem of any point; what several points share is told once.
    """
    points = expand(overrides)
    configs: list[Config] = []
    found: dict[str, list[str]] = {}  # problem -> the points that have it
    for point in points:
        try:
            configs.append(compose("ablate", point, config_dirs))
        except ConfigError as error:
            for line in error.problems:
                found.setdefault(line, []).append(" ".join(point))
    if found:
        raise ConfigError([line if len(at) == len(points) else f"{line} [in {at[0]}]" for line, at in found.items()])
    return configs
