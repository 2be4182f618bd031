"""Parameter counts of the rows of Table 3 of Vaswani et al. 2017, built without memory.

The printed counts fit no single vocabulary. What is exact is the closed formula; differences to the base row, in which
the vocabulary cancels, are held to the printed ones; and one vocabulary of 40,500 pieces comes near every row.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import pytest
import yaml

from transformer_kit.config.build import build_model, count_parameters

CONF = files("transformer_kit.conf")


@dataclass(frozen=True)
class Row:
    """Sizes of a row, and the count that the paper prints, in millions; None where it prints none."""

    printed: int | None
    layers: int = 6
    d_model: int = 512
    d_ff: int = 2048
    heads: int = 8
    d_k: int = 64
    d_v: int = 64


ROWS = {
    "base": Row(65),
    "A h=1": Row(None, heads=1, d_k=512, d_v=512),
    "A h=4": Row(None, heads=4, d_k=128, d_v=128),
    "A h=16": Row(None, heads=16, d_k=32, d_v=32),
    "A h=32": Row(None, heads=32, d_k=16, d_v=16),
    "B d_k=16": Row(58, d_k=16),
    "B d_k=32": Row(60, d_k=32),
    "C N=2": Row(36, layers=2),
    "C N=4": Row(50, layers=4),
    "C N=8": Row(80, layers=8),
    "C d_model=256": Row(28, d_model=256, d_k=32, d_v=32),
    "C d_model=1024": Row(168, d_model=1024, d_k=128, d_v=128),
    "C d_ff=1024": Row(53, d_ff=1024),
    "C d_ff=4096": Row(90, d_ff=4096),
    "big": Row(213, d_model=1024, d_ff=4096, heads=16),
}
PRINTED = {name: row for name, row in ROWS.items() if row.printed is not None}
IN_DIFFERENCES = [name for name in PRINTED if name.startswith(("B", "C N", "C d_ff"))]


def formula(row: Row, vocab: int) -> int:
    """One table for source, target and output; no biases in attention; biases in the feed-forward; post-norm."""
    attention = row.heads * (2 * row.d_model * row.d_k + 2 * row.d_model * row.d_v)
    feedforward = 2 * row.d_model * row.d_ff + row.d_ff + row.d_model
    norm = 2 * row.d_model
    encoder = attention + feedforward + 2 * norm
    decoder = 2 * attention + feedforward + 3 * norm
    return vocab * row.d_model + row.layers * (encoder + decoder)


@cache
def built(name: str, vocab: int = 37_000) -> int:
    row = ROWS[name]

    def slot(group: str, choice: str) -> dict[str, Any]:
        return dict(yaml.safe_load(CONF.joinpath("model", group, f"{choice}.yaml").read_text(encoding="utf-8")))

    model = {
        "family": "encoder_decoder",
        "d_model": row.d_model,
        "d_ff": row.d_ff,
        "num_heads": row.heads,
        "head_dim": row.d_k,
        "v_head_dim": row.d_v,
        "encoder": {"layers": row.layers},
        "decoder": {"layers": row.layers},
        "tie": "three_way",
        "embedding": {"scale": True, "norm": False, "types": 0},
        "pooler": False,
        "pattern": [],
        "max_length": 1024,
        "init": "glorot",
        "dropout": dict.fromkeys(("embedding", "residual", "attention", "feedforward"), 0.1),
        "position": slot("position", "sinusoidal"),
        "norm": slot("norm", "layernorm"),
        "residual": slot("residual", "post"),
        "attention": slot("attention", "mha"),
        "feedforward": slot("feedforward", "relu"),
        "head": slot("head", "linear"),
    }
    return count_parameters(build_model(model, vocab, vocab, device="meta"))


@pytest.mark.parametrize("name", ROWS)
def test_count_equals_the_closed_formula(name: str) -> None:
    assert built(name) == formula(ROWS[name], 37_000)


def test_rows_that_only_split_heads_are_as_large_as_base() -> None:
    assert {built(name) for name in ROWS if name.startswith("A")} == {built("base")}


@pytest.mark.parametrize("name", IN_DIFFERENCES)
def test_difference_to_base_is_the_printed_one(name: str) -> None:
    row, base = ROWS[name], ROWS["base"]
    assert row.printed is not None
    assert base.printed is not None
    assert abs((built(name) - built("base")) - (row.printed - base.printed) * 1e6) <= 1e6


@pytest.mark.parametrize("name", PRINTED)
def test_one_vocabulary_comes_near_every_row(name: str) -> None:
    row = ROWS[name]
    assert row.printed is not None
    assert abs(built(name, 40_500) / (row.printed * 1e6) - 1) <= 0.026
