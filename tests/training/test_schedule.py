"""Schedules against values worked out by hand, and against the formula written another way."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from transformer_kit.training.options import SCHEDULES, ScheduleOptions
from transformer_kit.training.schedule import build_schedule

CONF = Path(__file__).parents[2] / "conf"
NULL = ScheduleOptions("constant", 0, None, None, None, None, None, None)


def of(name, warmup, **values):
    return build_schedule(replace(NULL, name=name, warmup=warmup, **values))


def test_noam_is_the_papers():
    lr = of("noam", 4000, factor=1.0, d_model=512)
    assert lr(1) == pytest.approx(1 / math.sqrt(512) / 4000**1.5)
    assert lr(4000) == pytest.approx(1 / math.sqrt(512 * 4000))  # 6.99e-4, the peak
    assert lr(4000) == pytest.approx(6.987712e-4)
    assert lr(100_000) == pytest.approx(1 / math.sqrt(512 * 100_000))
    assert max(range(3990, 4011), key=lr) == 4000
    assert of("noam", 4000, factor=2.0, d_model=512)(777) == 2 * lr(777)


def test_inverse_sqrt():
    lr = of("inverse_sqrt", 7, lr=3e-3, initial_lr=1e-7)
    assert [lr(step) for step in (0, 7, 28, 63)] == pytest.approx([1e-7, 3e-3, 1.5e-3, 1e-3])
    assert lr(3) == pytest.approx(1e-7 + (3e-3 - 1e-7) * 3 / 7)


@pytest.mark.parametrize(
    ("name", "middle", "quarter"),
    [("linear", 0.5, 0.75), ("cosine", 0.5, 0.5 + math.sqrt(2) / 4)],
)
def test_decay_to_a_final_rate(name, middle, quarter):
    lr = of(name, 5, lr=1.1, initial_lr=0.1, final_lr=0.1, steps=45)
    assert [lr(step) for step in (0, 5, 45, 46, 1000)] == pytest.approx([0.1, 1.1, 0.1, 0.1, 0.1])
    assert lr(25) == pytest.approx(0.1 + middle)
    assert lr(15) == pytest.approx(0.1 + quarter)
    assert lr(2) == pytest.approx(0.5)


def test_constant():
    assert [of("constant", 0, lr=0.3, initial_lr=0.0)(step) for step in (1, 2, 10**6)] == [0.3] * 3
    assert [of("constant", 4, lr=0.4, initial_lr=0.0)(step) for step in (1, 3, 4, 9)] == pytest.approx(
        [0.1, 0.3, 0.4, 0.4]
    )


def load(group, name):
    text = (CONF / group / f"{name}.yaml").read_text()
    return yaml.safe_load(text.replace("${model.d_model}", "512").replace("${trainer.steps}", "10000"))


@pytest.mark.parametrize("name", SCHEDULES)
def test_shipped_schedules_are_whole(name):
    options = ScheduleOptions(**load("schedule", name))
    assert options.name == name
    assert options.problems() == []
    rates = [build_schedule(options)(step) for step in range(1, 10_001, 303)]
    assert rates[-1] >= 0
    assert all(0 < rate < 1 for rate in rates[:-1])


def test_there_are_no_others():
    assert sorted(path.stem for path in (CONF / "schedule").glob("*.yaml")) == sorted(SCHEDULES)


@pytest.mark.parametrize(
    ("name", "change", "key", "says"),
    [
        ("cosine", {"name": "cosin"}, "name", "one of constant, linear"),
        ("cosine", {"steps": None}, "steps", "trainer.steps"),
        ("cosine", {"warmup": 10_000}, "steps", "above warmup (10000), not 10000; it is trainer.steps"),
        ("cosine", {"final_lr": -1.0}, "final_lr", "at least 0"),
        ("noam", {"lr": 1e-3}, "lr", "is not read by schedule=noam"),
        ("noam", {"warmup": 0}, "warmup", "at least 1"),
        ("noam", {"factor": 0.0}, "factor", "above 0"),
        ("inverse_sqrt", {"lr": None}, "lr", "is needed"),
        ("inverse_sqrt", {"lr": math.nan}, "lr", "above 0"),
        ("constant", {"warmup": -1}, "warmup", "at least 0"),
    ],
)
def test_bad_schedules_are_named(name, change, key, says):
    found = replace(ScheduleOptions(**load("schedule", name)), **change).problems()
    assert [k for k, _ in found] == [key]
    assert says in found[0][1]
