"""Run benchmarks in turns and compare them: a speed is a ratio within one session on a quiet machine.

    python benchmarks/alternate.py --rounds 3 --log rows.jsonl \\
        tkit='python benchmarks/train.py --config tiny ...' other='env PEER=... python bench.py'

Each command prints JSON lines of which the last has a `median`. In each round every command runs once, in an order that
turns from round to round; the first name is compared with each of the others by the ratio of the medians of one round.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any


def measure(command: str) -> dict[str, Any]:
    """The last JSON line that a command prints."""
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        sys.exit(f"{command}\nexit code {done.returncode}\n{done.stderr[-2000:]}")
    row: dict[str, Any] = json.loads(lines[-1])
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--log", type=Path, required=True, help="every row is appended here")
    parser.add_argument("commands", nargs="+", metavar="NAME=COMMAND")
    given = parser.parse_args()
    commands = dict(text.split("=", 1) for text in given.commands)
    names = list(commands)
    medians: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(given.rounds):
        for name in [*names[turn % len(names) :], *names[: turn % len(names)]]:
            row = measure(commands[name]) | {"name": name, "round": turn}
            medians[name].append(row["median"])
            with given.log.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            busy = max(row.get("other_cores", [0.0]))
            print(f"round {turn + 1} {name:24} {row['median']:10,.0f}  (others' cores: {busy})", file=sys.stderr)
    print("| | median | range | ratio of " + names[0] + " to it, each round | median ratio |")
    print("|---|---:|---|---|---:|")
    for name in names:
        ratios = [ours / theirs for ours, theirs in zip(medians[names[0]], medians[name], strict=True)]
        each = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        span = f"{min(medians[name]):,.0f} to {max(medians[name]):,.0f}"
        middle, ratio = statistics.median(medians[name]), statistics.median(ratios)
        print(f"| {name} | {middle:,.0f} | {span} | {each} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
