"""`tkit classify`: one line in, one line out."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from transformer_kit import Classifier
from transformer_kit.cli.app import main
from transformer_kit.errors import RunError
from transformer_kit.tasks.classify import classify_pipe, formatted, make_classifier
from transformer_kit.tasks.train import Trained

Runs = Callable[[str], Trained]


def through(run: Path, text: str, form: str = "best", *overrides: str) -> list[str]:
    sink = io.BytesIO()
    classify_pipe(io.BytesIO(text.encode()), sink, make_classifier(run, overrides), form)
    return sink.getvalue().decode().split("\n")[:-1]


def test_labels_and_probabilities(run_on: Runs) -> None:
    run = run_on("labels").folder
    lines = ["good dog.", "", "bad cat runs.", "old dog.", " "]
    classifier = Classifier(run)
    assert classifier.labels == ["maybe", "no", "yes"]
    found = classifier.classify(lines)
    out = through(run, "\n".join(lines) + "\n")
    assert out == ["" if one is None else f"{one.label}\t{one.probability:.6f}" for one in found]
    assert [one is None for one in found] == [False, True, False, False, True]
    first = found[0]
    assert first is not None
    assert first.probability == max(first.probabilities.values())
    assert sum(first.probabilities.values()) == pytest.approx(1)
    with pytest.raises(TypeError, match="a list of lines"):
        classifier.classify("good")


def test_every_label_best_first_and_json(run_on: Runs) -> None:
    run = run_on("labels").folder
    (best,) = through(run, "good dog.\n")
    (every,) = through(run, "good dog.\n", "all")
    assert every.startswith(best + "\t")
    cells = every.split("\t")
    assert sorted(cells[::2]) == ["maybe", "no", "yes"]
    assert [float(cell) for cell in cells[1::2]] == sorted(map(float, cells[1::2]), reverse=True)
    rows = [json.loads(line) for line in through(run, "good dog.\n\n", "json")]
    assert rows[0]["label"] == cells[0]
    assert rows[0]["probabilities"][cells[2]] == pytest.approx(float(cells[3]), abs=1e-6)
    assert rows[1] == {"label": None, "probability": None, "probabilities": None}
    assert formatted(None, "all") == ""


def test_batches_change_nothing(run_on: Runs, texts: Path) -> None:
    run, text = run_on("labels").folder, (texts / "test.txt").read_text()
    alone = through(run, text, "best", "decoding.batch_tokens=1")
    for got, expected in zip(through(run, text), alone, strict=True):
        (label, probability), (wanted, other) = got.split("\t"), expected.split("\t")
        assert label == wanted
        assert float(probability) == pytest.approx(float(other), abs=2e-6)


def test_long_lines_are_cut_as_in_training(run_on: Runs) -> None:
    run = run_on("labels").folder
    long, cut = through(run, "good " * 40 + "\n" + ("good " * 40)[:46] + "\n")  # 48 tokens, two of them marks
    assert long == cut


def test_pairs_of_texts(run_on: Runs) -> None:
    run = run_on("pairs_of_texts").folder
    same, other = through(run, "old dog.\told dog.\nold dog.\tnew cat sleeps dort.\n")
    assert {same.split("\t")[0], other.split("\t")[0]} <= {"same", "other"}
    assert same != other


def test_other_runs_are_refused(run_on: Runs) -> None:
    with pytest.raises(RunError, match="was not trained to classify: train one with objective=classification"):
        make_classifier(run_on("masked").folder)


def test_the_command(run_on: Runs, tmp_path: Path) -> None:
    source, sink = tmp_path / "x.txt", tmp_path / "x.labels"
    source.write_text("good dog.\nbad dog.\n")
    run = run_on("labels").folder
    with pytest.raises(SystemExit) as ended:
        main(["classify", "-m", str(run), "-i", str(source), "-o", str(sink)])
    assert not ended.value.code
    assert sink.read_text().splitlines() == through(run, source.read_text())
    with pytest.raises(SystemExit) as ended:
        main(["classify", "-m", str(run), "-i", str(source), "--all", "--json"])
    assert ended.value.code == 2
