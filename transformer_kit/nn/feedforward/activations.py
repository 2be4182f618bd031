"""The activations that feed-forward layers choose from."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from transformer_kit.errors import ConfigError


def identity(x: Tensor) -> Tensor:
    return x


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,  # x·Φ(x), exact
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,  # x·σ(x), "swish"
    "sigmoid": torch.sigmoid,
    "identity": identity,
}


def find_activation(name: str) -> Callable[[Tensor], Tensor]:
    """The activation of that name.

    Raises:
        ConfigError: there is none.
    """
    if name not in ACTIVATIONS:
        raise ConfigError(f"model.feedforward.activation={name}: must be one of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]
