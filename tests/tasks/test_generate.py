"""`tkit generate`: prompts from the command line and from a pipe, and the runs that do not write."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from transformer_kit import Generator
from transformer_kit.cli.app import main
from transformer_kit.config.compose import compose
from transformer_kit.errors import ConfigError, RunError
from transformer_kit.tasks.convert import import_model
from transformer_kit.tasks.generate import check_writes, generate_pipe, make_generator
from transformer_kit.tasks.train import Trained

Runs = Callable[[str], Trained]
GENERATE = [sys.executable, "-m", "transformer_kit.cli", "generate"]


def tkit(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["generate", *words])
    return int(ended.value.code or 0)


def test_texts_look_like_the_text(run_on: Runs) -> None:
    generator = Generator(run_on("causal").folder, "generation.temperature=0.5", "generation.num_samples=8")
    found = [one for samples in generator.samples(["good ", ""]) for one in samples]
    assert sum(one.finish == "eos" for one in found) > 8
    assert sum(word in one.text for one in found for word in ("old", "cat", "här", "runs", "dort")) > 10


def test_the_command_prints_what_the_python_api_says(run_on: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_on("causal").folder
    (whole,) = Generator(run, "generation=greedy").generate(["good d"])
    assert tkit("-m", str(run), "good d", "generation=greedy") == 0
    assert capsys.readouterr().out == whole + "\n"
    assert tkit("-m", str(run), "good d", "old", "generation=greedy", "--json") == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["prompt"] for row in rows] == ["good d", "old"]
    assert rows[0]["text"] == whole
    assert "".join(Generator(run, "generation=greedy").stream("good d")) == whole
    with pytest.raises(TypeError, match="a list of lines"):
        Generator(run).generate("good")


def test_stop_strings(run_on: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_on("causal").folder
    greedy = ("generation=greedy", "generation.max_new_tokens=40")
    whole = Generator(run, *greedy).generate(["good "])[0]
    stop = whole[2:4]
    assert tkit("-m", str(run), "good ", "--stop", stop, *greedy) == 0
    assert capsys.readouterr().out == whole[: whole.find(stop)] + "\n"
    (found,) = Generator(run, *greedy, stop=[stop]).samples(["good "])[0]
    assert found.finish == "stop"
    assert tkit("-m", str(run), "-e", "--stop", "", "a") == 2
    assert "generation.stop holds an empty string" in capsys.readouterr().err


def test_a_model_that_is_full_stops_or_slides(run_on: Runs) -> None:
    run, long = run_on("causal").folder, "generation.max_new_tokens=200"
    ends = "generation.min_new_tokens=200"
    (one,) = Generator(run, long, ends).samples(["good "])[0]
    assert (one.tokens, one.finish) == (64 - 6, "length")
    (one,) = Generator(run, long, ends, "generation.overflow=slide").samples(["good "])[0]
    assert (one.tokens, one.finish) == (200, "length")


def test_a_denoising_run_writes_what_its_decoder_learnt(run_on: Runs) -> None:
    found = Generator(run_on("denoising").folder, "generation.max_new_tokens=20").samples(["good dog", ""])
    assert [one.finish == "empty" for (one,) in found] == [False, True]


def test_a_translator_is_sampled(trained: Trained) -> None:
    (found,) = Generator(trained.folder, "generation.num_samples=9", "generation.temperature=3").samples(["The dog."])
    assert len({one.text for one in found}) > 4


@pytest.mark.parametrize(("kind", "says"), [("masked", "use `tkit fill-mask`"), ("labels", "use `tkit classify`")])
def test_runs_that_do_not_write_are_refused(run_on: Runs, kind: str, says: str) -> None:
    with pytest.raises(RunError, match=says):
        make_generator(run_on(kind).folder)


def test_a_decoder_that_translates_is_refused(tmp_path: Path) -> None:
    config = compose("train", ["model=decoder_only", "objective=prefix_lm", "data=demo"], check=False)
    with pytest.raises(RunError, match=r"was trained to translate.*use `tkit translate`"):
        check_writes(tmp_path, config)


def test_wrong_options_are_named(run_on: Runs) -> None:
    run = run_on("causal").folder
    with pytest.raises(ConfigError, match=r"generation\.top_p: is 1\.5; a number from 0 to 1"):
        make_generator(run, ["generation.top_p=1.5"])
    assert tkit("-m", str(run), "a", "generaton.top_p=0.5") == 2


@pytest.mark.slow
def test_a_pipe_keeps_its_lines(run_on: Runs) -> None:
    text = "good\n\nold cat\n \nhär".encode()
    environment = {**os.environ, "LC_ALL": "C", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*GENERATE, "-m", str(run_on("causal").folder), "generation.seed=3"],
        input=text,
        capture_output=True,
        env=environment,
        check=True,
    )
    expected = Generator(run_on("causal").folder, "generation.seed=3").generate(["good", "", "old cat", " ", "här"])
    assert done.stdout.decode() == "".join(line + "\n" for line in expected)
    assert b"Traceback" not in done.stderr


@pytest.mark.slow
def test_a_terminal_is_written_to_piece_by_piece(run_on: Runs) -> None:
    """On a terminal a single prompt's text comes in many writes, which together are what a pipe gets."""
    pexpect = pytest.importorskip("pexpect")
    words = ["-m", str(run_on("causal").folder), "good ", "generation=greedy", "generation.max_new_tokens=50"]
    child = pexpect.spawn(GENERATE[0], [*GENERATE[1:], *words], encoding="utf-8", timeout=60)
    child.setecho(False)
    child.expect(pexpect.EOF)
    whole = Generator(run_on("causal").folder, *words[3:]).generate(["good "])[0]
    assert child.before.replace("\r\n", "\n").endswith(whole + "\n")


@pytest.mark.slow
@pytest.mark.skipif("TKIT_DATA" not in os.environ, reason="TKIT_DATA names no folder with stories260k")
def test_stories_are_told_byte_for_byte(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """llama2.c's own greedy text of 200 steps from the empty prompt."""
    folder = Path(os.environ["TKIT_DATA"]) / "stories260k"
    import_model(f"llama2c:{folder}/stories260K.bin", tmp_path / "stories", tokenizer=folder / "tok512.bin")
    words = ["generation.temperature=0", "generation.max_new_tokens=200"]
    assert tkit("-m", str(tmp_path / "stories"), "", *words) == 0
    golden = (folder / "golden.txt").read_bytes()
    assert capsys.readouterr().out.encode() == golden + b"\n"
    prompts = ["", "Once upon a time", "Lily and Tom", 'The big dog said: "']
    batched = Generator(tmp_path / "stories", *words).generate(prompts)
    assert batched[0].encode() == golden
    assert batched == [Generator(tmp_path / "stories", *words).generate([prompt])[0] for prompt in prompts]


@pytest.mark.slow
@pytest.mark.skipif("TKIT_DATA" not in os.environ, reason="TKIT_DATA names no folder with robustness/blns.txt")
def test_naughty_strings_keep_their_lines(run_on: Runs) -> None:
    text = (Path(os.environ["TKIT_DATA"]) / "robustness" / "blns.txt").read_bytes()
    sink = io.BytesIO()
    generator = make_generator(run_on("causal").folder, ["generation.max_new_tokens=3", "generation.temperature=3"])
    generate_pipe(io.BytesIO(text), sink, generator, as_json=False, escapes=True)
    assert sink.getvalue().count(b"\n") == text.count(b"\n") + (not text.endswith(b"\n"))


@pytest.mark.slow
def test_head_ends_quietly(run_on: Runs) -> None:
    command = (
        f"yes good | head -300 | {' '.join(GENERATE)} -m '{run_on('causal').folder}' generation.chunk=20 | head -1"
    )
    done = subprocess.run(["bash", "-c", command], capture_output=True, check=True)
    assert done.stdout.count(b"\n") == 1
    assert b"Traceback" not in done.stderr
    assert b"Broken" not in done.stderr
