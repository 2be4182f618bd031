"""Iterations a second on tiny Shakespeare at nanoGPT's CPU settings, beside a loop that does what nanoGPT's does.

    export TKIT_DATA=...; python benchmarks/small_decoder.py

4 layers, 4 heads, width 128, rows of 64 characters, 12 rows a batch, no dropout, no biases, AdamW, gradients clipped
at 1.

- `loop` runs the operations of nanoGPT's train.py and model.py in torch's own modules: slices stacked to a batch each
  iteration, F.layer_norm, F.scaled_dot_product_attention, nn.GELU, F.cross_entropy, clip_grad_norm_, AdamW. With
  `--precision bf16` it runs under autocast, which nanoGPT itself does on GPUs alone.
- `tkit` is `+recipe=shakespeare_char`: its batch maker and the training loop's own update.
- Processes take turns, so that all see the same machine and each has its own memory. One JSON line goes to stdout.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer_kit.config.compose import compose
from transformer_kit.data.prepare import prepare
from transformer_kit.data.streams import training_stream
from transformer_kit.tasks.load import assemble
from transformer_kit.training.optimizer import build_optimizer
from transformer_kit.training.parallel import Parallel
from transformer_kit.training.precision import resolve_device, resolve_precision
from transformer_kit.training.schedule import build_schedule
from transformer_kit.training.step import Step
from transformer_kit.training.update import Updater
from transformer_kit.training.windows import Window

WIDTH, LAYERS, HEADS, LENGTH, ROWS = 128, 4, 4, 64, 12
NAMES = ("loop fp32", "tkit fp32", "loop bf16", "tkit bf16")


class Layer(nn.Module):
    """norm, attention, norm, feed-forward, each on a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ParameterList([torch.ones(WIDTH), torch.ones(WIDTH)])
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)
        self.activation = nn.GELU()
        self.dropout = nn.Dropout(0.0)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        parts = self.qkv(F.layer_norm(x, (WIDTH,), self.norms[0], None, 1e-5)).split(WIDTH, dim=2)
        q, k, v = (part.view(rows, length, HEADS, width // HEADS).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.out(mixed.transpose(1, 2).contiguous().view(rows, length, width)))
        return x + self.dropout(
            self.down(self.activation(self.up(F.layer_norm(x, (WIDTH,), self.norms[1], None, 1e-5))))
        )


class Plain(nn.Module):
    """A character model in torch's own modules; the output projection shares the embedding's table."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList([Layer() for _ in range(LAYERS)])
        self.norm = nn.Parameter(torch.ones(WIDTH))
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        for layer in self.layers:
            x = layer(x)
        logits = F.linear(F.layer_norm(x, (WIDTH,), self.norm, None, 1e-5), self.tokens.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), labels.view(-1))


def plain_loop(text: str, precision: str) -> Callable[[], float]:
    """One iteration of the straightforward loop; returns its loss."""
    kinds = sorted(set(text))
    number = {kind: i for i, kind in enumerate(kinds)}
    data = np.array([number[kind] for kind in text], dtype=np.uint16)
    torch.manual_seed(1337)
    model = Plain(len(kinds))
    groups = [
        {"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.99))
    context = torch.autocast("cpu", torch.bfloat16) if precision == "bf16" else nullcontext()

    def batch() -> tuple[Tensor, Tensor]:
        starts = torch.randint(len(data) - LENGTH, (ROWS,))
        x = torch.stack([torch.from_numpy(data[i : i + LENGTH].astype(np.int64)) for i in starts])
        y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + LENGTH].astype(np.int64)) for i in starts])
        return x, y

    held = batch()

    def iterate() -> float:
        nonlocal held
        with context:
            loss = model(*held)
        held = batch()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return math.nan

    return iterate


def tkit_loop(precision: str, cache: str) -> Callable[[], float]:
    """One update of the recipe."""
    config = compose("train", ["+recipe=shakespeare_char", f"data.cache={cache}"])
    prepared = prepare(config.data, config.tokenizer, None)
    torch.manual_seed(1)
    model, objective = assemble(config, prepared.tokenizers, prepared.labels)
    updater = Updater(
        Parallel(Step(model.train(), objective)),
        build_optimizer(config.optimizer, model),
        build_schedule(config.schedule),
        resolve_precision(precision, resolve_device("cpu")),
        config.trainer.clip_norm,
        seed=1,
    )
    feed = iter(training_stream(prepared, seed=1, collate=objective.collate))
    done = 0

    def iterate() -> float:
        nonlocal done
        done += 1
        return updater.run(Window.of([next(feed)]), done - 1, done).loss

    return iterate


def rate(iterate: Callable[[], float], seconds: float) -> float:
    """Iterations a second over a window."""
    begun, count = time.perf_counter(), 0
    while time.perf_counter() - begun < seconds:
        iterate()
        count += 1
    return count / (time.perf_counter() - begun)


def measure(name: str, text: Path, seconds: float) -> float:
    """The median of three windows of one loop, after a warm-up."""
    side, precision = name.split()
    with tempfile.TemporaryDirectory() as cache:
        if side == "tkit":
            iterate = tkit_loop(precision, cache)
        else:
            iterate = plain_loop(text.read_text(encoding="utf-8"), precision)
        rate(iterate, 2.0)
        return statistics.median(rate(iterate, seconds) for _ in range(3))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--window", type=float, default=3.0, help="seconds of a window")
    parser.add_argument("--only", choices=NAMES, help="measure one and print its rate")
    given = parser.parse_args()
    text = Path(os.environ["TKIT_DATA"]) / "tinyshakespeare" / "input.txt"
    if given.only:
        torch.set_num_threads(given.threads)
        print(measure(given.only, text, given.window))
        return
    rates: dict[str, list[float]] = {name: [] for name in NAMES}
    for number in range(given.rounds):
        for name, found in rates.items():
            command = [sys.executable, __file__, "--only", name, f"--threads={given.threads}"]
            run = subprocess.run([*command, f"--window={given.window}"], capture_output=True, text=True, check=True)
            found.append(float(run.stdout))
        print(f"round {number + 1}: {', '.join(f'{n} {r[-1]:.1f}' for n, r in rates.items())}", file=sys.stderr)
    base = rates[NAMES[0]]
    row = {
        name: {
            "median": round(statistics.median(found), 2),
            "range": [round(min(found), 2), round(max(found), 2)],
            "over loop fp32": [round(one / other, 2) for one, other in zip(found, base, strict=True)],
        }
        for name, found in rates.items()
    }
    print(json.dumps({"threads": given.threads, "torch": torch.__version__, **row}))


if __name__ == "__main__":
    main()
