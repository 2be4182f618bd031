"""What a GPU makes of the toolkit, in one script of at most 8 minutes; no data files are needed.

    python benchmarks/gpu.py > gpu.jsonl             # on a GPU; progress and a Markdown table go to stderr
    python benchmarks/gpu.py --device cpu --small    # the same stages in seconds, on a CPU

- `peak`: a large bf16 matrix product, what utilisation is measured against.
- `equal`: logits and gradients of every family, in fp32 and under bf16 autocast, beside those of the CPU in fp32.
- `speed`: updates (forward, backward, gradient norm, Adam) of `base` and `big` on batches of some 25,000 tokens, as
  written, compiled, and with activation checkpointing: target tokens/s, utilisation, peak memory.
- `lengths`: how many graphs 200 batches of mixed lengths take when compiled.

Each stage has a budget of time and fails by itself: an error is a row. One JSON object per row goes to stdout.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from transformer_kit.batch import Batch, pad, translation_batch
from transformer_kit.config.build import build_model, build_objective, count_parameters
from transformer_kit.config.check import ANY_SPECIALS
from transformer_kit.config.compose import compose
from transformer_kit.models.base import Model
from transformer_kit.models.stack import checkpoint_activations
from transformer_kit.objectives.base import Objective
from transformer_kit.training.compiling import Compiler
from transformer_kit.training.optimizer import build_optimizer
from transformer_kit.training.parallel import Parallel
from transformer_kit.training.precision import Precision
from transformer_kit.training.schedule import build_schedule
from transformer_kit.training.step import Step
from transformer_kit.training.update import Updater
from transformer_kit.training.windows import Window

Row = dict[str, Any]
DATA = {
    "pairs": ["data.train=[{source: x, target: y}]", "data.valid=[{source: x, target: y}]"],
    "documents": ["data=text", "data.train=[{text: x}]", "data.valid=[{text: x}]"],
    "labels": ["data=labels", "data.train=[{tsv: x}]", "data.valid=[{tsv: x}]"],
}
NO_DROPOUT = "model.dropout={embedding: 0.0, residual: 0.0, attention: 0.0, feedforward: 0.0}"
SHALLOW = ["model.d_model=256", "model.d_ff=512", "model.num_heads=4", "model.max_length=256", NO_DROPOUT]
BOTH, ONE, READER = ["encoder", "decoder"], ["decoder"], ["encoder"]
LLAMA = ["model=decoder_only", "model/position=rope", "model/norm=rmsnorm", "model/feedforward=swiglu"]
T5 = ["model/position=relative", "model/norm=rmsnorm", "model/feedforward=geglu_tanh", "model/residual=pre"]
POSITIONS = ("sinusoidal", "learned", "rope", "alibi", "relative", "none")
# name -> its overrides, its stacks, what it learns from
FAMILIES: dict[str, tuple[list[str], list[str], str]] = {
    **{f"encoder_decoder/{name}": ([f"model/position={name}"], BOTH, "pairs") for name in POSITIONS},
    "t5": (T5, BOTH, "pairs"),
    "llama": ([*LLAMA, "model/attention=gqa", "objective=causal_lm"], ONE, "documents"),
    "gpt2": (
        ["model=decoder_only", "model/position=learned", "model/residual=pre", "objective=causal_lm"],
        ONE,
        "documents",
    ),
    "bert": (
        ["model=encoder_only", "model/position=learned", "objective=masked_lm", "model/head=mlm"],
        READER,
        "documents",
    ),
    "classifier": (["model=encoder_only", "model/position=learned", "objective=classification"], READER, "labels"),
}
SPECIALS = replace(ANY_SPECIALS, mask=ANY_SPECIALS.unk if ANY_SPECIALS.mask is None else ANY_SPECIALS.mask)
CLASSES = 5
TOLERANCE = {"fp32": 1e-3, "bf16": 5e-2}  # of ‖difference‖ / ‖value‖


@dataclass(frozen=True)
class Scale:
    """How large everything is."""

    device: torch.device
    vocab: int
    tokens: int
    sizes: tuple[str, ...]
    batches: int
    mixed: int
    product: int
    updates: int
    backend: str


FULL = Scale(torch.device("cuda"), 32_000, 25_000, ("base", "big"), 6, 200, 8192, 40, "inductor")
SMALL = Scale(torch.device("cpu"), 97, 60, ("tiny",), 2, 3, 128, 2, "aot_eager")


class Clock:
    """Seconds that a stage may take."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self._began = seconds, time.monotonic()

    @property
    def left(self) -> float:
        return self.seconds - (time.monotonic() - self._began)


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


# -- batches ---------------------------------------------------------------------------------------------------------


def lengths_of(count: int, seed: int, longest: int = 120) -> list[int]:
    """Lengths as in a corpus of sentences: log-normal with a median of 22."""
    draw = torch.Generator().manual_seed(seed)
    return (torch.randn(count, generator=draw) * 0.55 + 3.1).exp().long().clamp(2, longest).tolist()


def rows_of(lengths: list[int], vocab: int, seed: int) -> list[Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return [torch.randint(8, vocab, (length,), generator=draw) for length in lengths]


def pairs(lengths: list[int], vocab: int, seed: int) -> Batch:
    """Sentences and their translations, somewhat longer or shorter."""
    other = [max(2, length + (number * 7 + seed) % 9 - 4) for number, length in enumerate(lengths)]
    source, target = rows_of(lengths, vocab, seed), rows_of(other, vocab, seed + 1)
    ids = list(range(len(lengths)))
    return translation_batch(source, target, ids, pad_id=ANY_SPECIALS.pad, bos_id=2, eos_id=3)


def single(lengths: list[int], vocab: int, seed: int, kind: str) -> Batch:
    """Rows that predict their next tokens, or one class."""
    target = pad(rows_of(lengths, vocab, seed), ANY_SPECIALS.pad)
    ids = torch.arange(len(lengths))
    if kind == "labels":
        labels = (ids % CLASSES)[:, None]
        return Batch(None, target, labels, torch.ones_like(labels, dtype=torch.bool), len(lengths), ids)
    return Batch(None, target, target.ids.roll(-1, 1), target.valid, sum(lengths), ids)


def buckets(scale: Scale, count: int, seed: int) -> list[Batch]:
    """Batches of rows of like length within the budget of tokens, in a mixed order."""
    pool = sorted(lengths_of(max(64, scale.tokens * count // 20), seed))
    made, start = [], 0
    while start < len(pool):
        end = start + 1
        while end < len(pool) and (pool[end] + 5) * (end + 1 - start) <= scale.tokens:
            end += 1
        made.append(pool[start:end])
        start = end
    order = torch.randperm(len(made), generator=torch.Generator().manual_seed(seed)).tolist()
    return [pairs(made[number], scale.vocab, number) for number in (order * (1 + count // len(order)))[:count]]


# -- stages ----------------------------------------------------------------------------------------------------------


def measure_peak(scale: Scale, clock: Clock) -> Iterator[Row]:
    """FLOP/s of a square product in bf16, the best of several windows."""
    a, b = (torch.randn(scale.product, scale.product, device=scale.device, dtype=torch.bfloat16) for _ in range(2))
    best, windows = 0.0, 0
    while windows < 5 and clock.left > 0:
        wait(scale.device)
        began = time.perf_counter()
        for _ in range(10):
            a @ b
        wait(scale.device)
        best, windows = max(best, 20 * scale.product**3 / (time.perf_counter() - began)), windows + 1
    yield {"size": scale.product, "tflops": best / 1e12}


def build(overrides: list[str], kind: str, vocab: int) -> tuple[Model, Objective, Any]:
    config = compose("train", [*DATA[kind], *overrides], check=False)
    torch.manual_seed(1)
    objective = build_objective(config.objective, specials=SPECIALS)
    model = build_model(config.model, vocab, vocab)
    return objective.adapt(model, CLASSES if kind == "labels" else None), objective, config


def pass_through(step: Step, model: Model, batch: Batch, precision: Precision) -> tuple[Tensor, Tensor]:
    """The logits of the first counted cells, and the gradient of the mean loss as one vector; both on the CPU."""
    batch = batch.to(precision.device)
    step.zero_grad()
    with precision.autocast():
        loss = step(batch).loss / batch.num_labels
        with torch.no_grad():
            hidden = model(batch).hidden
            logits = model.logits(hidden[batch.counted][:64]) if batch.labels.shape[1] > 1 else hidden[:, 0]
    loss.backward()
    grads = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    return logits.float().cpu(), torch.cat(grads).float().cpu()


def apart(got: Tensor, expected: Tensor) -> float:
    return float((got - expected).norm() / expected.norm())


def compare_families(scale: Scale, clock: Clock) -> Iterator[Row]:
    """The device against the CPU in fp32."""
    torch.backends.cuda.matmul.allow_tf32 = False
    lengths = [29, 7, 19, 23, 3, 31, 2, 13][: 8 if scale.device.type == "cuda" else 3]
    for name, (overrides, stacks, kind) in FAMILIES.items():
        if clock.left < 0:
            return
        sizes = [*SHALLOW, *(f"model.{stack}.layers=2" for stack in stacks)]
        if kind == "labels":
            sizes.append("objective.dropout=0.0")
        model, objective, _ = build([*overrides, *sizes], kind, 101)
        step = Step(model, objective).train()
        batch = pairs(lengths, 101, 3) if kind == "pairs" else single(lengths, 101, 3, kind)
        expected = pass_through(step, model, batch, Precision("fp32", torch.device("cpu"), ""))
        step.to(scale.device)
        for precision in ("fp32", "bf16"):
            got = pass_through(step, model, batch, Precision(precision, scale.device, ""))
            logits, gradients = (apart(one, other) for one, other in zip(got, expected, strict=True))
            fine = max(logits, gradients) <= TOLERANCE[precision]
            yield {"model": name, "precision": precision, "logits": logits, "gradients": gradients, "ok": fine}


class Run:
    """A model of some size in training on the device."""

    def __init__(self, scale: Scale, size: str, mode: str) -> None:
        self.model, objective, config = build([f"model/size={size}", *TRAINING], "pairs", scale.vocab)
        self.compiler = Compiler(scale.backend) if "compiled" in mode else None
        checkpoint_activations(self.model, "checkpointed" in mode)
        self.step = Step(self.model, objective, self.compiler).to(scale.device).train()
        optimizer = build_optimizer(config.optimizer, self.model)
        self.precision = Precision("bf16", scale.device, "")
        schedule = build_schedule(config.schedule)
        self._updater = Updater(Parallel(self.step), optimizer, schedule, self.precision, None, seed=1)
        self.updates = 0

    def update(self, batch: Batch) -> int:
        outcome = self._updater.run(Window.of([batch]), self.updates, self.updates + 1)
        assert outcome.fault is None, outcome.fault
        self.updates += 1
        return outcome.labels

    def flops(self, batch: Batch) -> int:
        """Of the products of one forward and backward pass."""
        with FlopCounterMode(display=False) as counter, self.precision.autocast():
            self.step(batch.to(self.precision.device)).loss.backward()
        self.step.zero_grad()
        return counter.get_total_flops()


TRAINING = ["schedule=constant", "schedule.lr=1e-4", "schedule.warmup=0"]


def measure_speed(size: str, mode: str) -> Callable[[Scale, Clock], Iterator[Row]]:
    def stage(scale: Scale, clock: Clock) -> Iterator[Row]:
        batches = [
            batch.pinned() if scale.device.type == "cuda" else batch for batch in buckets(scale, scale.batches, 1)
        ]
        plain = Run(scale, size, "eager")
        flops = [plain.flops(batch) for batch in batches]
        del plain
        run = Run(scale, size, mode)
        for batch in batches:  # compiles, and fills the allocator's pools
            run.update(batch)
        wait(scale.device)
        if scale.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(scale.device)
        began, labels, work, done = time.perf_counter(), 0, 0, 0
        while done < scale.updates and (clock.left > 0 or done < len(batches)):
            labels += run.update(batches[done % len(batches)])
            work += flops[done % len(batches)]
            done += 1
        wait(scale.device)
        seconds = time.perf_counter() - began
        row = {"size": size, "mode": mode, "parameters": count_parameters(run.model), "updates": done}
        row |= {"tokens_per_second": labels / seconds, "tflops": work / seconds / 1e12}
        if scale.device.type == "cuda":
            row["peak_gib"] = torch.cuda.max_memory_allocated(scale.device) / 2**30
        if run.compiler is not None:
            row["graphs"] = run.compiler.graphs
        yield row

    return stage


def count_graphs(scale: Scale, clock: Clock) -> Iterator[Row]:
    """Batches of mixed lengths through compiled layers."""
    torch._dynamo.reset()
    run, first, done = Run(scale, scale.sizes[0], "compiled"), 0, 0
    assert run.compiler is not None
    for batch in buckets(scale, scale.mixed, 5):
        if clock.left < 0:
            break
        run.update(batch)
        first, done = first or run.compiler.graphs, done + 1
    yield {"batches": done, "graphs_first": first, "recompilations": run.compiler.graphs - first}


# -- running ---------------------------------------------------------------------------------------------------------


def stages(scale: Scale) -> dict[str, tuple[float, Callable[[Scale, Clock], Iterator[Row]]]]:
    """Each stage's share of the time, in order."""
    listed: dict[str, tuple[float, Callable[[Scale, Clock], Iterator[Row]]]] = {
        "peak": (0.02, measure_peak),
        "equal": (0.18, compare_families),
    }
    for size in scale.sizes:
        for mode in ("eager", "compiled", "checkpointed"):
            listed[f"speed {size} {mode}"] = (0.6 / (3 * len(scale.sizes)), measure_speed(size, mode))
    return listed | {"lengths": (0.2, count_graphs)}


def run_all(scale: Scale, seconds: float) -> Iterator[Row]:
    whole = Clock(seconds)
    for name, (share, stage) in stages(scale).items():
        if whole.left < 0:
            yield {"stage": name, "error": "no time left"}
            continue
        clock, began = Clock(min(share * seconds, whole.left)), time.monotonic()
        try:
            for row in stage(scale, clock):
                yield {"stage": name, **row}
        except Exception as error:  # a stage that fails must not lose the others
            yield {
                "stage": name,
                "error": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}",
            }
        if scale.device.type == "cuda":
            torch.cuda.empty_cache()
        print(f"{name}: {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)


def with_utilisation(rows: Iterator[Row]) -> Iterator[Row]:
    """Rows, those of speed with their share of the measured peak."""
    peak = None
    for row in rows:
        if row["stage"] == "peak":
            peak = row.get("tflops")
        elif peak and "tflops" in row:
            row = {**row, "utilisation": row["tflops"] / peak}
        yield row


def table(rows: list[Row]) -> str:
    """The rows as Markdown."""
    lines = ["| stage | result |", "|---|---|"]
    for row in rows:
        said = ", ".join(
            f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
            for key, value in row.items()
            if key != "stage"
        )
        lines.append(f"| {row['stage']} | {said} |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="tiny sizes, in seconds")
    parser.add_argument("--seconds", type=float, default=440.0, help="of all stages together")
    given = parser.parse_args(arguments)
    scale = replace(SMALL if given.small else FULL, device=torch.device(given.device))
    rows = []
    for row in with_utilisation(run_all(scale, given.seconds)):
        rows.append(row)
        print(json.dumps(row), flush=True)
    print(table(rows), file=sys.stderr)
    return int(any("error" in row or row.get("ok") is False for row in rows))


if __name__ == "__main__":
    sys.exit(main())
