"""Several corpora with tags and prefixes: training, validation, evaluation and translation agree on what is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from transformer_kit import Translator
from transformer_kit.config.schema import Config
from transformer_kit.console import NoProgress
from transformer_kit.errors import DataError
from transformer_kit.evaluation.options import EvaluationOptions
from transformer_kit.tasks.evaluate import evaluate_run
from transformer_kit.tasks.train import train


def test_tags_reach_validation_evaluation_and_translation(
    tmp_path: Path, corpus: Path, run_config: Callable[..., Config]
) -> None:
    def pair(split: str, tag: str, prefix: str) -> str:
        files = f"source: '{corpus}/{split}.en', target: '{corpus}/{split}.de'"
        return f"{{{files}, tag: '{tag}', prefix: '{prefix}'}}"

    def both(split: str) -> str:
        return f"data.{split}=[{pair(split, '<one>', 'The ')},{pair(split, '<two>', '')}]"

    splits = [both(split) for split in ("train", "valid", "test")]
    run = train(run_config(tmp_path, "run.name=x", "trainer.steps=8", "data.temperature=2", *splits), NoProgress())
    validated = (run.folder / "validation.hypotheses").read_text().splitlines()
    lines = (corpus / "valid.en").read_text().splitlines()
    one = Translator(run.folder, tag="<one>").translate([f"The {line}" for line in lines])
    two = Translator(run.folder, tag="<two>").translate(lines)
    assert validated == one + two
    assert one != two, "the tag changes nothing: the comparison shows nothing"
    options = EvaluationOptions(["bleu"], False, "de", 0, 1)
    evaluated = evaluate_run(run.folder, None, None, options, split="valid")
    assert evaluated.hypotheses == validated
    with pytest.raises(DataError, match="<three>"):
        Translator(run.folder, tag="<three>")
