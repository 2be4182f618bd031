"""How the C library hands out memory: training asks for the same large blocks again and again.

By default glibc returns large blocks to the system at once and trims its heap often, so every update pays a page fault
for each page anew, on a virtual machine several microseconds each. Kept blocks are handed out again as they are.
"""

from __future__ import annotations

import ctypes
import sys

_TRIM, _TOP_PAD, _MMAP = -1, -2, -3  # numbers of mallopt(3)
_LARGEST = 2**31 - 1  # what mallopt's int holds
_PAD = 64 * 2**20


def keep_freed_memory() -> bool:
    """Let glibc keep what is freed for the next request, for the rest of the process; elsewhere nothing is done.

    The process then holds its high-water mark until it ends. Numbers that are computed do not depend on it.

    Returns:
        Whether it took effect.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    # Blocks of any size come from the heap, which is not given back.
    large = bool(mallopt(_MMAP, _LARGEST)) or bool(mallopt(_MMAP, 32 * 2**20))  # an older glibc allows 32 MiB
    return large and bool(mallopt(_TRIM, _LARGEST)) and bool(mallopt(_TOP_PAD, _PAD))
