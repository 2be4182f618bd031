"""A small English–German corpus from a grammar: times, dates, numbers, quantities, word order and agreement.

The split tests composition. One pair of lexemes in fourteen is never put together in training; each line of the
validation and test sets holds at least one such pair, although each of its words, and each of its fillers, was seen.
Everything follows from the seed, on every machine.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from transformer_kit.data.phrases.slots import Chance
from transformer_kit.data.phrases.templates import Pair, templates

HELD_OUT = 14  # one pair of lexemes in so many is kept out of training
SIZES = {"train": 18_000, "valid": 400, "test": 500}


@dataclass(frozen=True)
class DemoCorpus:
    """The three splits."""

    train: list[Pair]
    valid: list[Pair]
    test: list[Pair]


def held_out(first: str, second: str, seed: int) -> bool:
    """Whether training never shows these two lexemes in one sentence; their order does not matter."""
    low, high = sorted((first, second))
    return zlib.crc32(f"{seed}|{low}|{high}".encode()) % HELD_OUT == 0


def corpus(seed: int, sizes: dict[str, int] = SIZES) -> DemoCorpus:
    """Draw the three splits: no English and no German sentence occurs twice in them.

    Args:
        seed: any integer.
        sizes: pairs wanted in "train", "valid" and "test".
    """
    chance = Chance(seed)
    used: set[str] = set()

    def splits_pair(pair: Pair) -> bool:
        return any(held_out(a, b, seed) for a, b in combinations(pair.lexemes, 2))

    train = _draw(chance, sizes["train"], used, lambda pair: not splits_pair(pair))
    known = set(_vocabulary(train))

    def tests_composition(pair: Pair) -> bool:
        return splits_pair(pair) and known.issuperset(_vocabulary([pair]))

    valid = _draw(chance, sizes["valid"], used, tests_composition)
    test = _draw(chance, sizes["test"], used, tests_composition)
    return DemoCorpus(train, valid, test)


def _draw(chance: Chance, count: int, used: set[str], wanted: Callable[[Pair], bool]) -> list[Pair]:
    """`count` new pairs that are wanted; `used` holds the sentences of both languages drawn so far, and grows."""
    patterns = templates()
    pairs: list[Pair] = []
    while len(pairs) < count:
        pair = chance.choice(patterns).draw(chance)
        if pair.english not in used and pair.german not in used and wanted(pair):
            used.update((pair.english, pair.german))
            pairs.append(pair)
    return pairs


def _vocabulary(pairs: Iterable[Pair]) -> Iterable[str]:
    """Words as they are written in either language, and lexemes."""
    for pair in pairs:
        yield from (f"en {word}" for word in pair.english.split())
        yield from (f"de {word}" for word in pair.german.split())
        yield from pair.lexemes


def generate(folder: Path, seed: int) -> None:
    """Write {train,valid,test}.{en,de} into `folder`, which is made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    splits = corpus(seed)
    for name, pairs in (("train", splits.train), ("valid", splits.valid), ("test", splits.test)):
        for suffix, lines in (("en", [p.english for p in pairs]), ("de", [p.german for p in pairs])):
            (folder / f"{name}.{suffix}").write_text("".join(f"{line}\n" for line in lines), "utf-8", newline="\n")
