"""How many real target tokens a second tkit trains on, on the workloads that other toolkits are measured on.

    python benchmarks/train.py --config tiny --precision fp32 \\
        --vocabulary m30k.model --source train.en --target train.de

- `tiny`: d 128, ff 256, 4 heads, 4+4 layers, dropout 0.3 on embeddings, residuals, attention, activations, batches of
  at most 4096 padded tokens on the longer side. `base`: d 512, ff 2048, 8 heads, 6+6 layers, dropout 0.1, 2048 tokens.
- Post-norm, sinusoids, ReLU, one matrix for source, target and output, Adam, label smoothing 0.1.
- What is timed is the loop's own update (batch maker, forward, backward, gradient norm, Adam), in windows after a
  warm-up. A token counts once, when it is a real label; padding never does.

- `mfu` is the model's own operations a second (padding is none of them: `models/flops.py`) over those of a square
  matrix product in the same format, measured in this process after the windows.

One JSON line goes to stdout.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import sentencepiece
import torch

from transformer_kit.batch import Batch
from transformer_kit.config.build import build_model, build_objective, count_parameters
from transformer_kit.config.check import ANY_SPECIALS
from transformer_kit.config.compose import compose
from transformer_kit.data.batching import BatchStream
from transformer_kit.data.corpus import read_lines
from transformer_kit.data.options import BatchOptions
from transformer_kit.data.ragged import Ints, Ragged, from_lists
from transformer_kit.data.sentencepiece_tokenizer import SentencePieceTokenizer
from transformer_kit.data.text_rules import TextRule
from transformer_kit.data.tokenizer import Tokenizers
from transformer_kit.data.tokenizer_options import SamplingOptions
from transformer_kit.training.memory import peak_memory
from transformer_kit.training.optimizer import build_optimizer
from transformer_kit.training.parallel import Parallel
from transformer_kit.training.precision import resolve_device, resolve_precision
from transformer_kit.training.schedule import build_schedule
from transformer_kit.training.step import Step
from transformer_kit.training.throughput import Work, product_rate
from transformer_kit.training.update import Updater
from transformer_kit.training.windows import Window

DROPOUT = "model.dropout={{embedding: {0}, residual: {0}, attention: {0}, feedforward: {0}}}"
WORKLOADS = {
    "tiny": (["model/size=tiny", DROPOUT.format(0.3)], 4096),
    "base": (["model/size=base", DROPOUT.format(0.1)], 2048),
}
COMMON = ["schedule=constant", "schedule.lr=3e-4", "schedule.warmup=0", "trainer.clip_norm=null"]
PAIR = ["data.train=[{source: x, target: y}]", "data.valid=[{source: x, target: y}]"]  # only to make a whole config
PLAIN = TextRule("en", normalize=False, tokenize=False, lowercase=False)


class Corpus:
    """Encoded pairs in memory, with what `BatchStream` asks of a data set."""

    def __init__(self, source: list[list[int]], target: list[list[int]]) -> None:
        self._sides = {"source": from_lists(source), "target": from_lists(target)}
        self.source_lengths, self.target_lengths = (side.lengths for side in self._sides.values())

    def __len__(self) -> int:
        return len(self.source_lengths)

    def ids(self, side: str, rows: Ints) -> Ragged:
        return self._sides[side].gather(rows)


class Weighted:
    """A mixture's only member."""

    def __init__(self, dataset: Corpus) -> None:
        self.dataset, self.weight = dataset, 1.0


def batches(vocabulary: Path, source: Path, target: Path, tokens: int) -> Iterator[Batch]:
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(vocabulary))
    sides = [pieces.encode([line.strip() for line in read_lines(path)]) for path in (source, target)]
    stream = BatchStream(
        [Weighted(Corpus(*sides))],  # type: ignore[list-item]  # in memory instead of on disk
        BatchOptions(tokens=tokens, pool=65536),
        temperature=1.0,
        seed=1,
        sampling=SamplingOptions(alpha=0.0),
        tokenizers=Tokenizers.one(SentencePieceTokenizer(vocabulary.read_bytes(), PLAIN)),
    )
    return iter(stream)


def busy_elsewhere() -> tuple[float, float, float]:
    """(wall, own CPU, machine CPU) seconds; the difference of two marks tells how many cores others used."""
    with open("/proc/stat") as file:
        ticks = [int(value) for value in file.readline().split()[1:9]]
    machine = (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")
    times = os.times()
    return time.perf_counter(), times.user + times.system, machine


def profile(update: Callable[[], int], updates: int) -> None:
    """Where the time of some updates goes: own time of each operation, milliseconds an update and share."""
    began, labels = time.perf_counter(), 0
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as seen:
        for _ in range(updates):
            labels += update()
    wall = time.perf_counter() - began
    events = sorted(seen.key_averages(), key=lambda event: -event.self_cpu_time_total)
    total = sum(event.self_cpu_time_total for event in events)
    print(f"{1e3 * wall / updates:.1f} ms an update, {labels / wall:,.0f} target tokens/s (profiled)", file=sys.stderr)
    for event in events[:40]:
        each, share = event.self_cpu_time_total / updates / 1e3, event.self_cpu_time_total / total
        print(f"{each:9.2f} ms {share:6.1%} {event.count // updates:6} x {event.key}", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", choices=sorted(WORKLOADS), default="tiny")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--vocabulary", type=Path, required=True, help="a SentencePiece model")
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--warm", type=float, default=6.0, help="seconds before the first window")
    parser.add_argument("--window", type=float, default=5.0, help="seconds of a window")
    parser.add_argument("--windows", type=int, default=4)
    parser.add_argument("--set", action="append", default=[], help="a further override of the configuration")
    parser.add_argument("--profile", type=int, default=0, help="updates to profile instead; a table goes to stderr")
    given = parser.parse_args()

    torch.set_num_threads(given.threads)
    overrides, tokens = WORKLOADS[given.config]
    config = compose("train", [*overrides, *COMMON, *PAIR, *given.set])
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(given.vocabulary))
    torch.manual_seed(1)
    model = build_model(config.model, len(pieces), len(pieces)).train()
    step = Step(model, build_objective(config.objective, specials=ANY_SPECIALS))
    precision = resolve_precision(given.precision, resolve_device("cpu"))
    optimizer = build_optimizer(config.optimizer, model)
    updater = Updater(Parallel(step), optimizer, build_schedule(config.schedule), precision, None, seed=1)
    feed = batches(given.vocabulary, given.source, given.target, tokens)
    done, work = 0, Work(model)
    real, cells = 0, 0

    def update() -> int:
        nonlocal done, real, cells
        batch = next(feed)
        outcome = updater.run(Window.of([batch]), done, done + 1)
        done += 1
        work.add(batch)
        real += outcome.labels
        cells += batch.labels.numel()
        return outcome.labels

    begun = time.perf_counter()
    while time.perf_counter() - begun < given.warm or done < 2:
        update()
    if given.profile:
        profile(update, given.profile)
        return
    rates, foreign = [], []
    for _ in range(given.windows):
        mark, labels = busy_elsewhere(), 0
        while time.perf_counter() - mark[0] < given.window:
            labels += update()
        end = busy_elsewhere()
        wall = end[0] - mark[0]
        rates.append(labels / wall)
        foreign.append(max(0.0, (end[2] - mark[2] - (end[1] - mark[1])) / wall))
    median, peak, memory = statistics.median(rates), product_rate(precision), peak_memory(precision.device)
    assert work.flops_per_token is not None
    row = {
        "peer": "tkit",
        "workload": f"T-{given.config}",
        "precision": given.precision,
        "unit": "target tokens/s",
        "min": round(min(rates), 2),
        "median": round(median, 2),
        "max": round(max(rates), 2),
        "windows": [round(rate, 2) for rate in rates],
        "other_cores": [round(share, 2) for share in foreign],
        "padding_efficiency": round(real / cells, 3),
        "mflop_per_token": round(work.flops_per_token / 1e6, 2),
        "product_gflops": round(peak / 1e9, 1),
        "mfu": round(work.flops_per_token * median / peak, 3),
        "peak_memory_gb": None if memory is None else round(memory / 1e9, 2),
        "threads": given.threads,
        "params": count_parameters(model),
        "torch": torch.__version__,
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    print(json.dumps(row))


if __name__ == "__main__":
    main()
