"""How much memory there is, how much was used at most, and how to tell that it ran out."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

# What torch says beside its own error class: its CPU allocator, cuBLAS, cuDNN and the CUDA driver, Metal.
_WORDS = (
    "can't allocate memory",
    "not enough memory",
    "out of memory",
    "ALLOC_FAILED",
    "failed to allocate",
)
_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory, of the processor or of a GPU, ran out."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _WORDS)


def release(device: torch.device) -> None:
    """Give back what nothing refers to any more, for a second attempt."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()


def peak_memory(device: torch.device) -> int | None:
    """The most bytes held so far: on a GPU by tensors of this process, else by the whole process. None: not known."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if device.type == "mps":
        return None
    try:
        import resource
    except ImportError:  # not a Unix
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


@contextmanager
def peak_of(device: torch.device) -> Iterator[Callable[[], int]]:
    """Yields what tells, afterwards, the most bytes held inside; of the whole process on a CPU.

    Where a system does not let the high-water mark be set back, what was held before counts as well.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    else:
        with suppress(OSError):
            (_PROC / "self/clear_refs").write_text("5")  # sets VmHWM to what is held now
    found: list[int] = []
    yield lambda: found[0]
    now = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else _status("VmHWM") or peak_memory(device)
    assert now is not None
    found.append(now)


def available_memory(device: torch.device) -> int | None:
    """Bytes that this process could hold, those that it holds now among them; None where that is not known."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device)
    held, free_now = _status("VmRSS"), _kilobytes(_PROC / "meminfo", "MemAvailable")
    if device.type != "cpu" or held is None or free_now is None:
        return None
    limits = [_number(_CGROUPS / name) for name in ("memory.max", "memory/memory.limit_in_bytes")]
    return min([held + free_now, *(limit for limit in limits if limit is not None)])


def _status(name: str) -> int | None:
    return _kilobytes(_PROC / "self/status", name)


def _kilobytes(path: Path, name: str) -> int | None:
    """The value of a line `name: 123 kB`, in bytes."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), None)


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # no such file, or `max`
        return None
