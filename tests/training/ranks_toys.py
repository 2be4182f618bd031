"""Ranks for tests: processes that form a gloo world of their own, run one function and give its result back."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.optim import Optimizer

from transformer_kit.batch import Batch
from transformer_kit.training.parallel import Parallel
from transformer_kit.training.world import World

Work = Callable[..., Any]


def run_ranks(work: Work, ranks: int, folder: Path, *args: Any, seconds: float = 120.0) -> list[Any]:
    """What `work(world, *args)` gives on each rank; a function of a module, as other processes import it.

    Raises:
        Exception: it failed on some rank, whose traceback is on stderr, or took too long.
    """
    threads = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    started = mp.start_processes(_rank, (work, ranks, str(folder), args), ranks, join=False, start_method="spawn")
    if threads is None:
        del os.environ["OMP_NUM_THREADS"]
    else:
        os.environ["OMP_NUM_THREADS"] = threads
    assert started is not None
    end = time.monotonic() + seconds
    try:
        while not started.join(timeout=max(0.1, end - time.monotonic())):
            if time.monotonic() > end:
                raise RuntimeError(f"the ranks did not end within {seconds} s")
    finally:
        for process in started.processes:
            process.kill()
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(ranks)]


def _rank(rank: int, work: Work, ranks: int, folder: str, args: Sequence[Any]) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = dist.FileStore(f"{folder}/store", ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=timedelta(seconds=60))
    try:
        torch.save(work(World(rank, ranks, rank), *args), f"{folder}/{rank}.pt")
    except BaseException:
        traceback.print_exc()
        os._exit(1)  # a rank that waits for this one would keep the tear-down waiting
    dist.destroy_process_group()


def gradient(parallel: Parallel, window: Sequence[Batch]) -> float:
    """Make the gradient of a window's mean loss, its batches dealt out in turn; the loss.

    Where a rank has fewer batches than another, it takes one of which nothing counts.
    """
    world = parallel.world
    own, most = list(window[world.rank :: world.size]), -(-len(window) // world.size)
    own += [window[0].uncounted()] * (most - len(own))
    labels, loss = sum(batch.num_labels for batch in window), 0.0
    for number, batch in enumerate(own, start=1):
        with parallel.last(number == most):
            sums = parallel.module(batch)
            (sums.loss * parallel.scale / labels).backward()
        loss += sums.loss.item()
    return world.sum([loss])[0] / labels


def update(parallel: Parallel, window: Sequence[Batch], optimizer: Optimizer, clip: float) -> tuple[float, float]:
    """One update; its loss, and the norm of its gradient before it was clipped."""
    optimizer.zero_grad()
    loss = gradient(parallel, window)
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    norm = parallel.norm([p.grad for p in parameters if p.grad is not None])
    nn.utils.clip_grads_with_norm_(parameters, clip, norm)
    optimizer.step()
    return loss, norm.item()


def apart(got: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """The largest difference of tensors by name."""
    assert got.keys() == expected.keys(), got.keys() ^ expected.keys()
    return max(float((got[name] - expected[name]).abs().max()) for name in expected)
