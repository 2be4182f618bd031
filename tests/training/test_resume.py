"""A run that was stopped and went on equals the unbroken one to the bit."""

from __future__ import annotations

import contextlib
import math
import signal
from dataclasses import replace

import pytest
import torch

from transformer_kit.errors import Interrupted
from transformer_kit.training.options import ScheduleOptions
from transformer_kit.training.schedule import build_schedule

CASES = {
    "plain": {},
    "accumulation, log interval across the stop": {"log_every": 7, "accumulate_tokens": 29},
    "bf16": {"precision": "bf16"},
}


def train(make, folder, stops, **options):
    """Train to each of `stops` in a session of its own; the rows, the sample ids, the model of all of them."""
    rows, given, setup = [], [], None
    for stop in stops:
        setup = make(folder=folder, steps=stop, **options)
        setup.trainer.fit()
        rows += setup.tracker.of("train", "step", "loss", "lr", "samples", "grad_norm", "padding_efficiency")
        given += setup.stream.given
    assert setup is not None
    return rows, given, setup.model.state_dict()


# 8 batches an epoch: 16 is an epoch border, 17 the middle of one
@pytest.mark.parametrize("stops", [(17, 40), (16, 40), (13, 17, 40)])
@pytest.mark.parametrize("case", CASES)
def test_resumed_equals_unbroken(make, case, stops):
    rows, given, weights = train(make, "whole", (40,), **CASES[case])
    resumed_rows, resumed_given, resumed_weights = train(make, "parts", stops, **CASES[case])
    due = CASES[case].get("log_every", 1)
    assert [row for row in resumed_rows if row[0] % due == 0] == [row for row in rows if row[0] % due == 0]
    assert resumed_given == given
    assert weights.keys() == resumed_weights.keys()
    assert all(torch.equal(weights[name], resumed_weights[name]) for name in weights)


def test_dropout_is_on_and_differs_between_updates(make):
    """Otherwise the test above would say nothing about randomness."""
    losses = []
    for dropout in (0.0, 0.2):
        setup = make(folder=f"d{dropout}", dropout=dropout, steps=3, schedule=lambda step: 0.0)
        setup.trainer.fit()
        losses.append([row[0] for row in setup.tracker.of("train", "loss")])
    assert all(a != b for a, b in zip(*losses, strict=True))
    assert len(set(losses[1])) == 3


class Interrupting:
    """A stream that sends a signal, `times` times, while batch `at` is made."""

    def __init__(self, stream, at, number, times):
        self.stream, self.at, self.number, self.times = stream, at, number, times

    def __getattr__(self, name):
        return getattr(self.stream, name)

    def dealt(self, rank, ranks):
        for count, batch in enumerate(self.stream.dealt(rank, ranks), 1):
            if count == self.at:
                for _ in range(self.times):
                    signal.raise_signal(self.number)
            yield batch


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR2])
@pytest.mark.parametrize("times", [1, 2])
def test_a_signal_saves_at_the_step_boundary(make, number, times):
    before = signal.getsignal(number)
    rows, _, weights = train(make, "whole", (40,))
    first = make(folder="parts")
    stream = Interrupting(first.stream, 17, number, times)
    first = make(folder="parts", stream=stream)
    with pytest.raises(
        Interrupted, match=rf"{number.name} after step 17; the state is saved: the same command goes on"
    ):
        first.trainer.fit()
    assert signal.getsignal(number) is before
    assert [c.step for c in first.store.all()] == [17]
    resumed_rows, _, resumed = train(make, "parts", (40,))
    steps = first.tracker.of("train", "step", "loss", "lr", "samples", "grad_norm", "padding_efficiency")
    assert steps + resumed_rows == rows
    assert all(torch.equal(weights[name], resumed[name]) for name in weights)


def test_a_signal_during_validation_saves_after_it(make):
    def validate(model):
        signal.raise_signal(signal.SIGTERM)
        return {"loss": 1.0}

    setup = make(validate_every=5, validate=validate)
    with pytest.raises(Interrupted, match="SIGTERM after step 5"):
        setup.trainer.fit()
    newest = setup.store.latest_good()
    assert newest is not None
    assert (newest.step, newest.scores) == (5, {"loss": 1.0})


def test_a_stop_before_validation_validates_on_resume(make):
    """The stopped run equals the unbroken one in validations, best score and patience too."""
    scores = {5: 30.0, 10: 28.0, 15: 29.0, 20: 31.0}

    def run(folder, **extra):
        seen = []

        def validate(model):
            seen.append(setup.trainer.state.step)
            return {"loss": scores[seen[-1]]}

        setup = make(folder=folder, steps=20, validate_every=5, validate=validate, **extra)
        with contextlib.suppress(Interrupted):
            setup.trainer.fit()
        return seen, setup.trainer.state

    whole, state = run("whole")
    first, _ = run("parts", stream=Interrupting(make().stream, 10, signal.SIGINT, 1))
    second, resumed = run("parts")
    assert whole == [5, 10, 15, 20]
    assert (first, second) == ([5], [10, 15, 20])
    assert (resumed.best, resumed.best_step, resumed.without_gain) == (state.best, state.best_step, 2) == (28.0, 10, 2)


@pytest.mark.parametrize("stop", [10, 15])
def test_best_score_and_patience_survive_a_stop(make, stop):
    """Scores 30, 28, stop, 29: 29 is not best, and patience goes on from there; behind 29 as well, at 1."""
    scores = iter([30.0, 28.0, 29.0, 29.5, 1.0])
    for steps in (stop, 40):
        options = {"steps": steps, "validate_every": 5, "patience": 2}
        summary = make(validate=lambda model: {"loss": next(scores)}, **options).trainer.fit()
    assert (summary.reason, summary.step, summary.best, summary.best_step) == ("patience", 20, 28.0, 10)
    assert summary.scores == {"loss": 29.5}


def test_a_best_score_is_compared_with_those_of_its_own_metric(make):
    """A run that goes on with another metric: a BLEU of 2 is no worse than a loss of 3 was; patience begins anew."""
    scores = iter([{"loss": 3.0, "bleu": 1.0}, {"loss": 3.5, "bleu": 1.0}, {"bleu": 2.0}, {"bleu": 1.5}, {"bleu": 1.5}])
    options = {"validate_every": 5, "patience": 2, "validate": lambda model: next(scores)}
    make(steps=10, **options).trainer.fit()
    summary = make(steps=40, best_metric="bleu", **options).trainer.fit()
    assert (summary.reason, summary.step, summary.best, summary.best_step) == ("patience", 25, 2.0, 15)


RATES = {  # 11 updates of warm-up, 30 in all
    "noam": ({"factor": 1.0, "d_model": 5}, lambda n: 5**-0.5 * min(n**-0.5, n * 11**-1.5)),
    "inverse_sqrt": (
        {"lr": 0.03, "initial_lr": 0.01},
        lambda n: 0.01 + 0.02 * n / 11 if n < 11 else 0.03 * math.sqrt(11 / n),
    ),
    "constant": ({"lr": 0.03, "initial_lr": 0.01}, lambda n: 0.01 + 0.02 * min(n, 11) / 11),
    "linear": (
        {"lr": 0.03, "initial_lr": 0.01, "final_lr": 0.02, "steps": 30},
        lambda n: 0.01 + 0.02 * n / 11 if n < 11 else 0.03 - 0.01 * (n - 11) / 19,
    ),
    "cosine": (
        {"lr": 0.03, "initial_lr": 0.01, "final_lr": 0.02, "steps": 30},
        lambda n: 0.01 + 0.02 * n / 11 if n < 11 else 0.025 + 0.005 * math.cos(math.pi * (n - 11) / 19),
    ),
}


# stopped around the end of the warm-up, and long after
@pytest.mark.parametrize("name", RATES)
def test_learning_rates_of_a_stopped_run_equal_the_formula(make, name):
    """Those that the log tells, and those that the optimizer steps with, of whom one update is skipped."""
    options, formula = RATES[name]
    schedule = build_schedule(replace(ScheduleOptions(name, 11, None, None, None, None, None, None), **options))
    skipping = type(make().trainer._parallel.step.objective)

    def rates(folder, stops):
        told, taken = [], []
        for stop in stops:
            objective = skipping(lambda call: call == 2)
            setup = make(folder=folder, steps=stop, schedule=schedule, objective=objective)
            setup.trainer._optimizer.register_step_pre_hook(
                lambda optimizer, *_: taken.extend({group["lr"] for group in optimizer.param_groups})
            )
            setup.trainer.fit()
            told += setup.tracker.of("train", "step", "lr")
        return told, taken

    told, taken = rates("parts", (1, 10, 11, 12, 25, 30))
    assert told == [(step, pytest.approx(formula(step), rel=1e-12)) for step in range(1, 31)]
    assert taken == [lr for _, lr in told]
    assert rates("whole", (30,)) == (told, taken)
