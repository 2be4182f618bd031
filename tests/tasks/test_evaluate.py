"""Evaluation: equal to sacreBLEU, to translation and scoring apart, and to what training logged."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sacrebleu

from transformer_kit import Classifier, Translator
from transformer_kit.cli.app import main
from transformer_kit.tasks.train import Trained

Runs = Callable[[str], Trained]


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


def logged(run: Trained) -> dict[str, float]:
    rows = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if row["kind"] == "validation"][-1]


def scored(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert run(*words, "--json") == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize("kind", ["causal", "masked", "denoising"])
def test_running_text_is_scored_as_in_validation(
    run_on: Runs, texts: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run_on(kind).folder
    own = scored(capsys, "-m", str(folder), "--checkpoint", "last", "--split", "valid")
    assert own["scores"]["nll_per_token"] == pytest.approx(logged(run_on(kind))["loss"], rel=1e-5)
    assert own["scores"]["accuracy"] == pytest.approx(logged(run_on(kind))["accuracy"])
    given = scored(capsys, "-m", str(folder), "--checkpoint", "last", "--text", str(texts / "valid.txt"))
    assert given["scores"] == own["scores"]
    lines = (texts / "valid.txt").read_text().splitlines()
    assert (given["documents"], given["characters"]) == (len(lines), sum(map(len, lines)))
    assert given["bytes"] == sum(len(line.encode()) for line in lines) > given["characters"]
    bits = own["scores"]["nll_per_token"] * own["predicted_tokens"] / math.log(2)
    per = {"bits_per_character": bits / own["characters"], "bits_per_byte": bits / own["bytes"]}
    found = {name: value for name, value in own["scores"].items() if name.startswith("bits")}
    assert found == pytest.approx(per if kind == "causal" else {})  # what is hidden is not the text
    assert own["scores"]["perplexity"] == pytest.approx(math.exp(own["scores"]["nll_per_token"]))


def test_more_context_helps_and_the_rule_is_said(run_on: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(run_on("causal").folder)
    apart = scored(capsys, "-m", folder)
    strided = scored(capsys, "-m", folder, "--stride", "1")
    assert apart["context"] == "windows of 24 tokens, none overlapping"
    assert "stride 1: each predicts its last 1, from up to 23 before them" in strided["context"]
    assert strided["predicted_tokens"] == apart["predicted_tokens"]
    assert strided["scores"]["nll_per_token"] != apart["scores"]["nll_per_token"]
    assert scored(capsys, "-m", folder, "--stride", "24")["scores"] == pytest.approx(apart["scores"])
    assert run("-m", folder, "--stride", "25") == 2
    assert "must be from 1 to 24" in capsys.readouterr().err
    assert run("-m", folder) == 0
    out = capsys.readouterr().out
    assert "test.txt: 17 documents" in out
    assert "context: windows of 24 tokens, none overlapping" in out
    assert run("-m", str(run_on("masked").folder), "--stride", "3") == 2
    assert "--stride is for causal models" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["labels", "pairs_of_texts"])
def test_a_classifier_is_scored(run_on: Runs, texts: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(run_on(kind).folder)
    valid = scored(capsys, "-m", folder, "--checkpoint", "last", "--split", "valid")
    assert valid["scores"]["accuracy"] == pytest.approx(logged(run_on(kind))["accuracy"])
    found = scored(capsys, "-m", folder)
    path = texts / ("test.tsv" if kind == "labels" else "test.pairs")
    rows = [line.rsplit("\t", 1) for line in path.read_text().splitlines()]
    verdicts = Classifier(folder).classify([text for text, _ in rows])
    right = sum(one is not None and one.label == label for one, (_, label) in zip(verdicts, rows, strict=True))
    assert found["examples"] == len(rows) == 17
    assert found["scores"]["accuracy"] == pytest.approx(right / 17)
    assert found["scores"]["accuracy_low"] <= right / 17 <= found["scores"]["accuracy_high"]
    assert sum(map(sum, found["confusion"])) == 17
    assert sum(found["confusion"][i][i] for i in range(len(found["confusion"]))) == right
    assert set(found["classes"]) == set(Classifier(folder).labels)
    assert scored(capsys, "-m", folder, "--tsv", str(path))["scores"] == found["scores"]
    assert run("-m", folder) == 0
    out = capsys.readouterr().out
    for word in ("accuracy", "macro F1", "precision", "is \\ taken for"):
        assert word in out


def test_a_label_that_the_run_does_not_know_is_named(
    run_on: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.tsv"
    path.write_text("good\tyes\nbad\tperhaps\n")
    assert run("-m", str(run_on("labels").folder), "--tsv", str(path)) == 1
    assert f"{path}, line 2: the label 'perhaps' is none of the run's (maybe, no, yes)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "words", "says"),
    [
        ("causal", ("--src", "x", "--ref", "y"), "--src is for runs that learn from pairs"),
        ("labels", ("--text", "x"), "--text is for runs that learn from documents"),
        ("causal", ("--tsv", "x"), "--tsv is for runs that learn from labels"),
    ],
)
def test_options_of_other_kinds_are_refused(
    run_on: Runs, kind: str, words: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("-m", str(run_on(kind).folder), *words) == 2
    assert says in capsys.readouterr().err


def test_a_translator_takes_no_text(trained: Trained, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("-m", str(trained.folder), "--text", "x") == 2
    assert "--text is for runs that learn from documents" in capsys.readouterr().err
    assert run("--hyp", "x", "--ref", "y", "--stride", "3") == 2
    assert "need -m RUN" in capsys.readouterr().err


def test_a_split_is_of_the_runs_own_data(run_on: Runs, texts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(run_on("causal").folder)
    assert run("-m", folder, "--split", "valid", "--text", str(texts / "valid.txt")) == 2
    assert "--split is of the run's own data" in capsys.readouterr().err
    assert run("-m", folder, "--split", "train") == 2
    assert "--split must be test or valid, not 'train'" in capsys.readouterr().err
