"""Runs of every objective: trained, resumed to the bit, loaded, started from, and refused where parts do not fit."""

from __future__ import annotations

import json
import logging
import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from transformer_kit.config.compose import compose
from transformer_kit.console import NoProgress
from transformer_kit.errors import CheckpointError, ConfigError, RunError
from transformer_kit.models.classifier import Classifier
from transformer_kit.tasks.load import load
from transformer_kit.tasks.train import Trained, train
from transformer_kit.tasks.translate import make_translator

WORDS = ("good", "bad", "old", "new", "dog", "cat", "runs", "sleeps", "here", "there")
TINY = ["model.d_model=12", "model.num_heads=3", "model.d_ff=20", "model.max_length=64", "model.init=glorot"]
LAYERS = {
    "decoder_only": ["model.decoder.layers=2"],
    "encoder_only": ["model.encoder.layers=2"],
    "encoder_decoder": ["model.encoder.layers=1", "model.decoder.layers=1"],
}
LOOP = [
    "trainer.log_every=1", "trainer.validate_every=10", "trainer.save_every=10", "trainer.device=cpu",
    "trainer.precision=fp32", "schedule.lr=5e-3", "schedule.warmup=5", "trainer.validation.bleu=null",
    "model.dropout={embedding: 0.1, residual: 0.1, attention: 0.1, feedforward: 0.1}", "data.workers=1",
]  # fmt: skip


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    draw = random.Random(3)
    for split, count in (("train", 120), ("valid", 13)):
        lines = [" ".join(draw.choices(WORDS, k=draw.randint(2, 9))) for _ in range(count)]
        (folder / f"{split}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
        labelled = [f"{line}\t{'yes' if 'good' in line else 'no'}" for line in lines]
        (folder / f"{split}.tsv").write_text("\n".join(labelled) + "\n", encoding="utf-8")
        for language in ("en", "de"):
            swapped = [line if language == "en" else " ".join(reversed(line.split())) for line in lines]
            (folder / f"{split}.{language}").write_text("\n".join(swapped) + "\n", encoding="utf-8")
    return folder


CASES = {
    "causal_lm": ("decoder_only", "text", ["data.length=16", "data.batch.tokens=64"]),
    "masked_lm": ("encoder_only", "text", ["data.length=16", "data.batch.tokens=64", "tokenizer.mask=true"]),
    "denoising_t5": ("encoder_decoder", "text", ["data.length=16", "data.batch.tokens=64", "tokenizer.sentinels=9"]),
    "denoising_bart": ("encoder_decoder", "text", ["data.length=16", "data.batch.tokens=64", "tokenizer.mask=true"]),
    "classification": ("encoder_only", "labels", ["data.max_length=32", "data.batch.tokens=128"]),
    "prefix_lm": ("decoder_only", "parallel", ["data.batch.tokens=128"]),
}


def run(objective: str, text: Path, root: Path, *more: str) -> Trained:
    family, data, own = CASES[objective]
    if data == "parallel":
        files = [
            f"data.{split}=[{{source: '{text}/{split}.en', target: '{text}/{split}.de'}}]"
            for split in ("train", "valid")
        ]
        tokenizer = ["tokenizer.vocab_size=28", "tokenizer.byte_fallback=false"]
    else:
        key, suffix = ("text", "txt") if data == "text" else ("tsv", "tsv")
        files = [f"data.{split}=[{{{key}: '{text}/{split}.{suffix}'}}]" for split in ("train", "valid")]
        tokenizer = ["tokenizer=char"]
    chosen = [f"model={family}", f"data={data}", f"objective={objective}", *tokenizer, *TINY, *LAYERS[family], *LOOP]
    where = [f"data.cache='{text}/prepared'", f"run.root='{root}'"]
    return train(compose("train", [*chosen, *own, *files, *where, *more]), NoProgress())


@pytest.mark.parametrize("objective", sorted(CASES))
def test_every_objective_learns_and_resumes_to_the_bit(objective: str, text: Path, tmp_path: Path) -> None:
    whole = run(objective, text, tmp_path, "run.name=whole", "trainer.steps=24")
    for steps in (7, 24):
        parts = run(objective, text, tmp_path, "run.name=parts", f"trainer.steps={steps}")
    one, other = (load_file(each.folder / "model.safetensors") for each in (whole, parts))
    assert all(torch.equal(one[name], other[name]) for name in one)
    lines = [json.loads(line) for line in (whole.folder / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if line["kind"] == "train"]
    assert sum(losses[-4:]) < sum(losses[:4])
    scores = whole.result["scores"]
    assert {"loss", "accuracy"} <= set(scores)
    assert ("perplexity" in scores) == (objective != "classification")
    assert load(whole.folder).objective.__class__.__module__.rsplit(".", 1)[1] in ("denoising", objective)


def test_a_prefix_model_translates(text: Path, tmp_path: Path) -> None:
    """One line in, one line out; a line longer than half a row is cut and named."""
    made = run("prefix_lm", text, tmp_path, "trainer.steps=5")
    translator = make_translator(made.folder, ["decoding.max_extra=3"])
    together = translator.translate(["old dog", "", "new cat sleeps here"])
    assert len(together) == 3
    assert together[1] == ""
    assert [translator.translate([line])[0] for line in ("old dog", "new cat sleeps here")] == together[::2]


def test_a_classifier_starts_from_a_masked_language_model(text: Path, tmp_path: Path) -> None:
    """Body taken to the bit, tokenizer taken, classifier fresh, frozen parameters untouched after training."""
    source = run("masked_lm", text, tmp_path, "trainer.steps=5", "run.name=source")
    tuned = train(
        compose(
            "train",
            [
                "model=encoder_only", "data=labels", "objective=classification", f"init.from='{source.folder}'",
                "init.freeze=[embedding,encoder.blocks.0]", f"data.train=[{{tsv: '{text}/train.tsv'}}]",
                f"data.valid=[{{tsv: '{text}/valid.tsv'}}]", "data.batch.tokens=256", f"run.root='{tmp_path}'",
                f"data.cache='{text}/prepared'", "data.max_length=40", "run.name=tuned", *LOOP[:-2], "data.workers=1",
                "trainer.steps=6",
            ],
        ),
        NoProgress(),
    )  # fmt: skip
    before, after = load(source.folder), load(tuned.folder)
    assert isinstance(after.model, Classifier)
    assert after.tokenizers.fingerprint == before.tokenizers.fingerprint
    assert after.labels == ["no", "yes"]
    old, new = before.model.state_dict(), after.model.body.state_dict()
    for name in old:
        frozen = name.startswith(("embedding.", "encoder.blocks.0.", "head."))
        assert torch.equal(old[name], new[name]) == frozen, name


def test_weights_that_do_not_fit_are_named_with_both_shapes(text: Path, tmp_path: Path) -> None:
    source = run("masked_lm", text, tmp_path, "trainer.steps=2", "run.name=source")
    with pytest.raises(CheckpointError, match=r"feedforward.*\(20, 12\).*\(24, 12\)"):
        run("masked_lm", text, tmp_path, f"init.from='{source.folder}'", "model.d_ff=24", "run.name=other")
    with pytest.raises(ConfigError, match=r"init.from: .*not a run folder"):
        run("masked_lm", text, tmp_path, f"init.from='{tmp_path}/nothing'", "run.name=third")
    with pytest.raises(ConfigError, match=r"init.freeze: no parameter begins with 'decoder'"):
        run("masked_lm", text, tmp_path, "init.freeze=[decoder]", "run.name=fourth")


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (["objective=causal_lm"], "CausalLM trains models of the family decoder_only, not encoder_decoder"),
        (["objective=causal_lm"], "CausalLM learns from documents, these are pairs: set data=text"),
        (["model=decoder_only"], "Translation trains models of the family encoder_decoder"),
        (["data=text", "model=encoder_only", "objective=masked_lm"], "set tokenizer.mask=true"),
        (
            ["data=text", "model=decoder_only", "objective=causal_lm", "data.length=99", "model.max_length=98"],
            "model.max_length=98",
        ),
        (["model=encoder_only", "model.tie=three_way"], "model.tie"),
        (["model=decoder_only", "model.pattern=[{position: {}}]"], "model.pattern.0.position"),
        (["model=decoder_only", "model.pattern=[{attention: {windo: 3}}]"], "model.pattern.0.attention.windo"),
    ],
)
def test_what_does_not_fit_together_is_said_before_any_work(overrides: list[str], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compose("train", overrides)
    assert problem in str(caught.value)


def test_changed_labels_are_refused(text: Path, tmp_path: Path) -> None:
    run("classification", text, tmp_path, "trainer.steps=2", "run.name=one")
    (text / "more.tsv").write_text((text / "train.tsv").read_text() + "new dog\tmaybe\n")
    with pytest.raises(RunError):
        run("classification", text, tmp_path, "run.name=one", "trainer.steps=3", "run.resume=changed",
            f"data.train=[{{tsv: '{text}/more.tsv'}}]")  # fmt: skip


def test_a_language_model_shows_samples_at_each_validation(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A beginning of a validation document, a bar, the continuation; the same prompts every time."""
    monkeypatch.setattr(logging.getLogger("transformer_kit"), "level", logging.INFO)
    made = run("causal_lm", text, tmp_path, "trainer.steps=20", "trainer.validation.samples=2")
    lines = [line.split(" INFO ", 1)[1] for line in (made.folder / "train.log").read_text().splitlines()]
    samples = [line.strip() for line in lines if line.startswith("  ") and "|" in line]
    assert len(samples) == 4
    first = (text / "valid.txt").read_text().splitlines()[0]
    assert [sample.split("|")[0] for sample in samples[::2]] == [first[:11]] * 2  # BOS is the twelfth token
