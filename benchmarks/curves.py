"""Draw the validation loss of runs over their steps: `python benchmarks/curves.py out.svg "label=runs/a,runs/b" …`.

The runs of one label are seeds of one setting: the line is their mean, the band their range. Needs matplotlib.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("svg")
from matplotlib import pyplot  # after the choice of its back end


def losses(run: Path) -> dict[int, float]:
    """Step -> validation loss of one run."""
    rows = map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return {row["step"]: row["loss"] for row in rows if row["kind"] == "validation"}


def main(out: str, *labelled: str) -> None:
    matplotlib.rcParams["svg.hashsalt"] = "curves"  # equal runs, equal file
    figure, axes = pyplot.subplots(figsize=(6, 3.6), layout="constrained")
    for text in labelled:
        label, _, folders = text.partition("=")
        runs = [losses(Path(folder)) for folder in folders.split(",")]
        steps = sorted(set.intersection(*(set(run) for run in runs)))
        values = np.array([[run[step] for step in steps] for run in runs])
        (line,) = axes.plot(steps, values.mean(0), marker=".", label=f"{label}: {values[:, -1].mean():.3f}")
        axes.fill_between(steps, values.min(0), values.max(0), color=line.get_color(), alpha=0.2)
    axes.set(xlabel="step", ylabel="validation loss (nats per character)")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(out, metadata={"Date": None})


if __name__ == "__main__":
    main(*sys.argv[1:])
