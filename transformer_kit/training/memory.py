"""How much memory there is, how much was used at most, and how to tell that it ran out."""

from __future__ import annotations

import gc
import sys
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
