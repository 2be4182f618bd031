"""Whether a layout holds a model: what it writes for the model is read again and compared, option by option."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from transformer_kit.errors import ConfigError
from transformer_kit.interop.options import STACKS, Plain, Sizes, sizes, slot

LAYER_SLOTS = ("residual", "attention", "feedforward")
WITHOUT_EFFECT = ("kernel",)  # options that change how, not what, is computed


def check_holds(layout: str, given: Mapping[str, Any], held: Mapping[str, Any]) -> None:
    """Refuse a model that a layout gives back as another one.

    Args:
        layout: for messages.
        given: the model's options.
        held: the options that the layout's own configuration leads to.

    Raises:
        ConfigError: with one line for each option that the layout cannot hold.
    """
    ours, theirs = dict(_facts(given)), dict(_facts(held))
    lines, told = [], set[str]()
    for key in ours.keys() | theirs.keys():
        mine, its = ours.get(key, "(absent)"), theirs.get(key, "(absent)")
        about = key.removesuffix("._target_")
        if mine == its or about.rpartition(".")[0] in told:
            continue
        if key.endswith("._target_"):
            told.add(about)
            mine, its = str(mine).rpartition(".")[2], str(its).rpartition(".")[2]
        lines.append((about, f"model.{about}={mine}: the {layout} layout cannot hold it; there it is {its}"))
    lines = [(about, line) for about, line in lines if about in told or about.rpartition(".")[0] not in told]
    if lines:
        raise ConfigError(_first_layers([line for _, line in sorted(lines)]))


def _facts(options: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Everything about a model that its outputs depend on, said once for each stack and layer."""
    for key in ("family", "d_model", "d_ff", "num_heads", "tie", "max_length"):
        yield key, options[key]
    for key in ("scale", "norm", "types"):
        yield f"embedding.{key}", options["embedding"].get(key) or False
    yield "pooler", bool(options.get("pooler"))
    yield from _flat("head", options["head"])
    for stack in STACKS:
        if not options.get(stack):
            continue
        found = sizes(options, stack)
        yield f"{stack}.layers", found.layers
        yield f"{stack}.head_dim", found.key
        yield f"{stack}.v_head_dim", found.value
        for name in ("position", "norm"):
            yield from _flat(f"{stack}.{name}", slot(options, name, stack))
        for layer in range(found.layers):
            for name in LAYER_SLOTS:
                part = slot(options, name, stack, layer)
                part = _resolved(part, found) if name == "attention" else part
                yield from _flat(f"{stack}.{layer}.{name}", part)
        if stack == "decoder" and options.get("encoder"):
            cross = options["decoder"].get("cross_attention") or slot(options, "attention", stack, 0)
            yield from _flat("decoder.cross_attention", _resolved(cross, found) | {"window": None})


def _resolved(attention: Mapping[str, Any], found: Sizes) -> Plain:
    """Options of attention with their nulls resolved."""
    scale = round(attention.get("scale") or found.key**-0.5, 12)
    return {**attention, "num_kv_heads": attention.get("num_kv_heads") or found.heads, "scale": scale}


def _flat(at: str, part: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in part.items():
        if isinstance(value, Mapping):
            yield from _flat(f"{at}.{key}", value)
        elif key not in WITHOUT_EFFECT:
            yield f"{at}.{key}", value


def _first_layers(lines: Sequence[str]) -> list[str]:
    """Of lines that differ in the number of the layer alone, the first."""
    seen: dict[str, str] = {}
    for line in lines:
        key = ".".join("N" if word.isdigit() else word for word in line.partition("=")[0].split("."))
        seen.setdefault(key, line)
    return list(seen.values())
