"""Freed memory stays with the process where the C library allows it."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import resource
from transformer_kit.training.allocator import keep_freed_memory
import torch
kept = keep_freed_memory() if {keep} else False
def faults(count, size=9_000_011):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(count):
        blocks = [torch.empty(size).fill_(1.0) for _ in range(3)]  # 36 MB each: above what glibc ever keeps by itself
        del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults(20)
print(kept, faults(5))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mallopt is of glibc")
def test_the_same_blocks_are_handed_out_again() -> None:
    """A process of its own, as the setting stays for its life: no page is faulted in twice."""
    said = {}
    for keep in (False, True):
        run = subprocess.run(
            [sys.executable, "-c", PROGRAM.format(keep=keep)], capture_output=True, text=True, check=True
        )
        kept, faults = run.stdout.split()
        if keep and kept == "False":
            pytest.skip("another C library")
        said[keep] = int(faults)
    assert said[True] < 50
    assert said[True] * 20 < said[False]
