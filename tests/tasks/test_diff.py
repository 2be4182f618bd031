"""Differences of runs: configuration, data, code, results; and what is recorded for it."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from transformer_kit.cli.app import make_app
from transformer_kit.errors import RunError
from transformer_kit.tasks.diff import CODE, CONFIG, DATA, FREE, RESULTS, Difference, diff
from transformer_kit.tasks.environment import describe_checkout
from transformer_kit.tasks.train import Trained


def tkit(*words: object) -> Any:
    return CliRunner().invoke(make_app(), ["diff", *map(str, words)])


@pytest.fixture
def pair(trained: Trained, tmp_path: Path) -> tuple[Path, Path]:
    """A run and a copy of it, without weights."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for file in ("config.yaml", "environment.json", "result.json"):
            shutil.copy(trained.folder / file, tmp_path / name / file)
    return tmp_path / "a", tmp_path / "b"


def change(path: Path, **values: Any) -> None:
    """Set dotted keys, with __ for a dot, of a JSON or YAML file."""
    plain = path.suffix == ".json"
    data = json.loads(path.read_text()) if plain else yaml.safe_load(path.read_text())
    for key, value in values.items():
        *parents, last = key.split("__")
        node = data
        for name in parents:
            node = node[int(name)] if isinstance(node, list) else node[name]
        node[last] = value
    path.write_text(json.dumps(data) if plain else yaml.safe_dump(data))


def test_equal_runs_differ_in_nothing(pair: tuple[Path, Path]) -> None:
    assert diff(*pair).differences == []
    done = tkit(*pair)
    assert (done.exit_code, done.stdout) == (0, f"{pair[0]} and {pair[1]} differ in nothing that they recorded\n")


def test_each_difference_is_in_its_section(pair: tuple[Path, Path]) -> None:
    left, right = pair
    change(right / "config.yaml", model__d_ff=24, trainer__threads=1, run__name="b", data__train__0__weight=2.0)
    change(right / "environment.json", threads=7, python="3.99", vocabulary__target=51, code={"commit": "x" * 40})
    change(right / "result.json", scores__bleu=99.5, status="failed")
    found = diff(left, right)
    told = {(each.section, each.key): each.right for each in found.differences}
    assert (
        told.items()
        >= {
            (CONFIG, "model.d_ff"): 24,
            (CONFIG, "data.train.0.weight"): 2.0,
            (FREE, "trainer.threads"): 1,
            (FREE, "threads"): 7,
            (DATA, "vocabulary.target"): 51,
            (CODE, "python"): "3.99",
            (CODE, "code.commit"): "x" * 40,
            (RESULTS, "scores.bleu"): 99.5,
            (RESULTS, "status"): "failed",
        }.items()
    )
    sections = [each.section for each in found.differences]
    assert sections == sorted(sections, key=[CONFIG, FREE, DATA, CODE, RESULTS].index)
    assert not any(key.startswith("run.") for _, key in told)


def test_the_table_and_json(pair: tuple[Path, Path]) -> None:
    right = pair[1]
    change(right / "config.yaml", model__d_ff=24, seed=2)
    change(right / "environment.json", tokenizer="ab" * 32)
    lines = tkit(*pair).stdout.splitlines()
    assert lines[0].split() == ["a", "b"]
    assert lines[2].split() == ["config", "seed", "1", "2"]
    assert lines[3].split() == ["model.d_ff", "20", "24"]
    assert lines[4].split()[:2] == ["data", "tokenizer"]
    assert lines[4].endswith("  abababababab")
    told = json.loads(tkit(*pair, "--json").stdout)
    assert told["differences"][0] == {"section": "config", "key": "seed", "left": 1, "right": 2}
    assert told["differences"][2]["right"] == "ab" * 32


def test_runs_that_have_not_ended_or_are_older(pair: tuple[Path, Path]) -> None:
    left, right = pair
    (right / "result.json").unlink()
    old = json.loads((left / "environment.json").read_text())
    del old["code"], old["vocabulary"]
    (left / "environment.json").write_text(json.dumps(old))
    found = diff(left, right)
    assert found.unknown == ["code", "vocabulary"]
    assert Difference(RESULTS, "status", "complete", "unfinished") in found.differences
    assert tkit(*pair).stdout.endswith("only one of them recorded, and not compared: code, vocabulary\n")
    (right / "environment.json").unlink()
    assert diff(left, right).unknown == []


def test_what_is_no_run_is_told(pair: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(RunError, match="nowhere is not a run folder"):
        diff(pair[0], tmp_path / "nowhere")
    (pair[1] / "environment.json").write_text("{")
    with pytest.raises(RunError, match=r"environment\.json is damaged"):
        diff(*pair)
    (pair[0] / "result.json").write_text('{"status": ')
    shutil.copy(pair[0] / "environment.json", pair[1])
    with pytest.raises(RunError, match=r"result\.json is damaged"):
        diff(*pair)


def test_names_of_classes_that_one_has_not_are_a_difference(pair: tuple[Path, Path]) -> None:
    (pair[1] / "labels.json").write_text('["no", "yes"]')
    found = diff(*pair)
    assert (found.differences, found.unknown) == ([Difference(DATA, "labels", None, ["no", "yes"])], [])


def test_a_run_records_its_data_and_its_code(trained: Trained) -> None:
    facts = json.loads((trained.folder / "environment.json").read_text())
    assert facts["vocabulary"] == {"source": 50, "target": 50}
    assert [(split, len(found)) for split, found in facts["data"].items()] == [("train", 1), ("valid", 1)]
    prints = [found[0]["fingerprint"] for found in facts["data"].values()]
    assert len({*prints}) == 2
    assert all(len(each) == 64 for each in prints)
    assert facts["data"]["train"][0]["name"] == "train.en"
    assert "code" in facts


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_a_checkout_is_described(tmp_path: Path) -> None:
    file = tmp_path / "pkg" / "module.py"
    file.parent.mkdir()
    file.write_text("x = 1\n")
    assert describe_checkout(file) is None
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    assert describe_checkout(file) is None, "not tracked: installed below another project"
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-qm", "one"], check=True)
    found = describe_checkout(file)
    assert found is not None
    assert len(found["commit"]) == 40
    assert not found["dirty"]
    file.write_text("x = 2\n")
    assert describe_checkout(file) == found | {"dirty": True}
