"""A foreign `config.json`, with the answers that wrong and unknown values deserve."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformer_kit.errors import ConfigError

ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
    "sigmoid": "sigmoid",
    "linear": "identity",
}
"""Their names of activations, and ours. Where several are the same function, the first is written."""

MOST_LAYERS = 10_000


class Foreign:
    """A foreign `config.json`, with the answers that a wrong or unknown value deserves.

    Args:
        data: the parsed JSON.
        layout: for messages.
    """

    def __init__(self, data: Mapping[str, Any], layout: str) -> None:
        self.data, self.layout = data, layout

    def refuse(self, key: str, value: Any, why: str) -> ConfigError:
        return ConfigError(f"config.json: {key}={value!r}: {why}")

    def get(self, key: str, default: Any) -> Any:
        """A value, or the default of the layout where it is absent or null."""
        value = self.data.get(key)
        return default if value is None else value

    def integer(self, key: str, default: int | None = None) -> int:
        """A whole number of at least 1.

        Raises:
            ConfigError: it is something else, or there is none and no default.
        """
        value = self.get(key, default)
        if value is None:
            raise ConfigError(f"config.json: {key} is missing; a {self.layout} configuration says it")
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.refuse(key, value, "must be a whole number of at least 1")
        return value

    def layers(self, key: str, default: int) -> int:
        """A number of layers: a whole number that a file can hold.

        Raises:
            ConfigError: it is none, or beyond any model.
        """
        count = self.integer(key, default)
        if count > MOST_LAYERS:
            raise self.refuse(key, count, f"no model has more than {MOST_LAYERS:,} layers")
        return count

    def number(self, key: str, default: float) -> float:
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.refuse(key, value, "must be a number")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self.refuse(key, value, "must be true or false")
        return value

    def architecture(self, *known: str) -> str:
        """The class that the tensors were saved from; the first of the known ones where the configuration names none.

        Raises:
            ConfigError: it is another, with a head that no model here has.
        """
        named = self.get("architectures", [])
        if not isinstance(named, list) or not all(isinstance(name, str) for name in named):
            raise self.refuse("architectures", named, "must be a list of names")
        for name in named:
            if name in known:
                return str(name)
        if named:
            raise self.refuse("architectures", named, f"not read here; there are {', '.join(known)}")
        return known[0]

    def must_be(self, key: str, *allowed: Any, why: str = "no model here computes this") -> None:
        """Refuse any value but these; absent or null is fine.

        Raises:
            ConfigError: it is another.
        """
        value = self.data.get(key)
        if value is not None and value not in allowed:
            raise self.refuse(key, value, why)

    def activation(self, key: str, default: str) -> str:
        """Our name of an activation.

        Raises:
            ConfigError: we have none such.
        """
        value = self.get(key, default)
        if not isinstance(value, str) or value not in ACTIVATIONS:
            raise self.refuse(key, value, f"no such activation here; there are {', '.join(ACTIVATIONS)}")
        return ACTIVATIONS[value]

    def same(self, first: str, second: str, default: int | None = None) -> int:
        """Two sizes that are one of ours.

        Raises:
            ConfigError: they differ.
        """
        one, other = self.integer(first, default), self.integer(second, default)
        if one != other:
            raise self.refuse(second, other, f"differs from {first}={one}; both stacks of a model here have one size")
        return one


def activation_name(ours: str) -> str:
    """Their name of an activation of ours, or ours where they have none, which is then found to differ."""
    return next((theirs for theirs, name in ACTIVATIONS.items() if name == ours), ours)
