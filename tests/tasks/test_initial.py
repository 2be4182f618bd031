"""Which parameters `init.freeze` takes out of training."""

from __future__ import annotations

import pytest
from torch import nn

from transformer_kit.errors import ConfigError
from transformer_kit.tasks.initial import freeze


def model() -> nn.ModuleDict:
    blocks = nn.ModuleList(nn.Linear(2, 3) for _ in range(12))
    return nn.ModuleDict({"encoder": nn.ModuleDict({"blocks": blocks}), "head": nn.Linear(3, 2)})


def frozen(*beginnings: str) -> set[str]:
    made = model()
    freeze(made, beginnings)
    return {name.removesuffix(".weight") for name, p in made.named_parameters() if not p.requires_grad and p.dim() == 2}


def test_by_name_and_by_range() -> None:
    assert frozen("encoder.blocks.1") == {"encoder.blocks.1"}
    assert frozen("encoder.blocks.9-10", "head") == {"encoder.blocks.9", "encoder.blocks.10", "head"}
    assert frozen("encoder") == {f"encoder.blocks.{number}" for number in range(12)}
    made = model()
    freeze(made, ["encoder.blocks.0-2.bias"])
    assert [name for name, p in made.named_parameters() if not p.requires_grad] == [
        f"encoder.blocks.{number}.bias" for number in range(3)
    ]


@pytest.mark.parametrize("beginning", ["encoder.block", "encoder.blocks.12-15", "encoder.blocks.3-", "0-11"])
def test_a_beginning_that_nothing_has(beginning: str) -> None:
    with pytest.raises(ConfigError, match=r"init\.freeze: no parameter begins with"):
        frozen(beginning)
