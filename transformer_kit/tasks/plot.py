"""`tkit plot`: what runs have logged, as curves that a picture can be made of (`tasks/figure.py`)."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from transformer_kit.config.run_folder import is_free, read_result
from transformer_kit.config.saved import FILE, load_plain
from transformer_kit.config.schema import flatten
from transformer_kit.config.spelling import nearest
from transformer_kit.errors import ConfigError, RunError
from transformer_kit.logs import get_logger
from transformer_kit.training.tracker import METRICS_FILE, read_rows

log = get_logger(__name__)

Axis = Literal["steps", "tokens", "hours"]
Row = Mapping[str, Any]

CURVES = ("loss", "perplexity", "bleu", "accuracy", "lr", "grad_norm", "tokens_per_second")
"""What is drawn where nothing is asked for, as far as it was logged; accuracy only where there is no BLEU."""
PLACES = ("kind", "step", "tokens", "elapsed")  # of a row: they say where it stands
MOST_POINTS = 400  # of a curve; neighbours of a longer one are averaged
KINDS = ("train", "validation")
NORMS = "norms"


@dataclass(frozen=True)
class Run:
    """What a run folder tells of a training.

    Attributes:
        name: how the picture calls it.
        status: complete, failed or unfinished.
        rows: as logged, in order.
        settings: what its result depends on but the seed, to find runs that are seeds of one setting.
    """

    name: str
    status: str
    rows: Sequence[Row]
    settings: str

    @property
    def label(self) -> str:
        return self.name if self.status == "complete" else f"{self.name} ({self.status})"


@dataclass(frozen=True)
class Curve:
    """One line.

    Attributes:
        run: the number of the run, or of the group of seeds, that it belongs to.
        kind: train or validation.
        x, y: equally long.
        low, high: the range of several seeds, of which `y` is the mean; empty for one run.
    """

    run: int
    kind: str
    x: list[float]
    y: list[float]
    low: list[float]
    high: list[float]


@dataclass(frozen=True)
class Panel:
    """The curves of one metric."""

    metric: str
    curves: list[Curve]


@dataclass(frozen=True)
class Chart:
    """Everything that is drawn: one panel for each metric.

    Attributes:
        axis: what x counts.
        labels: of the runs or groups, by their numbers.
        title: above all panels.
    """

    axis: Axis
    labels: list[str]
    panels: list[Panel]
    title: str = ""


def read_runs(folders: Sequence[Path], labels: Sequence[str] = ()) -> list[Run]:
    """The runs that have logged something; a warning names the others.

    Args:
        labels: names for the runs, in their order; by default what tells their folders apart.

    Raises:
        ConfigError: not one label for each run.
        RunError: a folder is no run, or none of them has logged anything.
    """
    if labels and len(labels) != len(folders):
        raise ConfigError(f"--label: give one for each run, {len(folders)} and not {len(labels)}")
    found, silent = [], []
    for folder, name in zip(folders, labels or names_of(folders), strict=True):
        settings = _settings(folder)
        try:
            rows = read_rows(folder / METRICS_FILE)
        except OSError:
            rows = []
        if rows:
            status = (read_result(folder) or {}).get("status", "unfinished")
            found.append(Run(name, status, rows, settings))
        else:
            silent.append(f"{folder} has logged nothing yet: its {METRICS_FILE} is missing or holds no row")
    if not found:
        raise RunError("\n".join(silent))
    for line in silent:
        log.warning(line)
    return found


def chart(runs: Sequence[Run], axis: Axis, metrics: Sequence[str] = (), *, seeds: bool = False) -> Chart:
    """The curves of some runs.

    Args:
        axis: steps, target tokens, or hours of training.
        metrics: what to draw; by default `CURVES`.
        seeds: draw runs that differ in nothing but their seed as one: their mean, and their range as a band.

    Raises:
        ConfigError: no run has logged a metric that is asked for.
    """
    known = list(dict.fromkeys(key for run in runs for row in run.rows for key in _metrics(row)))
    if unknown := [name for name in metrics if name not in known]:
        listed = ", ".join(sorted(known))
        raise ConfigError([f"--metric {name}: logged are {listed}{nearest(name, known)}" for name in unknown])
    default = [name for name in CURVES if name in known and (name != "accuracy" or "bleu" not in known)]
    groups = _groups(runs) if seeds else [[run] for run in runs]
    panels = []
    for metric in dict.fromkeys(metrics or default):
        curves = []
        for number, group in enumerate(groups):
            for kind in KINDS:
                lines = [_line(run.rows, kind, metric, axis) for run in group]
                if all(lines):
                    curves.append(_curve(number, kind, lines))
        panels.append(Panel(metric, curves))
    labels = [_group_label(group) for group in groups]
    return Chart(axis, labels, panels, labels[0] if len(labels) == 1 else "")


def norms(runs: Sequence[Run], axis: Axis) -> list[Chart]:
    """What `trainer.watch` logged: for each run a panel for each quantity, in which the modules stand as runs do.

    Raises:
        RunError: a run has watched nothing.
    """
    charts = []
    for run in runs:
        watched = [row for row in run.rows if row["kind"] == NORMS]
        if not watched:
            raise RunError(f"{run.name} has logged no norms: train with trainer.watch=N, every N updates")
        names = list(dict.fromkeys(key for row in watched for key in row if "/" in key))
        modules = list(dict.fromkeys(name.partition("/")[2] for name in names))
        modules.sort(key=_depth)
        panels = []
        for quantity in dict.fromkeys(name.partition("/")[0] for name in names):
            lines = [_line(run.rows, NORMS, f"{quantity}/{module}", axis) for module in modules]
            curves = [_curve(number, NORMS, [line]) for number, line in enumerate(lines) if line]
            panels.append(Panel(quantity, curves))
        charts.append(Chart(axis, modules, panels, run.label))
    return charts


def names_of(folders: Sequence[Path]) -> list[str]:
    """Short names that tell run folders apart.

    Of names as `tkit train` makes them, `demo+model.residual=pre`, the parts that not all have; of equal names as much
    of the path as differs.
    """
    paths = [Path(os.path.abspath(folder)) for folder in folders]
    parts = [path.name.split("+") for path in paths]
    shared = set.intersection(*map(set, parts)) if len(paths) > 1 else set()
    names = ["+".join(part for part in own if part not in shared) or own[0] for own in parts]
    if len(set(names)) == len(names):
        return names
    common = os.path.commonpath([str(path.parent) for path in paths])
    return [os.path.relpath(path, common) for path in paths]


def positions(rows: Sequence[Row], axis: Axis) -> list[float]:
    """Where each row stands on the x axis.

    Tokens stand in the rows of the training and lie evenly between them. Hours are those of all sessions; rows of runs
    that did not log them are placed by their speed, and by the time that validations took.
    """
    if axis == "steps":
        return [float(row["step"]) for row in rows]
    steps, places = [0.0], [0.0]
    tokens = seconds = 0.0
    for row in rows:
        made = (row.get("tokens") or tokens) - tokens
        tokens += made
        rate = row.get("tokens_per_second") or 0.0
        seconds += (made / rate if rate else 0.0) + (
            float(row.get("seconds") or 0) if row["kind"] == "validation" else 0
        )
        seconds = float(row.get("elapsed") or seconds)
        if row["kind"] == "train" or (axis == "hours" and row["kind"] == "validation"):
            steps.append(float(row["step"]))
            places.append(tokens if axis == "tokens" else seconds / 3600)
    return [float(np.interp(row["step"], steps, places)) for row in rows]


def _settings(folder: Path) -> str:
    """What the result depends on but the seed, as text to compare.

    Raises:
        RunError: no run there.
    """
    if not (folder / FILE).is_file() and not (folder / METRICS_FILE).is_file():
        raise RunError(f"{folder} is not a run folder: it holds neither {FILE} nor {METRICS_FILE}")
    if not (folder / FILE).is_file():
        return str(folder)
    plain = dict(flatten(load_plain(folder)))
    return json.dumps(
        {key: value for key, value in plain.items() if key != "seed" and not is_free(key)}, sort_keys=True
    )


def _metrics(row: Row) -> Iterator[str]:
    """The keys of a row that hold something to draw."""
    if row["kind"] in KINDS:
        for key, value in row.items():
            if key not in PLACES and (value is None or isinstance(value, int | float)):
                yield key


def _groups(runs: Sequence[Run]) -> list[list[Run]]:
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(run.settings, []).append(run)
    return list(found.values())


def _group_label(group: Sequence[Run]) -> str:
    if len({run.name for run in group}) == 1:  # one run, or the same label for each
        return group[0].label
    return f"{group[0].name} and {len(group) - 1} more"


def _depth(module: str) -> tuple[int, str, int, int]:
    """A key that puts modules in the order in which data pass them: embeddings, stacks by their layers, the rest."""
    stack, _, number = module.partition(".blocks.")
    if number:
        return 1, stack, 1, int(number)
    owner, _, part = module.rpartition(".")
    if "embedding" in part:
        return 0, module, 0, 0
    return (1, owner, 2 if part == "final_norm" else 0, 0) if owner else (2, module, 0, 0)


Line = dict[int, tuple[float, float]]  # step -> place, value


def _line(rows: Sequence[Row], kind: str, metric: str, axis: Axis) -> Line:
    """One metric of one kind of rows; what is not a number is left out."""
    found: Line = {}
    for row, place in zip(rows, positions(rows, axis), strict=True):
        value = row.get(metric)
        if row["kind"] == kind and isinstance(value, int | float) and math.isfinite(value):
            found[row["step"]] = (place, float(value))
    return found


def _curve(number: int, kind: str, lines: Sequence[Line]) -> Curve:
    """The mean of several lines where all have a value, and their range; one line as it is."""
    steps = sorted(set.intersection(*(set(line) for line in lines)))
    data = np.array([[line[step] for step in steps] for line in lines]).reshape(len(lines), len(steps), 2)
    x, y = data.mean(0).T
    low, high = (data[:, :, 1].min(0), data[:, :, 1].max(0)) if len(lines) > 1 else (x[:0], x[:0])
    return Curve(number, kind, *(_thinned(values) for values in (x, y, low, high)))


def _thinned(values: Any) -> list[float]:
    """Means of neighbours where there are more values than a picture can show."""
    size = math.ceil(len(values) / MOST_POINTS) if len(values) else 1
    return [float(values[start : start + size].mean()) for start in range(0, len(values), size)]
