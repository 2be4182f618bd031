"""`tkit ablate`: a sweep of training runs that ends in a table.

Each point is an ordinary run: its folder is named by its overrides, as `tkit train` names it, so that a point and a
single run share a folder, finished points are skipped, and an unfinished one goes on. Points are trained one after the
other, several at once by workers of this machine, or by one of Hydra's launchers; `ablation.trials` has Optuna choose
them instead of training every combination.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformer_kit.ablation.grid import Outcome, Point, points
from transformer_kit.ablation.report import write
from transformer_kit.ablation.table import Row, make_rows
from transformer_kit.config.compose import compose, parse
from transformer_kit.config.overrides import of_training
from transformer_kit.config.points import compose_points, search_axes
from transformer_kit.config.run_folder import read_result, run_name, run_path
from transformer_kit.config.schema import AblateConfig, Config
from transformer_kit.data.corpus import read_lines
from transformer_kit.data.options import PairsOptions
from transformer_kit.errors import ConfigError, Interrupted, RunError, TkitError
from transformer_kit.evaluation.bleu import Metric
from transformer_kit.logs import get_logger
from transformer_kit.tasks.children import Children
from transformer_kit.tasks.evaluate import split_text
from transformer_kit.tasks.search import Search
from transformer_kit.tasks.slurm_job import in_job, last_line, run_in_job
from transformer_kit.tasks.train import HYPOTHESES, has_ended
from transformer_kit.tasks.workers import Job, Pool, gpus_here, shares, train_command
from transformer_kit.training.threads import Cores

log = get_logger(__name__)

Launch = Callable[[Callable[[list[str]], object], Path, Sequence[int]], None]
"""Calls a function with the overrides of each of the points given by number; the folder is the launcher's own."""
LAUNCHER, SWEEPER, TRIALS = "hydra/launcher", "hydra/sweeper", "ablation.trials"
PLUGINS = {
    "slurm": ("hydra_submitit_launcher", "slurm"),
    "submitit_slurm": ("hydra_submitit_launcher", "slurm"),
    "joblib": ("hydra_joblib_launcher", "joblib"),
}
"""Launchers that come with another package: its plugin's name, and the extra that installs it."""
LOST = "UncompletedJobError"  # submitit's, of a job that was cancelled or whose node died


@dataclass(frozen=True)
class Ablation:
    """A finished sweep.

    Attributes:
        rows: one a point.
        files: the tables written.
    """

    rows: list[Row]
    files: list[Path]

    @property
    def failed(self) -> int:
        """How many points have no result."""
        return sum(row.outcome.status != "done" for row in self.rows)


def ablate(overrides: Sequence[str], config_dirs: Sequence[Path], launch: Launch) -> Ablation:
    """Train every point of a sweep that is not trained yet, and compare all.

    Args:
        overrides: `a=1,2 b=x,y`; several values make an axis.
        config_dirs: the user's folders.
        launch: runs points, one process each, where no workers are asked for.

    Raises:
        ConfigError: with one line per problem of any point, before the first one starts.
        Interrupted: the user stopped the sweep; the same command goes on.
    """
    launcher, trials = _launcher(overrides)
    if trials:
        if launcher is not None:
            raise ConfigError(f"{LAUNCHER}={launcher}: trials are chosen by what others gave; they run on this machine")
        return _search(overrides, config_dirs)
    configs = compose_points(overrides, config_dirs)
    todo = points(overrides)
    if len(todo) == 1:
        raise ConfigError("nothing to compare: give several values to an override, as in model/residual=pre,post")
    first = configs[0]
    assert isinstance(first, AblateConfig)
    folder = Path(first.ablation.root) / (first.ablation.name or run_name([*_axes_named(overrides)]))
    workers = first.ablation.workers
    if workers > 1 and launcher is not None:
        raise ConfigError(f"ablation.workers={workers}: {LAUNCHER}={launcher} runs the points; set one of the two")
    left = [point.order for point, config in zip(todo, configs, strict=True) if _finished(config) is None]
    log.info("%d points, %d of them already complete", len(todo), len(todo) - len(left))
    if left and workers > 1:
        with _pool(configs, config_dirs, folder) as pool:
            pool.run([_job(todo[order]) for order in left])
    elif left:
        _launch(launch, functools.partial(run_point, [str(path) for path in config_dirs]), folder, left, launcher)
    return _tables(todo, configs, folder)


def run_point(config_dirs: Sequence[str], overrides: Sequence[str]) -> None:
    """Train one point in a process of its own; a point that has ended is left alone.

    Raises:
        RunError: it failed; its run folder says why.
        KeyboardInterrupt: it was stopped, and so is the sweep.
        SystemExit: in a job of Slurm's, it was stopped.
    """
    command = train_command(config_dirs, overrides)
    log.info("point: %s", " ".join(overrides))
    if in_job():
        return run_in_job(command)
    with Children() as children:
        code = children.run(command)
        if children.asked is not None or code == Interrupted.exit_code:
            raise KeyboardInterrupt
    if code:
        raise RunError(f"training ended with exit code {code}")
    return None


def _launch(
    launch: Launch, point: Callable[[list[str]], object], folder: Path, left: Sequence[int], launcher: str | None
) -> None:
    """Run points by Hydra.

    Raises:
        RunError: the launcher could not start them. A job that got lost does not keep the table away.
    """
    if launcher is not None:
        os.environ.setdefault("SUBMITIT_LOG_LEVEL", "ERROR")  # it writes to stdout
        log.info("%d points by %s=%s; they print into %s", len(left), LAUNCHER, launcher, folder)
    try:
        launch(point, folder, left)
    except TkitError:
        raise
    except Exception as error:
        if launcher is None:
            raise
        if type(error).__name__ != LOST:
            raise RunError(f"{LAUNCHER}={launcher}: {last_line(error)}") from None
        log.error("%s=%s: a job ended without an answer", LAUNCHER, launcher)
        log.error("points that still run go on; give the same command when they have ended")


def _launcher(overrides: Sequence[str]) -> tuple[str | None, bool]:
    """Which launcher is asked for, and whether the sweep is a search.

    Raises:
        ConfigError: its package is not installed; or another sweeper is asked for.
    """
    chosen = {line.key: line.value for line in parse(overrides, [], sweep=True)}
    launcher = chosen.get(LAUNCHER)
    if chosen.get(SWEEPER) not in (None, "basic"):
        raise ConfigError(f"{SWEEPER}={chosen[SWEEPER]}: a search is asked for by {TRIALS}=N")
    plugin, extra = PLUGINS.get(str(launcher), (None, None))
    if plugin is not None and not _has_plugin(plugin):
        raise ConfigError(
            f"{LAUNCHER}={launcher} needs {plugin.replace('_', '-')}: pip install 'transformer-kit[{extra}]'"
        )
    return None if launcher in (None, "basic") else str(launcher), chosen.get(TRIALS) is not None


def _has_plugin(name: str) -> bool:
    try:
        return importlib.util.find_spec(f"hydra_plugins.{name}") is not None
    except ModuleNotFoundError:
        return False


def _job(point: Point) -> Job:
    return Job(point.label, point.name, tuple(of_training(point.overrides)))


def _pool(configs: Sequence[Config], config_dirs: Sequence[Path], folder: Path) -> Pool:
    """The workers of a sweep whose first point is the first configuration."""
    first = configs[0]
    assert isinstance(first, AblateConfig)
    gpus = [] if first.trainer.device in ("cpu", "mps") else gpus_here()
    asked = os.environ.get("OMP_NUM_THREADS", "")
    cores = int(asked) if asked.isdecimal() else Cores.here().allowed
    root = Path(first.run.root)
    return Pool(
        shares(first.ablation.workers, cores, gpus),
        [str(path) for path in config_dirs],
        folder,
        lambda job: read_result(root / job.name),
        first.trainer.best_metric,
    )


def _search(overrides: Sequence[str], config_dirs: Sequence[Path]) -> Ablation:
    """Trials that Optuna chooses, one after the other or by workers."""
    fixed, axes = search_axes(overrides)
    if not axes:
        raise ConfigError(f"nothing to search: give an axis, as in 'schedule.lr=interval(1e-4,1e-2)', beside {TRIALS}")
    first = compose("ablate", [*fixed, *(f"{axis.key}={axis.example}" for axis in axes)], config_dirs)
    assert isinstance(first, AblateConfig)
    assert first.ablation.trials is not None
    folder = Path(first.ablation.root) / (first.ablation.name or run_name([*_axes_named(overrides)]))
    search = Search(axes, fixed, first, folder)
    with _pool([first], config_dirs, folder) as pool:
        search.run(pool, first.ablation.trials)
    todo = search.points()
    configs = [compose("ablate", point.overrides, config_dirs, check=False) for point in todo]
    return _tables(todo, configs, folder)


def _tables(todo: Sequence[Point], configs: Sequence[Config], folder: Path) -> Ablation:
    first = configs[0]
    if not isinstance(first.data, PairsOptions):
        rows = make_rows(todo, [_outcome(config, [], None) for config in configs], [], None)
        return Ablation(rows, write(rows, folder))
    references = _references(first)
    name = first.trainer.validation.bleu
    metric = Metric(name or "bleu", lowercase=False, language=first.data.target_language)
    metric.score(references, [references])  # its signature counts references, so it must have scored once
    signature = None if name is None else metric.signature()
    outcomes = [_outcome(config, references, signature) for config in configs]
    rows = make_rows(todo, outcomes, [references], metric)
    return Ablation(rows, write(rows, folder))


def _finished(config: Config) -> dict[str, Any] | None:
    result = read_result(run_path(config))
    return result if result is not None and has_ended(result, config) else None


def _outcome(config: Config, references: Sequence[str], signature: str | None) -> Outcome:
    folder = run_path(config)
    result = read_result(folder)
    if result is None or result.get("status") != "complete":
        why = "it left no result" if result is None else str(result.get("error", result.get("status")))
        return Outcome("failed", error=" ".join(why.split()))
    hypotheses = None
    if references and (folder / HYPOTHESES).is_file() and _references(config) == list(references):
        hypotheses = tuple(read_lines(folder / HYPOTHESES))
    scores = result["scores"]
    return Outcome(
        "done",
        parameters=result["parameters"],
        perplexity=scores.get("perplexity"),
        bleu=scores.get("bleu"),
        seconds=result["seconds"],
        signature=signature if "bleu" in scores else None,
        hypotheses=hypotheses,
        accuracy=scores.get("accuracy"),
    )


def _references(config: Config) -> list[str]:
    return [line for corpus in split_text(config, "valid") for line in corpus.references]


def _axes_named(overrides: Sequence[str]) -> list[str]:
    return [text for text in overrides if not text.lstrip("+").startswith(("ablation.", "hydra"))]
