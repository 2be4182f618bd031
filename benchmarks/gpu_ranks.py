"""What many ranks need of a GPU, tried with one rank, in one script of at most 5 minutes; no data files are needed.

    python benchmarks/gpu_ranks.py > ranks.jsonl           # on a GPU: NCCL; a Markdown table goes to stderr
    python benchmarks/gpu_ranks.py --device cpu --small    # the same stages in seconds, on a CPU: gloo

- `world`: the process group that training makes; sums of numbers (gloo) and of tensors of the device.
- `equal`: gradients of several families, wrapped by DDP and by FSDP2, beside those of the plain step.
- `speed`: updates of `base` as they are, in DDP and in FSDP2: target tokens/s, peak memory.
- `save`: how long a save holds the training up, written beside it and at once, and whether the files are good.

Each stage has a budget of time and fails by itself: an error is a row. One JSON object per row goes to stdout.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import gpu
import torch
import torch.distributed as dist
from gpu import FAMILIES, FULL, SHALLOW, SMALL, TOLERANCE, Clock, Row, Scale, apart, buckets, build, pairs, wait

from transformer_kit.batch import Batch
from transformer_kit.training.checkpoint import CheckpointStore
from transformer_kit.training.optimizer import build_optimizer, optimizer_state, set_lr
from transformer_kit.training.parallel import Parallel, Replicated
from transformer_kit.training.precision import Precision
from transformer_kit.training.sharded import Sharded, full_state
from transformer_kit.training.shards import whole
from transformer_kit.training.step import Step
from transformer_kit.training.world import World, joined

WAYS: dict[str, Callable[[Step, World], Parallel]] = {
    "plain": Parallel,
    "ddp": Replicated,
    "fsdp": lambda step, world: Sharded(step, world, next(step.parameters()).device),
}
COMPARED = ("encoder_decoder/relative", "llama", "bert", "classifier")
SECONDS = 270.0


@contextmanager
def one_rank(device: torch.device) -> Iterator[World]:
    """The world that a launcher of one rank would describe."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    launched = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    launched |= {"LOCAL_WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "one"}
    before = {name: os.environ.get(name) for name in launched}
    os.environ |= launched
    try:
        with joined(device.type == "cuda") as world:
            yield world
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


class Trained:
    """A model in training, wrapped in one of the ways."""

    def __init__(self, scale: Scale, world: World, way: str, precision: str, overrides: list[str], kind: str) -> None:
        model, objective, config = build(overrides, kind, scale.vocab)
        self.parallel = WAYS[way](Step(model, objective).to(scale.device).train(), world)
        self.model = self.parallel.step.model
        self.optimizer = build_optimizer(config.optimizer, self.model)
        set_lr(self.optimizer, 1e-4)
        self._precision = Precision(precision, scale.device, "")

    def gradient(self, batch: Batch) -> None:
        self.optimizer.zero_grad()
        with self.parallel.last(True):
            with self._precision.autocast():
                sums = self.parallel.module(batch.to(self._precision.device))
            (sums.loss * self.parallel.scale / batch.num_labels).backward()

    def update(self, batch: Batch) -> None:
        self.gradient(batch)
        grads = [p.grad for group in self.optimizer.param_groups for p in group["params"] if p.grad is not None]
        norm = self.parallel.norm(grads)
        assert bool(norm.isfinite()), "the gradient is not finite"
        self.optimizer.step()


def join(scale: Scale, world: World, clock: Clock) -> Iterator[Row]:
    """Sums of both kinds."""
    tensor = torch.arange(1009, device=scale.device, dtype=torch.float32)
    expected = tensor.clone()
    dist.all_reduce(tensor)
    wait(scale.device)
    backend = dist.get_backend(dist.group.WORLD)
    fine = bool(torch.equal(tensor, expected)) and world.sum([2.5, -1.0]) == [2.5, -1.0]
    yield {"backend": str(backend), "device": str(scale.device), "ok": fine}


def compare(scale: Scale, world: World, clock: Clock) -> Iterator[Row]:
    """Gradients of one batch."""
    torch.backends.cuda.matmul.allow_tf32 = False
    lengths = [29, 7, 19, 23, 3, 31][: 6 if scale.device.type == "cuda" else 3]
    for name in COMPARED:
        overrides, stacks, kind = FAMILIES[name]
        sizes = [*SHALLOW, *(f"model.{stack}.layers=2" for stack in stacks)]
        if kind == "labels":
            sizes.append("objective.dropout=0.0")
        batch = pairs(lengths, scale.vocab, 3) if kind == "pairs" else gpu.single(lengths, scale.vocab, 3, kind)
        for precision in ("fp32", "bf16"):
            if clock.left < 0:
                return
            found = {}
            for way in WAYS:
                trained = Trained(scale, world, way, precision, [*overrides, *sizes], kind)
                trained.gradient(batch)
                grads = [whole(p.grad).flatten() for p in trained.model.parameters() if p.grad is not None]
                found[way] = torch.cat(grads).float().cpu()
            row = {way: apart(found[way], found["plain"]) for way in ("ddp", "fsdp")}
            yield {"model": name, "precision": precision, **row, "ok": max(row.values()) <= TOLERANCE[precision]}


def speed(way: str) -> Callable[[Scale, World, Clock], Iterator[Row]]:
    def stage(scale: Scale, world: World, clock: Clock) -> Iterator[Row]:
        batches = [each.pinned() if scale.device.type == "cuda" else each for each in buckets(scale, scale.batches, 1)]
        trained = Trained(scale, world, way, "bf16", [f"model/size={scale.sizes[0]}"], "pairs")
        for batch in batches:
            trained.update(batch)
        wait(scale.device)
        if scale.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(scale.device)
        began, labels, done = time.perf_counter(), 0, 0
        while done < scale.updates and (clock.left > 0 or done < len(batches)):
            batch = batches[done % len(batches)]
            trained.update(batch)
            labels, done = labels + batch.num_labels, done + 1
        wait(scale.device)
        row: Row = {"way": way, "updates": done, "tokens_per_second": labels / (time.perf_counter() - began)}
        if scale.device.type == "cuda":
            row["peak_gib"] = torch.cuda.max_memory_allocated(scale.device) / 2**30
        yield row

    return stage


def save(scale: Scale, world: World, clock: Clock) -> Iterator[Row]:
    """Seconds of a save that the training does not go on in; and the weights that are read back."""
    from transformer_kit.training.saver import Saver

    trained = Trained(scale, world, "plain", "bf16", [f"model/size={scale.sizes[0]}"], "pairs")
    batches = buckets(scale, scale.batches, 1)
    with tempfile.TemporaryDirectory() as folder:
        for asynchronous in (False, True):
            store = CheckpointStore(
                Path(folder) / str(asynchronous), keep_last=2, keep_best=1, metric="loss", higher_is_better=False
            )
            held = []
            with Saver(store, asynchronous) as saver:
                for step in range(1, 4):
                    trained.update(batches[step % len(batches)])
                    wait(scale.device)
                    began = time.perf_counter()
                    state = {"step": step, "regular": True, "scores": {}, "format": 1}
                    moments = optimizer_state(trained.optimizer, trained.model)
                    assert saver.save(step, trained.model, moments, state, None)
                    held.append(time.perf_counter() - began)
                expected = {name: tensor.clone() for name, tensor in full_state(trained.model).items()}
                trained.update(batches[0])  # what is written must be what was there
                fine = saver.saved == 3
            from transformer_kit.training.weights import load_tensors

            found = store.latest_good()
            fine = fine and found is not None and found.step == 3
            if found is not None:
                read = load_tensors(found.path / "model.safetensors")
                fine = fine and all(torch.equal(read[name], tensor) for name, tensor in expected.items())
            yield {"asynchronous": asynchronous, "held_up": min(held), "first": held[0], "ok": fine}


Stage = Callable[[Scale, World, Clock], Iterator[Row]]


def stages(scale: Scale) -> dict[str, tuple[float, Stage]]:
    """Each stage's share of the time, in order."""
    timed: dict[str, tuple[float, Stage]] = {f"speed {way}": (0.15, speed(way)) for way in WAYS}
    return {"world": (0.05, join), "equal": (0.3, compare), **timed, "save": (0.2, save)}


def run_all(scale: Scale, world: World, seconds: float) -> Iterator[Row]:
    left = Clock(seconds)
    for name, (share, stage) in stages(scale).items():
        clock = Clock(min(share * seconds, left.left))
        if clock.left < 0:
            yield {"stage": name, "error": "no time left"}
            continue
        try:
            for row in stage(scale, world, clock):
                yield {"stage": name, **row}
        except Exception as error:  # a stage that fails must not lose the others
            said = str(error).splitlines()[0] if str(error) else ""
            yield {"stage": name, "error": f"{type(error).__name__}: {said}"}
        print(f"{name}: done with {left.left:.0f} s left", file=sys.stderr, flush=True)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="tiny sizes, in seconds")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of all stages together")
    given = parser.parse_args(arguments)
    scale = replace(SMALL if given.small else FULL, device=torch.device(given.device))
    rows: list[dict[str, Any]] = []
    with one_rank(scale.device) as world:
        for row in run_all(scale, world, given.seconds):
            rows.append(row)
            print(json.dumps(row), flush=True)
    print(gpu.table(rows), file=sys.stderr)
    return int(any("error" in row or row.get("ok") is False for row in rows))


if __name__ == "__main__":
    sys.exit(main())
