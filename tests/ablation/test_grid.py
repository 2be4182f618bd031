"""Points of a sweep and running them."""

from __future__ import annotations

import pytest

from transformer_kit.ablation.grid import Outcome, Point, points, sweep
from transformer_kit.errors import ConfigError, Interrupted, RunError


def test_points_are_the_product_of_the_axes_in_order() -> None:
    found = points(["+recipe=demo", "model/residual=pre,post", "schedule.lr=1e-3,2e-3,5e-3", "seed=7"])
    assert [point.order for point in found] == list(range(6))
    assert [point.label for point in found] == [
        f"model/residual={residual} schedule.lr={lr}"
        for residual in ("pre", "post")
        for lr in ("0.001", "0.002", "0.005")
    ]
    assert found[0].overrides == ("+recipe=demo", "model/residual=pre", "schedule.lr=0.001", "seed=7")
    assert found[0].name == "demo+model.residual=pre+schedule.lr=0.001+seed=7"


def test_a_list_is_one_value_and_a_recipe_can_be_an_axis() -> None:
    found = points(["+recipe=base_ende,big_ende", "optimizer.betas=[0.9,0.98]"])
    assert [point.values for point in found] == [{"recipe": "base_ende"}, {"recipe": "big_ende"}]
    assert found[1].overrides == ("+recipe=big_ende", "optimizer.betas=[0.9,0.98]")


def test_one_point_is_called_by_its_name() -> None:
    (only,) = points(["+recipe=demo"])
    assert (only.values, only.label) == ({}, "demo")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["decoding.beam=1,4"], "decoding.beam=4: this point would share the run folder train with decoding.beam=1"),
        (["run.name=mine", "seed=1,2"], "run.name names one run, but this sweep has 2"),
        (["schedule.lr=interval(0,1)"], "interval"),
    ],
)
def test_sweeps_that_cannot_be(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        points(overrides)


def point(order: int) -> Point:
    return Point(order, f"run{order}", (f"seed={order}",), {"seed": str(order)})


def test_a_failed_point_does_not_end_the_sweep_and_a_finished_one_is_not_run_again() -> None:
    ran: list[int] = []
    told: list[tuple[int, str]] = []

    def run(one: Point) -> Outcome:
        ran.append(one.order)
        if one.order == 1:
            raise RunError("no room\n left")
        return Outcome("failed", error="exit 1") if one.order == 3 else Outcome("done", bleu=float(one.order))

    def finished(one: Point) -> Outcome | None:
        return Outcome("done", bleu=55.0) if one.order == 2 else None

    outcomes = sweep([point(i) for i in range(5)], run, finished, lambda p, o: told.append((p.order, o.status)))
    assert ran == [0, 1, 3, 4]
    assert [outcome.bleu for outcome in outcomes] == [0.0, None, 55.0, None, 4.0]
    assert [outcome.error for outcome in outcomes] == [None, "RunError: no room left", None, "exit 1", None]
    assert told == [(0, "done"), (1, "failed"), (2, "done"), (3, "failed"), (4, "done")]


@pytest.mark.parametrize("stop", [Interrupted("stopped"), KeyboardInterrupt()])
def test_the_users_interrupt_ends_the_sweep(stop: BaseException) -> None:
    ran: list[int] = []

    def run(one: Point) -> Outcome:
        ran.append(one.order)
        raise stop

    with pytest.raises(type(stop)):
        sweep([point(0), point(1)], run, lambda one: None)
    assert ran == [0]
