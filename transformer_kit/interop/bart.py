"""BART and Marian: encoder–decoders with biases, a norm after each sub-layer, and a fixed summand of the logits."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from torch import Tensor

from transformer_kit.interop import options as make
from transformer_kit.interop.foreign import Foreign, activation_name
from transformer_kit.interop.layout import Extent, Layout, one_stack
from transformer_kit.interop.options import NN, Plain, Sizes, sizes
from transformer_kit.interop.tables import Names, Piece, Rule, linear, matrix, norm

EPS = 1e-5  # of every norm; no configuration says it
OFFSET = 2  # BART's positions are read from this row on
PROJECTION = "lm_head.weight"


class Bart(Layout):
    """`model_type: bart`: learned positions and a norm on the input of each stack."""

    names = Names("bart", prefixes=("model.",), skipped=(r"(model\.)?(encoder|decoder)\.version",))
    model_types = ("bart",)
    family = "encoder_decoder"
    architecture = "BartForConditionalGeneration"
    input_norm = True

    def read(self, hf: Foreign, tensors: Collection[str] | None) -> Plain:
        hf.architecture(self.architecture)
        for key in ("normalize_before", "add_final_layer_norm", "is_decoder"):
            hf.must_be(key, False)
        hf.must_be("normalize_embedding", self.input_norm)
        rate = hf.number("dropout", 0.1)
        return make.model(
            "encoder_decoder",
            d_model=hf.integer("d_model", 1024),
            d_ff=hf.same("encoder_ffn_dim", "decoder_ffn_dim", 4096),
            num_heads=hf.same("encoder_attention_heads", "decoder_attention_heads", 16),
            head_dim=None,
            encoder=hf.layers("encoder_layers", 12),
            decoder=hf.layers("decoder_layers", 12),
            tie=self.tie(hf),
            max_length=hf.integer("max_position_embeddings", 1024),
            rates=make.dropout(rate, rate, hf.number("attention_dropout", 0.0), hf.number("activation_dropout", 0.0)),
            position=self.position(hf),
            norm=make.layernorm(EPS),
            residual=make.post(),
            attention=make.attention(True, True),
            feedforward=make.dense(hf.activation("activation_function", "gelu"), True),
            head=make.linear_head(bias=True),
            scale=hf.flag("scale_embedding", False),
            embedding_norm=self.input_norm,
        )

    def tie(self, hf: Foreign) -> str:
        return "three_way" if hf.flag("tie_word_embeddings", True) else "inputs"

    def position(self, hf: Foreign) -> Plain:
        hf.must_be("static_position_embeddings", False)
        hf.must_be("extra_pos_embeddings", OFFSET)
        return make.learned()

    def write(self, options: Plain, extent: Extent) -> Plain:
        rates = options["dropout"]
        return {
            "architectures": [self.architecture],
            "model_type": self.model_types[0],
            "vocab_size": extent.source,
            "d_model": options["d_model"],
            "encoder_layers": options["encoder"]["layers"],
            "decoder_layers": options["decoder"]["layers"],
            "encoder_ffn_dim": options["d_ff"],
            "decoder_ffn_dim": options["d_ff"],
            "encoder_attention_heads": options["num_heads"],
            "decoder_attention_heads": options["num_heads"],
            "max_position_embeddings": options["max_length"],
            "activation_function": activation_name(options["feedforward"].get("activation", "gelu")),
            "scale_embedding": options["embedding"]["scale"],
            "tie_word_embeddings": options["tie"] in ("three_way", "output"),
            "dropout": rates["residual"],
            "attention_dropout": rates["attention"],
            "activation_dropout": rates["feedforward"],
            "is_encoder_decoder": True,
            **self.written(options, extent),
        }

    def written(self, options: Plain, extent: Extent) -> dict[str, Any]:
        """What this layout says besides."""
        return {}

    def prepared(self, options: Plain, state: Mapping[str, Tensor]) -> tuple[Plain, Mapping[str, Tensor]]:
        """A head without a bias is one whose bias is zero."""
        head = options["head"]
        if head["_target_"].endswith(".LinearHead") and not head["bias"] and "source_embedding.weight" in state:
            rows = self.extent_of(state).target
            options = options | {"head": head | {"bias": True}}
            state = {**state, "head.bias": state["source_embedding.weight"].new_zeros(rows)}
        return options, state

    def extent(self, hf: Foreign) -> Extent:
        return one_stack(hf, 50265)

    def extent_of(self, state: Mapping[str, Tensor]) -> Extent:
        source = len(state["source_embedding.weight"])
        return Extent(source, len(state.get("target_embedding.weight", state["source_embedding.weight"])))

    def rules(self, options: Plain, extent: Extent) -> list[Rule]:
        rules = list(self.tables(options, extent))
        logits = Piece("final_logits_bias", (1, extent.target))
        rules.append(Rule("head.bias", (logits,), flat=True, optional=True))
        for stack in make.STACKS:
            found = sizes(options, stack)
            rules += self.before_layers(stack, options)
            for layer in range(found.layers):
                rules += _block(f"{stack}.blocks.{layer}", f"model.{stack}.layers.{layer}", found, stack)
        return rules

    def tables(self, options: Plain, extent: Extent) -> Iterator[Rule]:
        """Embeddings and projection."""
        shape, separate = (extent.source, options["d_model"]), options["tie"] == "inputs"
        aliases = [f"model.{stack}.embed_tokens.weight" for stack in make.STACKS]
        shared = Piece("model.shared.weight", shape, (*aliases, *(() if separate else (PROJECTION,))))
        yield Rule("source_embedding.weight", (shared,))
        if separate:
            yield matrix("head.weight", PROJECTION, *shape)

    def before_layers(self, stack: str, options: Plain) -> Iterator[Rule]:
        """What stands before the first layer."""
        places = Piece(f"model.{stack}.embed_positions.weight", (options["max_length"] + OFFSET, options["d_model"]))
        yield Rule(f"{stack}.position.table", (places,), spare=OFFSET)
        yield from norm(f"{stack}.input_norm", f"model.{stack}.layernorm_embedding", options["d_model"], True)


class Marian(Bart):
    """`model_type: marian`: fixed positions, sines then cosines; one vocabulary or two."""

    names = Names("marian", prefixes=("model.",), skipped=(r"(model\.)?(encoder|decoder)\.embed_positions\.weight",))
    model_types = ("marian",)
    architecture = "MarianMTModel"
    input_norm = False

    def tie(self, hf: Foreign) -> str:
        shared, tied = hf.flag("share_encoder_decoder_embeddings", True), hf.flag("tie_word_embeddings", True)
        return {(True, True): "three_way", (True, False): "inputs", (False, True): "output"}.get((shared, tied), "none")

    def position(self, hf: Foreign) -> Plain:
        hf.must_be("static_position_embeddings", True)
        return {"_target_": f"{NN}.position.sinusoidal.Sinusoidal", "base": 10000.0, "layout": "split"}

    def written(self, options: Plain, extent: Extent) -> dict[str, Any]:
        return {
            "decoder_vocab_size": extent.target,
            "share_encoder_decoder_embeddings": options["tie"] in ("three_way", "inputs"),
            "static_position_embeddings": True,
            "normalize_embedding": False,
        }

    def extent(self, hf: Foreign) -> Extent:
        rows = hf.integer("vocab_size", 58101)
        return Extent(rows, hf.integer("decoder_vocab_size", rows))

    def tables(self, options: Plain, extent: Extent) -> Iterator[Rule]:
        if options["tie"] in ("three_way", "inputs"):
            yield from super().tables(options, extent)
            return
        dim, separate = options["d_model"], options["tie"] == "none"
        yield matrix("source_embedding.weight", "model.encoder.embed_tokens.weight", extent.source, dim)
        aliases = () if separate else (PROJECTION,)
        target = Piece("model.decoder.embed_tokens.weight", (extent.target, dim), aliases)
        yield Rule("target_embedding.weight", (target,))
        if separate:
            yield matrix("head.weight", PROJECTION, extent.target, dim)

    def before_layers(self, stack: str, options: Plain) -> Iterator[Rule]:
        return iter(())


def _block(ours: str, theirs: str, found: Sizes, stack: str) -> Iterator[Rule]:
    yield from _attention(f"{ours}.self", f"{theirs}.self_attn", found)
    if stack == "decoder":
        yield from _attention(f"{ours}.cross", f"{theirs}.encoder_attn", found)
    yield from linear(f"{ours}.feedforward.up", f"{theirs}.fc1", found.ff, found.dim, True)
    yield from linear(f"{ours}.feedforward.down", f"{theirs}.fc2", found.dim, found.ff, True)
    yield from norm(f"{ours}.feedforward_residual.norm", f"{theirs}.final_layer_norm", found.dim, True)


def _attention(ours: str, theirs: str, found: Sizes) -> Iterator[Rule]:
    qkv = [f"{theirs}.{name}_proj" for name in "qkv"]
    yield from linear(f"{ours}_attention.qkv", qkv, found.qkv, found.dim, True, packed="_")
    yield from linear(f"{ours}_attention.out", f"{theirs}.out_proj", found.dim, found.mixed, True)
    yield from norm(f"{ours}_residual.norm", f"{theirs}_layer_norm", found.dim, True)
