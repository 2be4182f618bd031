"""Hydra under Typer: single runs and sweeps; nothing of Hydra's own stays behind."""

from __future__ import annotations

import functools
import json
import logging
import os
import sys
from pathlib import Path

import pytest

from transformer_kit.cli import hydra_bridge
from transformer_kit.config.schema import Config
from transformer_kit.errors import ConfigError, DataError

SMALL = ["data=demo", "model/size=tiny"]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_run_gets_the_checked_configuration(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before, handlers = list(sys.argv), list(logging.getLogger().handlers)
    seen: list[Config] = []

    def task(config: Config) -> str:
        seen.append(config)
        return "done"

    assert hydra_bridge.run("train", [*SMALL, "trainer.steps=3", "run.name=文件"], [], task) == "done"
    assert (seen[0].trainer.steps, seen[0].run.name) == (3, "文件")
    assert sys.argv == before
    assert "HYDRA_FULL_ERROR" not in os.environ
    assert logging.getLogger().handlers == handlers
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")


def test_what_a_task_raises_arrives_as_it_is(capfd: pytest.CaptureFixture[str]) -> None:
    """Once, too: a run stays one run whatever Hydra is told."""
    calls: list[Config] = []

    def task(config: Config) -> None:
        calls.append(config)
        raise DataError("x.en is empty")

    with pytest.raises(DataError, match=r"x\.en is empty"):
        hydra_bridge.run("train", [*SMALL, "hydra.mode=MULTIRUN"], [], task)
    assert len(calls) == 1
    assert capfd.readouterr() == ("", "")


def test_wrong_configurations_never_reach_the_task() -> None:
    def task(config: Config) -> None:
        pytest.fail("reached")

    with pytest.raises(ConfigError) as caught:
        hydra_bridge.run("train", [*SMALL, "seed=1,2", "trainer.stps=1", "hydra.mode=MULTIRUN"], [], task)
    assert len(caught.value.problems) == 2


def note(log: Path, overrides: list[str]) -> None:
    """A point: writes down what it was given, and fails for one choice."""
    with log.open("a") as file:
        file.write(json.dumps(overrides) + "\n")
    if "+variant=deep" in overrides:
        raise ValueError("boom")


def test_a_sweep_calls_every_point_and_goes_on_after_a_failure(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    user = tmp_path / "con f"
    (user / "variants").mkdir(parents=True)
    (user / "variants" / "deep.yaml").write_text("model: {encoder: {layers: 3}}\n")
    (user / "variants" / "flat.yaml").write_text("model: {encoder: {layers: 1}}\n")
    log, folder = tmp_path / "log", tmp_path / "tables"
    overrides = [*SMALL, "ablation.name=x", "model/residual=post", "+variant=deep,flat"]
    hydra_bridge.sweep(overrides, [user], functools.partial(note, log), folder)
    assert [json.loads(line) for line in log.read_text().splitlines()] == [
        [*SMALL, "model/residual=post", f"+variant={variant}"] for variant in ("deep", "flat")
    ]
    assert {path.name for path in tmp_path.iterdir()} == {"con f", "log", "tables"}
    assert [path.name for path in folder.iterdir()] == ["multirun.yaml"]
    assert capfd.readouterr().out == ""


def test_a_sweep_with_a_wrong_point_starts_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        hydra_bridge.sweep([*SMALL, "trainer.steps=3,0"], [], functools.partial(note, tmp_path / "log"), tmp_path)
    assert len(caught.value.problems) == 1
    assert not (tmp_path / "log").exists()
