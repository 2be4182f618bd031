"""Training on one batch: the same batch always, a verdict, and a folder of its own."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from transformer_kit.config.run_folder import run_name
from transformer_kit.config.schema import Config
from transformer_kit.console import NoProgress
from transformer_kit.tasks.load import load
from transformer_kit.tasks.overfit import OneBatch, for_one_batch, judge
from transformer_kit.tasks.train import train
from transformer_kit.training.tracker import read_rows

Make = Callable[..., Config]
ONE = ["trainer.overfit_batch=true", "model.dropout={embedding: 0, residual: 0, attention: 0, feedforward: 0}"]


def test_the_batch_is_learnt_by_heart(tmp_path: Path, run_config: Make) -> None:
    more = ["schedule.lr=2e-2", "data.batch.tokens=40", "trainer.steps=150", "trainer.validate_every=50"]
    run = train(run_config(tmp_path, "run.name=x", *ONE, *more), NoProgress())
    found = run.result["overfit"]
    assert found["learnt"]
    assert found["loss"] - found["floor"] < 0.1
    assert found["floor"] > 0.1, "label smoothing"
    assert run.result["scores"]["accuracy"] == 1.0
    assert "bleu" not in run.result["scores"]
    rows = read_rows(run.folder / "metrics.jsonl")
    assert len({row["samples"] for row in rows if row["kind"] == "train"}) == 1


def test_a_stop_and_a_resume_take_the_same_batch(tmp_path: Path, run_config: Make, caplog: Any) -> None:
    for steps in (3, 5):
        parts = train(run_config(tmp_path, "run.name=parts", *ONE, f"trainer.steps={steps}"), NoProgress())
    whole = train(run_config(tmp_path, "run.name=whole", *ONE, "trainer.steps=5"), NoProgress())
    assert parts.result["model"]["sha256"] == whole.result["model"]["sha256"]
    assert not whole.result["overfit"]["learnt"]
    assert json.loads((whole.folder / "result.json").read_text())["overfit"] == whole.result["overfit"]


@pytest.mark.parametrize("first", ["true", "false"])
def test_the_check_may_be_switched_on_and_off(tmp_path: Path, run_config: Make, first: str, caplog: Any) -> None:
    given = ["run.name=x", "trainer.validation.bleu=null"]
    train(run_config(tmp_path, *given, "trainer.steps=2", f"trainer.overfit_batch={first}"), NoProgress())
    other = {"true": "false", "false": "true"}[first]
    changed = [*given, f"trainer.overfit_batch={other}", "run.resume=changed"]
    for steps in (3, 4):
        run = train(run_config(tmp_path, *changed, f"trainer.steps={steps}"), NoProgress())
        assert run.result["step"] == steps
        assert run.result["epochs"] == (steps - 2 if other == "true" else 0)
    assert caplog.text.count("their first pass begins anew") == 1


def test_models_chosen_by_bleu_are_chosen_by_loss(tmp_path: Path, run_config: Make) -> None:
    run = train(
        run_config(tmp_path, "run.name=x", *ONE, "trainer.steps=2", "trainer.best_metric=bleu", "trainer.final=best"),
        NoProgress(),
    )
    assert run.result["best"] == run.result["scores"]["loss"]
    assert load(run.folder, checkpoint="best").weights.parent.name == f"step_{run.result['best_step']:06d}"


def test_the_options_of_other_runs_stay(tmp_path: Path, run_config: Make) -> None:
    given = ["trainer.best_metric=bleu", "trainer.ema=0.9", "trainer.final=ema", "trainer.steps=2"]
    other = run_config(tmp_path, *given).trainer
    assert for_one_batch(other) == other
    one = for_one_batch(run_config(tmp_path, *given, "trainer.overfit_batch=true").trainer)
    assert (one.best_metric, one.ema, one.final) == ("loss", None, "last")


def test_a_batch_that_is_not_learnt_is_told(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr("transformer_kit.tasks.overfit.log.warning", lambda text, *rest: said.append(text % rest))
    assert judge(1.45, 1.4, 200).learnt
    assert said == []
    assert not judge(1.51, 1.4, 200).learnt
    assert not judge(math.nan, 1.4, 200).learnt
    assert said[0].startswith(
        "the one batch was not learnt by heart: after 200 updates its loss is 1.51, and could be 1.4"
    )


def test_the_run_has_a_name_of_its_own() -> None:
    assert (
        run_name(["+recipe=demo", "trainer.overfit_batch=true", "trainer.watch=10"])
        == "demo+trainer.overfit_batch=true"
    )


def test_an_epoch_is_the_batch() -> None:
    class Stream:
        epoch = 0

        def __iter__(self) -> Any:
            return iter(["first", "second"])

    one = OneBatch(Stream())  # type: ignore[arg-type]  # gives numbers for batches
    batches = iter(one)
    assert [next(batches), next(batches), one.epoch, one.state_dict()] == ["first", "first", 2, {"epoch": 2}]
