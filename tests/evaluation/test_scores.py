from __future__ import annotations

import gzip
import json
import logging
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from transformer_kit.errors import ConfigError, DataError
from transformer_kit.evaluation.bleu import METRICS, Metric, corpus_scores, looks_tokenised, moses
from transformer_kit.evaluation.options import EvaluationOptions

TEXT = "the Café's dog, runs (over) 3.5 small hills; and U.S. cats don't mind it much, says Ms. Ölaf today"
WORDS = TEXT.split()


def corpus(seed: int, lines: int = 31) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(4, 13))) + "." for _ in range(lines)]


def spoilt(lines: list[str], seed: int) -> list[str]:
    """The lines with some words changed, and an empty line among them."""
    rng = random.Random(seed)
    out = [" ".join(w if rng.random() < 0.8 else rng.choice(WORDS) for w in line.split()) for line in lines]
    out[5] = ""
    return out


REFERENCE = corpus(1)
REFERENCES = [REFERENCE, spoilt(REFERENCE, 2), spoilt(REFERENCE, 3)]
HYPOTHESES = spoilt(REFERENCE, 4)


def scores(hypotheses=HYPOTHESES, references=(REFERENCE,), metrics=("bleu",), lowercase=False):
    return corpus_scores(hypotheses, references, metrics=metrics, lowercase=lowercase, language="en")


def command(folder: Path, references: list[list[str]], *flags: str) -> list[dict]:
    """What the sacrebleu command prints for the same lines."""
    paths = [str(folder / f"{number}.txt") for number in range(len(references) + 1)]
    for path, lines in zip(paths, [HYPOTHESES, *references], strict=True):
        Path(path).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    call = [sys.executable, "-m", "sacrebleu", *paths[1:], "-i", paths[0], "-f", "json", "-w", "4", *flags]
    printed = json.loads(subprocess.run(call, check=True, capture_output=True, text=True).stdout)
    return printed if isinstance(printed, list) else [printed]


@pytest.mark.parametrize(
    ("count", "metrics", "lowercase", "flags"),
    [
        (1, ["bleu", "chrf", "ter"], False, ["-m", "bleu", "chrf", "ter"]),
        (2, ["bleu"], True, ["-m", "bleu", "-lc"]),
        (2, ["bleu_intl"], False, ["-m", "bleu", "-tok", "intl"]),
        (2, ["chrf"], True, ["-m", "chrf", "--chrf-lowercase"]),
        (3, ["bleu", "chrf", "ter"], False, ["-m", "bleu", "chrf", "ter"]),
    ],
)
def test_equals_the_sacrebleu_command(tmp_path: Path, count: int, metrics, lowercase: bool, flags) -> None:
    printed = command(tmp_path, REFERENCES[:count], *flags)
    found = scores(references=REFERENCES[:count], metrics=metrics, lowercase=lowercase)
    for score, theirs in zip(found, printed, strict=True):
        assert score.value == pytest.approx(theirs["score"], abs=1e-4)
        assert score.signature == theirs["signature"]
        assert f"nrefs:{count}|" in score.signature
        assert 0 < score.value < 100


def test_signatures_say_what_was_done() -> None:
    found = {score.name: score for score in scores(metrics=METRICS)}
    assert list(found) == list(METRICS)
    assert "case:mixed" in found["bleu"].signature
    assert "tok:13a" in found["bleu"].signature
    assert "tok:intl" in found["bleu_intl"].signature
    assert "case:mixed|eff:no|tok:none" in found["bleu_tok"].signature
    assert "prep:norm+tok.en.sacremoses-" in found["bleu_tok"].signature
    assert "case:lc|eff:no|tok:none" in found["bleu_tok_lc"].signature
    assert "prep:norm+tok+lc.en.sacremoses-" in found["bleu_tok_lc"].signature
    assert len({score.label for score in found.values()}) == len(METRICS)
    assert [name for name, score in found.items() if not score.higher_is_better] == ["ter"]
    assert found["bleu"].signature in str(found["bleu"])
    assert "BP = " in found["bleu"].detail


def test_lower_casing_is_opt_in_and_shown() -> None:
    shouted = [line.upper() for line in REFERENCE]
    for metric in ("bleu", "bleu_intl", "chrf"):
        (cased,), (lower,) = (scores(shouted, metrics=[metric], lowercase=flag) for flag in (False, True))
        assert cased.value < 50
        assert lower.value == pytest.approx(100)
        assert "case:lc" in lower.signature
        assert "lower-cased" in lower.label


def test_the_tokenised_form_scores_moses_tokens() -> None:
    hypotheses = [line.replace("(", " ( ").replace(")", " ) ") for line in REFERENCE]
    (cased,), (lower,) = (scores(hypotheses, metrics=[name]) for name in ("bleu_tok", "bleu_tok_lc"))
    assert cased.value == pytest.approx(100)
    assert lower.value == pytest.approx(100)
    (upper,) = scores([line.upper() for line in REFERENCE], metrics=["bleu_tok_lc"])
    assert upper.value > 60  # abbreviations are told by their case, so not all tokens agree
    assert scores([line.upper() for line in REFERENCE], metrics=["bleu_tok"])[0].value < 40


def test_empty_hypotheses_keep_their_place() -> None:
    emptied = ["" if i % 3 == 0 else line for i, line in enumerate(REFERENCE)]
    (score,) = scores(emptied)
    assert score.value < 80  # the others are perfect: only brevity costs
    assert "100.0/100.0/100.0/100.0" in score.detail
    assert scores([""] * len(REFERENCE))[0].value == 0.0


@pytest.mark.parametrize(
    ("hypotheses", "references", "message"),
    [
        (HYPOTHESES, [REFERENCE, REFERENCE[:-1]], "reference 2 has 30 lines but there are 31 hypotheses"),
        (HYPOTHESES[:-1], [REFERENCE], "reference 1 has 31 lines but there are 30 hypotheses"),
        (HYPOTHESES, [], "no reference"),
        ([], [[]], "no hypotheses"),
    ],
)
def test_sides_of_different_length_are_refused(hypotheses, references, message: str) -> None:
    with pytest.raises(DataError, match=message):
        scores(hypotheses, references)


@pytest.mark.parametrize("mark", ["▁the ▁dog", "the do@@ g", "the dog ."])
def test_hypotheses_that_look_tokenised_warn(mark: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        scores([mark, *HYPOTHESES[1:19], *HYPOTHESES[:12]])
        assert not caplog.records  # one line in 31 may be chance
        scores([mark] * 3 + HYPOTHESES[3:])
    (record,) = caplog.records
    assert "look tokenised (3 of 31 lines with" in record.getMessage()


def test_running_text_does_not_look_tokenised() -> None:
    assert looks_tokenised([*HYPOTHESES, "mail me @@home", "Vraiment ?"]) is None


def test_an_unknown_metric_is_refused() -> None:
    with pytest.raises(ConfigError, match="'blue' is unknown; valid are bleu,"):
        Metric("blue", lowercase=False, language="en")


def test_options_name_each_value_out_of_range() -> None:
    assert EvaluationOptions(["bleu", "ter"], False, "de", 1000, 1).problems() == []
    bad = EvaluationOptions(["blue"], False, "de", -1, -1).problems()
    assert [key for key, _ in bad] == ["metrics", "bootstrap", "seed"]
    assert EvaluationOptions([], False, "de", 0, 0).problems()[0][0] == "metrics"


def test_multi30k_gives_the_published_number_of_tokens() -> None:
    if "TKIT_DATA" not in os.environ:
        pytest.skip("TKIT_DATA is not set: no multi30k/test_2016_flickr.de.gz")
    folder = Path(os.environ["TKIT_DATA"]) / "multi30k"
    raw, theirs = (
        gzip.decompress((folder / name).read_bytes()).decode().split("\n")[:-1]
        for name in ("test_2016_flickr.de.gz", "test_2016_flickr.lc.norm.tok.de.gz")
    )
    ours = moses("de", True)(raw)
    assert sum(len(line.split()) for line in ours) == 12103
    unescaped = [line.replace("&quot;", '"').replace("&apos;", "'").replace("&amp;", "&") for line in theirs]
    assert sum(one != other for one, other in zip(ours, unescaped, strict=True)) == 0
