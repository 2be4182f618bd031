"""Two ranks of one thread beside one process of two threads, and what the exchange of gradients costs.

    python benchmarks/ranks.py --config tiny --rounds 3

- The workloads of benchmarks/train.py, on made-up sentences of 5 to 25 tokens; each rank computes a batch an update,
  the one process two, so that all updates are of the same batches.
- `exchanged` are the ranks as they train; `apart` are the same ranks that keep their gradients to themselves: the
  difference is the exchange, with the wait for the slower rank.
- Each measurement is processes of its own, in turns. One JSON line goes to stdout.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time

import torch
from train import COMMON, PAIR, WORKLOADS

from transformer_kit.batch import Batch, translation_batch
from transformer_kit.config.build import build_model, build_objective
from transformer_kit.config.check import ANY_SPECIALS
from transformer_kit.config.compose import compose
from transformer_kit.training.optimizer import build_optimizer
from transformer_kit.training.parallel import Parallel, make_parallel
from transformer_kit.training.precision import resolve_precision
from transformer_kit.training.schedule import build_schedule
from transformer_kit.training.step import Step
from transformer_kit.training.update import Updater
from transformer_kit.training.windows import Window
from transformer_kit.training.world import ALONE, World, joined

VOCABULARY = 8000
WAYS = ("one process", "exchanged", "apart")
CPU = torch.device("cpu")


def made_up(number: int, tokens: int) -> Batch:
    """A batch of a budget of tokens, of sentences of one length and a little less."""
    draw = random.Random(number)
    length = draw.randint(8, 25)
    pairs = [
        [[draw.randrange(4, VOCABULARY) for _ in range(draw.randint(length - 3, length))] for _ in range(2)]
        for _ in range(tokens // (length + 1))
    ]
    sources, targets = zip(*pairs, strict=True)
    return translation_batch(sources, targets, range(len(pairs)), pad_id=0, bos_id=2, eos_id=3)


def measure(world: World, way: str, name: str, precision: str, seconds: float) -> float:
    """Target tokens a second over all ranks, the median of windows."""
    overrides, tokens = WORKLOADS[name]
    config = compose("train", [*overrides, *COMMON, *PAIR])
    torch.manual_seed(1)
    step = Step(
        build_model(config.model, VOCABULARY, VOCABULARY), build_objective(config.objective, specials=ANY_SPECIALS)
    )
    parallel = Parallel(step) if way == "apart" else make_parallel(step.train(), world, config.trainer.ranks, CPU)
    updater = Updater(
        parallel,
        build_optimizer(config.optimizer, step.model),
        build_schedule(config.schedule),
        resolve_precision(precision, CPU),
        clip_norm=None,
        seed=1,
    )
    batches = [made_up(number, tokens) for number in range(16)]
    done = 0

    def update() -> int:
        nonlocal done
        pair = [batches[(2 * done + number) % len(batches)] for number in range(2)]
        labels = sum(batch.num_labels for batch in pair)
        own = Window([pair[world.rank]], [world.rank], 1, labels)
        updater.run(Window.of(pair) if world.size == 1 else own, done, done + 1)
        done += 1
        return labels

    def window_rate(length: float) -> float:
        begun, labels = time.perf_counter(), 0
        while not world.any(time.perf_counter() - begun >= length):
            labels += update()
        return labels / (time.perf_counter() - begun)

    window_rate(seconds)
    return statistics.median(window_rate(seconds) for _ in range(3))


def run(way: str, given: argparse.Namespace) -> float:
    """One measurement, in new processes."""
    ranks = 1 if way == "one process" else 2
    environment = {**os.environ, "OMP_NUM_THREADS": str(2 // ranks), "TORCH_CPP_LOG_LEVEL": "ERROR"}
    words = [__file__, "--only", way, "--config", given.config, "--precision", given.precision]
    words += ["--window", str(given.window)]
    launcher = [] if ranks == 1 else ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    done = subprocess.run([sys.executable, *launcher, *words], env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return float(done.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", choices=sorted(WORKLOADS), default="tiny")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--window", type=float, default=4.0, help="seconds of a window")
    parser.add_argument("--only", choices=WAYS, help="measure one way in this process and print its rate")
    given = parser.parse_args()
    if given.only:
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        with joined(cuda=False) as world:
            rate = measure(world, given.only, given.config, given.precision, given.window)
            if world == ALONE or world.leads:
                print(rate)
        return
    rates: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(given.rounds):
        for way, found in rates.items():
            found.append(run(way, given))
        print(f"round {number + 1}: {', '.join(f'{w} {r[-1]:,.0f}' for w, r in rates.items())}", file=sys.stderr)
    one, exchanged, apart = (rates[way] for way in WAYS)
    ratios = [ours / theirs for ours, theirs in zip(exchanged, one, strict=True)]
    shares = [1 - ours / theirs for ours, theirs in zip(exchanged, apart, strict=True)]
    row = {
        "config": given.config,
        "precision": given.precision,
        "target tokens/s": {way: round(statistics.median(found)) for way, found in rates.items()},
        "two ranks over one process": [round(ratio, 2) for ratio in ratios],
        "share of the exchange": [round(share, 2) for share in shares],
        "torch": torch.__version__,
    }
    print(json.dumps(row))


if __name__ == "__main__":
    main()
