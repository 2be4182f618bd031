"""A real Slurm: a run, two nodes, a sweep as an array, and a run that has to make room and goes on."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from cluster_runs import Tkit, slurm, until

pytestmark = pytest.mark.cluster

JOB = ["+cluster=slurm", "cluster.minutes=10", "cluster.partition=low"]


def digest(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def printed(tkit: Tkit, name: str) -> str:
    return "\n".join(path.read_text() for path in sorted((tkit.run(name) / "slurm").glob("*.out")))


def test_a_run_is_that_which_is_trained_here(tkit: Tkit) -> None:
    done = tkit("train", *JOB, "cluster.wait=true", "run.name=job")
    assert done.returncode == 0, done.stderr + printed(tkit, "job")
    assert tkit.steps("job") == [1, 2, 3, 4, 5, 6]
    assert "validation loss" in done.stderr
    assert tkit("train", "run.name=here").returncode == 0
    assert digest(tkit.run("job")) == digest(tkit.run("here"))
    again = tkit("train", *JOB, "run.name=job")
    assert again.returncode == 0
    assert "already complete" in again.stderr
    assert again.stdout == ""


def test_a_submission_tells_the_job_and_where_it_prints(tkit: Tkit) -> None:
    done = tkit("train", *JOB, "run.name=job")
    assert done.returncode == 0, done.stderr
    job = done.stdout.strip()
    assert job.isdecimal()
    assert f"job {job} trains runs/job; it prints runs/job/slurm/{job}_0_log.out" in done.stderr
    until(lambda: tkit.status("job") == "complete", 60, lambda: printed(tkit, "job"))
    assert "cluster" not in (tkit.run("job") / "config.yaml").read_text()


def test_what_slurm_refuses_is_one_line(tkit: Tkit) -> None:
    done = tkit("train", *JOB, "cluster.partition=nowhere", "run.name=job")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("error: Slurm refuses the job: ")
    assert "Invalid partition name" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_a_failed_training_is_told_by_who_waits(tkit: Tkit) -> None:
    done = tkit("train", *JOB, "cluster.wait=true", "tokenizer.vocab_size=100000", "run.name=job")
    assert done.returncode == 1
    assert "ended without a finished run: " in done.stderr
    assert "vocab_size" in done.stderr


def test_a_sweep_is_one_array_and_is_submitted_once(tkit: Tkit) -> None:
    words = ["model/residual=pre,post", "hydra/launcher=slurm", "hydra.launcher.partition=low", "ablation.name=x"]
    done = tkit("ablate", *words)
    sweep = tkit.folder / "ablations" / "x"
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()[2:4]] == ["pre", "post"]
    scripts = list((sweep / "slurm").rglob("*_submission.sh"))
    assert len(scripts) == 1, scripts
    assert "#SBATCH --array=0-1" in scripts[0].read_text()
    table = (sweep / "table.csv").read_text()
    again = tkit("ablate", *words)
    assert again.returncode == 0
    assert "2 of them already complete" in again.stderr
    assert list((sweep / "slurm").rglob("*_submission.sh")) == scripts
    assert (sweep / "table.csv").read_text() == table


def test_two_nodes_train_one_run(tkit: Tkit) -> None:
    done = tkit("train", *JOB, "cluster.nodes=2", "cluster.wait=true", "run.name=job")
    assert done.returncode == 0, done.stderr + printed(tkit, "job")
    assert "2 ranks (ddp)" in printed(tkit, "job")
    assert tkit.steps("job") == [1, 2, 3, 4, 5, 6]
    assert tkit("train", "trainer.devices=2", "run.name=here").returncode == 0
    assert digest(tkit.run("job")) == digest(tkit.run("here"))


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_run_makes_room_and_goes_on(tkit: Tkit, nodes: int) -> None:
    """A job of the partition high takes both nodes; the run saves, waits, goes on, and ends as if nothing had been."""
    longer = ["trainer.steps=400", "trainer.validate_every=200", "trainer.save_every=null"]
    done = tkit("train", *longer, *JOB, f"cluster.nodes={nodes}", "run.name=job")
    assert done.returncode == 0, done.stderr
    job = done.stdout.strip()
    until(lambda: len(tkit.steps("job")) >= 20, 60, lambda: printed(tkit, "job"))
    urgent = slurm("sbatch", "--parsable", "-p", "high", "-N2", "-o", f"{tkit.folder}/urgent.log", "--wrap", "sleep 3")
    until(lambda: f"job {job} is queued again" in printed(tkit, "job"), 60, lambda: printed(tkit, "job"))
    stopped = tkit.steps("job")
    assert stopped[-1] < 400, "the run was over before it had to make room"
    until(lambda: slurm("squeue", "-h", "-j", job, "-o", "%T") == "PENDING", 60, lambda: slurm("squeue"))
    until(lambda: slurm("squeue", "-h", "-o", "%i %T").find(f"{urgent} ") < 0, 60, lambda: slurm("squeue"))
    slurm("scontrol", "update", f"JobId={job}", "StartTime=now")  # Slurm lets a requeued job wait two minutes
    until(lambda: tkit.status("job") == "complete", 120, lambda: printed(tkit, "job"))
    assert tkit.steps("job") == list(range(1, 401))
    assert "(going on)" in printed(tkit, "job")
    assert tkit("train", *longer, f"trainer.devices={nodes}", "run.name=here").returncode == 0
    assert digest(tkit.run("job")) == digest(tkit.run("here"))


def test_a_sweep_makes_room_and_goes_on(tkit: Tkit) -> None:
    """The elements of the array are queued again one by one, and who waits for them gets the table."""
    words = [
        "seed=1,2",
        "trainer.steps=250",
        "trainer.validate_every=125",
        "trainer.save_every=null",
        "ablation.name=x",
    ]
    sweep = tkit.start("ablate", *words, "hydra/launcher=slurm", "hydra.launcher.partition=low")
    until(lambda: [len(tkit.steps(run)) >= 10 for run in tkit.runs()] == [True] * 2, 90, lambda: slurm("squeue"))
    runs = tkit.runs()
    slurm("sbatch", "-p", "high", "-N2", "-o", f"{tkit.folder}/urgent.log", "--wrap", "sleep 1")
    until(lambda: all(tkit.status(run) == "interrupted" for run in runs), 60, lambda: slurm("squeue"))
    until(lambda: slurm("squeue", "-h", "-p", "high") == "", 60, lambda: slurm("squeue"))
    for job in slurm("squeue", "-h", "-r", "-p", "low", "-o", "%i").split():
        slurm("scontrol", "update", f"JobId={job}", "StartTime=now")
    output, error = sweep.communicate(timeout=180)
    assert sweep.returncode == 0, error
    assert [line.split()[0] for line in output.splitlines()[2:4]] == ["1", "2"]
    for run in runs:
        assert tkit.steps(run) == list(range(1, 251))


def test_a_cancelled_job_is_not_queued_again(tkit: Tkit) -> None:
    done = tkit("train", "trainer.steps=5000", "trainer.save_every=null", *JOB, "run.name=job")
    job = done.stdout.strip()
    until(lambda: len(tkit.steps("job")) >= 5, 60, lambda: printed(tkit, "job"))
    slurm("scancel", job)
    until(lambda: slurm("squeue", "-h", "-j", job, "-o", "%T") == "", 60, lambda: slurm("squeue"))
    assert "is queued again" not in printed(tkit, "job")
    assert list((tkit.run("job") / "checkpoints").glob("step_*")), "the state was saved all the same"
