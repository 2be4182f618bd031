"""Sweeps: a table at the end, stable folders, nothing trained twice, failures shown."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from transformer_kit.cli.app import main


def ablate(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["ablate", *words])
    return int(ended.value.code or 0)


@pytest.mark.slow
def test_a_grid_ends_in_a_table_and_is_not_trained_again(
    overrides: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    places = [f"run.root='{tmp_path}/runs'", f"ablation.root='{tmp_path}/tables'", "ablation.name=grid"]
    axes = ["model/residual=pre,post", "model/position=sinusoidal,rope"]
    words = [*overrides, *places, *axes, "trainer.steps=4", "trainer.log_every=4"]
    assert ablate(*words) == 0
    first = capfd.readouterr()
    table = list(csv.DictReader((tmp_path / "tables" / "grid" / "table.csv").open()))
    settings = [(row["model/residual"], row["model/position"]) for row in table]
    assert settings == [("pre", "sinusoidal"), ("pre", "rope"), ("post", "sinusoidal"), ("post", "rope")]
    assert all(row["status"] == "done" and float(row["perplexity"]) > 1 for row in table)
    assert "rope" in first.out
    runs = sorted(path for path in (tmp_path / "runs").iterdir())
    assert len(runs) == 4
    stamps = {path: (path / "model.safetensors").stat().st_mtime_ns for path in runs}
    assert ablate(*words) == 0
    again = capfd.readouterr()
    assert {path: (path / "model.safetensors").stat().st_mtime_ns for path in runs} == stamps
    assert "training on" not in again.err
    assert again.out == first.out


@pytest.mark.slow
def test_a_failed_point_is_shown_and_the_others_go_on(
    overrides: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    places = [f"run.root='{tmp_path}/runs'", f"ablation.root='{tmp_path}/tables'", "ablation.name=x"]
    axis = "tokenizer.vocab_size=5000,50"  # the text allows no 5,000 pieces
    assert ablate(*overrides, *places, axis, "trainer.steps=2", "trainer.validation.bleu=null") == 1
    shown = capfd.readouterr()
    table = list(csv.DictReader((tmp_path / "tables" / "x" / "table.csv").open()))
    assert [row["status"] for row in table] == ["failed", "done"]
    assert "vocab_size" in table[0]["error"]
    assert "failed" in shown.out
    results = [json.loads(path.read_text()) for path in (tmp_path / "runs").glob("*/result.json")]
    assert sorted(result["status"] for result in results) == ["complete", "failed"]


def test_a_single_point_is_no_sweep(overrides: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ablate(*overrides, f"run.root='{tmp_path}/runs'", "trainer.steps=2") == 2
    assert "nothing to compare" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_wrong_points_are_refused_before_any_is_trained(
    overrides: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*overrides, f"run.root='{tmp_path}/runs'", "model/residual=pre,pots", "trainer.steps=2"]
    assert ablate(*words) == 2
    assert "pots" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
