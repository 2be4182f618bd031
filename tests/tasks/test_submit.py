"""One job for one run: what is submitted, what is refused before, with a stand-in for sbatch."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from transformer_kit.cli.app import main
from transformer_kit.config.cluster_options import ClusterOptions
from transformer_kit.config.compose import compose
from transformer_kit.config.run_folder import run_path
from transformer_kit.config.saved import load_plain
from transformer_kit.errors import ConfigError
from transformer_kit.tasks import submit as module
from transformer_kit.tasks.submit import parameters, submit
from transformer_kit.tasks.train import Trained

JOB = ["+cluster=slurm", "cluster.partition=low"]


@pytest.fixture
def sbatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand-ins for Slurm's commands; the file holds the last script that was submitted."""
    pytest.importorskip("submitit")
    monkeypatch.chdir(tmp_path)
    commands = tmp_path / "commands"
    commands.mkdir()
    script = f'for last; do true; done; cp "$last" {commands}/script; echo Submitted batch job 17'
    for name, body in (("sbatch", script), ("srun", "true"), ("squeue", "true"), ("scontrol", "true")):
        (commands / name).write_text(f"#!/bin/sh\n{body}\n")
        (commands / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    return commands / "script"


def train(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["train", *words])
    return int(ended.value.code or 0)


def test_a_job_is_submitted_and_told(
    overrides: list[str], sbatch: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    asked = ["cluster.nodes=3", "cluster.gpus=2", "cluster.minutes=90", "cluster.account=lab", "cluster.memory=7"]
    assert train(*overrides, *JOB, *asked, "+cluster.extra.constraint=fast", "run.name=x") == 0
    shown = capfd.readouterr()
    assert shown.out == "17\n"
    assert "job 17 trains runs/x; it prints runs/x/slurm/17_0_log.out" in shown.err
    lines = sbatch.read_text().splitlines()
    for wanted in (
        "--partition=low", "--nodes=3", "--gpus-per-node=2", "--ntasks-per-node=1", "--time=90", "--account=lab",
        "--mem=7GB", "--signal=USR2@120", "--requeue", "--constraint=fast", "--job-name=tkit-x",
    ):  # fmt: skip
        assert f"#SBATCH {wanted}" in lines, lines
    assert "cluster" not in load_plain(tmp_path / "runs" / "x")


def test_the_job_trains_the_run_that_would_be_trained_here(
    overrides: list[str], sbatch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted: list[tuple[object, ...]] = []
    monkeypatch.setattr("submitit.AutoExecutor.submit", lambda self, *job: submitted.append(job) or _Job(tmp_path))
    given = [*overrides, "seed=7", "run.overwrite=true", *JOB, "cluster.nodes=2", "trainer.devices=3"]
    submit(compose("train", given), given, [])
    words = submitted[0][1]
    assert isinstance(words, list)
    assert words[0] == "--"
    assert not [word for word in words if "cluster" in word]
    job, here = compose("train", words[1:]), compose("train", [*overrides, "seed=7"])
    assert run_path(job) == run_path(here)
    assert job.plain() | {"run": None, "trainer": None} == here.plain() | {"run": None, "trainer": None}
    assert not job.run.overwrite, "a job that runs again must not delete what it has done"
    assert submitted[0][2:] == (2, 3, 0, 120, str(run_path(here)))


class _Job:
    job_id = "17"

    def __init__(self, folder: Path) -> None:
        self.paths = type("Paths", (), {"stdout": folder / "log"})


def test_wrong_options_are_told_before_anything_is_done(
    overrides: list[str], sbatch: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    wrong = ["cluster.nodes=0", "cluster.minutes=soon", "cluster.nods=2", "trainer.steps=-1"]
    assert train(*overrides, *JOB, *wrong) == 2
    error = capfd.readouterr().err
    for line in ("cluster.minutes: expected an integer", "cluster.nods: unknown key; did you mean 'cluster.nodes'?"):
        assert line in error
    assert train(*overrides, *JOB, "cluster.nodes=0", "cluster.grace=3600", "cluster.gpus=-1") == 2
    assert "cluster.nodes: must be at least 1, not 0" in capfd.readouterr().err
    assert train(*overrides, *JOB, "cluster.grace=3600") == 2
    assert "cluster.grace: must be less than the 3600 seconds" in capfd.readouterr().err
    assert train(*overrides, "cluster=slurm") == 2
    assert "write +cluster=slurm" in capfd.readouterr().err
    assert not sbatch.exists()
    assert not (tmp_path / "runs").exists()


def test_another_run_in_the_folder_is_told_at_once(
    overrides: list[str], sbatch: Path, trained: Trained, capfd: pytest.CaptureFixture[str]
) -> None:
    place = [f"run.root='{trained.folder.parent}'", "run.name=small"]
    assert train(*overrides, *place, *JOB, "seed=9", "trainer.steps=60") == 1
    assert "seed: 1 -> 9" in capfd.readouterr().err
    assert train(*overrides, *place, *JOB, "trainer.steps=60") == 0
    shown = capfd.readouterr()
    assert "already complete" in shown.err
    assert shown.out == ""
    assert not sbatch.exists()


def test_where_there_is_no_slurm_it_is_told(
    overrides: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module.shutil, "which", lambda name: None)
    assert train(*overrides, *JOB) == 1
    assert "there is no sbatch, srun, squeue, scontrol here" in capfd.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_what_slurm_says_against_a_job_is_one_line(
    overrides: list[str], sbatch: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    refusal = "sbatch: error: invalid partition specified: low"
    (sbatch.parent / "sbatch").write_text(f"#!/bin/sh\necho '{refusal}' >&2\nexit 1\n")
    assert train(*overrides, *JOB) == 1
    lines = capfd.readouterr().err.splitlines()  # what sbatch says goes through
    assert lines == [refusal, "error: Slurm refuses the job: invalid partition specified: low"]


def test_waiting_ends_with_the_job(
    overrides: list[str], sbatch: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """squeue knows the job no more, and there is no finished run."""
    assert train(*overrides, *JOB, "cluster.wait=true", "run.name=x") == 1
    assert "job 17 ended without a finished run; it printed" in capfd.readouterr().err


def test_tokenizing_is_no_job(overrides: list[str], sbatch: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["tokenize", *overrides, *JOB])
    assert ended.value.code == 2
    assert "cluster: is for `tkit train`" in capfd.readouterr().err


def test_a_sweep_takes_the_launcher(
    overrides: list[str], sbatch: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match="cluster: is for `tkit train`"):
        compose("ablate", [*overrides, *JOB])
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    sweep = ["ablate", *overrides, "model/residual=pre,post", "hydra/launcher=slurm"]
    with pytest.raises(SystemExit) as ended:
        main([*sweep, "hydra.launcher.partion=low"])
    assert ended.value.code == 2
    assert "hydra.launcher.partion" in (error := capfd.readouterr().err)
    assert "write +" not in error
    (sbatch.parent / "sbatch").write_text("#!/bin/sh\necho 'sbatch: error: no such account' >&2\nexit 1\n")
    with pytest.raises(SystemExit) as ended:
        main(sweep)
    assert ended.value.code == 1
    shown = capfd.readouterr()
    assert shown.err.splitlines()[-1] == "error: hydra/launcher=slurm: no such account"
    assert shown.out == ""


def test_what_is_null_is_left_to_slurm() -> None:
    options = ClusterOptions("slurm", 1, 0, None, None, 60, 120, None, None, None, False, [], {})
    assert parameters(options, "x") == {
        "name": "tkit-x",
        "nodes": 1,
        "tasks_per_node": 1,
        "timeout_min": 60,
        "stderr_to_stdout": True,
        "slurm_signal_delay_s": 120,
        "slurm_additional_parameters": {"requeue": True},
    }
