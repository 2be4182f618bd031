"""Training as a whole: what a run leaves, and that stopping and going on changes nothing."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from transformer_kit.config.schema import Config
from transformer_kit.console import NoProgress
from transformer_kit.data.tokenizer import Tokenizers
from transformer_kit.errors import CheckpointError, ConfigError, DataError, Interrupted, RunError
from transformer_kit.tasks.load import checkpoints, load, read_environment
from transformer_kit.tasks.tokenize import tokenize
from transformer_kit.tasks.train import Trained, train
from transformer_kit.training import budget

Make = Callable[..., Config]
STOCHASTIC = [
    "model.dropout={embedding: 0.1, residual: 0.2, attention: 0.1, feedforward: 0.1}",
    "trainer.accumulate_tokens=200",
    "data.batch.pool=100",
]


def rows(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    timed = ("seconds", "tokens_per_second", "elapsed")
    return [{k: v for k, v in json.loads(line).items() if k not in timed} for line in lines]


def test_a_run_leaves_what_the_design_lists(trained: Trained) -> None:
    names = {path.name for path in trained.folder.iterdir()}
    expected = {"config.yaml", "tokenizer", "model.safetensors", "checkpoints", "metrics.jsonl", "train.log"}
    assert expected | {"result.json", "environment.json"} <= names
    result = json.loads((trained.folder / "result.json").read_text())
    assert result["status"] == "complete"
    assert result["step"] == 60
    assert result["parameters"] == sum(t.numel() for t in load_file(trained.folder / "model.safetensors").values())
    assert set(result["scores"]) == {"loss", "perplexity", "accuracy", "bleu"}


def test_a_small_model_learns(trained: Trained) -> None:
    losses = [row["loss"] for row in rows(trained.folder) if row["kind"] == "train"]
    assert losses[-1] < 0.75 * losses[0]


@pytest.mark.parametrize("stops", [(17,), (10, 31)])
def test_forty_steps_equal_a_stop_and_a_resume_to_the_bit(tmp_path: Path, run_config: Make, stops: tuple[int]) -> None:
    """Losses, learning rates, digests of sample ids, validation scores, parameters; with dropout and accumulation,
    pools smaller than the data, over several epochs."""
    whole = train(run_config(tmp_path, "run.name=whole", "trainer.steps=40", *STOCHASTIC), NoProgress())
    for steps in (*stops, 40):
        parts = train(run_config(tmp_path, "run.name=parts", f"trainer.steps={steps}", *STOCHASTIC), NoProgress())
    # A run that ends at `stops` validates there as well; apart from that row the logs are equal.
    extra = [row for row in rows(parts.folder) if row not in rows(whole.folder)]
    assert {(row["kind"], row["step"]) for row in extra} <= {("validation", stop) for stop in stops}
    assert [row for row in rows(whole.folder) if row not in rows(parts.folder)] == []
    one, other = (load_file(run.folder / "model.safetensors") for run in (whole, parts))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_resumed_equals_unbroken_with_everything_that_has_a_state(tmp_path: Path, run_config: Make) -> None:
    """Muon, a moving average, two passes under dropout; what the run offers is the average, and so are its scores."""
    given = ["optimizer=muon", "trainer.ema=0.9", "trainer.final=ema", "objective.rdrop=2"]
    given += ["trainer.validation.bleu=null", "optimizer.layer_decay=0.8"]
    whole = train(run_config(tmp_path, "run.name=whole", "trainer.steps=5", *given), NoProgress())
    for steps in (2, 5):
        parts = train(run_config(tmp_path, "run.name=parts", f"trainer.steps={steps}", *given), NoProgress())
    one, other = (load_file(run.folder / "model.safetensors") for run in (whole, parts))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert whole.result["model"]["kind"] == "ema"
    assert whole.result["scores"] == whole.result["last_scores"] == parts.result["scores"]
    plain = load_file(whole.folder / "checkpoints" / "step_000005" / "model.safetensors")
    assert not all(torch.equal(one[name], plain[name]) for name in one)
    assert load(whole.folder, checkpoint="last").weights.name == "ema.safetensors"


@pytest.mark.parametrize(("before", "after"), [("muon", "adamw"), ("adamw", "muon"), ("adam", "adafactor")])
def test_another_optimizer_goes_on_where_it_is_asked_to(
    tmp_path: Path, run_config: Make, before: str, after: str, caplog: pytest.LogCaptureFixture
) -> None:
    given = ["run.name=x", "trainer.validation.bleu=null"]
    train(run_config(tmp_path, *given, "trainer.steps=2", f"optimizer={before}"), NoProgress())
    changed = [*given, "trainer.steps=3", f"optimizer={after}"]
    with pytest.raises(RunError, match=rf"optimizer\.name: {before} -> {after}"):
        train(run_config(tmp_path, *changed), NoProgress())
    more = train(run_config(tmp_path, *changed, "run.resume=changed"), NoProgress())
    assert more.result["step"] == 3
    assert "is of another optimizer: the moments of" in caplog.text


def test_what_is_offered_is_what_is_scored(tmp_path: Path, run_config: Make) -> None:
    """The average is validated, the last weights are offered: they are validated again."""
    given = ["run.name=x", "trainer.steps=4", "trainer.ema=0.9", "trainer.final=last", "trainer.validation.bleu=null"]
    run = train(run_config(tmp_path, *given), NoProgress())
    assert run.result["model"]["kind"] == "last"
    assert run.result["scores"]["loss"] != run.result["last_scores"]["loss"]


def test_a_finished_run_is_left_alone(tmp_path: Path, run_config: Make) -> None:
    def stamp(folder: Path) -> dict[str, int]:
        return {str(p): p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file() and p.name != ".lock"}

    config = run_config(tmp_path, "run.name=x", "trainer.steps=3", "trainer.validation.bleu=null")
    first = train(config, NoProgress())
    before = stamp(first.folder)
    again = train(config, NoProgress())
    assert again.already
    assert not first.already
    assert again.result == first.result
    assert stamp(first.folder) == before


def test_a_raised_budget_goes_on(tmp_path: Path, run_config: Make) -> None:
    quick = ["run.name=x", "trainer.validation.bleu=null"]
    train(run_config(tmp_path, *quick, "trainer.steps=3"), NoProgress())
    more = train(run_config(tmp_path, *quick, "trainer.steps=5"), NoProgress())
    assert not more.already
    assert more.result["step"] == 5
    assert [row["step"] for row in rows(more.folder) if row["kind"] == "train"] == [1, 2, 3, 4, 5]


def test_another_configuration_is_refused(tmp_path: Path, run_config: Make) -> None:
    quick = ["run.name=x", "trainer.steps=2", "trainer.validation.bleu=null"]
    train(run_config(tmp_path, *quick), NoProgress())
    with pytest.raises(RunError, match=r"model\.dropout\.residual: 0\.1 -> 0\.3"):
        train(run_config(tmp_path, *quick, "model.dropout.residual=0.3"), NoProgress())


def test_a_change_that_the_run_cannot_take_leaves_it_as_it_was(tmp_path: Path, run_config: Make) -> None:
    quick = ["run.name=x", "trainer.validation.bleu=null"]
    run = train(run_config(tmp_path, *quick, "trainer.steps=2"), NoProgress())
    saved = (run.folder / "config.yaml").read_bytes()
    with pytest.raises(CheckpointError, match="does not fit"):
        train(run_config(tmp_path, *quick, "trainer.steps=4", "model.d_ff=24", "run.resume=changed"), NoProgress())
    assert (run.folder / "config.yaml").read_bytes() == saved
    # Complete already: the weights are the old configuration's, and so is what the folder says.
    train(run_config(tmp_path, *quick, "trainer.steps=2", "model/position=none", "run.resume=changed"), NoProgress())
    assert (run.folder / "config.yaml").read_bytes() == saved
    more = train(
        run_config(tmp_path, *quick, "trainer.steps=4", "schedule.lr=1e-3", "run.resume=changed"), NoProgress()
    )
    assert more.result["step"] == 4
    assert load(run.folder).config.schedule.lr == 1e-3


def test_without_validation_data_nothing_is_begun(tmp_path: Path, run_config: Make) -> None:
    with pytest.raises(ConfigError, match=r"data\.valid"):
        train(run_config(tmp_path, "run.name=x", "data.valid=[]"), NoProgress())
    assert list(tmp_path.iterdir()) == []


def test_a_failure_is_recorded_and_can_be_mended(tmp_path: Path, run_config: Make, corpus: Path) -> None:
    one, other = tmp_path / "a.en", tmp_path / "a.de"
    one.write_text("a b\n" * 9)
    other.write_text("a b\n" * 8)
    config = run_config(
        tmp_path, "run.name=x", "trainer.steps=2", f"data.train=[{{source: '{one}', target: '{other}'}}]"
    )
    with pytest.raises(DataError, match=r"9 lines but .* 8 lines"):
        train(config, NoProgress())
    result = json.loads((tmp_path / "x" / "result.json").read_text())
    assert result["status"] == "failed"
    assert "line-parallel" in result["error"]
    other.write_text("a b\n" * 9)
    with pytest.raises(DataError, match="vocab"):  # nine equal lines allow no 50 pieces: found, and recorded, as well
        train(config, NoProgress())


@pytest.mark.parametrize("raised", [Interrupted, DataError, ImportError])
def test_a_stop_that_came_out_as_another_error_is_recorded_as_a_stop(
    tmp_path: Path, run_config: Make, monkeypatch: pytest.MonkeyPatch, raised: type[Exception]
) -> None:
    """A library's own `except Exception` may have made one of its errors of the signal's."""

    def stopped(*args: object) -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        except Exception as error:
            raise raised(str(error)) from error

    config = run_config(tmp_path, "run.name=x", "trainer.steps=2")
    with monkeypatch.context() as patch:
        patch.setattr("transformer_kit.tasks.train.prepare", stopped)
        with pytest.raises(Interrupted, match="stopped by SIGTERM"):
            train(config, NoProgress())
    result = json.loads((tmp_path / "x" / "result.json").read_text())
    assert result["status"] == "interrupted"
    assert "stopped by SIGTERM" in result["error"]
    assert train(config, NoProgress()).result["status"] == "complete"


def test_a_wrong_start_can_be_mended(tmp_path: Path, run_config: Make) -> None:
    with pytest.raises(ConfigError, match=r"init\.freeze: no parameter begins with 'nothing'"):
        train(run_config(tmp_path, "init.freeze=[nothing]", "trainer.steps=2"), NoProgress())
    assert not (tmp_path / "run" / "environment.json").exists(), "it has not begun"
    run = train(run_config(tmp_path, "init.freeze=[encoder]", "trainer.steps=2"), NoProgress())
    assert run.result["status"] == "complete"


@pytest.mark.parametrize(("metric", "best"), [("loss", 1), ("perplexity", 1), ("accuracy", 2), ("bleu", 2)])
def test_checkpoints_are_best_in_the_direction_of_their_metric(
    tmp_path: Path, run_config: Make, metric: str, best: int
) -> None:
    """Scores 2 and 3, then a bad one and a good one."""
    store = checkpoints(tmp_path, run_config(tmp_path, f"trainer.best_metric={metric}"))
    for step, score in ((1, 2.0), (2, 3.0)):
        assert store.save(torch.nn.Linear(3, 5), {}, {"step": step, "scores": {metric: score}})
    assert [found.step for found in store.best(1)] == [best]
    assert [score for score in (1.0, 4.0) if store.is_among_best({metric: score})] == [1.0 if best == 1 else 4.0]


def test_the_average_is_the_mean_of_its_checkpoints(tmp_path: Path, run_config: Make) -> None:
    average = ["trainer.average={kind: last, count: 3}", "trainer.final=average", "trainer.save_every=4"]
    run = train(run_config(tmp_path, "run.name=x", "trainer.steps=13", *average), NoProgress())
    steps = run.result["model"]["steps"]
    assert run.result["model"]["kind"] == "average"
    assert len(steps) == 3
    kept = [load_file(run.folder / "checkpoints" / f"step_{step:06}" / "model.safetensors") for step in steps]
    for name, tensor in load_file(run.folder / "model.safetensors").items():
        mean = torch.stack([weights[name].double() for weights in kept]).mean(0)
        torch.testing.assert_close(tensor, mean.float(), rtol=0, atol=0)


def test_a_swapped_tokenizer_is_refused(tmp_path: Path, run_config: Make, trained: Trained) -> None:
    quick = ["run.name=x", "trainer.validation.bleu=null"]
    run = train(run_config(tmp_path, *quick, "trainer.steps=2"), NoProgress())
    other = train(
        run_config(tmp_path, "run.name=y", "trainer.validation.bleu=null", "trainer.steps=2", "tokenizer=bpe"),
        NoProgress(),
    )
    ours, theirs = Tokenizers.load(run.folder / "tokenizer"), Tokenizers.load(other.folder / "tokenizer")
    assert ours.source.vocab_size == theirs.source.vocab_size
    theirs.save(run.folder / "tokenizer")
    with pytest.raises(DataError, match="tokenizer"):
        load(run.folder)
    with pytest.raises(DataError, match="tokenizer"):
        train(run_config(tmp_path, *quick, "trainer.steps=4"), NoProgress())


def test_watching_norms_changes_nothing(tmp_path: Path, run_config: Make) -> None:
    """With dropout, accumulation, and layers that run again on the way back."""
    quick = [*STOCHASTIC, "trainer.steps=4", "trainer.validation.bleu=null", "trainer.activation_checkpointing=true"]
    plain = train(run_config(tmp_path, "run.name=plain", *quick), NoProgress())
    watched = train(run_config(tmp_path, "run.name=watched", "trainer.watch=2", *quick), NoProgress())
    found = rows(watched.folder)
    assert [row for row in found if row["kind"] != "norms"] == rows(plain.folder)
    assert watched.result["model"]["sha256"] == plain.result["model"]["sha256"]
    norms = [row for row in found if row["kind"] == "norms"]
    assert [row["step"] for row in norms] == [2, 4]
    assert {"activation/encoder.blocks.0", "gradient/decoder.blocks.1", "update/source_embedding"} <= norms[0].keys()
    assert all(0 < value < 1e4 for name, value in norms[0].items() if "/" in name)


def test_a_budget_fitted_to_memory_is_kept(tmp_path: Path, run_config: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is that of the number, to the bit; a resume takes the number that it began with."""
    quick = ["trainer.validation.bleu=null", "data.batch.tokens=auto"]
    monkeypatch.setattr(budget, "MULTIPLE", 10)
    monkeypatch.setattr(budget, "MOST", 150)
    monkeypatch.setattr(budget, "available_memory", lambda device: 10**12)
    first = train(run_config(tmp_path, "run.name=auto", "trainer.steps=3", *quick), NoProgress())
    assert read_environment(first.folder)["batch_tokens"] == 150
    monkeypatch.setattr(budget, "MOST", 90)
    train(run_config(tmp_path, "run.name=auto", "trainer.steps=6", *quick), NoProgress())
    number = [*quick[:1], "data.batch.tokens=150"]
    other = train(run_config(tmp_path, "run.name=number", "trainer.steps=6", *number), NoProgress())
    one, two = (load_file(run.folder / "model.safetensors") for run in (first, other))
    assert all(torch.equal(one[name], two[name]) for name in two)
    assert load(first.folder).config.data.batch.tokens == 150
    assert run_config(tmp_path, *quick).data.batch.tokens == "auto"


def test_a_budget_is_a_number_or_auto(tmp_path: Path, run_config: Make) -> None:
    with pytest.raises(ConfigError, match=r"data\.batch\.tokens: expected an integer or auto, got 'much'"):
        run_config(tmp_path, "data.batch.tokens=much")
    with pytest.raises(ConfigError, match=r"data\.batch\.tokens: auto is measured when a training begins"):
        tokenize(run_config(tmp_path, "data.batch.tokens=auto"))
