from __future__ import annotations

from dataclasses import fields
from importlib.resources import files

import pytest
import torch
import yaml
from toys import divisor, options

from transformer_kit.decoding.length import limits, penalty
from transformer_kit.decoding.options import DecodingOptions, LengthPenaltyOptions


@pytest.mark.parametrize("name", ["beam", "greedy"])
def test_a_yaml_lists_every_option_in_range(name: str) -> None:
    plain = yaml.safe_load((files("transformer_kit.conf") / "decoding" / f"{name}.yaml").read_text())
    plain["length_penalty"] = LengthPenaltyOptions(**plain["length_penalty"])
    assert set(plain) == {field.name for field in fields(DecodingOptions)}
    assert DecodingOptions(**plain).problems() == []
    assert plain["beam"] == {"beam": 4, "greedy": 1}[name]


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"beam": 0}, "beam"),
        ({"n_best": 0}, "n_best"),
        ({"n_best": 4}, "n_best"),
        ({"min_length": -1}, "min_length"),
        ({"min_length": 6, "max_length": 5}, "min_length"),
        ({"max_extra": -1}, "max_extra"),
        ({"max_length": 0}, "max_length"),
        ({"batch_tokens": 0}, "batch_tokens"),
        ({"chunk": 0}, "chunk"),
        ({"precision": "fp16"}, "precision"),
        ({"kind": "gmnt"}, "length_penalty.kind"),
        ({"alpha": -0.1}, "length_penalty.alpha"),
        ({"alpha": float("nan")}, "length_penalty.alpha"),
    ],
)
def test_each_value_out_of_range_is_named(changes: dict, key: str) -> None:
    assert [found for found, _ in options(**changes).problems()] == [key]


def test_problems_come_all_at_once() -> None:
    assert len(options(beam=0, chunk=0, alpha=-1.0).problems()) == 3


@pytest.mark.parametrize("kind", ["gnmt", "power", "none"])
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 2.0])
def test_length_penalties_follow_their_formulas(kind: str, alpha: float) -> None:
    found = penalty(torch.arange(1, 60), LengthPenaltyOptions(kind, alpha))
    expected = [divisor(length, kind, alpha) for length in range(1, 60)]
    assert torch.allclose(found.double(), torch.tensor(expected, dtype=torch.float64), rtol=1e-6)
    assert bool((found >= 1).all())
    assert bool((found.diff() >= 0).all())


def test_limits() -> None:
    sources = torch.tensor([2, 7, 60])
    assert limits(sources, options(max_extra=50)).tolist() == [52, 57, 110]
    assert limits(sources, options(max_extra=50, max_length=55)).tolist() == [52, 55, 55]
    assert limits(sources, options(max_extra=0, min_length=5)).tolist() == [5, 7, 60]
