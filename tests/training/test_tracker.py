"""The file of metrics."""

from __future__ import annotations

import json
import resource

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


def test_rows_wait_for_room(tmp_path, caplog):
    """A disk that is full for a while: no half a row, no hole afterwards, and one warning."""
    path = tmp_path / "m.jsonl"
    tracker = Jsonl(path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        for step in range(1, 7):
            tracker.add({"kind": "train", "step": step})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [row["step"] for row in rows(path)] == [1, 2, 3]
    assert [record.getMessage() for record in caplog.records] == [
        f"could not write {path}: [Errno 27] File too large; its rows wait"
    ]
    tracker.add({"kind": "train", "step": 7})
    tracker.add({"kind": "train", "step": 8})
    assert [row["step"] for row in rows(path)] == list(range(1, 9))
