"""A small parallel corpus, the overrides of a model that trains on it in seconds, and one trained run."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from text_runs import train_on, write_texts

from transformer_kit.config.compose import compose
from transformer_kit.config.schema import Config
from transformer_kit.console import NoProgress
from transformer_kit.tasks.train import Trained, train

NOUNS = {"dog": "Hund", "cat": "Kater", "king": "König", "child": "Junge", "horse": "Esel", "cook": "Koch"}
VERBS = {"sees": "sieht", "hears": "hört", "finds": "findet", "knows": "kennt"}
MODEL = [
    "model.d_model=12",
    "model.num_heads=3",
    "model.d_ff=20",
    "model.encoder.layers=1",
    "model.decoder.layers=2",
    "model.max_length=64",
]
TRAINER = [
    "trainer.log_every=1",
    "trainer.validate_every=10",
    "trainer.save_every=10",
    "trainer.device=cpu",
    "trainer.precision=fp32",
    "schedule.lr=5e-3",
    "schedule.warmup=5",
    "decoding.beam=2",
    "decoding.max_extra=5",
]


def write_corpus(folder: Path) -> None:
    rng = random.Random(1)
    for split, count in (("train", 240), ("valid", 11), ("test", 7)):
        sources, targets = [], []
        for _ in range(count):
            first, second, verb = rng.choice(list(NOUNS)), rng.choice(list(NOUNS)), rng.choice(list(VERBS))
            extra = rng.randint(0, 3)
            sources.append(f"The {first} {verb} the {second}" + " again" * extra + ".")
            targets.append(f"Der {NOUNS[first]} {VERBS[verb]} den {NOUNS[second]}" + " wieder" * extra + ".")
        (folder / f"{split}.en").write_text("\n".join(sources) + "\n", encoding="utf-8")
        (folder / f"{split}.de").write_text("\n".join(targets) + "\n", encoding="utf-8")


def data_overrides(folder: Path) -> list[str]:
    def pair(split: str) -> str:
        return f"data.{split}=[{{source: '{folder}/{split}.en', target: '{folder}/{split}.de'}}]"

    return [
        pair("train"),
        pair("valid"),
        pair("test"),
        f"data.cache='{folder}/prepared'",
        "data.workers=1",
        "data.batch.tokens=150",
        "tokenizer.vocab_size=50",
        "tokenizer.byte_fallback=false",
    ]


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    write_corpus(folder)
    return folder


@pytest.fixture(scope="session")
def overrides(corpus: Path) -> list[str]:
    return [*data_overrides(corpus), *MODEL, *TRAINER]


@pytest.fixture(scope="session")
def run_config(overrides: list[str]) -> Callable[..., Config]:
    """`run_config(root, *more)`: the configuration of a small run below `root`."""

    def make(root: Path, *more: str) -> Config:
        return compose("train", [*overrides, f"run.root='{root}'", *more])

    return make


@pytest.fixture(scope="session")
def trained(run_config: Callable[..., Config], tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """One small run of 60 updates, called `small`."""
    return train(run_config(tmp_path_factory.mktemp("runs"), "run.name=small", "trainer.steps=60"), NoProgress())


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Running and labelled text; see `text_runs.write_texts`."""
    folder = tmp_path_factory.mktemp("texts")
    write_texts(folder)
    return folder


@pytest.fixture(scope="session")
def run_on(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Trained]:
    """`run_on("causal")`: the small run of that kind, trained once."""
    root, made = tmp_path_factory.mktemp("text_runs"), dict[str, Trained]()

    def run(kind: str) -> Trained:
        if kind not in made:
            made[kind] = train_on(kind, texts, root)
        return made[kind]

    return run
