"""Small corpora and options for the tests of this folder."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformer_kit.data.options import (
    BatchOptions,
    ColumnOptions,
    CorpusOptions,
    DocumentsOptions,
    FilterOptions,
    LabelCorpusOptions,
    LabelsOptions,
    PairsOptions,
    TextCorpusOptions,
    Unit,
)
from transformer_kit.data.tokenizer_options import Kind, SamplingOptions, TextOptions, TokenizerOptions, Unicode

ENGLISH = ["the", "a", "small", "red", "old", "dog", "cat", "house", "sees", "likes", "buys", "under", "near", "trees"]
GERMAN = ["der", "die", "das", "kleine", "rote", "alte", "Hund", "Katze", "Haus", "sieht", "mag", "unter", "Bäume"]
IDENTITY = TextOptions(normalize=False, tokenize=False, lowercase=False, unicode=Unicode.identity)
MOSES = TextOptions(normalize=True, tokenize=True, lowercase=True, unicode=Unicode.nmt_nfkc)


def sentences(count: int, words: list[str], seed: int, longest: int = 9) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(words, k=draw.randint(1, longest))) + "." for _ in range(count)]


def write(folder: Path, name: str, english: list[str], german: list[str]) -> CorpusOptions:
    """Write a corpus to NAME.en and NAME.de."""
    folder.mkdir(parents=True, exist_ok=True)
    for suffix, lines in (("en", english), ("de", german)):
        (folder / f"{name}.{suffix}").write_text("".join(f"{line}\n" for line in lines), "utf-8", newline="\n")
    return CorpusOptions(name=name, source=str(folder / f"{name}.en"), target=str(folder / f"{name}.de"))


def made_up(folder: Path, name: str, count: int, seed: int = 1, **options: Any) -> CorpusOptions:
    corpus = write(folder, name, sentences(count, ENGLISH, seed), sentences(count, GERMAN, seed + 1))
    return replace(corpus, **options)


def data_options(folder: Path, train: list[CorpusOptions], **changes: Any) -> PairsOptions:
    base = PairsOptions(
        kind="pairs",
        source_language="en",
        target_language="de",
        train=train,
        valid=[],
        test=[],
        temperature=1.0,
        generate=None,
        cache=str(folder / "prepared"),
        filter=FilterOptions(min_length=1, max_length=None, max_ratio=None),
        batch=BatchOptions(tokens=97, pool=1000),
        workers=1,
    )
    return replace(base, **changes)


def tokenizer_options(**changes: Any) -> TokenizerOptions:
    base = TokenizerOptions(
        path=None,
        kind=Kind.bpe,
        vocab_size=311,
        joint=True,
        byte_fallback=True,
        character_coverage=1.0,
        max_lines=None,
        mask=False,
        sentinels=0,
        text=IDENTITY,
        sampling=SamplingOptions(alpha=0.0),
    )
    return replace(base, **changes)


def byte_options(**changes: Any) -> TokenizerOptions:
    """One id a byte (or, with kind=char, a character)."""
    kind = Kind(changes.pop("kind", "byte"))
    return tokenizer_options(kind=kind, vocab_size=None, byte_fallback=False, **changes)


def documents_options(folder: Path, train: list[TextCorpusOptions], **changes: Any) -> DocumentsOptions:
    base = DocumentsOptions(
        kind="documents",
        language="en",
        train=train,
        valid=[],
        test=[],
        unit=Unit.line,
        bos=True,
        eos=True,
        length=7,
        pack=True,
        mask_documents=False,
        temperature=1.0,
        cache=str(folder / "prepared"),
        batch=BatchOptions(tokens=21, pool=1000),
        workers=1,
    )
    return replace(base, **changes)


def labels_options(folder: Path, train: list[LabelCorpusOptions], **changes: Any) -> LabelsOptions:
    base = LabelsOptions(
        kind="labels",
        language="en",
        train=train,
        valid=[],
        test=[],
        columns=ColumnOptions(text=1, second=None, label=2),
        max_length=13,
        cache=str(folder / "prepared"),
        batch=BatchOptions(tokens=41, pool=1000),
        workers=1,
    )
    return replace(base, **changes)
