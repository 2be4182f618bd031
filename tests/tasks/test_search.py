"""A search over axes: what is chosen, what is written down, and that a stopped search goes on as if it had not been."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import pytest

from transformer_kit.cli.app import main
from transformer_kit.config.compose import compose
from transformer_kit.config.overrides import Axis
from transformer_kit.config.points import search_axes
from transformer_kit.config.schema import Config
from transformer_kit.errors import ConfigError, Interrupted, RunError
from transformer_kit.tasks.search import Search
from transformer_kit.tasks.workers import Job

AXES = ["schedule.lr=tag(log, interval(1e-4, 1e-1))", "model/residual=pre,post", "seed=int(interval(1, 9))"]


class Stub:
    """A pool whose points have a score that follows from their values: the best is lr = 0.003 with a post-norm."""

    def __init__(self, root: Path, config: Config, stop_after: int | None = None, size: int = 1) -> None:
        self.size, self._root, self._config, self._left = size, root, config, stop_after
        self.trained: list[str] = []

    @property
    def stopped(self) -> bool:
        return self._left is not None and self._left <= 0

    def train(self, job: Job) -> None:
        if self.stopped:
            return
        self._left = None if self._left is None else self._left - 1
        if self.stopped:
            return  # in the middle of this one
        self.trained.append(job.name)
        values = dict(part.split("=") for part in job.overrides if "=" in part)
        loss = abs(math.log10(float(values["schedule.lr"]) / 0.003)) + (values["model/residual"] == "pre")
        folder = self._root / job.name
        folder.mkdir(parents=True)
        result: dict[str, Any] = {"status": "complete", "step": 100000, "tokens": 1, "seconds": 1.0, "epochs": 1}
        result |= {"ended_by": "steps", "scores": {"loss": loss}}
        (folder / "result.json").write_text(json.dumps(result))

    def check(self) -> None:
        if self.stopped:
            raise Interrupted("stopped")


@pytest.fixture
def config(tmp_path: Path) -> Config:
    pytest.importorskip("optuna")
    return compose("ablate", ["data=demo", "model/size=tiny", f"run.root='{tmp_path}/runs'"], check=False)


def made(config: Config, folder: Path, axes: list[str] = AXES) -> Search:
    fixed, found = search_axes(axes)
    return Search(found, [*fixed, "data=demo"], config, folder)


def chosen(folder: Path) -> list[dict[str, str]]:
    return [json.loads(line)["values"] for line in (folder / "trials.jsonl").read_text().splitlines()[1:]]


def test_axes_are_read() -> None:
    fixed, axes = search_axes(["+recipe=demo", "model/norm=a,b", "+x=range(1,4)", *AXES[::2], "y=interval(0,1)"])
    assert fixed == ["+recipe=demo"]
    assert axes == [
        Axis("model/norm", ("a", "b")),
        Axis("+x", ("1", "2", "3")),
        Axis("schedule.lr", low=1e-4, high=1e-1, log=True),
        Axis("seed", low=1, high=9, whole=True),
        Axis("y", low=0, high=1),
    ]
    assert [axis.example for axis in axes] == ["a", "1", "0.0001", "1", "0.0"]
    assert axes[2].written(0.00123456) == "0.001235"
    assert axes[2].written(0.0999999) == "0.1"
    assert axes[3].written(7.0) == "7"
    for wrong in ("a=interval(2,1)", "a=tag(log,interval(0,1))"):
        with pytest.raises(ConfigError, match="the first end must be below"):
            search_axes([wrong])


def test_a_search_finds_what_is_good(config: Config, tmp_path: Path) -> None:
    search, pool = made(config, tmp_path / "x"), Stub(tmp_path / "runs", config)
    search.run(pool, 40)
    values = chosen(tmp_path / "x")
    assert len(values) == 40
    assert all(1e-4 <= float(each["schedule.lr"]) <= 0.1 and 1 <= int(each["seed"]) <= 9 for each in values)
    late = values[20:]
    assert sum(each["model/residual"] == "post" for each in late) > 15
    distance = sorted(abs(math.log10(float(each["schedule.lr"]) / 0.003)) for each in late)
    assert distance[10] < 0.5, "three decades drawn evenly would be 0.75 away"
    points = search.points()
    assert len({point.name for point in points}) == len(points) <= 40
    assert points[0].label == " ".join(f"{key}={value}" for key, value in values[0].items())


def test_a_stopped_search_goes_on_as_if_it_had_not_been(config: Config, tmp_path: Path) -> None:
    whole = made(config, tmp_path / "whole")
    whole.run(Stub(tmp_path / "runs", config), 17)
    other = compose("ablate", ["data=demo", "model/size=tiny", f"run.root='{tmp_path}/again'"], check=False)
    stopped = Stub(tmp_path / "again", other, stop_after=8)
    with pytest.raises(Interrupted):
        made(other, tmp_path / "broken").run(stopped, 17)
    assert len(chosen(tmp_path / "broken")) == 8
    rest = Stub(tmp_path / "again", other)
    made(other, tmp_path / "broken").run(rest, 17)
    assert chosen(tmp_path / "broken") == chosen(tmp_path / "whole")
    assert not set(stopped.trained) & set(rest.trained)
    more = Stub(tmp_path / "again", other)
    made(other, tmp_path / "broken").run(more, 19)
    assert len(more.trained) <= 2
    assert chosen(tmp_path / "broken")[:17] == chosen(tmp_path / "whole")


def test_several_workers_try_as_many_as_were_asked_for(config: Config, tmp_path: Path) -> None:
    made(config, tmp_path / "x").run(Stub(tmp_path / "runs", config, size=3), 11)
    assert len(chosen(tmp_path / "x")) == 11


def test_other_axes_and_shared_folders_are_refused(config: Config, tmp_path: Path) -> None:
    made(config, tmp_path / "x")
    with pytest.raises(RunError, match="holds trials over other axes"):
        made(config, tmp_path / "x", AXES[:2])
    with pytest.raises(ConfigError, match=r"trainer\.steps: the trials would share a run folder"):
        made(config, tmp_path / "y", ["trainer.steps=1,2"])
    assert not (tmp_path / "y").exists()


@pytest.mark.slow
def test_the_command_ends_in_the_table(overrides: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("optuna")
    places = [f"run.root='{tmp_path}/runs'", f"ablation.root='{tmp_path}'", "ablation.name=x"]
    few = ["trainer.steps=3", "trainer.validation.bleu=null", "schedule.lr=tag(log,interval(1e-3,1e-1))"]
    words = ["ablate", *overrides, *places, *few]
    with pytest.raises(SystemExit) as ended:
        main([*words, "ablation.trials=2"])
    assert ended.value.code == 0
    shown = capfd.readouterr()
    table = list(csv.DictReader((tmp_path / "x" / "table.csv").open()))
    assert [row["schedule.lr"] for row in table] == [each["schedule.lr"] for each in chosen(tmp_path / "x")]
    assert all(row["status"] == "done" for row in table)
    assert "best: schedule.lr=" in shown.err
    with pytest.raises(SystemExit) as ended:
        main([*words, "ablation.trials=3", "ablation.workers=2"])
    assert ended.value.code == 0
    assert "3 trials, 2 of them already complete" in capfd.readouterr().err


def test_the_first_point_can_be_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["ablate", "--cfg", "job", "data=demo", "schedule.lr=interval(0.25,1)", "seed=7,8", "ablation.trials=3"])
    assert ended.value.code in (0, None)
    shown = capsys.readouterr().out
    assert "lr: 0.25" in shown
    assert "seed: 7" in shown


def test_what_a_search_is_not(overrides: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    cases = {
        ("model/residual=pre",): "nothing to search",
        ("model/residual=pre,post", "hydra/launcher=basic", "hydra/sweeper=optuna"): "a search is asked for by",
        ("seed=interval(1,2)", "hydra/launcher=submitit_local"): "they run on this machine",
        ("model/residual=pre,post", "ablation.trials=0"): "ablation.trials: must be at least 1",
    }
    for words, told in cases.items():
        given = words if "ablation.trials=0" in words else (*words, "ablation.trials=3")
        with pytest.raises(SystemExit) as ended:
            main(["ablate", *overrides, *given])
        assert ended.value.code == 2
        assert told in capsys.readouterr().err
