"""Evaluation: equal to sacreBLEU, to translation and scoring apart, and to what training logged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import sacrebleu

from transformer_kit import Translator
from transformer_kit.cli.app import main
from transformer_kit.tasks.train import Trained


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["evaluate", *words])
    return int(ended.value.code or 0)


def test_a_run_is_scored_on_its_own_test_data(
    trained: Trained, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "hyp.de"
    assert run("-m", str(trained.folder), "--json", "-o", str(kept), "--bootstrap", "50") == 0
    found = json.loads(capsys.readouterr().out)
    sources = (corpus / "test.en").read_text().splitlines()
    references = (corpus / "test.de").read_text().splitlines()
    hypotheses = Translator(trained.folder).translate(sources)
    assert kept.read_text() == "".join(f"{line}\n" for line in hypotheses)
    expected = sacrebleu.corpus_bleu(hypotheses, [references], force=True).score
    assert found["scores"]["bleu"]["score"] == pytest.approx(expected, abs=0.01)
    assert "tok:13a" in found["scores"]["bleu"]["signature"]
    assert found["scores"]["bleu"]["low"] <= expected <= found["scores"]["bleu"]["high"]
    assert found["lines"] == len(sources)


def test_bleu_in_training_is_translate_and_evaluate(
    trained: Trained, corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [json.loads(line) for line in (trained.folder / "metrics.jsonl").read_text().splitlines()]
    logged = [row for row in rows if row["kind"] == "validation"][-1]
    words = ["--src", str(corpus / "valid.en"), "--ref", str(corpus / "valid.de"), "--json", "--bootstrap", "0"]
    assert run("-m", str(trained.folder), "--checkpoint", "last", *words) == 0
    scored = json.loads(capsys.readouterr().out)["scores"]["bleu"]["score"]
    assert scored == pytest.approx(logged["bleu"], abs=1e-9)


def test_hypotheses_and_references_are_scored_as_sacrebleu_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hypotheses = ["the cat sat on the mat today", "", "a dog barks loudly at night"]
    references = [
        ["the cat sat on a mat today", "nothing here", "a dog barks at night loudly"],
        ["a cat sat on the mat", "something", "the dog barks loudly at night"],
    ]
    paths = []
    for number, lines in enumerate([hypotheses, *references]):
        paths.append(tmp_path / f"{number}.txt")
        paths[-1].write_text("\n".join(lines) + "\n")
    for count in (1, 2):
        refs = [word for path in paths[1 : count + 1] for word in ("--ref", str(path))]
        assert run("--hyp", str(paths[0]), *refs, "--json") == 0
        found = json.loads(capsys.readouterr().out)["scores"]
        expected = sacrebleu.corpus_bleu(hypotheses, references[:count])
        assert found["bleu"]["score"] == pytest.approx(expected.score, abs=0.01)
        assert f"nrefs:{count}" in found["bleu"]["signature"]
        assert found["chrf"]["score"] == pytest.approx(
            sacrebleu.corpus_chrf(hypotheses, references[:count]).score, abs=0.01
        )


def test_the_table_names_signatures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.txt"
    path.write_text("one two three four five\n")
    assert run("--hyp", str(path), "--ref", str(path), "--lowercase", "--metric", "bleu") == 0
    out = capsys.readouterr().out
    assert "100.00" in out
    assert "case:lc" in out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "either -m RUN"),
        (("--hyp", "x", "-m", "y"), "either -m RUN"),
        (("--hyp", "x"), "--ref"),
        (("-m", "y", "--ref", "x"), "--src"),
        (("-m", "y", "--split", "train"), "--split"),
    ],
)
def test_wrong_command_lines(words: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*words) == 2
    assert says in capsys.readouterr().err


def test_a_reference_of_another_length_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("a\n")
    two.write_text("a\nb\n")
    assert run("--hyp", str(one), "--ref", str(two)) == 1
    assert "2 lines" in capsys.readouterr().err
    assert run("--hyp", str(one), "--ref", str(tmp_path / "none")) == 1
    assert "none" in capsys.readouterr().err


def test_an_unknown_metric_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = tmp_path / "one"
    one.write_text("a\n")
    assert run("--hyp", str(one), "--ref", str(one), "--metric", "blue") == 2
    assert "bleu_tok_lc" in capsys.readouterr().err
