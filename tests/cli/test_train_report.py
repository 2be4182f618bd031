"""What is said at the end of a training."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from transformer_kit.cli.train_report import next_commands, show, shown_path, summary

RESULT: dict[str, Any] = {
    "parameters": 915968,
    "step": 1500,
    "ended_by": "steps",
    "tokens": 1234567,
    "epochs": 3,
    "seconds": 3723.0,
    "tokens_per_second": 7621.4,
    "precision": "bf16",
    "skipped": 0,
    "best": 1.25,
    "best_step": 1200,
    "model": {"kind": "best", "steps": [1200]},
    "scores": {"loss": 1.25, "accuracy": 0.751, "bleu": 39.49},
}


def config(kind: str = "pairs", family: str = "encoder_decoder", **data: Any) -> Any:
    fields = {"kind": kind, "test": [], "generate": None} | data
    return SimpleNamespace(
        data=SimpleNamespace(**fields),
        model=SimpleNamespace(family=family),
        trainer=SimpleNamespace(best_metric="loss", overfit_batch=False),
    )


def test_every_figure_has_a_row() -> None:
    assert summary(RESULT, "loss") == [
        ["parameters", "915,968"],
        ["updates", "1,500 (ended by steps)"],
        ["target tokens", "1,234,567 (3 passes over the data)"],
        ["time", "1:02:03"],
        ["target tokens/s", "7,621 (bf16)"],
        ["best loss", "1.25 at step 1,200"],
        ["model", "best, of step 1,200"],
        ["validation loss", "1.25"],
        ["validation accuracy", "75.10%"],
        ["validation BLEU", "39.49"],
    ]


def test_what_is_measured_later_is_shown_once_it_is_there() -> None:
    more = {"padding_efficiency": 0.931, "peak_memory": 3 * 2**29, "mfu": 0.42, "skipped": 3, "spikes": 1, "best": None}
    average = {"kind": "average", "steps": [300, 400, 500]}
    rows = dict(summary(RESULT | more | {"model": average}, "loss"))
    assert rows["cells that are no padding"] == "93.1%"
    assert rows["peak memory"] == "1.50 GiB"
    assert rows["target tokens/s"] == "7,621 (bf16, 42% of the matrix product's rate)"
    assert rows["updates skipped"] == "3 (not finite: 2, spikes: 1)"
    assert rows["model"] == "average of 3 checkpoints, steps 300 to 500"
    assert "best loss" not in rows


@pytest.mark.parametrize(
    ("made", "commands"),
    [
        (config(), ["evaluate -m runs/x --split valid", "translate -m runs/x < FILE"]),
        (config(test=[1]), ["evaluate -m runs/x", "translate -m runs/x < FILE"]),
        (config("documents", "decoder_only"), ["evaluate -m runs/x --split valid", 'generate -m runs/x "TEXT"']),
        (config("documents", "encoder_only"), ["evaluate -m runs/x --split valid", "fill-mask -m runs/x < FILE"]),
        (config("documents"), ["evaluate -m runs/x --split valid"]),
        (config("labels", "encoder_only"), ["evaluate -m runs/x --split valid", "classify -m runs/x < FILE"]),
    ],
)
def test_what_to_run_next(made: Any, commands: list[str]) -> None:
    lines = next_commands("runs/x", made)
    assert [line.removeprefix("next:").strip() for line in lines] == [
        f"tkit {command}" for command in [*commands, "plot runs/x"]
    ]


def test_a_folder_is_named_as_one_would_type_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert shown_path(tmp_path / "runs" / "x") == "runs/x"
    assert shown_path(tmp_path.parent / "y") == str(tmp_path.parent / "y")
    assert "'runs/a b'" in next_commands("runs/a b", config())[0]


def test_a_complete_run_says_so_and_shows_its_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    show(SimpleNamespace(folder=tmp_path / "x", already=True, result=RESULT, config=config()))  # type: ignore[arg-type]  # a stand-in
    out, err = capsys.readouterr()
    assert out == ""
    first, second, third = err.split("\n")[:3]
    assert (first, third) == ("x is already complete (step 1,500): nothing to do", "x")
    assert second == "run.name=NAME trains another, run.overwrite=true starts this one anew"
    assert "parameters           915,968\n" in err
