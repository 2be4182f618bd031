"""`tkit train +cluster=slurm`: one job that trains one run, checked here before it is submitted.

The job runs `tkit train` with the same overrides, its run folder given by name, and without the cluster's options. So
it is the same run as one that is trained here, and it goes on where that one stopped.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformer_kit.config.cluster_options import ClusterOptions
from transformer_kit.config.compose import compose, parse
from transformer_kit.config.overrides import quoted
from transformer_kit.config.run_folder import open_run, read_result, run_path
from transformer_kit.config.schema import Config
from transformer_kit.errors import ConfigError, Interrupted, RunError
from transformer_kit.logs import get_logger
from transformer_kit.tasks.slurm_job import last_line, state_of, train_node
from transformer_kit.tasks.train import Trained, has_ended

log = get_logger(__name__)

CLUSTER = "cluster"
FOLDER = "slurm"  # in the run folder: what submitit writes, and what the job prints
LOOK, PATIENCE = 3.0, 600.0  # seconds between two looks at a job, and without an answer of Slurm's


@dataclass(frozen=True)
class Submitted:
    """A job in the queue.

    Attributes:
        job: its number.
        folder: of the run.
        log: what it prints.
    """

    job: str
    folder: Path
    log: Path


def submit(config: Config, overrides: Sequence[str], config_dirs: Sequence[Path]) -> Submitted | Trained:
    """Submit the job that trains a run; with `cluster.wait` come back when the run has ended.

    Args:
        config: what the overrides describe, with its `cluster`.
        overrides: as typed.
        config_dirs: the user's folders.

    Raises:
        ConfigError: submitit is not installed.
        RunError: there is no Slurm here, it refuses the job, or the run folder holds another run; with `cluster.wait`
            also: the job ended without a finished run.
        Interrupted: the user does not want to wait any more; the job goes on.
    """
    options = config.cluster
    assert options is not None
    executor_type = _submitit()
    words = _words(config, overrides)
    own = compose("train", words, config_dirs, check=False)  # what the job will compose
    own.trainer.ranks.check(options.nodes * (own.trainer.devices or max(1, options.gpus)))
    with open_run(own) as run:  # refuses what the job would refuse, and makes room where run.overwrite asks for it
        folder, done = run.path, run.result()
        if done is not None and has_ended(done, own):
            return Trained(folder, True, done, own)
        (folder / FOLDER).mkdir(exist_ok=True)
    words = [*words, "run.overwrite=false"]  # a job that runs again must not start anew
    executor = executor_type(folder=str(folder / FOLDER), cluster="slurm")
    executor.update_parameters(**parameters(options, folder.name))
    folders = [word for path in config_dirs for word in ("--config-dir", str(path))]
    ranks = own.trainer.devices or max(1, options.gpus)
    restarts = own.trainer.ranks.restarts
    try:
        job = executor.submit(
            train_node, [*folders, "--", *words], options.nodes, ranks, restarts, options.grace, str(folder)
        )
    except Exception as error:  # of submitit, with the whole command
        raise RunError(f"Slurm refuses the job: {last_line(error)}") from None
    submitted = Submitted(str(job.job_id), folder, Path(str(job.paths.stdout)))
    return _waited(submitted, own) if options.wait else submitted


def parameters(options: ClusterOptions, name: str) -> dict[str, Any]:
    """What submitit is asked for; what is null is left to Slurm."""
    wanted = {
        "name": f"tkit-{name}",
        "nodes": options.nodes,
        "tasks_per_node": 1,
        "gpus_per_node": options.gpus or None,
        "cpus_per_task": options.cpus,
        "mem_gb": options.memory,
        "timeout_min": options.minutes,
        "stderr_to_stdout": True,
        "slurm_partition": options.partition,
        "slurm_account": options.account,
        "slurm_qos": options.qos,
        "slurm_signal_delay_s": options.grace,
        "slurm_setup": options.setup or None,
        "slurm_additional_parameters": {"requeue": True, **options.extra},
    }
    return {key: value for key, value in wanted.items() if value is not None}


def _submitit() -> Any:
    """submitit's executor, once everything is there to use it.

    Raises:
        ConfigError, RunError: something is missing.
    """
    try:
        from submitit import AutoExecutor
    except ImportError:
        raise ConfigError("+cluster=slurm needs submitit: pip install 'transformer-kit[slurm]'") from None
    missing = [name for name in ("sbatch", "srun", "squeue", "scontrol") if shutil.which(name) is None]
    if missing:
        raise RunError(f"there is no {', '.join(missing)} here: submit on a machine that belongs to a Slurm cluster")
    return AutoExecutor


def _words(config: Config, overrides: Sequence[str]) -> list[str]:
    """The overrides of the job: those given, without the cluster's, and with the name of the run."""
    path = run_path(config)
    kept = [text for text in overrides if not _is(text, CLUSTER) and not _is(text, "run.name")]
    return [*kept, quoted(f"run.root={path.parent}"), quoted(f"run.name={path.name}")]


def _is(text: str, key: str) -> bool:
    """Whether an override is of a key or of something below it."""
    found = parse([text], [])
    return bool(found) and (found[0].key == key or found[0].key.startswith(f"{key}."))


def _waited(job: Submitted, config: Config) -> Trained:
    log.info("job %s (%s); Ctrl-C stops waiting, not the job", job.job, job.log)
    try:
        _wait(job.job)
    except KeyboardInterrupt:
        raise Interrupted(f"job {job.job} goes on; `scancel {job.job}` would end it") from None
    result = read_result(job.folder)
    if result is None or not has_ended(result, config):
        why = "" if result is None or "error" not in result else f": {result['error']}"
        raise RunError(f"job {job.job} ended without a finished run{why}; it printed {job.log}")
    return Trained(job.folder, False, result, config)


def _wait(job: str) -> None:
    """Until a job is over, however often it is queued again.

    Raises:
        RunError: Slurm has not answered for a long time.
    """
    answered = time.monotonic()
    while True:
        try:
            if state_of(job) is None:
                return
            answered = time.monotonic()
        except RunError:
            if time.monotonic() - answered > PATIENCE:
                raise
        time.sleep(LOOK)
