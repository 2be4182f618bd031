"""What `tkit evaluate` prints of runs that learnt from documents or labels."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from transformer_kit.console import print_table
from transformer_kit.tasks.evaluate_labels import evaluate_labels
from transformer_kit.tasks.evaluate_text import evaluate_text


@dataclass(frozen=True)
class Chosen:
    """What the command line says of any kind of run: the data's split, overrides, the checkpoint, JSON or a table."""

    split: str
    overrides: Sequence[str]
    checkpoint: str | None
    as_json: bool


def text(run: Path, files: Sequence[Path] | None, chosen: Chosen, *, stride: int | None) -> None:
    """How well a run predicts a text."""
    found = evaluate_text(
        run,
        files or None,
        split=chosen.split,
        stride=stride,
        overrides=chosen.overrides,
        checkpoint=chosen.checkpoint,
    )
    scores, total = found.scores, found.scores.likelihood
    values = {
        "nll per token": total.nll / total.tokens,
        "perplexity": total.perplexity,
        "accuracy": total.accuracy,
    }
    if scores.whole:
        values |= {"bits per character": scores.bits_per_character, "bits per byte": scores.bits_per_byte}
    if chosen.as_json:
        facts = {
            "what": found.what,
            "documents": found.documents,
            "predicted_tokens": total.tokens,
            "characters": scores.characters,
            "bytes": scores.bytes,
            "context": scores.rule,
            "seconds": found.seconds,
        }
        scored = {name.replace(" ", "_"): value for name, value in values.items()}
        print(json.dumps(facts | {"scores": scored}, indent=2))
        return
    title = f"{found.what}: {found.documents:,} documents, {total.tokens:,} tokens predicted in {found.seconds:.1f} s"
    rows = [[name, f"{value:.4f}"] for name, value in values.items()]
    print_table(["", ""], rows, title=title, stream=sys.stdout)
    print(f"context: {scores.rule}")
    if scores.whole:
        print(f"bits: all predicted tokens over {scores.characters:,} characters, {scores.bytes:,} bytes")


def labels(run: Path, files: Sequence[Path] | None, chosen: Chosen, *, bootstrap: int, seed: int) -> None:
    """How often a run is right."""
    found = evaluate_labels(
        run,
        files or None,
        split=chosen.split,
        bootstrap=bootstrap,
        seed=seed,
        overrides=chosen.overrides,
        checkpoint=chosen.checkpoint,
    )
    scores = found.scores
    if chosen.as_json:
        classes = {
            one.label: {"precision": one.precision, "recall": one.recall, "f1": one.f1, "examples": one.support}
            for one in scores.classes
        }
        facts = {"what": found.what, "examples": scores.examples, "seconds": found.seconds}
        accuracy: dict[str, object] = {"accuracy": scores.accuracy, "macro_f1": scores.macro_f1}
        if scores.interval is not None:
            accuracy |= {"accuracy_low": scores.interval.low, "accuracy_high": scores.interval.high}
        counts = {"classes": classes, "confusion": scores.confusion.tolist()}
        print(json.dumps(facts | {"scores": accuracy} | counts, indent=2, ensure_ascii=False))
        return
    between = "" if scores.interval is None else f"{scores.interval.low:.2%} to {scores.interval.high:.2%}"
    print_table(
        ["metric", "score", "95 % interval"],
        [["accuracy", f"{scores.accuracy:.2%}", between], ["macro F1", f"{scores.macro_f1:.4f}", ""]],
        title=f"{found.what}: {scores.examples:,} examples, classified in {found.seconds:.1f} s",
        stream=sys.stdout,
    )
    names = [one.label for one in scores.classes]
    rows = [
        [one.label, f"{one.precision:.4f}", f"{one.recall:.4f}", f"{one.f1:.4f}", f"{one.support:,}"]
        for one in scores.classes
    ]
    print_table(["label", "precision", "recall", "F1", "examples"], rows, stream=sys.stdout)
    counts_of = [[name, *map(str, row)] for name, row in zip(names, scores.confusion.tolist(), strict=True)]
    print_table(["is \\ taken for", *names], counts_of, stream=sys.stdout)
