"""Training time that a checkpoint costs: written between two updates, and written beside the training.

    python benchmarks/saving.py --folder /path/on/the/disk/in/question

- The model, optimizer and update are those of `benchmarks/train.py --config base` (on one batch of random ids, with the
  vocabulary of the paper), so a checkpoint holds three times the weights.
- A cycle is a save between two updates, which loses what its call takes, and one beside the training. A machine
  changes its pace from minute to minute by more than a save costs, so the second is held back and let go on in turn,
  two updates each, until it has ended: lost is its call, and what the updates with it take longer than those without.
- The machine has to be quiet; `other_cores` says how many cores others used.

One JSON line goes to stdout.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch
from train import COMMON, PAIR, WORKLOADS, busy_elsewhere

from transformer_kit.batch import Batch, translation_batch
from transformer_kit.config.build import build_model, build_objective, count_parameters
from transformer_kit.config.check import ANY_SPECIALS
from transformer_kit.config.compose import compose
from transformer_kit.training import files
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
WAYS = ("between", "beside")


class Gate:
    """Holds back what saves write, at the next piece."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._event.set()
        put = files.HashedFile._put

        def when_open(file: files.HashedFile) -> None:
            self._event.wait()
            put(file)

        files.HashedFile._put = when_open  # type: ignore[method-assign]  # the product has no gate

    def open(self, on: bool) -> None:
        """Let it go on, or not."""
        if on:
            self._event.set()
        else:
            self._event.clear()


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
    parser.add_argument("--rows", type=int, default=16, help="of 32 tokens a side, in a batch")
    parser.add_argument("--cycles", type=int, default=8, help="of each way")
    parser.add_argument("--folder", type=Path, help="where the checkpoints go; a temporary folder by default")
    given = parser.parse_args()

    torch.set_num_threads(given.threads)
    overrides, _ = WORKLOADS[given.config]
    config = compose("train", [*overrides, *COMMON, *PAIR])
    torch.manual_seed(1)
    device = resolve_device(given.device)
    model = build_model(config.model, VOCABULARY, VOCABULARY).to(device).train()
    step = Step(model, build_objective(config.objective, specials=ANY_SPECIALS)).to(device)
    precision = resolve_precision(given.precision, device)
    optimizer = build_optimizer(config.optimizer, model)
    updater = Updater(Parallel(step), optimizer, build_schedule(config.schedule), precision, None, seed=1)
    window = Window.of([random_batch(given.rows, 32, VOCABULARY)])
    gate, done = Gate(), 0

    def update() -> float:
        nonlocal done
        began = time.perf_counter()
        updater.run(window, done, done + 1)
        done += 1
        return time.perf_counter() - began

    def save(saver: Saver) -> float:
        """Seconds of the call."""
        began = time.perf_counter()
        state = {"step": done, "regular": True, "scores": {}}
        saver.save(done, model, optimizer_state(optimizer, model), state, None)
        return time.perf_counter() - began

    def beside(saver: Saver) -> tuple[float, int]:
        """Seconds lost by a save, and the updates beside which it was written."""
        mark, lost = done, save(saver)
        seconds: dict[bool, list[float]] = {True: [], False: []}
        while saver.writing:
            for on in (True, False, False, True):
                gate.open(on)
                seconds[on] += [update(), update()]
        gate.open(True)
        if saver.saved != mark:
            sys.exit("a checkpoint could not be written")
        return lost + sum(seconds[True]) - sum(seconds[False]), len(seconds[True])

    given.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        store = CheckpointStore(Path(folder), keep_last=1, keep_best=0, metric="loss", higher_is_better=False)
        savers = {"between": Saver(store, False), "beside": Saver(store, True)}
        update()  # moments are there from now on
        save(savers["between"])
        update()
        beside(savers["beside"])  # the first one takes its memory
        size = sum(path.stat().st_size for path in store.all()[-1].path.iterdir())
        found: dict[str, list[float]] = {way: [] for way in WAYS}
        updates = []
        mark = busy_elsewhere()
        for number in range(given.cycles):
            found["between"].append(save(savers["between"]))
            lost, count = beside(savers["beside"])
            found["beside"].append(lost)
            updates.append(count)
            said = "; ".join(f"{way} {lost[-1]:.2f} s lost" for way, lost in found.items())
            print(f"cycle {number + 1}: {said}, {count} updates beside", file=sys.stderr)
        end = busy_elsewhere()
        pace = statistics.median(update() for _ in range(10))
    means = {way: statistics.mean(lost) for way, lost in found.items()}
    medians = {way: statistics.median(lost) for way, lost in found.items()}
    row = {
        "workload": f"T-{given.config}",
        "precision": given.precision,
        "device": device.type,
        "threads": given.threads,
        "params": count_parameters(model),
        "checkpoint_mb": round(size / 1e6, 1),
        "update_seconds": round(pace, 3),
        "lost_per_save": {way: [round(value, 3) for value in lost] for way, lost in found.items()},
        "updates_beside": updates,
        "mean_lost": {way: round(value, 3) for way, value in means.items()},
        "median_lost": {way: round(value, 3) for way, value in medians.items()},
        "share": round(means["beside"] / means["between"], 3),
        "share_of_medians": round(medians["beside"] / medians["between"], 3),
        "other_cores": round(max(0.0, (end[2] - mark[2] - (end[1] - mark[1])) / (end[0] - mark[0])), 2),
        "torch": torch.__version__,
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    print(json.dumps(row))


if __name__ == "__main__":
    main()
