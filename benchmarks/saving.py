"""Training time that a checkpoint costs: written between two updates, and written beside the training.

    python benchmarks/saving.py --folder /path/on/the/disk/in/question

- The model, optimizer and update are those of `benchmarks/train.py --config base` (on one batch of random ids, with the
  vocabulary of the paper), so a checkpoint holds three times the weights.
- A round trains three times the same number of updates, in an order that turns: without saving, with a save every
  `every` updates between them, and beside them. The first save comes after half an interval, and the wait for the last
  one is counted, so that nothing is left over. Lost per save: (seconds with - seconds without) / saves, of one round.
- The machine has to be quiet; `other_cores` says how many cores others used.

One JSON line goes to stdout.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
from train import COMMON, PAIR, WORKLOADS, busy_elsewhere

from transformer_kit.batch import Batch, translation_batch
from transformer_kit.config.build import build_model, build_objective, count_parameters
from transformer_kit.config.check import ANY_SPECIALS
from transformer_kit.config.compose import compose
from transformer_kit.training.checkpoint import CheckpointStore
from transformer_kit.training.optimizer import build_optimizer, optimizer_state
from transformer_kit.training.parallel import Parallel
from transformer_kit.training.precision import resolve_device, resolve_precision
from transformer_kit.training.saver import Saver
from transformer_kit.training.schedule import build_schedule
from transformer_kit.training.step import Step
from transformer_kit.training.update import Updater
from transformer_kit.training.windows import Window

VOCABULARY = 37000
WAYS = ("none", "between", "beside")


def random_batch(rows: int, length: int, vocabulary: int) -> Batch:
    """Rows of one length each side; with BOS or EOS rows × length tokens."""
    made = torch.Generator().manual_seed(1)
    ids = torch.randint(8, vocabulary, (2, rows, length - 1), generator=made)
    return translation_batch(list(ids[0]), list(ids[1]), range(rows), pad_id=0, bos_id=2, eos_id=3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", choices=sorted(WORKLOADS), default="base")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="bf16")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--every", type=int, default=8, help="updates from save to save")
    parser.add_argument("--saves", type=int, default=2, help="of one way in one round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where the checkpoints go; a temporary folder by default")
    given = parser.parse_args()

    torch.set_num_threads(given.threads)
    overrides, tokens = WORKLOADS[given.config]
    config = compose("train", [*overrides, *COMMON, *PAIR])
    torch.manual_seed(1)
    device = resolve_device(given.device)
    model = build_model(config.model, VOCABULARY, VOCABULARY).to(device).train()
    step = Step(model, build_objective(config.objective, specials=ANY_SPECIALS)).to(device)
    precision = resolve_precision(given.precision, device)
    optimizer = build_optimizer(config.optimizer, model)
    updater = Updater(Parallel(step), optimizer, build_schedule(config.schedule), precision, None, seed=1)
    window = Window.of([random_batch(tokens // 32, 32, VOCABULARY)])
    done, waits = 0, list[float]()

    def train(saver: Saver | None, saves: int) -> float:
        """Seconds of one stretch of training."""
        nonlocal done
        began = time.perf_counter()
        for number in range(given.every * saves):
            updater.run(window, done, done + 1)
            done += 1
            if saver is not None and number % given.every == given.every // 2:
                state = {"step": done, "regular": True, "scores": {}}
                if not saver.save(done, model, optimizer_state(optimizer, model), state, None):
                    sys.exit("a checkpoint could not be written")
        waits.append(time.perf_counter())
        if saver is not None and saver.saved != done - given.every + given.every // 2 + 1:
            sys.exit("a checkpoint could not be written")
        waits[-1] = time.perf_counter() - waits[-1]
        return time.perf_counter() - began

    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        store = CheckpointStore(Path(folder), keep_last=1, keep_best=0, metric="loss", higher_is_better=False)
        savers = {"none": None, "between": Saver(store, False), "beside": Saver(store, True)}
        for saver in savers.values():  # the first save of a run takes its memory
            train(saver, 1)
        size = sum(path.stat().st_size for path in store.all()[-1].path.iterdir())
        seconds: dict[str, list[float]] = {way: [] for way in WAYS}
        mark = busy_elsewhere()
        for turn in range(given.rounds):
            for way in [*WAYS[turn % 3 :], *WAYS[: turn % 3]]:
                seconds[way].append(train(savers[way], given.saves))
                left = f", {waits[-1]:.2f} s of them waiting for the last save" if way == "beside" else ""
                print(f"round {turn + 1} {way:8} {seconds[way][-1]:8.2f} s{left}", file=sys.stderr)
        end = busy_elsewhere()
    lost = {
        way: [(with_ - without) / given.saves for with_, without in zip(seconds[way], seconds["none"], strict=True)]
        for way in WAYS[1:]
    }
    between, beside = (statistics.median(lost[way]) for way in WAYS[1:])
    row = {
        "workload": f"T-{given.config}",
        "precision": given.precision,
        "device": device.type,
        "threads": given.threads,
        "params": count_parameters(model),
        "checkpoint_mb": round(size / 1e6, 1),
        "update_seconds": round(statistics.median(seconds["none"]) / given.every / given.saves, 3),
        "seconds": {way: [round(value, 2) for value in values] for way, values in seconds.items()},
        "lost_per_save": {way: [round(value, 3) for value in values] for way, values in lost.items()},
        "median_lost": {"between": round(between, 3), "beside": round(beside, 3)},
        "share": round(beside / between, 3),
        "other_cores": round(max(0.0, (end[2] - mark[2] - (end[1] - mark[1])) / (end[0] - mark[0])), 2),
        "torch": torch.__version__,
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    print(json.dumps(row))


if __name__ == "__main__":
    main()
