"""The ways in which configurations stretch rotary positions, and the two orders of a head's pairs."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from transformer_kit.errors import ConfigError
from transformer_kit.interop.foreign import Foreign
from transformer_kit.interop.options import NN, Plain

PLAIN = f"{NN}.position.rotary.Rotary"
SCALED = f"{NN}.position.rotary_scaling"
KINDS = {
    PLAIN: "default",
    f"{SCALED}.LinearRotary": "linear",
    f"{SCALED}.YarnRotary": "yarn",
    f"{SCALED}.Llama3Rotary": "llama3",
}
NTK = f"{SCALED}.NtkRotary"
DEFAULT_THETA = 10000.0


def read_rope(hf: Foreign, max_length: int) -> Plain:
    """Our position slot of a configuration's `rope_parameters`, or of its older `rope_theta` and `rope_scaling`.

    Args:
        hf: the configuration.
        max_length: its longest text, which the original length defaults to.

    Raises:
        ConfigError: a kind of scaling that no part here computes, or one without what it needs.
    """
    key = "rope_parameters" if hf.get("rope_parameters", None) else "rope_scaling"
    rope: dict[str, Any] = hf.get(key, {})
    if not isinstance(rope, dict) or any(isinstance(value, dict) for value in rope.values()):
        raise hf.refuse(key, rope, "must be one set of rotary parameters for all layers")
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind not in KINDS.values():
        known = ", ".join(KINDS.values())
        raise hf.refuse(f"{key}.rope_type", kind, f"no such rotary scaling here; there are {known}")
    hf.must_be("partial_rotary_factor", 1, 1.0)
    own = Foreign({f"{key}.{name}": value for name, value in rope.items()}, hf.layout)
    own.must_be(f"{key}.partial_rotary_factor", 1, 1.0)

    def number(name: str, default: float | None = None) -> float:
        if default is None and own.get(f"{key}.{name}", None) is None:
            raise ConfigError(f"config.json: {key}.{name} is missing; rotary scaling {kind!r} needs it")
        return own.number(f"{key}.{name}", default or 0.0)

    theta = number("rope_theta", hf.number("rope_theta", DEFAULT_THETA))
    found: Plain = {"_target_": next(t for t, k in KINDS.items() if k == kind), "theta": theta, "layout": "half"}
    if kind == "default":
        return found
    outside = hf.get("original_max_position_embeddings", None)
    original = outside or own.integer(f"{key}.original_max_position_embeddings", max_length)
    if kind == "linear":
        return found | {"factor": number("factor")}
    if kind == "llama3":
        return found | {
            "factor": number("factor"),
            "low_freq_factor": number("low_freq_factor"),
            "high_freq_factor": number("high_freq_factor"),
            "original_max_length": original,
        }
    factor = number("factor", max_length / original)
    return found | {
        "factor": factor,
        "original_max_length": original,
        "beta_fast": number("beta_fast", 32.0),
        "beta_slow": number("beta_slow", 1.0),
        "attention_factor": _attention_factor(rope, factor),
        "truncate": own.flag(f"{key}.truncate", True),
    }


def _attention_factor(rope: dict[str, Any], factor: float) -> float | None:
    """YaRN's factor of cosines and sines, or None where it is the paper's."""
    given = rope.get("attention_factor")
    if given is not None:
        return float(given)
    above, below = rope.get("mscale"), rope.get("mscale_all_dim")
    if not (above and below) or factor <= 1:
        return None
    return float((0.1 * above * math.log(factor) + 1) / (0.1 * below * math.log(factor) + 1))


def write_rope(position: Plain) -> Plain:
    """`rope_parameters` of a position slot; those of plain rotary positions where it is none of the known kinds."""
    kind = KINDS.get(position["_target_"], "default")
    found: Plain = {"rope_type": kind, "rope_theta": position.get("theta", DEFAULT_THETA)}
    names = {"original_max_length": "original_max_position_embeddings"}
    for key, value in position.items():
        if key not in ("_target_", "theta", "layout") and kind != "default" and value is not None:
            found[names.get(key, key)] = value
    return found


def plain_of_ntk(position: Plain, head_dim: int) -> Plain:
    """NTK-aware positions as the plain ones of a larger theta, which they are."""
    if position["_target_"] != NTK:
        return position
    theta = position["theta"] * position["factor"] ** (head_dim / (head_dim - 2))
    return {"_target_": PLAIN, "theta": theta, "layout": position["layout"]}


def halves(rows: Tensor, head_dim: int) -> Tensor:
    """Rows of q or k whose pairs adjoin, in the order where pair i is numbers i and i + K/2.

    Shape: (heads · K, ...) -> the same.
    """
    grouped = rows.unflatten(0, (-1, head_dim // 2, 2))
    return grouped.transpose(1, 2).flatten(0, 2).contiguous()


def swap_qkv(packed: Tensor, sizes: tuple[int, int, int], head_dim: int) -> Tensor:
    """`halves` of the q and k in a packed matrix or bias: (rows of q, k, v; ...) -> the same."""
    q, k, v = packed.split(sizes)
    return torch.cat((halves(q, head_dim), halves(k, head_dim), v))
