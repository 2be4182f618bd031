"""Several points at once: shares of the machine, one line for each end, and nothing lost when the sweep is stopped."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from transformer_kit.cli.app import main
from transformer_kit.errors import Interrupted
from transformer_kit.tasks import workers as module
from transformer_kit.tasks.workers import Job, Pool, gpus_here, shares


def ablate(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["ablate", *words])
    return int(ended.value.code or 0)


def rows(folder: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / "table.csv").open()))


def test_cores_are_shared_and_gpus_dealt_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shares(1, 7, []) == [{}], "one alone looks for itself what is free"
    assert shares(2, 7, []) == [{"OMP_NUM_THREADS": "3"}] * 2
    assert shares(3, 2, []) == [{"OMP_NUM_THREADS": "1"}] * 3
    assert [share["CUDA_VISIBLE_DEVICES"] for share in shares(2, 8, ["0", "1", "2"])] == ["0,2", "1"]
    assert [share["CUDA_VISIBLE_DEVICES"] for share in shares(3, 8, ["4", "GPU-a"])] == ["4", "GPU-a", "4"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4, GPU-a")
    assert gpus_here() == ["4", "GPU-a"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert gpus_here() == []


def pool(folder: Path, workers: int, ended: module.Ended) -> Pool:
    return Pool(shares(workers, 2, []), [], folder, ended, "loss")


def jobs(*codes: int) -> list[Job]:
    return [Job(f"point {number}", f"run{number}", (str(code),)) for number, code in enumerate(codes)]


def test_each_end_is_told_and_a_failure_stops_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    code = "import sys; print('what it said'); sys.exit(int(sys.argv[1]))"
    monkeypatch.setattr(module, "train_command", lambda folders, words: [sys.executable, "-c", code, *words])
    results = {
        "run0": {"status": "complete", "scores": {"loss": 1.25}, "seconds": 61.0},
        "run1": {"status": "failed", "error": "boom"},
    }
    with caplog.at_level("INFO"), pool(tmp_path, 2, lambda job: results.get(job.name)) as made:
        made.run(jobs(0, 1, 7, 130))
    told = sorted(record.message.split("/")[0].split("  ")[-1] for record in caplog.records)
    lines = [record.message for record in caplog.records]
    assert "done:   point 0  (loss 1.25, 1:01)" in lines
    assert f"failed: point 1  (boom; {tmp_path}/logs/run1.log)" in lines
    assert f"failed: point 2  (what it said; {tmp_path}/logs/run2.log)" in lines
    assert "stopped: point 3" in lines
    assert len([line for line in lines if line.startswith("begins: ")]) == 4, told
    assert (tmp_path / "logs" / "run2.log").read_text() == "what it said\n"


def test_a_stop_is_handed_on_and_begins_nothing_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first two points are told, of which one was not ready to hear it; the third never begins."""
    code = (
        "import os, pathlib, signal, sys, time\n"
        "if sys.argv[1] == '1': signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))\n"
        "pathlib.Path(sys.argv[2]).touch()\n"
        "while len(list(pathlib.Path(sys.argv[2]).parent.glob('began*'))) < 2: time.sleep(0.01)\n"
        "os.kill(os.getppid(), signal.SIGTERM)\n"
        "time.sleep(30)\n"
    )
    monkeypatch.setattr(
        module,
        "train_command",
        lambda folders, words: [sys.executable, "-c", code, *words, f"{tmp_path}/began{words[0]}"],
    )
    began = time.monotonic()
    with (
        caplog.at_level("INFO"),
        pool(tmp_path, 2, lambda job: None) as made,
        pytest.raises(Interrupted, match="the same command goes on"),
    ):
        made.run(jobs(1, 2, 3))
    assert sum(line.startswith("stopped: ") for line in caplog.messages) == 2, caplog.messages
    assert time.monotonic() - began < 20
    assert sorted(path.name for path in tmp_path.glob("began*")) == ["began1", "began2"]


@pytest.mark.slow
def test_two_workers_make_the_table_that_one_makes(
    overrides: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """One point fails (the text allows no 5,000 pieces); the others are trained all the same."""
    axes = ["tokenizer.vocab_size=5000,50", "model/residual=pre,post", "trainer.steps=4", "trainer.log_every=4"]
    tables = []
    for workers in (1, 2):
        here = tmp_path / str(workers)
        places = [f"run.root='{here}/runs'", f"ablation.root='{here}'", "ablation.name=x"]
        assert ablate(*overrides, *places, *axes, f"ablation.workers={workers}") == 1
        tables.append([{key: row[key] for key in row if key != "seconds"} for row in rows(here / "x")])
        shown = capfd.readouterr()
        assert ("begins: " in shown.err) == (workers == 2)
    assert tables[0] == tables[1]
    assert [row["status"] for row in tables[1]] == ["failed", "failed", "done", "done"]
    assert shown.err.count("done:   ") == 2
    assert "training on" not in shown.err, "what points print goes to their own files"
    assert "training on" in "".join(path.read_text() for path in (tmp_path / "2" / "x" / "logs").iterdir())


@pytest.mark.slow
def test_ctrl_c_saves_every_point_and_the_same_command_goes_on(overrides: list[str], tmp_path: Path) -> None:
    words = [*overrides, f"run.root='{tmp_path}/runs'", f"ablation.root='{tmp_path}'", "ablation.name=x"]
    words += ["seed=1,2", "trainer.steps=2000", "trainer.validation.bleu=null", "ablation.workers=2"]
    command = [sys.executable, "-m", "transformer_kit.cli", "ablate", *words]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.monotonic() + 100
    while [_rows(run) >= 3 for run in _runs(tmp_path)] != [True, True]:
        assert time.monotonic() < deadline
        assert process.poll() is None, process.stderr and process.stderr.read()
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does it: to all of them
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130, error
    assert "the same command goes on" in error
    for run in _runs(tmp_path):
        steps = [row["step"] for row in map(json.loads, (run / "metrics.jsonl").read_text().splitlines())]
        assert max(steps) < 2000
        assert (run / "checkpoints" / f"step_{max(steps):06}").is_dir()
    stopped = {run: _rows(run) for run in _runs(tmp_path)}
    assert ablate(*words, f"trainer.steps={max(steps)}") == 0  # what is there is enough, or nearly
    assert all(_rows(run) >= stopped[run] for run in stopped)
    assert [row["status"] for row in rows(tmp_path / "x")] == ["done", "done"]


def _runs(folder: Path) -> list[Path]:
    return sorted(path.parent for path in (folder / "runs").glob("*/metrics.jsonl"))


def _rows(run: Path) -> int:
    return len((run / "metrics.jsonl").read_text().splitlines())


def test_workers_and_a_launcher_exclude_each_other(overrides: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    axis = [*overrides, "model/residual=pre,post"]
    assert ablate(*axis, "hydra/launcher=joblib", "ablation.workers=2") == 2
    assert "ablation.workers=2: hydra/launcher=joblib runs the points" in capsys.readouterr().err
    assert ablate(*axis, "ablation.workers=0") == 2
    assert "ablation.workers: must be at least 1, not 0" in capsys.readouterr().err
    assert ablate(*axis, "hydra/launcher=jobib") == 2
    assert "jobib" in capsys.readouterr().err


def test_a_launcher_that_is_not_installed_is_told(
    overrides: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("transformer_kit.tasks.ablate._has_plugin", lambda name: False)
    axis = [*overrides, "model/residual=pre,post"]
    assert ablate(*axis, "hydra/launcher=slurm") == 2
    assert "needs hydra-submitit-launcher: pip install 'transformer-kit[slurm]'" in capsys.readouterr().err
    assert ablate(*axis, "hydra/launcher=joblib") == 2
    assert "pip install 'transformer-kit[joblib]'" in capsys.readouterr().err


@pytest.mark.slow
def test_joblib_runs_the_points_that_are_left(
    overrides: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    places = [f"run.root='{tmp_path}/runs'", f"ablation.root='{tmp_path}'", "ablation.name=x", "trainer.steps=3"]
    words = [*overrides, *places, "trainer.validation.bleu=null", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]
    assert ablate(*words, "model/residual=pre,post") == 0
    first = rows(tmp_path / "x")
    assert [row["status"] for row in first] == ["done", "done"]
    assert ablate(*words, "model/residual=pre,post,sandwich") == 0
    assert "3 points, 2 of them already complete" in capfd.readouterr().err
    assert rows(tmp_path / "x")[:2] == first
