"""CPU threads: how many a process takes when nobody says, and a warning when others hold its cores.

Two threads beside another busy process are several times slower than one: the products of each layer wait for the
slower thread. So what others use is measured from /proc/stat, where there is one; elsewhere all cores count as free.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from transformer_kit.logs import get_logger

log = get_logger(__name__)

MOMENT = 0.25  # seconds for which the others are watched before training
PATIENCE, LEAST = 3, 10.0  # rows of the log, and seconds, for which cores must be held before it is said
_STAT = Path("/proc/stat")
_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")


@dataclass(frozen=True)
class Mark:
    """Where the clocks stand: seconds of wall-clock time, of this process, and of all work on the cores it may use."""

    wall: float
    own: float
    all: float


@dataclass(frozen=True)
class Cores:
    """What a process may use.

    Attributes:
        numbers: the cores of its affinity mask; empty where the system has none, and all count.
        count: how many these are.
        allowed: how many it may fill: their number, or a smaller quota of its control group.
    """

    numbers: frozenset[int]
    count: int
    allowed: int

    @classmethod
    def here(cls) -> Cores:
        """Of this process."""
        affinity = getattr(os, "sched_getaffinity", None)
        numbers = frozenset(affinity(0)) if affinity is not None else frozenset()
        count = len(numbers) or os.cpu_count() or 1
        quota = cgroup_quota()
        return cls(numbers, count, count if quota is None else max(1, min(count, math.floor(quota + 0.01))))

    def share(self, processes: int) -> int:
        """How many threads each of several processes takes that work side by side."""
        return max(1, self.allowed // processes)

    def mark(self) -> Mark | None:
        """The clocks now; None where the system does not tell."""
        try:
            lines = _STAT.read_text().splitlines()
        except OSError:
            return None
        ticks = 0
        for line in lines:
            name, *values = line.split()
            number = name.removeprefix("cpu")
            if name.startswith("cpu") and number.isdecimal() and (not self.numbers or int(number) in self.numbers):
                user, nice, system, _, _, irq, softirq, steal = (int(value) for value in values[:8])
                ticks += user + nice + system + irq + softirq + steal
        times = os.times()
        return Mark(time.perf_counter(), times.user + times.system, ticks / os.sysconf("SC_CLK_TCK"))

    def held(self, since: Mark | None, until: Mark | None) -> float:
        """How many of the cores others used between two marks, on average; 0 where nothing is known."""
        if since is None or until is None or until.wall <= since.wall:
            return 0.0
        foreign = (until.all - since.all) - (until.own - since.own)
        return min(max(0.0, foreign / (until.wall - since.wall)), float(self.count))


def cgroup_quota() -> float | None:
    """How many cores the control group of this process may fill; None without a limit.

    The group's own limit and those of the groups around it, in either version of the interface.
    """
    quotas = []
    for line in _lines(_OWN_CGROUP) or ["0::/"]:
        _, controllers, path = line.split(":", 2)
        unified = not controllers
        if not unified and "cpu" not in controllers.split(","):
            continue
        root = _CGROUPS if unified else _CGROUPS / "cpu"
        own = root / path.strip("/")
        for folder in (own, *(parent for parent in own.parents if parent == root or root in parent.parents)):
            quotas += [_quota(folder, unified)]
    return min((quota for quota in quotas if quota is not None), default=None)


def _quota(folder: Path, unified: bool) -> float | None:
    if unified:
        words = " ".join(_lines(folder / "cpu.max")).split()
    else:
        words = _lines(folder / "cpu.cfs_quota_us") + _lines(folder / "cpu.cfs_period_us")
    try:
        quota, period = (float(word) for word in words)
    except ValueError:  # `max`, or no such file
        return None
    return quota / period if quota > 0 and period > 0 else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def choose(asked: int | None, recorded: int | None = None, why: str = "as asked") -> tuple[int, str]:
    """How many threads torch should use, and why; never more than it would take by itself where nobody asks.

    Args:
        asked: what the user asks for.
        recorded: with how many the run began: the same number gives the same bits.
        why: who asks.
    """
    if asked is not None:
        return asked, why
    own = torch.get_num_threads()
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        if os.environ.get(name):
            return own, f"as {name} says"
    cores = Cores.here()
    if recorded is not None:
        return max(1, min(recorded, cores.allowed)), "as the run began; trainer.threads sets another number"
    before = cores.mark()
    time.sleep(MOMENT)
    held = cores.held(before, cores.mark())
    free = max(1, cores.count - math.floor(held + 0.5))
    return min(own, cores.allowed, free), f"other processes use {held:.1f} of {cores.count} cores"


@contextmanager
def lent_threads(asked: int | None, recorded: int | None, why: str = "as asked") -> Iterator[int]:
    """Let torch use as many threads as `choose` says, and as many as before afterwards; yields their number."""
    before = torch.get_num_threads()
    count, why = choose(asked, recorded, why)
    log.info("%d CPU thread%s: %s", count, "" if count == 1 else "s", why)
    torch.set_num_threads(count)
    try:
        yield count
    finally:
        torch.set_num_threads(before)


class Crowding:
    """Warns, once, when other processes hold cores that this one computes on.

    Args:
        cores: those of this process.
    """

    def __init__(self, cores: Cores) -> None:
        self._cores = cores
        self._mark = cores.mark()
        self._rows, self._since, self._held = 0, 0.0, 0.0
        self._told = self._mark is None

    def look(self) -> None:
        """Called now and then; a look costs about 0.1 ms."""
        if self._told:
            return
        now, threads = self._cores.mark(), torch.get_num_threads()
        held = self._cores.held(self._mark, now)
        assert now is not None
        assert self._mark is not None
        seconds, self._mark = now.wall - self._mark.wall, now
        if held + threads < self._cores.count + 0.5:
            self._rows, self._since, self._held = 0, 0.0, 0.0
            return
        self._rows, self._since, self._held = self._rows + 1, self._since + seconds, self._held + held * seconds
        if self._rows < PATIENCE or self._since < LEAST:
            return
        self._told = True
        held, count = self._held / self._since, self._cores.count
        fewer = max(1, math.floor(count - held + 0.5))
        remedy = f", or stop this run and go on with trainer.threads={fewer}" if fewer < threads else ""
        log.warning(
            "other processes use %.1f of the %d cores on which %d thread%s here, which slows all: wait for them%s",
            held,
            count,
            threads,
            " trains" if threads == 1 else "s train",
            remedy,
        )
