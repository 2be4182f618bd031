"""Model options as plain data, as foreign configurations are turned into them and back.

A layout that reads a configuration and one that writes it are held together here: what it writes for a model is read
again, and every option that comes back different is one that the layout cannot hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transformer_kit.errors import ConfigError

Plain = dict[str, Any]

NN = "transformer_kit.nn"
STACKS = ("encoder", "decoder")
LAYER_SLOTS = ("residual", "attention", "feedforward")
WITHOUT_EFFECT = ("kernel",)  # options that change how, not what, is computed

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
        found |= pattern[layer % len(pattern)].get(name) or {}
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
                if name == "attention":
                    part["num_kv_heads"] = part.get("num_kv_heads") or options["num_heads"]
                    part["scale"] = round(part.get("scale") or found.key**-0.5, 12)
                yield from _flat(f"{stack}.{layer}.{name}", part)


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
