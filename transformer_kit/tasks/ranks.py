"""Training on several ranks: in this process, on workers that are started here, or as one of torchrun's.

- `trainer.devices=N`: the configuration is composed once; torch's elastic agent starts N workers with it, watches them
  and, with `trainer.ranks.restarts`, starts them anew when one dies.
- Under torchrun each process composes for itself; the configurations must be equal, and the run folder named.
- A worker leaves a small file when it ends badly. What the user is told is the first failure of all, with its rank:
  those that come after it are of ranks that waited for it.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from transformer_kit import logs
from transformer_kit.config.run_folder import RunFolder, read_result, run_path
from transformer_kit.config.schema import Config
from transformer_kit.console import NoProgress, Progress, progress
from transformer_kit.errors import ConfigError, Interrupted, TkitError
from transformer_kit.logs import get_logger
from transformer_kit.tasks.train import OUTSIDE, Trained, train
from transformer_kit.training.failures import FOLDER, START, begin, first_cause, read_failures, write_failure
from transformer_kit.training.precision import resolve_device
from transformer_kit.training.signals import Impatient, Relay, heard, hushed, raising
from transformer_kit.training.world import World, invited, joined

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

log = get_logger(__name__)

NO_SIGNALS = "SIGURG"  # what the agent acts on: one that does not come; see `Relay`
EXCHANGES, LOST = ("torch/distributed", "torch/autograd"), ("gloo", "NCCL", "onnection", "Broken pipe")
"""How an error looks that comes of another rank's end: where it is raised, and what it says."""
QUIET = {"TORCH_CPP_LOG_LEVEL": "ERROR", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""For workers: no lines about sockets that close; the store of a restart is not the one that died."""


class RankFailed(TkitError):
    """A rank ended the job; the message names it."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def train_on_ranks(config: Config, shown: Progress) -> Trained | None:
    """Train on the ranks that the configuration or torchrun asks for.

    Returns:
        What `train` gives; None on ranks other than 0.

    Raises:
        TkitError: as `train`; of several ranks the first failure, with its rank.
    """
    if invited():
        return _as_rank(config, shown)
    ranks = count_ranks(config)
    config.trainer.ranks.check(ranks)
    return train(config, shown) if ranks == 1 else _launch(config, ranks)


def count_ranks(config: Config) -> int:
    """How many ranks are to run on this machine.

    Raises:
        ConfigError: more than there are GPUs, where they are asked for.
    """
    wanted, device = config.trainer.devices, resolve_device(config.trainer.device)
    if device.type == "cpu":
        return 1 if wanted is None else wanted
    there = torch.cuda.device_count() if device.type == "cuda" else 1
    if wanted is not None and wanted > there:
        raise ConfigError(f"trainer.devices={wanted}: this machine has {there} of {device.type}")
    return there if wanted is None else wanted


def _as_rank(config: Config, shown: Progress) -> Trained | None:
    """One of torchrun's processes."""
    if config.run.name is None:
        raise ConfigError("run.name: must be given under torchrun, as all its processes need the same run folder")
    with joined(resolve_device(config.trainer.device).type == "cuda") as world:
        found = world.gather(json.dumps(config.plain(), sort_keys=True))
        if any(other != found[0] for other in found):
            number = next(rank for rank, other in enumerate(found) if other != found[0])
            raise ConfigError(f"rank {number} was given another configuration than rank 0")
        return _train(config, shown, world)


def _train(config: Config, shown: Progress, world: World) -> Trained | None:
    if not world.leads:
        logging.getLogger(logs.ROOT).setLevel(logging.ERROR)
    trained = train(config, shown if world.leads else NoProgress(), world)
    return trained if world.leads else None


def _worker(config: Config) -> Trained | None:
    """One of our own processes: as `train`; what goes wrong is left for the process that started it."""
    logs.setup()
    rank, start = int(os.environ["RANK"]), int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    begin(start)
    hushed()  # a second signal does not keep what follows the first from being told
    done = _follow_parent()
    try:
        with raising(OUTSIDE), _joined(config, rank) as world:
            if world.leads and start:
                log.warning("restart %d of %d: %s", start, config.trainer.ranks.restarts, _why(start - 1, world.size))
            trained = _train(config, progress(), world)
        done.set()
        return trained
    except Interrupted as error:  # no failure, for which the agent would end or restart the others
        write_failure(rank, str(error), error.exit_code)
        done.set()
        return None
    except TkitError as error:
        write_failure(rank, str(error), error.exit_code)
        sys.exit(error.exit_code)
    except Exception as error:
        if os.environ.get("TKIT_DEBUG") == "1":
            traceback.print_exception(error)
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(frame.filename).name}:{frame.lineno} {frame.name}"
        first = (str(error).splitlines() or [""])[0]
        follows = any(part in frame.filename for part in EXCHANGES) and any(word in first for word in LOST)
        write_failure(rank, f"{type(error).__name__}: {first} ({where}; TKIT_DEBUG=1 shows more)", 1, follows=follows)
        os._exit(1)  # what others wait for must not keep this process


@contextmanager
def _joined(config: Config, rank: int) -> Iterator[World]:
    """As `joined`, from where signals are heard; while the ranks look for each other one ends this process at once.

    The rank that this one looks for may have left already, and no handler interrupts that wait.
    """

    def leave(number: int) -> None:
        write_failure(rank, f"stopped by {signal.Signals(number).name} {OUTSIDE}", Interrupted.exit_code)
        os._exit(1)  # nothing is returned, which the agent would wait for after a 0

    with ExitStack() as stack:
        with Impatient(leave):
            heard()
            world = stack.enter_context(joined(resolve_device(config.trainer.device).type == "cuda"))
        yield world


def _follow_parent() -> threading.Event:
    """Ask this process to stop when the one that started it is gone, however it ended.

    Returns:
        Set when all is done but for what is returned, which nobody would fetch then: the process ends.
    """
    done, parent = threading.Event(), multiprocessing.parent_process()

    def follow() -> None:
        if parent is not None:
            parent.join()
            os.kill(os.getpid(), signal.SIGTERM)
            done.wait()
            os._exit(0)

    threading.Thread(target=follow, name="parent", daemon=True).start()
    return done


def _why(start: int, ranks: int) -> str:
    """Why the ranks of an earlier start ended."""
    cause = first_cause(read_failures(Path(os.environ[FOLDER]), start), ranks)
    return "the ranks ended without a word" if cause is None else f"rank {cause.rank}: {cause.message}"


def _launch(config: Config, ranks: int) -> Trained | None:
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    for name in list(logging.root.manager.loggerDict):
        if name.startswith(("torch.distributed", "torch.multiprocessing")):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # they tell in pages what is one line here
    os.environ.update(QUIET)
    options = config.trainer.ranks
    with Relay() as relay, tempfile.TemporaryDirectory(prefix="tkit-") as folder:
        launch = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=ranks,
            logs_specs=DefaultLogsSpecs(log_dir=f"{folder}/torch"),
            run_id="tkit",
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            local_addr="127.0.0.1",
            max_restarts=options.restarts,
            signals_to_handle=NO_SIGNALS,
        )
        os.environ[FOLDER] = folder
        try:
            found = elastic_launch(launch, _worker)(config)
        except ChildFailedError as error:
            if relay.asked is not None and (said := _stopped(Path(folder))):
                raise Interrupted(said) from None  # a rank that waited for one that had left
            raise _told(config, error, Path(folder), ranks) from None
        finally:
            for name in (FOLDER, START):
                os.environ.pop(name, None)
        if said := _stopped(Path(folder)):
            raise Interrupted(said)
        return found[0]


def _stopped(folder: Path) -> str | None:
    """What a rank said that ended because a signal asked it to."""
    found = [failure for failure in read_failures(folder) if failure.exit_code == Interrupted.exit_code]
    return found[0].message if found else None


def _told(config: Config, error: ChildFailedError, folder: Path, ranks: int) -> RankFailed:
    """The first failure of all ranks as the error that the user is told; a sweep's table can show it as well."""
    killed = {rank: -failure.exitcode for rank, failure in error.failures.items() if failure.exitcode < 0}
    left = read_failures(folder)
    cause = first_cause(left, ranks)
    of_all = False
    if killed and (cause is None or cause.follows or cause not in left):
        rank, number = next(iter(killed.items()))
        message, code = f"was killed by {signal.Signals(number).name}", 1
    elif cause is not None:
        rank, message, code = cause.rank, cause.message, cause.exit_code
        of_all = cause in left and (rank == 0 or all(failure.message == message for failure in left))
    else:
        rank, failure = error.get_first_failure()
        message, code = f"ended with exit code {failure.exitcode}", 1
    hangs = " made no progress in " in message  # it names the rank; rank 0 had no time to write a result
    said = message if of_all or hangs else f"rank {rank}: {message}"
    if hangs or not of_all:
        _record(config, "failed", said)
    return RankFailed(said, code)


def _record(config: Config, status: str, said: str) -> None:
    """Leave a result for a run whose ranks could not: rank 0 writes it where it lives."""
    path = run_path(config)
    if path.is_dir() and (read_result(path) or {}).get("status") not in ("complete", "failed", status):
        RunFolder(path, config, resumed=True, changed=False).write_result({"status": status, "error": said})
