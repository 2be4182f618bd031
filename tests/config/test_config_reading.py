"""Plain data to typed options: types, ranges, paths, and every problem at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import pytest

from transformer_kit.config.convert import INTERNAL, Reader, Slot
from transformer_kit.config.spelling import nearest, nearest_key


class Colour(Enum):
    red = "red"
    blue = "blue"


@dataclass
class Inner:
    rate: float
    file: str | None = field(default=None, metadata={"path": True})

    def problems(self) -> list[tuple[str, str]]:
        return [] if 0 <= self.rate < 1 else [("rate", f"must be at least 0 and below 1, not {self.rate}")]


@dataclass
class Outer:
    steps: int
    name: str
    flag: bool
    colour: Colour
    tie: Literal["one", "two"]
    inner: Inner
    items: list[Inner]
    slot: Slot
    limit: int | None
    made: str = field(default="", metadata=INTERNAL)

    def problems(self) -> list[tuple[str, str]]:
        return [("inner.rate", "must be at least 0 and below 1, not 2.0")] if self.inner.rate == 2 else []


GOOD: dict[str, Any] = {
    "steps": 5,
    "name": "x",
    "flag": True,
    "colour": "blue",
    "tie": "two",
    "inner": {"rate": 0.5, "file": "a/b.txt"},
    "items": [{"rate": 0}, {"rate": 0.25, "file": "~/c"}],
    "slot": {"_target_": "a.B", "x": 1},
    "limit": None,
}


def problems_of(**changes: Any) -> list[str]:
    reader = Reader(Path("/base"))
    reader.read(Outer, GOOD | changes)
    return reader.problems


def test_every_type_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    reader = Reader(Path("/base"))
    made = reader.read(Outer, GOOD)
    assert reader.problems == []
    assert (made.steps, made.colour, made.tie, made.limit) == (5, Colour.blue, "two", None)
    assert made.inner.file == "/base/a/b.txt"
    assert [item.file for item in made.items] == [None, "/home/me/c"]
    assert isinstance(made.items[0].rate, float)
    assert reader.paths == [("inner", "file"), ("items", 1, "file")]


@pytest.mark.parametrize("value", [1e5, "100000", "1e5"])
def test_whole_numbers_may_be_written_as_floats_or_text(value: Any) -> None:
    reader = Reader(Path("/"))
    assert reader.read(int, value) == 100_000
    assert reader.problems == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"steps": "abc"}, "steps: expected an integer, got 'abc'"),
        ({"steps": 1.5}, "steps: expected an integer, got 1.5"),
        ({"steps": True}, "steps: expected an integer, got True"),
        ({"steps": None}, "steps: expected an integer, got None"),
        ({"steps": "???"}, "steps: needs a value: give steps=VALUE or put it into the recipe"),
        ({"name": None}, "name: expected text, got None"),
        ({"flag": 1}, "flag: expected true or false, got 1"),
        ({"colour": "blu"}, "colour: 'blu' is not one of red, blue; did you mean 'blue'?"),
        ({"tie": "three"}, "tie: 'three' is not one of one, two"),
        ({"limit": "x"}, "limit: expected an integer, got 'x'"),
        ({"inner": "rope"}, "inner: expected options, got 'rope'; to choose an option of a group write inner=NAME"),
        ({"inner": {"rate": float("nan")}}, "inner.rate: expected a number, got nan"),
        ({"inner": {"rate": -0.1}}, "inner.rate: must be at least 0 and below 1, not -0.1"),
        ({"inner": {}}, "inner.rate: is missing from the configuration"),
        ({"inner": {"rate": 0, "file": "a\0b"}}, "inner.file: a path cannot hold a NUL byte"),
        ({"items": {"rate": 1}}, "items: expected a list such as [a, b], got {'rate': 1}"),
        ({"items": "ab"}, "items: expected a list such as [a, b], got 'ab'"),
        ({"items": [{"rate": 0}, {"rate": 3}]}, "items.1.rate: must be at least 0 and below 1, not 3.0"),
        ({"slot": {"x": 1}}, "slot: names no class: _target_ is missing"),
        ({"slot": "rope"}, "slot: expected a class with options, got 'rope'; write slot=NAME to choose one"),
        ({"stepz": 1}, "stepz: unknown key; did you mean 'steps'?"),
        ({"made": "x"}, "made: unknown key"),
    ],
)
def test_each_problem_is_one_line(changes: dict[str, Any], expected: str) -> None:
    assert problems_of(**changes) == [expected]


def test_all_problems_are_found_and_told_once() -> None:
    found = problems_of(steps="x", stepz=1, colour="green", inner={"rate": 2.0, "fiel": 1}, items=[{"rate": "a"}])
    assert len(found) == 6
    assert len(problems_of(inner={"rate": 2.0})) == 1  # both dataclasses report it


def test_nearest_spelling() -> None:
    assert nearest("ropee", ["rope", "alibi"]) == "; did you mean 'rope'?"
    assert nearest("xyz", ["rope", "alibi"]) == ""
    assert nearest_key("trainer.stps", ["trainer.steps", "seed"]) == "; did you mean 'trainer.steps'?"
    assert nearest_key("steps", ["trainer.steps", "seed"]) == "; did you mean 'trainer.steps'?"
