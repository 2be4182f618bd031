"""How many pairs a minute `tkit tokenize` encodes: text of 25 words a side, with the tokenizer trained before.

    python benchmarks/prepare.py --pairs 300000 --kind unigram

Words are drawn by Zipf's law from 20,000 invented ones. One JSON line goes to stdout.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from transformer_kit.config.compose import compose
from transformer_kit.data.prepare import prepare

WORDS = 25


def write(path: Path, pairs: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    letters = np.array(list("etaoinshrdlucmfwypvbgk"))
    words = ["".join(rng.choice(letters, size)) for size in rng.integers(2, 11, 20_000)]
    with path.open("w", encoding="utf-8") as file:
        for start in range(0, pairs, 10_000):
            drawn = np.minimum(rng.zipf(1.2, (min(10_000, pairs - start), WORDS)) - 1, len(words) - 1)
            file.writelines(" ".join(words[word] for word in row) + "\n" for row in drawn)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=300_000)
    parser.add_argument("--kind", choices=("unigram", "bpe", "bpe_moses"), default="unigram")
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for side, seed in (("x", 1), ("y", 2)):
            write(folder / side, given.pairs, seed)
        overrides = [
            f"data.train=[{{source: '{folder}/x', target: '{folder}/y'}}]",
            f"data.valid=[{{source: '{folder}/x', target: '{folder}/y'}}]",
            f"data.cache='{folder}/cache'",
            f"data.workers={given.workers}",
            f"tokenizer={given.kind}",
            "tokenizer.max_lines=20000",
        ]
        config = compose("tokenize", overrides)
        data = replace(config.data, valid=[])
        first = prepare(replace(data, filter=replace(data.filter, max_length=200)), config.tokenizer)  # trains it
        began = time.perf_counter()
        again = prepare(data, config.tokenizer)
        seconds = time.perf_counter() - began
        counts = again.train[0].dataset.about.counts
        assert again.tokenizers.fingerprint == first.tokenizers.fingerprint
        peak = (
            resource.getrusage(resource.RUSAGE_SELF).ru_maxrss + resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        )
        row = {
            "kind": given.kind,
            "pairs": given.pairs,
            "words": counts.texts["source"].words / counts.kept,
            "tokens_per_word": counts.texts["source"].tokens / counts.texts["source"].words,
            "seconds": round(seconds, 2),
            "pairs_per_minute": round(given.pairs / seconds * 60),
            "peak_mb_of_parent_and_largest_worker": round(peak / 1024),
        }
    print(json.dumps(row))


if __name__ == "__main__":
    main()
