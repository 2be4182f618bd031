"""The loop: one division, budgets, validation, patience, skipped updates, failures of the disk."""

from __future__ import annotations

import json
import math
import signal

import pytest
import torch
from optimizer_toys import shipped
from torch import nn

from transformer_kit.batch import translation_batch
from transformer_kit.errors import CheckpointError, Interrupted, RunError
from transformer_kit.training import checkpoint as checkpoint_module
from transformer_kit.training.norms import total_norm
from transformer_kit.training.optimizer import build_optimizer
from transformer_kit.training.parallel import Parallel
from transformer_kit.training.precision import Precision
from transformer_kit.training.state import Interval
from transformer_kit.training.step import Step
from transformer_kit.training.tracker import Jsonl
from transformer_kit.training.update import Updater, derive_seed
from transformer_kit.training.windows import Window


def pair(length, first):
    return torch.arange(first, first + length) % 9 + 4


def batch_of(*lengths):
    rows = [pair(length, length) for length in lengths]
    return translation_batch(rows, rows, range(len(rows)), pad_id=0, bos_id=2, eos_id=3)


def update(make, *windows, clip_norm=None):
    """Gradients, last outcome and parameters after one update a window, in float64 without dropout."""
    setup = make(dropout=0.0)
    model = setup.model.double()
    optimizer = build_optimizer(shipped("adam"), model)
    step = Step(model, setup.trainer._parallel.step.objective)
    updater = Updater(
        Parallel(step), optimizer, lambda step: 0.1 / step, Precision("fp32", torch.device("cpu"), ""), clip_norm, 1
    )
    for number, window in enumerate(windows):
        outcome = updater.run(Window.of(window), attempt=number, step=number + 1)
    return {n: p.grad for n, p in model.named_parameters()}, outcome, model.state_dict()


def close(left, right):
    return all(torch.allclose(left[name], right[name], rtol=1e-9, atol=1e-12) for name in left)


@pytest.mark.parametrize("lengths", [(11, 101), (101, 11), (2, 3, 5, 7)])
def test_accumulation_equals_one_batch(make, lengths):
    """The mean of means would be far off: a pair of 11 and one of 101 tokens weigh by their tokens."""
    one = update(make, [batch_of(*lengths)])
    many = update(make, [batch_of(length) for length in lengths])
    assert close(one[0], many[0])
    assert many[1].labels == one[1].labels == sum(length + 1 for length in lengths)
    assert many[1].loss == pytest.approx(one[1].loss, rel=1e-12)
    assert many[1].norm == pytest.approx(one[1].norm, rel=1e-9)
    assert many[1].metrics == pytest.approx(one[1].metrics, rel=1e-9)


def test_the_gradient_is_that_of_the_mean_loss(make):
    gradients, outcome, _ = update(make, [batch_of(3, 7), batch_of(5)])
    setup = make(dropout=0.0)
    model = setup.model.double()
    sums = [setup.trainer._parallel.step.objective(model, batch) for batch in (batch_of(3, 7), batch_of(5))]
    (sum(each.loss for each in sums) / (4 + 8 + 6)).backward()
    assert close(gradients, {n: p.grad for n, p in model.named_parameters()})
    total = math.sqrt(sum(float(p.grad.square().sum()) for p in model.parameters()))
    assert outcome.norm == pytest.approx(total, rel=1e-9)


@pytest.mark.parametrize("share", [0.25, 4.0])
def test_clipping_scales_the_whole_gradient(make, share):
    plain, outcome, _ = update(make, [batch_of(3, 7)])
    clipped, again, _ = update(make, [batch_of(3, 7)], clip_norm=share * outcome.norm)
    factor = min(1.0, share)
    assert all(torch.allclose(clipped[n], factor * plain[n], rtol=1e-5) for n in plain)
    assert again.norm == outcome.norm, "the norm before clipping is reported"


def test_the_incomplete_last_window_counts_its_own_labels(make):
    """One epoch, a window that is never full: equal to the whole epoch as one batch."""
    setup = make(dropout=0.0, epochs=1, steps=None, accumulate_tokens=10**6)
    samples = len(setup.stream.pairs)
    summary = setup.trainer.fit()
    labels = sum(len(target) + 1 for _, target in setup.stream.pairs)
    assert (summary.step, summary.tokens, summary.reason) == (1, labels, "epochs")
    fresh = make(dropout=0.0, folder="other")
    whole = fresh.trainer._parallel.step.objective(fresh.model, fresh.stream.batch(list(range(samples))))
    (whole.loss / labels).backward()
    norm = total_norm([p.grad for p in fresh.model.parameters()]).item()
    expected = (pytest.approx(whole.loss.item() / labels, rel=1e-6), pytest.approx(norm, rel=1e-5))
    assert setup.tracker.of("train", "loss", "grad_norm") == [expected]


def test_windows_reach_the_token_target(make):
    setup = make(steps=9, accumulate_tokens=37)
    setup.trainer.fit()
    labels = [sum(len(setup.stream.pairs[i][1]) + 1 for i in chunk) for chunk in setup.stream.given]
    sizes, total = [], 0
    for count in labels:
        total += count
        if total >= 37:
            sizes, total = [*sizes, total], 0
    tokens = [row[0] for row in setup.tracker.of("train", "tokens")]
    assert tokens == [sum(sizes[: n + 1]) for n in range(9)]


@pytest.mark.parametrize(
    ("budget", "reason", "step"),
    [
        ({"steps": 7}, "steps", 7),
        ({"steps": None, "epochs": 2}, "epochs", 16),
        ({"steps": 11, "epochs": 2}, "steps", 11),
        ({"steps": 1000, "tokens": 1}, "tokens", 1),
        ({"steps": None, "minutes": 1e-9}, "minutes", 1),
        ({"steps": 1000, "epochs": 3, "tokens": 10**9, "minutes": 60.0}, "epochs", 24),
    ],
)
def test_the_first_budget_reached_ends_it(make, budget, reason, step):
    summary = make(**budget).trainer.fit()
    assert (summary.reason, summary.step) == (reason, step)
    assert summary.tokens_per_second > 0
    again = make(**budget).trainer.fit()
    assert (again.reason, again.step) == (reason, step), "a finished run trains nothing"


def test_rows_of_the_log(make):
    setup = make(steps=7, log_every=3)
    summary = setup.trainer.fit()
    assert [row[0] for row in setup.tracker.of("train", "step")] == [3, 6, 7]
    row = setup.tracker.rows[0]
    single = make(steps=3, folder="single")
    single.trainer.fit()
    nll = sum(r["loss"] * n for r, n in zip(single.tracker.rows, tokens_of(single), strict=False))
    assert row["loss"] == pytest.approx(nll / row["tokens"])
    assert row["perplexity"] == pytest.approx(math.exp(row["loss"]))
    assert 0 <= row["accuracy"] <= 1
    assert row["lr"] == 0.01 / 3
    assert row["tokens"] == sum(tokens_of(setup)[:3])
    cells = real = 0
    for chunk in setup.stream.given[:3]:
        batch = setup.stream.batch(chunk)
        cells += batch.source.ids.numel() + batch.target.ids.numel()
        real += int(batch.source.valid.sum() + batch.target.valid.sum())
    assert row["padding_efficiency"] == pytest.approx(real / cells)
    assert summary.step == 7


def test_means_of_a_row_are_over_labels_and_perplexity_is_of_the_plain_likelihood():
    """Two updates of unlike size; the loss may be smoothed, or hold more than a likelihood."""
    interval = Interval()
    interval.add(3, 60.0, 1.0, {"nll": 6.0, "correct": 2.0})
    interval.add(7, 10.0, 2.0, {"nll": 8.0, "correct": 3.0})
    row = interval.row()
    assert (row["loss"], row["accuracy"], row["grad_norm"]) == (7.0, 0.5, 1.5)
    assert row["perplexity"] == pytest.approx(math.exp(1.4), rel=1e-12)


def tokens_of(setup):
    return [sum(len(setup.stream.pairs[i][1]) + 1 for i in chunk) for chunk in setup.stream.given]


# -- validation ------------------------------------------------------------------------------------------------------


def test_validation_at_its_interval_and_at_the_end(make):
    modes = []

    def validate(model):
        modes.append((model.training, torch.is_grad_enabled(), setup.trainer.state.step))
        return {"loss": 2.0, "bleu": 30.0}

    setup = make(steps=11, validate_every=4, validate=validate)
    summary = setup.trainer.fit()
    assert modes == [(False, False, 4), (False, False, 8), (False, False, 11)]
    assert setup.model.training
    assert setup.tracker.of("validation", "step", "bleu") == [(4, 30.0), (8, 30.0), (11, 30.0)]
    assert summary.scores == {"loss": 2.0, "bleu": 30.0}


def test_validation_changes_nothing(make):
    """Not even when it draws random numbers."""
    without, often = (
        make(folder="a"),
        make(folder="b", validate_every=1, validate=lambda m: {"loss": float(torch.rand(()))}),
    )
    without.trainer.fit()
    often.trainer.fit()
    assert all(torch.equal(a, b) for a, b in zip(without.model.parameters(), often.model.parameters(), strict=True))


@pytest.mark.parametrize(
    ("metric", "values", "step", "best"),
    [
        ("loss", [3.0, 2.0, 2.5, 2.0, 9.0], 20, 10),
        ("perplexity", [3.0, 2.0, math.nan, math.nan, 0.0], 20, 10),
        ("bleu", [3.0, 4.0, 3.9, 4.0, 9.0], 20, 10),
        ("accuracy", [0.1, 0.3, 0.2, 0.4, 0.3, 0.2], 30, 20),
        ("loss", [math.nan, math.nan, 1.0], 10, 0),
        ("bleu", [math.inf, 5.0, math.nan, 4.0], 20, 10),
    ],
)
def test_patience(make, metric, values, step, best):
    scores = iter(values)
    setup = make(
        steps=100, validate_every=5, patience=2, best_metric=metric, validate=lambda model: {metric: next(scores)}
    )
    summary = setup.trainer.fit()
    assert (summary.reason, summary.step, summary.best_step) == ("patience", step, best)
    kept = [c.step for c in setup.store.all()]
    assert kept == sorted({best, step} - {0}), "the best stays beside the last"


def test_patience_survives_a_resume_and_a_new_one_goes_on(make):
    def run(**extra):
        return make(steps=30, validate_every=5, validate=lambda model: {"loss": 1.0}, **extra).trainer.fit()

    assert run(patience=2).step == 15
    assert run(patience=2).step == 15
    assert run(patience=3).step == 20


def test_the_end_of_a_session_that_was_meant_to_be_shorter_costs_no_patience(make):
    """It validates once more than an unbroken run, which ends where that would have."""

    def run(steps):
        values = iter([2.0, 3.0, 3.0, 3.0, 3.0]) if steps < 10 else iter([3.0] * 9)
        return make(
            steps=steps, patience=2, validate_every=5, validate=lambda model: {"loss": next(values)}
        ).trainer.fit()

    assert (run(5).best, run(7).step, run(100).step) == (2.0, 7, 15)


@pytest.mark.parametrize(("end", "warned"), [(5, True), (7, False), (8, False)])
def test_updates_behind_the_end_of_a_schedule_are_told(make, caplog, end, warned):
    make(steps=7, schedule=lambda step: max(0.0, 0.01 * (end - step))).trainer.fit()
    said = [message for message in caplog.messages if "learning rate is 0" in message]
    assert said == ["the learning rate is 0 after step 4: raise schedule.steps, or lower trainer.steps"] * warned


def test_a_metric_that_validation_lacks(make):
    with pytest.raises(RunError, match=r"trainer\.best_metric=bleu: validation gives only accuracy, loss"):
        make(steps=1, best_metric="bleu", validate=lambda model: {"loss": 1.0, "accuracy": 0.5}).trainer.fit()


# -- updates that are not made ---------------------------------------------------------------------------------------


def test_a_gradient_that_is_not_finite_skips_the_update(make, caplog):
    objective_type = type(make().trainer._parallel.step.objective)
    healthy = make(steps=6, folder="healthy")
    healthy.trainer.fit()
    setup = make(steps=6, objective=objective_type(lambda call: call in (3, 4)), save_every=2)
    summary = setup.trainer.fit()
    assert (summary.step, summary.skipped) == (6, 2)
    assert [row[0] for row in setup.tracker.of("train", "step")] == [1, 2, 3, 4, 5, 6]
    assert setup.tracker.of("train", "step", "lr") == healthy.tracker.of("train", "step", "lr")
    assert all(math.isfinite(row[0]) for row in setup.tracker.of("train", "loss"))
    assert len(setup.stream.given) == 8, "the data go on"
    assert setup.stream.given[:6] == healthy.stream.given, "and are not taken again"
    assert setup.tracker.of("train", "step", "loss")[:2] == healthy.tracker.of("train", "step", "loss")[:2]
    assert all(torch.isfinite(p).all() for p in setup.model.parameters())


def test_too_many_in_a_row_stop_with_the_last_checkpoint_in_place(make):
    objective_type = type(make().trainer._parallel.step.objective)
    setup = make(max_skips=3, save_every=2, objective=objective_type(lambda call: call in (2, 3) or call > 7))
    with pytest.raises(
        RunError,
        match=r"3 updates in a row were skipped after step 5, the last because the loss is not finite, first "
        r"in the loss \(the last checkpoint is of step 4\)",
    ):
        setup.trainer.fit()
    good = setup.store.latest_good()
    assert good is not None
    assert good.step == 4
    resumed = make(steps=6)
    assert resumed.trainer.fit().step == 6
    assert resumed.trainer.state.skipped == 2


# -- disk and signals ------------------------------------------------------------------------------------------------


def full_disk(*args):
    raise OSError(28, "No space left on device")


def test_a_full_disk_does_not_end_training(make, monkeypatch):
    setup = make(steps=12, save_every=2)
    real = checkpoint_module.write_manifest
    full = {f"step_{step:06d}.tmp" for step in (4, 6, 8)}
    monkeypatch.setattr(
        checkpoint_module, "write_manifest", lambda folder, *a: full_disk() if folder.name in full else real(folder, *a)
    )
    assert setup.trainer.fit().step == 12
    assert [c.step for c in setup.store.all()] == [2, 10, 12]


def test_a_last_state_that_cannot_be_saved_is_an_error(make, monkeypatch):
    setup = make(steps=3)
    monkeypatch.setattr(checkpoint_module, "write_manifest", full_disk)
    with pytest.raises(CheckpointError, match="its last state could not be saved"):
        setup.trainer.fit()


def test_a_stop_that_cannot_be_saved_says_what_is_left(make, monkeypatch):
    setup = make(save_every=2)
    update, real = setup.trainer._update, checkpoint_module.write_manifest
    monkeypatch.setattr(
        checkpoint_module,
        "write_manifest",
        lambda folder, *a: full_disk() if folder.name == "step_000005.tmp" else real(folder, *a),
    )

    def stop_at_five():
        update()
        if setup.trainer.state.step == 5:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(setup.trainer, "_update", stop_at_five)
    with pytest.raises(Interrupted, match="could not be saved: the last checkpoint is of step 4"):
        setup.trainer.fit()


class Broken:
    def __init__(self):
        self.calls = 0

    def rewind(self, step, validated):
        pass

    def add(self, row):
        self.calls += 1
        raise ConnectionError("no network")


def test_a_tracker_that_raises_is_dropped(make):
    broken = Broken()
    setup = make(steps=5, trackers=[broken])
    assert setup.trainer.fit().step == 5
    assert broken.calls == 1
    assert len(setup.tracker.of("train", "step")) == 5


def test_metrics_file_of_a_killed_and_resumed_run(make, tmp_path):
    """Rows after the checkpoint, and half a line, are gone; each step stands once."""
    path = tmp_path / "metrics.jsonl"
    first = make(steps=8, save_every=5, validate_every=4, trackers=[Jsonl(path)])
    first.trainer._finish = lambda: 1 / 0  # dies before the last checkpoint
    with pytest.raises(ZeroDivisionError):
        first.trainer.fit()
    assert [c.step for c in first.store.all()] == [4, 5]
    with path.open("a") as file:
        file.write('{"kind": "train", "st')
    make(steps=10, save_every=5, validate_every=4, trackers=[Jsonl(path)]).trainer.fit()
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["step"] for row in rows if row["kind"] == "train"] == list(range(1, 11))
    assert [row["step"] for row in rows if row["kind"] == "validation"] == [4, 8, 10]


def test_a_checkpoint_of_another_model_is_refused(make):
    make(steps=2).trainer.fit()
    setup = make(steps=4)
    setup.model.middle = nn.Linear(5, 7)
    with pytest.raises(CheckpointError, match=r"does not fit the model: middle\.bias is \(5,\), the model's \(7,\)"):
        setup.trainer.fit()


class Shown:
    """Records what the person sees."""

    def __init__(self):
        self.calls = []

    def start(self, title, fraction=0.0):
        self.calls.append(("start", fraction))

    def update(self, fraction, facts=None):
        self.calls.append((fraction, facts and sorted(facts)))

    def stop(self):
        self.calls.append("stop")


def test_progress(make):
    shown = Shown()
    make(steps=4, log_every=2, progress=shown).trainer.fit()
    facts = ["loss", "lr", "ppl", "step", "tokens/s"]
    assert shown.calls == [("start", 0.0), (0.25, None), (0.5, facts), (0.75, None), (1.0, facts), "stop"]
    shown = Shown()
    make(steps=8, log_every=2, progress=shown).trainer.fit()
    assert shown.calls[:2] == [("start", 0.5), (0.625, None)]


def test_every_batch_draws_differently(make):
    """Within an update, in the next one, and in one that follows a skipped one."""
    seeds = {}
    setup = make(steps=4, accumulate_tokens=40)
    objective = setup.trainer._parallel.step.objective
    objective.poison = lambda call: seeds.setdefault(call, torch.initial_seed()) is not None and call == 2
    setup.trainer.fit()
    assert setup.trainer.state.skipped == 1
    assert len(set(seeds.values())) == len(seeds) > 8


def test_seeds_of_near_inputs_are_unlike():
    seeds = {derive_seed(s, a, b) for s in range(5) for a in range(11) for b in range(7)}
    assert len(seeds) == 5 * 11 * 7
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert derive_seed(1, 2, 3) == 6520558355739401531  # changing it breaks every resume


def test_the_gradients_norm_is_summed_in_fp32():
    """In bfloat16 ten thousand small squares would be lost beside one large one."""
    gradients = [torch.full((100, 101), 0.01, dtype=torch.bfloat16), torch.tensor([3.0], dtype=torch.bfloat16)]
    norm = total_norm(gradients)
    exact = sum(g.double().square().sum() for g in gradients).sqrt()
    assert norm.dtype == torch.float32
    assert norm.item() == pytest.approx(exact.item(), rel=1e-6)
    assert total_norm([g.double() for g in gradients]).dtype == torch.float64
