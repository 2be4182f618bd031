"""Points of a sweep: their order, names and folders."""

from __future__ import annotations

import pytest

from transformer_kit.ablation.grid import points
from transformer_kit.errors import ConfigError


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
