"""Optimizers' options as they ship, small models of every family, and updates with gradients made from the step."""

from __future__ import annotations

from dataclasses import replace
from importlib.resources import files
from typing import Any

import torch
import yaml
from torch import nn
from torch.optim import Optimizer

from transformer_kit.config.build import build_model
from transformer_kit.config.schema import FAMILIES
from transformer_kit.models.base import Model
from transformer_kit.training.optimizer import set_lr
from transformer_kit.training.options import OptimizerOptions

CONF = files("transformer_kit.conf")


def read(*path: str) -> dict[str, Any]:
    return dict(yaml.safe_load(CONF.joinpath(*path).read_text(encoding="utf-8")))


def shipped(name: str, **changes: Any) -> OptimizerOptions:
    """The options of `conf/optimizer/<name>.yaml`, with changes."""
    return replace(OptimizerOptions(**read("optimizer", f"{name}.yaml")), **changes)


def small(family: str, **changes: Any) -> Model:
    """A model of 2 encoder and 3 decoder layers, with packed and unpacked matrices of several shapes."""
    slots = {
        "position": "learned",
        "norm": "layernorm",
        "residual": "pre",
        "attention": "gqa",
        "feedforward": "swiglu",
        "head": "mlm" if family == "encoder_only" else "linear",
    }
    given = {
        "family": family,
        "d_model": 12,
        "d_ff": 7,
        "num_heads": 4,
        "head_dim": 5,
        "v_head_dim": 3,
        "encoder": {"layers": 2} if "encoder" in FAMILIES[family] else None,
        "decoder": {"layers": 3} if "decoder" in FAMILIES[family] else None,
        "tie": "none",
        "embedding": {"scale": True, "norm": True, "types": 0},
        "pooler": family == "encoder_only",
        "pattern": [],
        "max_length": 37,
        "init": "glorot",
        "dropout": dict.fromkeys(("embedding", "residual", "attention", "feedforward"), 0.0),
    }
    chosen = {slot: read("model", slot, f"{name}.yaml") for slot, name in slots.items()}
    chosen["attention"] |= {"num_kv_heads": 2, "bias": True}
    torch.manual_seed(3)
    return build_model(given | chosen | changes, 17, 17)


def gradient(parameter: torch.Tensor, step: int, index: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(100 * step + index)
    return torch.randn(parameter.shape, generator=draw, dtype=torch.float64).to(parameter.dtype)


def train(model: nn.Module, optimizer: Optimizer, steps: int, first: int = 1) -> None:
    """Updates `first`, … with gradients made from the step's number, at learning rate 0.1 / step."""
    for step in range(first, first + steps):
        set_lr(optimizer, 0.1 / step)
        for index, parameter in enumerate(model.parameters()):
            parameter.grad = gradient(parameter, step, index)
        optimizer.step()
