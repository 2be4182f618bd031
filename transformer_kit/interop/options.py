"""Model options as plain data, as foreign configurations are turned into them and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Plain = dict[str, Any]

NN = "transformer_kit.nn"
STACKS = ("encoder", "decoder")


def layernorm(eps: float) -> Plain:
    return {"_target_": f"{NN}.norm.layernorm.LayerNorm", "eps": eps, "bias": True}


def rmsnorm(eps: float) -> Plain:
    return {"_target_": f"{NN}.norm.rmsnorm.RMSNorm", "eps": eps}


def pre() -> Plain:
    return {"_target_": f"{NN}.residual.pre.PreNorm"}


def post() -> Plain:
    return {"_target_": f"{NN}.residual.post.PostNorm"}


def attention(
    bias: bool,
    out_bias: bool,
    num_kv_heads: int | None = None,
    scale: float | None = None,
    window: int | None = None,
) -> Plain:
    return {
        "_target_": f"{NN}.attention.MultiHeadAttention",
        "num_kv_heads": num_kv_heads,
        "bias": bias,
        "out_bias": out_bias,
        "scale": scale,
        "window": window,
        "kernel": "auto",
    }


def dense(activation: str, bias: bool) -> Plain:
    return {"_target_": f"{NN}.feedforward.dense.Dense", "activation": activation, "bias": bias}


def gated(activation: str, bias: bool) -> Plain:
    return {"_target_": f"{NN}.feedforward.gated.Gated", "activation": activation, "bias": bias}


def learned() -> Plain:
    return {"_target_": f"{NN}.position.learned.Learned"}


def linear_head(bias: bool, scale: bool = False) -> Plain:
    return {"_target_": "transformer_kit.models.heads.LinearHead", "bias": bias, "scale": scale}


def mlm_head(activation: str, bias: bool = True) -> Plain:
    return {"_target_": "transformer_kit.models.heads.TransformedHead", "activation": activation, "bias": bias}


def no_head() -> Plain:
    return {"_target_": "transformer_kit.models.heads.NoHead"}


def dropout(embedding: float, residual: float, attention: float, feedforward: float) -> Plain:
    return {"embedding": embedding, "residual": residual, "attention": attention, "feedforward": feedforward}


def model(
    family: str,
    *,
    d_model: int,
    d_ff: int,
    num_heads: int,
    head_dim: int | None,
    encoder: int | None,
    decoder: int | None,
    tie: str,
    max_length: int,
    rates: Plain,
    position: Plain,
    norm: Plain,
    residual: Plain,
    attention: Plain,
    feedforward: Plain,
    head: Plain,
    scale: bool = False,
    embedding_norm: bool = False,
    types: int = 0,
    pooler: bool = False,
) -> Plain:
    """The complete options of a model; `encoder` and `decoder` are numbers of layers."""
    return {
        "family": family,
        "d_model": d_model,
        "d_ff": d_ff,
        "num_heads": num_heads,
        "head_dim": head_dim,
        "v_head_dim": None,
        "encoder": None if encoder is None else {"layers": encoder},
        "decoder": None if decoder is None else {"layers": decoder},
        "tie": tie,
        "embedding": {"scale": scale, "norm": embedding_norm, "types": types},
        "pooler": pooler,
        "pattern": [],
        "max_length": max_length,
        "init": "glorot",
        "dropout": rates,
        "position": position,
        "norm": norm,
        "residual": residual,
        "attention": attention,
        "feedforward": feedforward,
        "head": head,
    }


def slot(options: Mapping[str, Any], name: str, stack: str, layer: int | None = None) -> Plain:
    """The options of a slot in one stack, and in one of its layers where a pattern changes it."""
    own = (options.get(stack) or {}).get(name)
    found = dict(options[name] if own is None else own)
    pattern = options.get("pattern") or []
    if layer is not None and pattern:
        change = pattern[layer % len(pattern)].get(name) or {}
        found = dict(change) if "_target_" in change else found | change
    return found


@dataclass(frozen=True)
class Sizes:
    """The sizes that a stack's tensors have.

    Attributes:
        dim, ff, heads, groups, key, value: D, F, H, G, K, W.
        layers: of the stack.
    """

    dim: int
    ff: int
    heads: int
    groups: int
    key: int
    value: int
    layers: int

    @property
    def qkv(self) -> tuple[int, int, int]:
        """Rows of the query, key and value matrices."""
        return self.heads * self.key, self.groups * self.key, self.groups * self.value

    @property
    def mixed(self) -> int:
        """Columns of the attention's output matrix."""
        return self.heads * self.value


def sizes(options: Mapping[str, Any], stack: str) -> Sizes:
    """The sizes of one stack."""
    heads = options["num_heads"]
    key = options.get("head_dim") or options["d_model"] // heads
    groups = slot(options, "attention", stack, 0).get("num_kv_heads") or heads
    value = options.get("v_head_dim") or key
    layers = options[stack]["layers"]
    return Sizes(options["d_model"], options["d_ff"], heads, groups, key, value, layers)
