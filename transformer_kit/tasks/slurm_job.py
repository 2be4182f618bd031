"""Inside a job of Slurm: a training that is warned before its time is up, saves, and is queued again.

- Slurm warns by SIGUSR2, before the time limit and where a job of a higher partition wants the nodes. The training
  takes the signal itself, saves at a step boundary and ends; this process hands the signal on, waits, and then queues
  the job again, which goes on with the same run.
- Whether to queue it again is read from Slurm's books: a job that is `RUNNING` there was warned; one that was
  cancelled, or that Slurm has taken off the nodes by itself, is not.
- submitit's own way, a checkpoint written inside the signal handler on the first node, is not used: ranks would wait
  for each other in it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from transformer_kit import logs
from transformer_kit.config.run_folder import RESULT, read_result
from transformer_kit.errors import Interrupted, RunError
from transformer_kit.logs import get_logger
from transformer_kit.tasks.children import Children

log = get_logger(__name__)

SIGNALS = "SIGTERM,SIGINT,SIGUSR2"  # which torchrun hands on to its ranks
FIRST_PORT, PORTS = 20_000, 20_000
OVER = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE")
ANSWER = 30.0  # seconds for one answer of Slurm's


def in_job() -> bool:
    """Whether submitit started this process in a job of Slurm's."""
    return os.environ.get("SUBMITIT_EXECUTOR") == "slurm" and "SLURM_JOB_ID" in os.environ


def train_node(words: Sequence[str], nodes: int, ranks: int, restarts: int, shutdown: int, folder: str) -> None:
    """What one node of a job runs.

    Args:
        words: of `tkit train`.
        nodes: of the job.
        ranks: on each node.
        restarts: how often torchrun starts ranks anew.
        shutdown: seconds that ranks have to save when they are told to stop.
        folder: of the run.

    Raises:
        RunError: the training failed.
        SystemExit: it was stopped; where Slurm wanted the nodes back the job waits in the queue again.
    """
    command = node_command(words, nodes, ranks, restarts, shutdown, os.environ)
    run_in_job(command, Path(folder) if nodes > 1 else None)


def node_command(
    words: Sequence[str], nodes: int, ranks: int, restarts: int, shutdown: int, environment: Mapping[str, str]
) -> list[str]:
    """The command of one node: the training itself, which starts the ranks of one node; torchrun for several."""
    training = ["-m", "transformer_kit.cli", "train", *words]
    if nodes == 1:
        return [sys.executable, *training]
    # The address from which Slurm starts the tasks is that of the first node, and each node can reach it.
    address = environment["SLURM_LAUNCH_NODE_IPADDR"]
    port = FIRST_PORT + int(environment["SLURM_JOB_ID"]) % PORTS
    return [
        *(sys.executable, "-m", "torch.distributed.run"),
        *(f"--nnodes={nodes}", f"--node-rank={environment['SLURM_NODEID']}", f"--nproc-per-node={ranks}"),
        *("--rdzv-backend=static", f"--master-addr={address}", f"--master-port={port}"),
        *(f"--max-restarts={restarts}", f"--signals-to-handle={SIGNALS}", f"--shutdown-timeout={shutdown}"),
        *training,
    ]


def run_in_job(command: Sequence[str], folder: Path | None = None) -> None:
    """Run a training in this job.

    Args:
        command: words.
        folder: of the run, for torchrun, whose exit code does not tell a stop from a failure: a result that was written
            meanwhile does.

    Raises:
        RunError: it failed.
        SystemExit: it was stopped by a signal. submitit then writes no result, as the job may run again.
    """
    logs.setup()
    began = time.time()
    with Children() as children:
        code = children.run(command, {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"})
        if code == 0:
            return
        by_itself = code < 128 if folder is None else _has_ended(folder, began)
        if children.asked is None or by_itself:
            raise RunError(f"training ended with exit code {code}")
        if os.environ.get("SLURM_PROCID", "0") == "0":
            _queue_again()
    raise SystemExit(Interrupted.exit_code)


def _has_ended(folder: Path, since: float) -> bool:
    """Whether a run has ended by itself, well or badly, since a time."""
    try:
        new = (folder / RESULT).stat().st_mtime >= since
    except OSError:
        return False
    return new and (read_result(folder) or {}).get("status") in ("complete", "failed")


def _queue_again() -> None:
    job = job_id(os.environ)
    state = state_of(job)
    if state != "RUNNING":  # cancelled, or Slurm queues it again by itself
        log.info("job %s is %s; it is not queued again from here", job, (state or "over").lower())
        return
    done = _ask("scontrol", "requeue", job)
    if done.returncode:
        log.error("job %s cannot be queued again (%s): submit the same command once more", job, done.stderr.strip())
    else:
        log.info("job %s is queued again, and goes on from the saved state", job)


def job_id(environment: Mapping[str, str]) -> str:
    """The number of this job; of an element of an array, with the element's: the plain one may name the whole array."""
    if "SLURM_ARRAY_JOB_ID" in environment:
        return f"{environment['SLURM_ARRAY_JOB_ID']}_{environment['SLURM_ARRAY_TASK_ID']}"
    return environment["SLURM_JOB_ID"]


def state_of(job: str) -> str | None:
    """What Slurm says of a job that is not over, such as `PENDING` or `RUNNING`; None where it is over.

    Raises:
        RunError: Slurm does not answer.
    """
    done = _ask("squeue", "--noheader", f"--jobs={job}", "--format=%T")
    if done.returncode and "Invalid job id" not in done.stderr:
        raise RunError(f"squeue does not answer: {done.stderr.strip() or f'exit code {done.returncode}'}")
    state = next(iter(done.stdout.split()), None)
    return None if state in OVER else state


def last_line(error: Exception) -> str:
    """What a command of Slurm said at its end, out of submitit's account of it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1].removeprefix("sbatch: error: ") if lines else type(error).__name__


def _ask(*words: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(words, capture_output=True, text=True, timeout=ANSWER, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(words, 1, "", str(error))
