"""Every layout by name, and which of them a configuration or a model belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformer_kit.errors import ConfigError
from transformer_kit.interop.bart import Bart, Marian
from transformer_kit.interop.bert import Bert, Roberta
from transformer_kit.interop.gpt2 import GPT2
from transformer_kit.interop.layout import Layout
from transformer_kit.interop.llama import Llama, Mistral
from transformer_kit.interop.t5 import T5

LAYOUTS: dict[str, Layout] = {
    layout.names.layout: layout for layout in (GPT2(), Llama(), Mistral(), Bert(), Roberta(), T5(), Bart(), Marian())
}
"""In the order in which a model of ours is offered to them."""


def layout_of(hf_config: Mapping[str, Any]) -> Layout:
    """The layout of a parsed `config.json`.

    Raises:
        ConfigError: none of them.
    """
    kind = hf_config.get("model_type")
    for layout in LAYOUTS.values():
        if kind in layout.model_types:
            return layout
    raise ConfigError(f"config.json: model_type={kind!r}: not read here; there are {', '.join(LAYOUTS)}")


def layout_named(name: str) -> Layout:
    """The layout of that name.

    Raises:
        ConfigError: there is none.
    """
    if name not in LAYOUTS:
        raise ConfigError(f"layout {name!r}: must be one of {', '.join(LAYOUTS)}")
    return LAYOUTS[name]
