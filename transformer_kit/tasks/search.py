"""A search: Optuna chooses the next point of a sweep by what the points before it gave.

- What is chosen is written down before it is trained, one JSON line a trial; what came of it is read from its run
  folder. So a search that was stopped first ends the trials that it had begun, and no trial is trained twice.
- The sampler is made anew for each choice, from the seed and the trial's number: with one worker a search that was
  stopped and goes on chooses what an unbroken one would have chosen.
"""

from __future__ import annotations

import json
import math
import threading
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from transformer_kit.ablation.grid import Point
from transformer_kit.config.compose import parse
from transformer_kit.config.overrides import Axis, of_training
from transformer_kit.config.run_folder import is_free, read_result, run_name
from transformer_kit.config.schema import Config
from transformer_kit.errors import ConfigError, RunError
from transformer_kit.logs import get_logger
from transformer_kit.tasks.train import has_ended
from transformer_kit.tasks.workers import Job, Pool
from transformer_kit.training.options import METRICS

log = get_logger(__name__)

FILE = "trials.jsonl"  # in the folder of the sweep


class Search:
    """Trials over axes.

    Args:
        axes: what may be chosen.
        fixed: the other overrides.
        first: the configuration of some point.
        folder: of the sweep.

    Raises:
        ConfigError: Optuna is not installed, or trials would share a run folder.
        RunError: the folder holds a search over other axes, or cannot be read.
    """

    def __init__(self, axes: Sequence[Axis], fixed: Sequence[str], first: Config, folder: Path) -> None:
        self._optuna = _load()
        shared = [axis.key for axis in axes if is_free(axis.key)]
        if shared or first.run.name is not None:
            raise ConfigError(f"{shared[0] if shared else 'run.name'}: the trials would share a run folder")
        self._axes, self._fixed = list(axes), list(fixed)
        self._first = first
        self._metric = first.trainer.best_metric
        self._folder, self._file = folder, folder / FILE
        self._lock = threading.Lock()
        self._distributions = {axis.key: self._distribution(axis) for axis in axes}
        direction = "minimize" if METRICS[self._metric] == "lower" else "maximize"
        self._study = self._optuna.create_study(direction=direction)
        self._chosen: list[dict[str, str]] = []  # by trial, the values as written
        self._begin()

    def points(self) -> list[Point]:
        """The trials, in the order in which they were chosen; two that chose the same are one."""
        found: dict[str, Point] = {}
        for values in self._chosen:
            point = self._point(len(found), values)
            found.setdefault(point.name, point)
        return list(found.values())

    def run(self, pool: Pool, trials: int) -> None:
        """Choose and train until there are `trials`, as many at once as the pool has workers.

        Raises:
            Interrupted: the user stopped the search.
        """
        begun = self._chosen[:trials]
        left = [values for values in begun if not self._learn(values)]
        log.info("%d trials, %d of them already complete", trials, len(begun) - len(left))

        def work() -> None:
            while not pool.stopped:
                trial = None
                with self._lock:
                    if left:
                        values = left.pop(0)
                    elif len(self._chosen) < trials:
                        values, trial = self._choose()
                    else:
                        return
                point = self._point(0, values)
                if self._score(point.name) is None:
                    pool.train(Job(point.label, point.name, tuple(of_training(point.overrides))))
                with self._lock:
                    if trial is not None:
                        self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)  # no longer awaited
                    self._learn(values)

        with ThreadPoolExecutor(pool.size) as threads:
            for future in [threads.submit(work) for _ in range(pool.size)]:
                future.result()
        pool.check()
        self._say_best()

    def _choose(self) -> tuple[dict[str, str], Any]:
        """The next trial, written down."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of options that Optuna calls experimental
            seed = (self._first.seed + len(self._chosen)) % 2**32
            self._study.sampler = self._optuna.samplers.TPESampler(seed=seed, constant_liar=True)
            trial = self._study.ask(self._distributions)
        values = {
            axis.key: str(trial.params[axis.key]) if axis.choices else axis.written(trial.params[axis.key])
            for axis in self._axes
        }
        self._write({"values": values})
        self._chosen.append(values)
        return values, trial

    def _learn(self, values: dict[str, str]) -> bool:
        """Tell the study what a trial gave, by the values as written; False where there is nothing to tell."""
        score = self._score(self._point(0, values).name)
        if score is None:
            return False
        params = {axis.key: _read(axis, values[axis.key]) for axis in self._axes}
        made = self._optuna.trial.create_trial(params=params, distributions=self._distributions, value=score)
        self._study.add_trial(made)
        return True

    def _distribution(self, axis: Axis) -> Any:
        kinds = self._optuna.distributions
        if axis.choices:
            return kinds.CategoricalDistribution(axis.choices)
        if axis.whole:
            return kinds.IntDistribution(int(axis.low), int(axis.high), log=axis.log)
        return kinds.FloatDistribution(axis.low, axis.high, log=axis.log)

    def _point(self, order: int, values: dict[str, str]) -> Point:
        overrides = [*self._fixed, *(f"{key}={value}" for key, value in values.items())]
        lines = parse(overrides, [])
        shown = {key.lstrip("+"): value for key, value in values.items()}
        return Point(order, run_name([line.canonical for line in lines]), tuple(line.text for line in lines), shown)

    def _score(self, name: str) -> float | None:
        """What a trial gave, once it is complete; None also where that is no number."""
        result = read_result(Path(self._first.run.root) / name)
        if result is None or not has_ended(result, self._first):
            return None
        score = result["scores"].get(self._metric)
        return float(score) if score is not None and math.isfinite(score) else None

    def _begin(self) -> None:
        """Read the trials that were chosen before; begin the file where there is none."""
        head = {"axes": [asdict(axis) | {"choices": list(axis.choices)} for axis in self._axes]}
        try:
            rows = [json.loads(line) for line in self._file.read_text(encoding="utf-8").splitlines()]
        except FileNotFoundError:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._write(head)
            return
        except ValueError as error:
            raise RunError(f"{self._file} cannot be read ({error}): delete it to search anew") from None
        if rows[:1] != [head]:
            raise RunError(f"{self._file} holds trials over other axes: give another ablation.name")
        self._chosen = [row["values"] for row in rows[1:]]

    def _write(self, row: dict[str, Any]) -> None:
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")

    def _say_best(self) -> None:
        scored = [(score, point) for point in self.points() if (score := self._score(point.name)) is not None]
        if scored:
            sign = 1 if METRICS[self._metric] == "lower" else -1
            score, point = min(scored, key=lambda each: sign * each[0])
            log.info("best: %s  (%s %.4g)", point.label, self._metric, score)


def _read(axis: Axis, text: str) -> Any:
    if axis.choices:
        return text
    return int(text) if axis.whole else float(text)


def _load() -> Any:
    """Optuna, which says nothing by itself.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import optuna
    except ImportError:
        raise ConfigError("ablation.trials needs Optuna: pip install 'transformer-kit[optuna]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
