"""Inside a job, with stand-ins for Slurm's commands: what each node runs, and when a job is queued again."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from transformer_kit.errors import RunError
from transformer_kit.tasks.slurm_job import in_job, job_id, node_command, run_in_job, state_of

# A training that is stopped: it signals the process that started it, and leaves with the code given when it is told.
STOPPED = """
import os, signal, sys, time
signal.signal(signal.SIGUSR2, lambda *_: sys.exit(int(sys.argv[1])))
os.kill(os.getppid(), signal.SIGUSR2)
time.sleep(30)
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand-ins for squeue and scontrol; the file tells how they were called, `state` what squeue answers."""
    (tmp_path / "state").write_text("RUNNING\n")
    for name, answer in (("squeue", f"cat {tmp_path}/state"), ("scontrol", "true")):
        script = tmp_path / name
        script.write_text(f'#!/bin/sh\necho {name} "$@" >> {tmp_path}/calls\n{answer}\n')
        script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "41")
    monkeypatch.setenv("SLURM_PROCID", "0")
    return tmp_path / "calls"


def run(code: int, folder: Path | None = None) -> None:
    run_in_job([sys.executable, "-c", STOPPED, str(code)], folder)


def test_one_node_trains_plainly_and_several_by_torchrun() -> None:
    environment = {"SLURM_LAUNCH_NODE_IPADDR": "10.0.0.7", "SLURM_JOB_ID": "40041", "SLURM_NODEID": "1"}
    training = ["-m", "transformer_kit.cli", "train", "seed=3"]
    assert node_command(["seed=3"], 1, 2, 0, 120, environment) == [sys.executable, *training]
    assert node_command(["seed=3"], 3, 2, 5, 120, environment) == [
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes=3", "--node-rank=1", "--nproc-per-node=2"),
        *("--rdzv-backend=static", "--master-addr=10.0.0.7", "--master-port=20041", "--max-restarts=5"),
        *("--signals-to-handle=SIGTERM,SIGINT,SIGUSR2", "--shutdown-timeout=120"),
        *training,
    ]


def test_an_element_of_an_array_is_named_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    assert job_id({"SLURM_JOB_ID": "41"}) == "41"
    assert job_id({"SLURM_JOB_ID": "40", "SLURM_ARRAY_JOB_ID": "40", "SLURM_ARRAY_TASK_ID": "3"}) == "40_3"
    for name in ("SUBMITIT_EXECUTOR", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    assert not in_job()
    monkeypatch.setenv("SLURM_JOB_ID", "41")
    assert not in_job()
    monkeypatch.setenv("SUBMITIT_EXECUTOR", "slurm")
    assert in_job()


def test_a_warned_run_is_queued_again(calls: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        run(130)
    assert ended.value.code == 130
    assert calls.read_text().splitlines() == ["squeue --noheader --jobs=41 --format=%T", "scontrol requeue 41"]


@pytest.mark.parametrize("state", ["COMPLETING", "CANCELLED", ""])
def test_a_job_that_slurm_took_away_is_not(calls: Path, state: str) -> None:
    (calls.parent / "state").write_text(f"{state}\n")
    with pytest.raises(SystemExit):
        run(130)
    assert [line.split()[0] for line in calls.read_text().splitlines()] == ["squeue"]


def test_the_first_node_alone_asks_slurm(calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_PROCID", "1")
    with pytest.raises(SystemExit):
        run(130)
    assert not calls.exists()


def test_a_failure_stays_one_although_a_signal_came(calls: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="exit code 1"):
        run(1)
    folder = tmp_path / "run"
    folder.mkdir()
    with pytest.raises(SystemExit):  # torchrun leaves with 1 after a stop as well
        run(1, folder)
    result, later = folder / "result.json", (4e9, 4e9)
    result.write_text('{"status": "failed"}')
    os.utime(result, (1e9, 1e9))  # of an earlier session
    with pytest.raises(SystemExit):
        run(1, folder)
    result.write_text('{"status": "interrupted"}')
    os.utime(result, later)
    with pytest.raises(SystemExit):
        run(1, folder)
    result.write_text('{"status": "failed"}')
    os.utime(result, later)
    with pytest.raises(RunError, match="exit code 1"):
        run(1, folder)
    assert calls.read_text().count("scontrol requeue") == 3


def test_an_end_without_a_signal(calls: Path) -> None:
    run_in_job(["true"])
    with pytest.raises(RunError, match="exit code 3"):
        run_in_job(["sh", "-c", "exit 3"])
    assert not calls.exists()


def test_what_slurm_says_of_a_job(calls: Path) -> None:
    state = calls.parent / "state"
    assert state_of("41") == "RUNNING"
    for over in ("", "COMPLETED\n", "FAILED\n"):
        state.write_text(over)
        assert state_of("41") is None
    (calls.parent / "squeue").write_text(
        "#!/bin/sh\necho slurm_load_jobs error: Invalid job id specified >&2; exit 1\n"
    )
    assert state_of("41") is None
    (calls.parent / "squeue").write_text("#!/bin/sh\necho Unable to contact slurm controller >&2; exit 1\n")
    with pytest.raises(RunError, match="Unable to contact"):
        state_of("41")


def test_the_handlers_are_put_back(calls: Path) -> None:
    before = signal.getsignal(signal.SIGUSR2)
    with pytest.raises(SystemExit):
        run(130)
    assert signal.getsignal(signal.SIGUSR2) == before
