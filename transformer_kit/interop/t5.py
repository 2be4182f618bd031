"""T5: an encoder–decoder with relative biases, RMS norms before each sub-layer, no biases and unscaled attention."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from torch import Tensor

from transformer_kit.interop import options as make
from transformer_kit.interop.foreign import ACTIVATIONS, Foreign, activation_name
from transformer_kit.interop.layout import Extent, Layout, one_stack
from transformer_kit.interop.options import NN, Plain, Sizes, sizes
from transformer_kit.interop.tables import Names, Piece, Rule, linear, matrix, norm

GATED = "gated-"
PROJECTION = "lm_head.weight"


class T5(Layout):
    """`model_type: t5`: version 1.0 (ReLU, one matrix for input and output) and 1.1 (gated GELU, two matrices)."""

    names = Names("t5", skipped=(r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",))
    model_types = ("t5",)
    family = "encoder_decoder"

    def read(self, hf: Foreign, tensors: Collection[str] | None) -> Plain:
        hf.architecture("T5ForConditionalGeneration", "T5WithLMHeadModel")
        hf.must_be("is_decoder", False)
        layers = hf.layers("num_layers", 6)
        tied = hf.flag("tie_word_embeddings", True)
        scaled = hf.flag("scale_decoder_outputs", tied)
        if not scaled and tensors is not None:  # newer configurations say "tied" of every model
            tied = PROJECTION not in tensors
        rate = hf.number("dropout_rate", 0.1)
        return make.model(
            "encoder_decoder",
            d_model=hf.integer("d_model", 512),
            d_ff=hf.integer("d_ff", 2048),
            num_heads=hf.integer("num_heads", 8),
            head_dim=hf.integer("d_kv", 64),
            encoder=layers,
            decoder=hf.layers("num_decoder_layers", layers),
            tie="three_way" if tied else "inputs",
            max_length=hf.integer("n_positions", 512),
            rates=make.dropout(rate, rate, rate, rate),
            position={
                "_target_": f"{NN}.position.relative.RelativeBias",
                "num_buckets": hf.integer("relative_attention_num_buckets", 32),
                "max_distance": hf.integer("relative_attention_max_distance", 128),
            },
            norm=make.rmsnorm(hf.number("layer_norm_epsilon", 1e-6)),
            residual=make.pre(),
            attention=make.attention(False, False, scale=1.0),
            feedforward=_feedforward(hf),
            head=make.linear_head(bias=False, scale=scaled),
        )

    def write(self, options: Plain, extent: Extent) -> Plain:
        feedforward, position = options["feedforward"], options["position"]
        activation = activation_name(feedforward.get("activation", "relu"))
        if feedforward["_target_"].endswith(".Gated"):
            activation = GATED + ("gelu" if activation == "gelu_new" else activation)
        return {
            "architectures": ["T5ForConditionalGeneration"],
            "model_type": "t5",
            "vocab_size": extent.source,
            "d_model": options["d_model"],
            "d_kv": options.get("head_dim") or options["d_model"] // options["num_heads"],
            "d_ff": options["d_ff"],
            "num_layers": options["encoder"]["layers"],
            "num_decoder_layers": options["decoder"]["layers"],
            "num_heads": options["num_heads"],
            "n_positions": options["max_length"],
            "relative_attention_num_buckets": position.get("num_buckets", 32),
            "relative_attention_max_distance": position.get("max_distance", 128),
            "feed_forward_proj": activation,
            "layer_norm_epsilon": options["norm"].get("eps", 1e-6),
            "dropout_rate": options["dropout"]["residual"],
            "tie_word_embeddings": options["tie"] == "three_way",
            "scale_decoder_outputs": bool(options["head"].get("scale")),
            "is_encoder_decoder": True,
        }

    def extent(self, hf: Foreign) -> Extent:
        return one_stack(hf, 32128)

    def extent_of(self, state: Mapping[str, Tensor]) -> Extent:
        rows = len(state["source_embedding.weight"])
        return Extent(rows, rows)

    def rules(self, options: Plain, extent: Extent) -> list[Rule]:
        tied, gated = options["tie"] == "three_way", options["feedforward"]["_target_"].endswith(".Gated")
        aliases = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", *((PROJECTION,) if tied else ()))
        dim, buckets = options["d_model"], options["position"].get("num_buckets", 32)
        rules = [Rule("source_embedding.weight", (Piece("shared.weight", (extent.source, dim), aliases),))]
        if not tied:
            rules.append(matrix("head.weight", PROJECTION, extent.target, dim))
        for stack in make.STACKS:
            found = sizes(options, stack)
            bias = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
            rules.append(matrix(f"{stack}.position.table", bias, buckets, found.heads))
            for layer in range(found.layers):
                rules += _block(f"{stack}.blocks.{layer}", f"{stack}.block.{layer}.layer", found, stack, gated)
            rules += norm(f"{stack}.final_norm", f"{stack}.final_layer_norm", dim, False)
        return rules


def _feedforward(hf: Foreign) -> Plain:
    """Dense or gated; `gated-gelu` means the tanh approximation, as published."""
    kind = hf.get("feed_forward_proj", "relu")
    name = kind.removeprefix(GATED) if isinstance(kind, str) else kind
    if not isinstance(kind, str) or name not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise hf.refuse("feed_forward_proj", kind, f"must be an activation or {GATED}ACTIVATION; there are {known}")
    if kind == f"{GATED}gelu":
        return make.gated("gelu_tanh", False)
    activation = ACTIVATIONS[name]
    return make.gated(activation, False) if kind.startswith(GATED) else make.dense(activation, False)


def _block(ours: str, theirs: str, found: Sizes, stack: str, gated: bool) -> Iterator[Rule]:
    yield from _attention(f"{ours}.self", f"{theirs}.0", "SelfAttention", found)
    if stack == "decoder":
        yield from _attention(f"{ours}.cross", f"{theirs}.1", "EncDecAttention", found)
    last = f"{theirs}.{2 if stack == 'decoder' else 1}"
    inner, dim = f"{last}.DenseReluDense", found.dim
    yield from norm(f"{ours}.feedforward_residual.norm", f"{last}.layer_norm", dim, False)
    if gated:
        up = [f"{inner}.wi_0", f"{inner}.wi_1"]
        yield from linear(f"{ours}.feedforward.up", up, (found.ff, found.ff), dim, False, packed="_")
    else:
        yield from linear(f"{ours}.feedforward.up", f"{inner}.wi", found.ff, dim, False)
    yield from linear(f"{ours}.feedforward.down", f"{inner}.wo", dim, found.ff, False)


def _attention(ours: str, theirs: str, name: str, found: Sizes) -> Iterator[Rule]:
    qkv = [f"{theirs}.{name}.{letter}" for letter in "qkv"]
    yield from norm(f"{ours}_residual.norm", f"{theirs}.layer_norm", found.dim, False)
    yield from linear(f"{ours}_attention.qkv", qkv, found.qkv, found.dim, False, packed="_")
    yield from linear(f"{ours}_attention.out", f"{theirs}.{name}.o", found.dim, found.mixed, False)
