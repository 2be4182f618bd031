"""A configuration that starts from a run takes the run's model and tokenizer, so that its weights fit.

What the command line says of `model` and `tokenizer` is put on top of what is taken; a recipe's own is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformer_kit.config.convert import absolute
from transformer_kit.config.overrides import Line
from transformer_kit.config.plain import with_env
from transformer_kit.config.saved import load_plain
from transformer_kit.errors import RunError

TOKENIZER = "tokenizer"  # the folder in a run, and the key of a configuration


def inherit(data: dict[str, Any], given: Sequence[Line], problems: list[str]) -> None:
    """Put the model and tokenizer of `init.from` into plain data, where there is such a run.

    Args:
        data: complete plain data, changed in place.
        given: the overrides of the command line.
        problems: a line is added where the run cannot be read.
    """
    init = data.get("init")
    origin = init.get("from") if isinstance(init, dict) else None
    if not isinstance(origin, str):
        return
    if not origin:
        problems.append("init.from: is empty; give a run folder, or null to start afresh")
        return
    folder = absolute(str(with_env(origin, None)), Path.cwd())
    try:
        source = load_plain(folder)
    except RunError as error:
        problems.append(f"init.from: {error}")
        return
    composed = {key: data.get(key) for key in ("model", TOKENIZER)}
    data["model"] = source["model"]
    data[TOKENIZER] = source[TOKENIZER] | {"path": str(Path(folder) / TOKENIZER)}
    for line in given:
        keys = line.key.replace("/", ".").split(".")
        if keys[0] in composed and len(keys) > 1:
            _copy(composed, data, keys)


def _copy(source: dict[str, Any], target: dict[str, Any], keys: Sequence[str]) -> None:
    """The value at a dotted key of one tree into another; where the other has no such place, it stays as it is."""
    value: Any = source
    node: Any = target
    for key in keys[:-1]:
        value = value.get(key) if isinstance(value, dict) else None
        node = node.get(key) if isinstance(node, dict) else None
    if isinstance(value, dict) and isinstance(node, dict) and keys[-1] in value:
        node[keys[-1]] = value[keys[-1]]
