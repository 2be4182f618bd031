"""Translation through the command: a pipe that keeps lines, order and stdout clean."""

from __future__ import annotations

import io
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from transformer_kit import Translator
from transformer_kit.config.compose import compose
from transformer_kit.config.schema import Config
from transformer_kit.console import NoProgress
from transformer_kit.errors import CheckpointError, ConfigError, RunError, TkitError
from transformer_kit.evaluation.options import EvaluationOptions
from transformer_kit.tasks.evaluate import evaluate_run
from transformer_kit.tasks.load import load
from transformer_kit.tasks.train import Trained, train
from transformer_kit.tasks.translate import check_translates, translate

TRANSLATE = [sys.executable, "-m", "transformer_kit.cli", "translate"]


def through(run: Path, text: bytes, *overrides: str) -> bytes:
    sink = io.BytesIO()
    translate(run, io.BytesIO(text), sink, overrides=overrides)
    return sink.getvalue()


def sentences(count: int) -> list[str]:
    rng = random.Random(5)
    words = ["The", "dog", "cat", "king", "sees", "hears", "the", "child.", "again", "horse"]
    return [" ".join(rng.choice(words) for _ in range(rng.choice([1, 2, 3, 5, 8, 13, 21]))) for _ in range(count)]


def as_bytes(lines: Sequence[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def test_neither_batch_size_nor_order_changes_a_translation(trained: Trained) -> None:
    lines = sentences(60)
    together = through(trained.folder, as_bytes(lines)).decode().split("\n")[:-1]
    alone = through(trained.folder, as_bytes(lines), "decoding.batch_tokens=1").decode().split("\n")[:-1]
    order = list(range(len(lines)))
    random.Random(2).shuffle(order)
    shuffled = through(trained.folder, as_bytes([lines[i] for i in order]), "decoding.chunk=7").decode().split("\n")
    assert len(together) == len(lines)
    assert alone == together
    assert [shuffled[order.index(i)] for i in range(len(lines))] == together
    assert len(set(together)) > 5, "the model says the same of everything: the comparison shows nothing"


@pytest.mark.parametrize(
    ("chosen", "says"),
    [
        (["objective=classification", "data=labels"], "use `tkit classify`"),
        (["model=encoder_only", "objective=masked_lm", "data=text"], "use `tkit fill-mask`"),
        (["model=decoder_only", "objective=causal_lm", "data=text"], "use `tkit generate`"),
    ],
)
def test_runs_that_answer_no_source_are_refused(chosen: list[str], says: str, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=says):
        check_translates(tmp_path, compose("train", chosen, check=False))


@pytest.mark.parametrize(
    "chosen",
    [
        ["data=demo"],
        ["model=decoder_only", "objective=prefix_lm", "data=demo"],
        ["objective=denoising_t5", "data=text"],
    ],
)
def test_runs_that_answer_a_source_are_taken(chosen: list[str], tmp_path: Path) -> None:
    check_translates(tmp_path, compose("train", chosen, check=False))


def test_the_python_api_says_what_the_pipe_says(trained: Trained) -> None:
    lines = ["The dog sees the cat.", "", "The king again."]
    assert as_bytes(Translator(trained.folder).translate(lines)) == through(trained.folder, as_bytes(lines))
    with pytest.raises(TypeError, match="a list of lines"):
        Translator(trained.folder).translate("The dog.")


def test_n_best_and_scores(trained: Trained) -> None:
    options = ("decoding.beam=4", "decoding.n_best=3")
    rows = through(trained.folder, b"The dog sees the cat.\n\nThe king.\n", *options).decode().split("\n")[:-1]
    fields = [row.split("\t") for row in rows]
    assert [number for number, _, _ in fields] == ["1"] * 3 + ["2"] + ["3"] * 3
    first = [float(score) for number, score, _ in fields if number == "1"]
    assert first == sorted(first, reverse=True)
    best = through(trained.folder, b"The dog sees the cat.\n", "decoding.beam=4").decode().strip("\n")
    assert fields[0][2] == best


def test_a_run_translates_where_its_corpora_are_not(
    tmp_path: Path, corpus: Path, run_config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run may name its corpora by an environment variable; only its own test data need it."""
    monkeypatch.setenv("TKIT_DATA", str(corpus))
    files = "[{source: '${oc.env:TKIT_DATA}/%s.en', target: '${oc.env:TKIT_DATA}/%s.de'}]"
    splits = [f"data.{split}={files % (split, split)}" for split in ("train", "valid", "test")]
    run = train(
        run_config(tmp_path, "run.name=x", "trainer.steps=2", "trainer.validation.bleu=null", *splits), NoProgress()
    )
    monkeypatch.delenv("TKIT_DATA")
    assert through(run.folder, b"The dog.\n").count(b"\n") == 1
    with pytest.raises(ConfigError, match=r"variable TKIT_DATA is not set .*data\.test\.0\.source"):
        evaluate_run(run.folder, None, None, EvaluationOptions(["bleu"], False, "de", 0, 1))


@pytest.mark.parametrize("checkpoint", ["best", "last", "50"])
def test_checkpoints_can_be_chosen(trained: Trained, checkpoint: str) -> None:
    assert load(trained.folder, checkpoint=checkpoint).weights.parent.name.startswith("step_")


def test_errors_name_what_to_do(trained: Trained, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="not a run folder"):
        load(tmp_path)
    with pytest.raises(RunError, match="no checkpoint '7'; it keeps best, last and the steps"):
        load(trained.folder, checkpoint="7")
    with pytest.raises(TkitError, match=r"decoding\.n_best"):
        load(trained.folder, ["decoding.n_best=3", "decoding.beam=2"])


def test_damaged_weights_are_refused(trained: Trained, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(trained.folder, broken)
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="SHA-256"):
        load(broken)


def test_a_damaged_checkpoint_is_never_used(trained: Trained, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(trained.folder, broken)
    *_, before, last = sorted((broken / "checkpoints").iterdir())
    weights = bytearray((last / "model.safetensors").read_bytes())
    weights[-5] ^= 64  # one bit of one weight
    (last / "model.safetensors").write_bytes(weights)
    assert load(broken, checkpoint="last").weights.parent == before
    with pytest.raises(CheckpointError, match="damaged"):
        load(broken, checkpoint=last.name)


def test_a_flipped_bit_in_the_final_model_is_refused(trained: Trained, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(trained.folder, broken)
    weights = broken / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-5] ^= 1
    weights.write_bytes(data)
    with pytest.raises(CheckpointError, match="SHA-256"):
        load(broken)
    assert load(broken, checkpoint="last").weights.parent.name == "step_000060"


def test_a_damaged_record_of_the_run_is_refused(trained: Trained, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(trained.folder, broken)
    (broken / "environment.json").write_text("{")
    with pytest.raises(RunError, match=r"environment\.json is damaged"):
        load(broken)


@pytest.mark.skipif("TKIT_DATA" not in os.environ, reason="TKIT_DATA names no folder with robustness/blns.txt")
def test_naughty_strings_keep_their_lines(trained: Trained) -> None:
    text = (Path(os.environ["TKIT_DATA"]) / "robustness" / "blns.txt").read_bytes()
    out = through(trained.folder, text, "decoding=greedy", "decoding.max_extra=0", "decoding.max_length=5")
    assert out.count(b"\n") == text.count(b"\n") + (not text.endswith(b"\n"))


@pytest.mark.slow
def test_the_command_in_the_c_locale(trained: Trained) -> None:
    text = "The dog sees the cat.\n\n \n\u3000\nThe\u2028king.\nK\xf6nig\n".encode() + b"bad \xe4 byte\nno end"
    environment = {**os.environ, "LC_ALL": "C", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*TRANSLATE, "-m", str(trained.folder)], input=text, capture_output=True, env=environment, check=True
    )
    lines = done.stdout.split(b"\n")
    assert lines.pop() == b""
    assert len(lines) == 8
    assert [line == b"" for line in lines[1:4]] == [True] * 3
    assert b"UTF-8" in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.slow
def test_head_ends_quietly(trained: Trained, tmp_path: Path) -> None:
    source = tmp_path / "many.en"
    source.write_bytes(as_bytes(sentences(300)))
    command = f"{' '.join(TRANSLATE)} -m '{trained.folder}' decoding.chunk=20 -i '{source}' | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, check=True)
    assert done.stdout.count(b"\n") == 1
    assert b"Traceback" not in done.stderr
    assert b"Broken" not in done.stderr


@pytest.mark.slow
def test_an_output_file_is_whole_or_absent(trained: Trained, tmp_path: Path) -> None:
    source, output = tmp_path / "x.en", tmp_path / "x.de"
    source.write_bytes(b"The dog.\n")
    subprocess.run([*TRANSLATE, "-m", str(trained.folder), "-i", str(source), "-o", str(output)], check=True)
    assert output.read_bytes() == through(trained.folder, b"The dog.\n")
    output.unlink()
    failed = subprocess.run(
        [*TRANSLATE, "-m", str(tmp_path), "-i", str(source), "-o", str(output)], capture_output=True, check=False
    )
    assert failed.returncode == 1
    assert failed.stderr.count(b"\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.en"]
