"""`tkit ablate`: a sweep of training runs that ends in a table.

Each point is an ordinary run: its folder is named by its overrides, as `tkit train` names it, so that a point and a
single run share a folder, finished points are skipped, and an unfinished one goes on.
"""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformer_kit.ablation.grid import Outcome, Point, points
from transformer_kit.ablation.report import write
from transformer_kit.ablation.table import Row, make_rows
from transformer_kit.config.compose import compose_points
from transformer_kit.config.run_folder import read_result, run_name, run_path
from transformer_kit.config.schema import AblateConfig, Config
from transformer_kit.data.corpus import read_lines
from transformer_kit.data.options import PairsOptions
from transformer_kit.errors import ConfigError, Interrupted, RunError
from transformer_kit.evaluation.bleu import Metric
from transformer_kit.logs import get_logger
from transformer_kit.tasks.evaluate import split_text
from transformer_kit.tasks.train import HYPOTHESES, has_ended

log = get_logger(__name__)

Launch = Callable[[Callable[[list[str]], object], Path], None]
"""Calls the function given with the overrides of each point, the folder being the launcher's own to write to."""


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
        launch: runs the points, one process each.

    Raises:
        ConfigError: with one line per problem of any point, before the first one starts.
        Interrupted: the user stopped the sweep; the same command goes on.
    """
    configs = compose_points(overrides, config_dirs)
    todo = points(overrides)
    if len(todo) == 1:
        raise ConfigError("nothing to compare: give several values to an override, as in model/residual=pre,post")
    first = configs[0]
    assert isinstance(first, AblateConfig)
    folder = Path(first.ablation.root) / (first.ablation.name or run_name([*_axes_named(overrides)]))
    left = [point for point, config in zip(todo, configs, strict=True) if _finished(config) is None]
    log.info("%d points, %d of them already complete", len(todo), len(todo) - len(left))
    if left:
        launch(functools.partial(run_point, [str(path) for path in config_dirs]), folder)
    return _tables(todo, configs, folder)


def run_point(config_dirs: Sequence[str], overrides: Sequence[str]) -> None:
    """Train one point in a process of its own; a point that has ended is left alone.

    Raises:
        RunError: it failed; its run folder says why.
        KeyboardInterrupt: it was stopped, and so is the sweep.
    """
    folders = [word for path in config_dirs for word in ("--config-dir", path)]
    command = [sys.executable, "-m", "transformer_kit.cli", "train", *folders, "--", *overrides]
    log.info("point: %s", " ".join(overrides))
    code = subprocess.run(command, check=False).returncode
    if code == Interrupted.exit_code:
        raise KeyboardInterrupt
    if code:
        raise RunError(f"training ended with exit code {code}")


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
