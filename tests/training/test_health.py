"""Updates that are not made: which they are, what they leave, and that a resumed run judges as the unbroken one."""

from __future__ import annotations

import math
import random
import statistics

import pytest
import torch
from torch import nn

from transformer_kit.errors import CheckpointError, RunError
from transformer_kit.training.health import LENGTH, Fault, Recent
from transformer_kit.training.state import RunState


def filled(count=LENGTH, seed=5):
    """A history, with numbers before it that must be forgotten."""
    drawn, recent = random.Random(seed), Recent()
    for _ in range(11):
        recent.add(1e9, 1e9)
    recent.losses.clear()
    recent.norms.clear()
    for _ in range(count):
        recent.add(drawn.gauss(3.0, 0.3), drawn.lognormvariate(-0.4, 0.8))
    return recent


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("spike", [0.5, 6.0])
def test_the_bound_is_so_many_standard_deviations_above_the_mean(which, spike):
    recent = filled()
    past = (recent.losses, recent.norms)[which]
    bound = statistics.fmean(past) + spike * statistics.pstdev(past)
    for value, bad in ((bound * (1 - 1e-9), False), (bound * (1 + 1e-9), True), (-1e6, False)):
        values = [3.0, 0.7]
        values[which] = value
        fault = recent.judge(*values, spike)
        assert (fault is not None) == bad
        assert recent.judge(*values, None) is None
    assert fault is None


def test_the_reason_is_said():
    recent = Recent()
    for number in range(LENGTH):
        recent.add(3.0 + 0.2 * (-1) ** number, 1.0)
    assert recent.judge(5.0, 1.0, 6.0) == Fault(
        "the loss, 5, is 10 standard deviations above the mean of the last 128 updates, 3", spike=True
    )
    found = recent.judge(3.0, 5.0, 6.0)
    assert found is not None
    assert found.what.startswith("the gradient's norm, 5, is 8 standard deviations above")


def test_it_is_judged_once_enough_is_known():
    recent = filled(LENGTH - 1)
    assert recent.judge(1e6, 1e6, 6.0) is None
    recent.add(3.0, 0.7)
    assert recent.judge(1e6, 1e6, 6.0) is not None


def test_the_oldest_are_forgotten():
    recent = filled()
    losses = list(recent.losses)
    recent.add(17.0, 19.0)
    assert recent.losses == [*losses[1:], 17.0]
    assert (len(recent.norms), recent.norms[-1]) == (LENGTH, 19.0)


@pytest.mark.parametrize("level", [2.0, 1e-9, 0.0])
def test_where_nothing_varies_little_is_no_spike(level):
    recent = Recent()
    for _ in range(LENGTH):
        recent.add(level, 2.0)
    assert recent.judge(level * 1.299, 2.0 * 3.99, 6.0) is None
    assert recent.judge(level, 2.0 * 4.01, 6.0) is not None
    assert level == 0 or recent.judge(level * 1.301, 2.0, 6.0) is not None
    assert recent.judge(level + 1.0, 2.0, 6.0) is not None


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("spike", [None, 6.0])
def test_what_is_not_finite_is_named(bad, spike):
    for recent in (Recent(), filled()):
        assert recent.judge(bad, 1.0, spike) == Fault("the loss is not finite")
        assert recent.judge(1.0, bad, spike) == Fault("the gradient is not finite")
        assert recent.judge(bad, bad, spike) == Fault("the loss is not finite")


# -- runs ------------------------------------------------------------------------------------------------------------


class Scaled(nn.Module):
    """An objective whose loss is multiplied in some calls."""

    def __init__(self, inner, factors, before=0):
        super().__init__()
        self.inner, self.factors, self.calls = inner, factors, before

    def forward(self, model, batch):
        sums = self.inner(model, batch)
        self.calls += torch.is_grad_enabled()
        return type(sums)(sums.loss * self.factors(self.calls), sums.count, sums.metrics)


def run(make, factors, *, before=0, **options):
    objective = Scaled(type(make().trainer._parallel.step.objective)(), factors, before)
    return make(objective=objective, **{"spike": 6.0, "log_every": 10, **options})


def at(*calls, factor=1000.0):
    return lambda call: factor if call in calls else 1.0


def test_from_the_129th_update_on_a_spike_is_skipped(make, caplog):
    judged = run(make, at(LENGTH + 1), steps=LENGTH + 3, folder="judged")
    summary = judged.trainer.fit()
    assert (summary.step, summary.skipped, summary.spikes) == (LENGTH + 3, 1, 1)
    assert len(judged.stream.given) == LENGTH + 4, "the data go on"
    (said,) = (record.getMessage() for record in caplog.records if "skipped" in record.getMessage())
    assert said.startswith(f"step {LENGTH + 1}: the loss, ")
    assert said.endswith("; skipped (1 so far)")
    early = run(make, at(LENGTH), steps=LENGTH + 3, folder="early").trainer.fit()
    assert (early.step, early.skipped, early.spikes) == (LENGTH + 3, 0, 0)
    off = run(make, at(LENGTH + 1), steps=LENGTH + 3, folder="off", spike=None).trainer.fit()
    assert (off.step, off.skipped) == (LENGTH + 3, 0)


def test_a_spike_changes_nothing_but_counters_and_cursor(make):
    before = run(make, at(), steps=LENGTH + 2)
    before.trainer.fit()
    after = run(make, at(1), steps=LENGTH + 9, max_skips=1)
    with pytest.raises(
        RunError,
        match=rf"^1 updates in a row were skipped after step {LENGTH + 2}, the last because the loss, .*, is .* above "
        rf"the mean of the last 128 updates, .* \(the last checkpoint is of step {LENGTH + 2}\): lower the learning "
        "rate, or raise trainer.spike$",
    ):
        after.trainer.fit()
    assert all(torch.equal(a, b) for a, b in zip(before.model.parameters(), after.model.parameters(), strict=True))
    old, new = before.trainer.state, after.trainer.state
    assert (new.step, new.tokens, new.recent) == (old.step, old.tokens, old.recent)
    assert (new.skipped, new.spikes, new.skipped_in_a_row) == (1, 1, 1)
    moments = [setup.trainer._optimizer.state_dict()["state"] for setup in (before, after)]
    for left, right in zip(*(each.values() for each in moments), strict=True):
        assert all(torch.equal(left[name], right[name]) for name in left)


# before anything is judged, just before the spike, between it and a NaN, after both
@pytest.mark.parametrize("stop", [100, 139, 140, 143])
def test_a_resumed_run_judges_as_the_unbroken_one(make, stop):
    def factors(call):
        return {140: 1000.0, 143: math.nan}.get(call, 1.0)

    whole = run(make, factors, steps=150, folder="whole")
    whole.trainer.fit()
    first = run(make, factors, steps=stop, folder="parts")
    first.trainer.fit()
    second = run(make, factors, steps=150, folder="parts", before=first.trainer._parallel.step.objective.calls)
    second.trainer.fit()
    names = ("step", "loss", "grad_norm", "samples", "skipped", "spikes")
    rows = [
        row for row in (*first.tracker.of("train", *names), *second.tracker.of("train", *names)) if row[0] % 10 == 0
    ]
    assert rows == whole.tracker.of("train", *names)
    assert rows[-1][-2:] == (2, 1)
    assert second.trainer.state.recent == whole.trainer.state.recent
    assert len(second.trainer.state.recent.losses) == LENGTH
    assert all(torch.equal(a, b) for a, b in zip(whole.model.parameters(), second.model.parameters(), strict=True))


def test_a_loss_that_stays_high_ends_the_run(make):
    """Spikes and what is not finite count together; an update between them begins anew."""

    def factors(call):
        return 1000.0 if call in (130, 131) or call >= 135 else math.nan if call == 134 else 1.0

    setup = run(make, factors, max_skips=4, save_every=130, steps=500)
    with pytest.raises(RunError, match=r"^4 updates in a row were skipped after step 131, .* of step 130\)"):
        setup.trainer.fit()
    good = setup.store.latest_good()
    assert good is not None
    assert good.step == 130
    assert (setup.trainer.state.skipped, setup.trainer.state.spikes) == (6, 5)


def test_a_state_that_knew_no_spikes_is_read(make):
    state = RunState(step=3, tokens=5, skipped=7)
    plain = state.plain()
    assert RunState.load(plain, "here") == state
    old = {key: value for key, value in plain.items() if key not in ("recent", "spikes")}
    assert RunState.load(old, "here") == state
    with pytest.raises(CheckpointError, match="here: not a state"):
        RunState.load(plain | {"recent": {"loss": []}}, "here")
