"""The file of metrics."""

from __future__ import annotations

import json

import pytest

from transformer_kit.training.tracker import Jsonl


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_rows_are_lines_of_strict_json(tmp_path):
    path = tmp_path / "m.jsonl"
    tracker = Jsonl(path)
    tracker.add({"kind": "train", "step": 1, "loss": 0.1, "perplexity": float("inf"), "samples": "00ff"})
    tracker.add({"kind": "validation", "step": 1, "bleu": float("nan")})
    assert "NaN" not in path.read_text()
    assert "Infinity" not in path.read_text()
    assert rows(path) == [
        {"kind": "train", "step": 1, "loss": 0.1, "perplexity": None, "samples": "00ff"},
        {"kind": "validation", "step": 1, "bleu": None},
    ]


@pytest.mark.parametrize(
    ("step", "validated", "kept"),
    [
        (3, 2, [("train", 2), ("validation", 2), ("train", 3)]),
        (4, 4, [("train", 2), ("validation", 2), ("train", 3), ("train", 4), ("validation", 4)]),
        (4, 2, [("train", 2), ("validation", 2), ("train", 3), ("train", 4)]),
        (0, 0, []),
    ],
)
def test_rewind(tmp_path, step, validated, kept):
    path = tmp_path / "m.jsonl"
    Jsonl(path).rewind(5, 5)
    assert not path.exists()
    tracker = Jsonl(path)
    for kind, at in (("train", 2), ("validation", 2), ("train", 3), ("train", 4), ("validation", 4), ("train", 5)):
        tracker.add({"kind": kind, "step": at})
    with path.open("a") as file:
        file.write('[1]\nnonsense\n{"kind": "tr')
    tracker.rewind(step, validated)
    assert [(row["kind"], row["step"]) for row in rows(path)] == kept
    tracker.add({"kind": "train", "step": 99})
    assert rows(path)[-1]["step"] == 99
