"""Small runs on running text and on labelled text, for the tests of the commands that use them."""

from __future__ import annotations

import random
from pathlib import Path

from transformer_kit.config.compose import compose
from transformer_kit.console import NoProgress
from transformer_kit.tasks.train import Trained, train

WORDS = ("good", "bad", "old", "new", "dog", "cat", "runs", "sleeps", "här", "dort")
COMMON = [
    "model.d_model=12", "model.num_heads=3", "model.d_ff=20", "model.max_length=64", "model.init=glorot",
    "trainer.log_every=10", "trainer.validate_every=20", "trainer.save_every=60", "trainer.device=cpu",
    "trainer.precision=fp32", "schedule.lr=1e-2", "schedule.warmup=5", "trainer.validation.bleu=null",
    "model.dropout={embedding: 0, residual: 0, attention: 0, feedforward: 0}", "data.workers=1", "tokenizer=char",
    "trainer.steps=60", "trainer.final=last",
]  # fmt: skip
DOCUMENTS = ["data=text", "data.length=24", "data.batch.tokens=192"]
LABELS = ["data=labels", "data.max_length=48", "data.batch.tokens=256", "objective=classification"]
KINDS = {
    "causal": ["model=decoder_only", "model.decoder.layers=2", "objective=causal_lm", *DOCUMENTS],
    "masked": [
        *("model=encoder_only", "model.encoder.layers=2", "objective=masked_lm", "tokenizer.mask=true"),
        *DOCUMENTS,
    ],
    "denoising": [
        "model=encoder_decoder", "model.encoder.layers=1", "model.decoder.layers=1", "objective=denoising_bart",
        "tokenizer.mask=true", *DOCUMENTS,
    ],
    "labels": ["model=encoder_only", "model.encoder.layers=2", *LABELS],
    "pairs_of_texts": ["model=encoder_only", "model.encoder.layers=2", *LABELS],
}  # fmt: skip


def write_texts(folder: Path) -> None:
    """`<split>.txt`: a sentence a line; `<split>.tsv`: with a label; `<split>.pairs`: two sentences and a label."""
    draw = random.Random(3)
    for split, count in (("train", 120), ("valid", 13), ("test", 17)):
        lines = [" ".join(draw.choices(WORDS, k=draw.randint(2, 7))) + "." for _ in range(count)]
        labels = ["yes" if "good" in line else "no" if "bad" in line else "maybe" for line in lines]
        others = [draw.choice((line, lines[0])) for line in lines]
        pairs = [f"{a}\t{b}\t{'same' if a == b else 'other'}" for a, b in zip(lines, others, strict=True)]
        labelled = [f"{line}\t{label}" for line, label in zip(lines, labels, strict=True)]
        for suffix, rows in (("txt", lines), ("tsv", labelled), ("pairs", pairs)):
            (folder / f"{split}.{suffix}").write_text("\n".join(rows) + "\n", encoding="utf-8")


def train_on(kind: str, texts: Path, root: Path, *more: str) -> Trained:
    """One small run of 60 updates, called as its kind."""
    key, suffix = ("text", "txt") if kind in ("causal", "masked", "denoising") else ("tsv", "tsv")
    own = KINDS[kind]
    if kind == "pairs_of_texts":
        own, suffix = [*own, "data.columns.second=2", "data.columns.label=3"], "pairs"
    files = [f"data.{split}=[{{{key}: '{texts}/{split}.{suffix}'}}]" for split in ("train", "valid", "test")]
    where = [f"data.cache='{texts}/prepared'", f"run.root='{root}'", f"run.name={kind}"]
    return train(compose("train", [*own, *COMMON, *files, *where, *more]), NoProgress())
