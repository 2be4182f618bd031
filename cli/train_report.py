"""What `tkit train` says at its end: the figures of the run in a table, and what can be done with it."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_kit.console import duration, print_table

if TYPE_CHECKING:
    from transformer_kit.config.schema import Config
    from transformer_kit.tasks.submit import Submitted
    from transformer_kit.tasks.train import Trained

SPELT = {"bleu": "BLEU"}
SHARES = ("accuracy",)


def show(trained: Trained) -> None:
    """Print the table and the next commands on stderr."""
    folder = shown_path(trained.folder)
    if trained.already:
        step = trained.result["step"]
        print(f"{folder} is already complete (step {step:,}): nothing to do", file=sys.stderr)
        print("run.name=NAME trains another, run.overwrite=true starts this one anew", file=sys.stderr)
    trainer = trained.config.trainer
    metric = "loss" if trainer.overfit_batch and trainer.best_metric == "bleu" else trainer.best_metric
    rows = summary(trained.result, metric)
    print_table(["", ""], rows, title=folder, stream=sys.stderr)
    for line in next_commands(folder, trained.config):
        print(line, file=sys.stderr)


def show_job(job: Submitted) -> None:
    """Print the job's number on stdout, and on stderr where to look and what can be done."""
    print(job.job, flush=True)
    print(f"job {job.job} trains {shown_path(job.folder)}; it prints {shown_path(job.log)}", file=sys.stderr)
    print(f"next: squeue -j {job.job}\n      tail -f {shlex.quote(shown_path(job.log))}", file=sys.stderr)


def summary(result: Mapping[str, Any], metric: str) -> list[list[str]]:
    """Name and value of everything that a complete run's `result.json` tells; what it lacks has no row.

    Args:
        metric: the one that the best checkpoint is chosen by.
    """
    rate = f"{result['tokens_per_second']:,.0f} ({result['precision']}"
    rate += f", {result['mfu']:.0%} of the matrix product's rate)" if result.get("mfu") is not None else ")"
    rows = [
        ["parameters", f"{result['parameters']:,}"],
        ["updates", f"{result['step']:,} (ended by {result['ended_by']})"],
        ["target tokens", f"{result['tokens']:,}{_epochs(result.get('epochs') or 0)}"],
        ["time", duration(result["seconds"])],
        ["target tokens/s", rate],
    ]
    if result.get("padding_efficiency") is not None:
        rows.append(["cells that are no padding", f"{result['padding_efficiency']:.1%}"])
    if result.get("peak_memory") is not None:
        rows.append(["peak memory", _bytes(result["peak_memory"])])
    if result.get("oom_splits"):
        rows.append(["batches halved", f"{result['oom_splits']:,} (memory ran out)"])
    if skipped := result.get("skipped"):
        spikes = result.get("spikes", 0)
        rows.append(["updates skipped", f"{skipped:,} (not finite: {skipped - spikes:,}, spikes: {spikes:,})"])
    if result.get("best") is not None:
        name, value = _score(metric, result["best"])
        rows.append([f"best {name}", f"{value} at step {result['best_step']:,}"])
    rows.append(["model", _model(result["model"])])
    if "overfit" in result:
        rows.append(["learnt by heart", _overfit(result["overfit"])])
    on = "batch" if "overfit" in result else "validation"
    rows += [[f"{on} {name}", value] for name, value in (_score(*each) for each in result["scores"].items())]
    return rows


def next_commands(folder: str, config: Config) -> list[str]:
    """Commands that suit what the run learnt, ready to be copied."""
    if config.trainer.overfit_batch:
        return [f"next: tkit plot {shlex.quote(folder)}", "      the same command without trainer.overfit_batch"]
    run, kind, family = shlex.quote(folder), config.data.kind, config.model.family
    split = "" if config.data.test or getattr(config.data, "generate", None) is not None else " --split valid"
    commands = [f"tkit evaluate -m {run}{split}", f"tkit plot {run}"]
    use = {"pairs": f"tkit translate -m {run} < FILE", "labels": f"tkit classify -m {run} < FILE"}.get(kind)
    if kind == "documents":
        use = {
            "decoder_only": f'tkit generate -m {run} "TEXT"',
            "encoder_only": f"tkit fill-mask -m {run} < FILE",
        }.get(family)
    return [f"next: {commands[0]}", *(f"      {command}" for command in [*([use] if use else []), *commands[1:]])]


def shown_path(path: Path) -> str:
    """A path as one would type it here: relative where it lies below the current folder."""
    whole = str(path)
    return os.path.relpath(whole) if Path(whole).is_relative_to(Path.cwd()) else whole


def _epochs(count: int) -> str:
    return f" ({count:,} pass{'es' * (count != 1)} over the data)" if count else ""


def _overfit(found: Mapping[str, Any]) -> str:
    above = found["loss"] - found["floor"]
    return f"{'yes' if found['learnt'] else 'NO'}: loss {found['loss']:.4g}, {above:.2g} above the least there can be"


def _model(model: Mapping[str, Any]) -> str:
    steps: Sequence[int] = model["steps"]
    if len(steps) == 1:
        return f"{model['kind']}, of step {steps[0]:,}"
    return f"{model['kind']} of {len(steps)} checkpoints, steps {min(steps):,} to {max(steps):,}"


def _score(name: str, value: float | None) -> tuple[str, str]:
    if value is None:
        return SPELT.get(name, name), "not a number"
    return SPELT.get(name, name), f"{value:.2%}" if name in SHARES else f"{value:.4g}"


def _bytes(count: float) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
