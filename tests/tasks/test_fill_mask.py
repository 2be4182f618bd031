"""`tkit fill-mask`."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from transformer_kit import MaskFiller
from transformer_kit.cli.app import main
from transformer_kit.errors import RunError
from transformer_kit.tasks.fill_mask import fill_pipe, make_filler
from transformer_kit.tasks.train import Trained

Runs = Callable[[str], Trained]


def through(run: Path, text: str, fills: int, *, as_json: bool = False) -> list[str]:
    sink = io.BytesIO()
    fill_pipe(io.BytesIO(text.encode()), sink, make_filler(run, fills=fills), as_json=as_json)
    return sink.getvalue().decode().split("\n")[:-1]


def test_one_fill_gives_one_line_and_several_have_numbers(run_on: Runs) -> None:
    run, text = run_on("masked").folder, "old d<mask>g.\n\nn<mask>w cat.\n"
    found = MaskFiller(run, fills=3).fill(text.split("\n")[:-1])
    assert [len(fills) for fills in found] == [3, 1, 3]
    assert through(run, text, 1) == [f"{fills[0].text}\t{fills[0].probability:.6f}\t{fills[0].line}" for fills in found]
    assert through(run, text, 3) == [
        f"{number}\t{fill.text}\t{fill.probability:.6f}\t{fill.line}"
        for number, fills in enumerate(found, 1)
        for fill in fills
    ]
    assert found[0][0].line == f"old d{found[0][0].text}g."
    (row, nothing, _) = (json.loads(line) for line in through(run, text, 3, as_json=True))
    assert [fill["text"] for fill in row] == [fill.text for fill in found[0]]
    assert nothing == [{"text": "", "probability": 1.0, "line": ""}]


def test_the_model_has_learnt_its_letters(run_on: Runs) -> None:
    """Rare letters beside common ones: the fill is a letter of the text far more often than chance."""
    (fills,) = MaskFiller(run_on("masked").folder, fills=8).fill(["good d<mask>g."])
    assert sum(fill.probability for fill in fills) > 0.5
    assert all(len(fill.text) <= 1 for fill in fills)


def test_other_runs_are_refused(run_on: Runs) -> None:
    with pytest.raises(RunError, match="fills no masks"):
        make_filler(run_on("causal").folder)
    with pytest.raises(RunError, match="fills no masks"):
        make_filler(run_on("labels").folder)


def test_the_command(run_on: Runs, tmp_path: Path) -> None:
    source, sink = tmp_path / "x.txt", tmp_path / "x.fills"
    source.write_text("old d[MASK]g.\n")
    run = run_on("masked").folder
    words = ["-i", str(source), "-o", str(sink), "-k", "2", "--mask-token", "[MASK]"]
    with pytest.raises(SystemExit) as ended:
        main(["fill-mask", "-m", str(run), *words])
    assert not ended.value.code
    assert sink.read_text().splitlines() == through(run, "old d<mask>g.\n", 2)
