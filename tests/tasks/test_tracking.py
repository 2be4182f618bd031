"""Trackers beside a whole run: what they are given, and that the run is the one without them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from transformer_kit.config.compose import compose
from transformer_kit.config.run_folder import run_name
from transformer_kit.config.saved import load_run
from transformer_kit.config.schema import Config
from transformer_kit.console import NoProgress
from transformer_kit.errors import ConfigError, RunError
from transformer_kit.tasks import tracking
from transformer_kit.tasks.load import load
from transformer_kit.tasks.train import train
from transformer_kit.training import tracker_options

Make = Callable[..., Config]
BOTH = "tracker=[wandb,tensorboard]"


class Recorder:
    """Stands for either tracker."""

    made: list[Recorder]
    fails = ""

    def __init__(self, *given: Any) -> None:
        self.given, self.rows = given, list[Mapping[str, Any]]()
        self.rewound: list[tuple[int, int]] = []
        self.finished: list[Mapping[str, Any] | None] = []
        self.made.append(self)

    def rewind(self, step: int, validated: int) -> None:
        self.rewound.append((step, validated))
        if self.fails == "rewind":
            raise ConnectionError("no network")

    def add(self, row: Mapping[str, Any]) -> None:
        self.rows.append(row)
        if self.fails == "add":
            raise ConnectionError("no network")

    def finish(self, result: Mapping[str, Any] | None) -> None:
        self.finished.append(result)
        if self.fails == "finish":
            raise ConnectionError("no network")


@pytest.fixture
def recorders(monkeypatch: pytest.MonkeyPatch) -> list[Recorder]:
    Recorder.made, Recorder.fails = [], ""
    monkeypatch.setattr(tracking, "Wandb", Recorder)
    monkeypatch.setattr(tracking, "Tensorboard", Recorder)
    monkeypatch.setattr(tracker_options, "_is_installed", lambda package: True)
    return Recorder.made


def test_two_sessions_of_a_run(
    tmp_path: Path, run_config: Make, recorders: list[Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_PROJECT", "secret")
    more = [
        "run.name=x",
        BOTH,
        "tracker.wandb.project='${oc.env:MY_PROJECT}'",
        f"tracker.tensorboard.folder='{tmp_path}/tb'",
    ]
    train(run_config(tmp_path, *more, "trainer.steps=3"), NoProgress())
    done = train(run_config(tmp_path, *more, "trainer.steps=5"), NoProgress())
    first, board, second, _ = recorders
    assert first.given[0].project == "secret"
    assert "secret" not in json.dumps(first.given[1])
    assert first.given[1] == first.given[1] | {"seed": 1, "format": 4}
    assert first.given[2] == done.folder
    assert board.given[0] == tmp_path / "tb" / "x"
    assert "secret" not in board.given[1]
    assert "${oc.env:MY_PROJECT}" in board.given[1]
    assert (first.rewound, second.rewound) == ([(0, 0)], [(3, 3)])
    steps = [row["step"] for each in (first, second) for row in each.rows if row["kind"] == "train"]
    assert steps == [1, 2, 3, 4, 5]
    lines = [json.loads(line) for line in (done.folder / "metrics.jsonl").read_text().splitlines()]
    assert [*first.rows, *second.rows] == lines
    assert second.finished == [json.loads((done.folder / "result.json").read_text())]
    assert first.finished[0] is not None
    assert first.finished[0]["step"] == 3


@pytest.mark.parametrize("fails", ["rewind", "add", "finish"])
def test_a_tracker_that_fails_changes_nothing(
    tmp_path: Path, run_config: Make, recorders: list[Recorder], fails: str, caplog: pytest.LogCaptureFixture
) -> None:
    Recorder.fails = fails
    result = train(run_config(tmp_path, "run.name=x", "tracker=wandb", "trainer.steps=2"), NoProgress()).result
    assert (result["status"], result["step"]) == ("complete", 2)
    said = [message for message in caplog.messages if "no network" in message]
    assert len(said) == 1
    assert len(recorders[0].rows) == {"rewind": 0, "add": 1, "finish": 3}[fails]


def test_a_run_that_fails_is_finished_without_a_result(
    tmp_path: Path, run_config: Make, recorders: list[Recorder]
) -> None:
    train(run_config(tmp_path, "run.name=x", "tracker=wandb", "trainer.steps=2"), NoProgress())
    with pytest.raises(RunError, match="the screen"):
        train(run_config(tmp_path, "run.name=x", "tracker=wandb", "trainer.steps=4"), Failing())
    assert [row["step"] for row in recorders[1].rows] == [3]
    assert recorders[1].finished == [None], "the result of the session before is not its own"


class Failing(NoProgress):
    def update(self, fraction: float, facts: Mapping[str, str] | None = None) -> None:
        raise RunError("the screen is gone")


def test_they_are_no_part_of_the_run(tmp_path: Path, run_config: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_name(["+recipe=demo", BOTH, "tracker.wandb.project=x", "tracker.wandb.tags=[a]"]) == "demo"
    monkeypatch.setattr(tracker_options, "_is_installed", lambda package: True)
    Recorder.made = []
    monkeypatch.setattr(tracking, "Wandb", Recorder)
    done = train(run_config(tmp_path, "run.name=x", "tracker=wandb", "trainer.steps=2"), NoProgress())
    monkeypatch.setattr(tracker_options, "_is_installed", lambda package: False)
    again = train(run_config(tmp_path, "run.name=x", "trainer.steps=3"), NoProgress())
    assert (done.result["step"], again.result["step"]) == (2, 3)
    train(run_config(tmp_path, "run.name=y", "trainer.steps=1"), NoProgress())
    load(tmp_path / "x")
    assert load_run(tmp_path / "x").tracker.wandb is None


def test_what_is_wrong_is_told_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracker_options, "_is_installed", lambda package: package != "wandb")
    wrong = [BOTH, "tracker.wandb.mode=ofline", "tracker.wandb.project=''", f"tracker.wandb.tags=[a,{'b' * 65}]"]
    with pytest.raises(ConfigError) as caught:
        compose("train", ["data=demo", *wrong])
    assert caught.value.problems == [
        "tracker.wandb: the package wandb is not installed: pip install 'transformer-kit[wandb]', or wandb itself",
        "tracker.wandb.project: must name a project",
        "tracker.wandb.mode: must be one of auto, online, offline; not 'ofline'",
        f"tracker.wandb.tags: each must have 1 to 64 characters, not 65: '{'b' * 65}'",
    ]
    with pytest.raises(ConfigError, match=r"tracker has no 'wandbb'; did you mean 'wandb'\?"):
        compose("train", ["data=demo", "tracker=wandbb"])
    with pytest.raises(ConfigError, match=r"tracker\.wandb\.project: unknown key"):
        compose("train", ["data=demo", "tracker.wandb.project=x"])
