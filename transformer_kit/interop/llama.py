"""LLaMA and Mistral: rotary positions, RMS norms before each sub-layer, gated feed-forward, grouped heads."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from torch import Tensor

from transformer_kit.interop import options as make
from transformer_kit.interop.foreign import Foreign, activation_name
from transformer_kit.interop.layout import Extent, Layout, one_stack
from transformer_kit.interop.options import Plain, Sizes, sizes
from transformer_kit.interop.rope import plain_of_ntk, read_rope, swap_qkv, write_rope
from transformer_kit.interop.tables import Names, Piece, Rule, linear, matrix, norm

SKIPPED = (r"(model\.)?(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq",)


class Llama(Layout):
    """`model_type: llama`, with or without the prefix `model.`; pairs of a head stand half a head apart."""

    names = Names("llama", prefixes=("model.",), skipped=SKIPPED)
    model_types = ("llama",)
    family = "decoder_only"
    architecture = "LlamaForCausalLM"
    kv_heads: int | None = None  # what a configuration without `num_key_value_heads` means
    longest = 2048

    def read(self, hf: Foreign, tensors: Collection[str] | None) -> Plain:
        hf.architecture(self.architecture, self.architecture.replace("ForCausalLM", "Model"))
        dim, heads = hf.integer("hidden_size", 4096), hf.integer("num_attention_heads", 32)
        max_length = hf.integer("max_position_embeddings", self.longest)
        bias = self.biases(hf)
        return make.model(
            "decoder_only",
            d_model=dim,
            d_ff=hf.integer("intermediate_size", 11008),
            num_heads=heads,
            head_dim=hf.integer("head_dim", dim // heads),
            encoder=None,
            decoder=hf.layers("num_hidden_layers", 32),
            tie="output" if hf.flag("tie_word_embeddings", False) else "none",
            max_length=max_length,
            rates=make.dropout(0.0, 0.0, hf.number("attention_dropout", 0.0), 0.0),
            position=read_rope(hf, max_length),
            norm=make.rmsnorm(hf.number("rms_norm_eps", 1e-6)),
            residual=make.pre(),
            attention=make.attention(
                bias,
                bias,
                num_kv_heads=hf.integer("num_key_value_heads", self.kv_heads or heads),
                window=self.window(hf),
            ),
            feedforward=make.gated(hf.activation("hidden_act", "silu"), hf.flag("mlp_bias", False)),
            head=make.linear_head(bias=False),
        )

    def biases(self, hf: Foreign) -> bool:
        """Whether attention has biases."""
        return hf.flag("attention_bias", False)

    def window(self, hf: Foreign) -> int | None:
        """How many cells self-attention sees; None: all."""
        return None

    def write(self, options: Plain, extent: Extent) -> Plain:
        attention, heads = options["attention"], options["num_heads"]
        return {
            "architectures": [self.architecture],
            "model_type": self.model_types[0],
            "vocab_size": extent.source,
            "hidden_size": options["d_model"],
            "intermediate_size": options["d_ff"],
            "num_hidden_layers": options["decoder"]["layers"],
            "num_attention_heads": heads,
            "num_key_value_heads": attention.get("num_kv_heads") or heads,
            "head_dim": options.get("head_dim") or options["d_model"] // heads,
            "hidden_act": activation_name(options["feedforward"].get("activation", "silu")),
            "max_position_embeddings": options["max_length"],
            "rms_norm_eps": options["norm"].get("eps", 1e-6),
            "tie_word_embeddings": options["tie"] != "none",
            "rope_parameters": write_rope(options["position"]),
            "attention_dropout": options["dropout"]["attention"],
            **self.written(options),
        }

    def written(self, options: Plain) -> dict[str, Any]:
        """What this layout says besides."""
        return {
            "attention_bias": options["attention"].get("bias", False),
            "mlp_bias": options["feedforward"].get("bias", False),
        }

    def prepared(self, options: Plain, state: Mapping[str, Tensor]) -> tuple[Plain, Mapping[str, Tensor]]:
        """Pairs that adjoin move half a head apart; NTK-aware positions become the plain ones that they are."""
        found = sizes(options, "decoder")
        position = plain_of_ntk(dict(options["position"]), found.key)
        if position.get("layout") == "interleaved":
            position["layout"] = "half"
            state = {
                name: swap_qkv(tensor, found.qkv, found.key) if ".self_attention.qkv_" in name else tensor
                for name, tensor in state.items()
            }
        return options | {"position": position}, state

    def extent(self, hf: Foreign) -> Extent:
        return one_stack(hf, 32000)

    def extent_of(self, state: Mapping[str, Tensor]) -> Extent:
        rows = len(state["embedding.weight"])
        return Extent(rows, rows)

    def rules(self, options: Plain, extent: Extent) -> list[Rule]:
        found = sizes(options, "decoder")
        tied = options["tie"] != "none"
        table = Piece("model.embed_tokens.weight", (extent.source, found.dim), ("lm_head.weight",) if tied else ())
        rules = [Rule("embedding.weight", (table,))]
        if not tied:
            rules.append(matrix("head.weight", "lm_head.weight", extent.source, found.dim))
        biases = options["attention"].get("bias", False), options["feedforward"].get("bias", False)
        for layer in range(found.layers):
            rules += _block(f"decoder.blocks.{layer}", f"model.layers.{layer}", found, *biases)
        return [*rules, *norm("decoder.final_norm", "model.norm", found.dim, False)]


class Mistral(Llama):
    """`model_type: mistral`: LLaMA with a sliding window."""

    names = Names("mistral", prefixes=("model.",), skipped=SKIPPED)
    model_types = ("mistral",)
    architecture = "MistralForCausalLM"
    kv_heads = 8
    longest = 4096 * 32

    def biases(self, hf: Foreign) -> bool:
        return False

    def window(self, hf: Foreign) -> int | None:
        if "sliding_window" in hf.data and hf.data["sliding_window"] is None:
            return None
        return hf.integer("sliding_window", 4096)

    def written(self, options: Plain) -> dict[str, Any]:
        return {"sliding_window": options["attention"].get("window")}


def _block(ours: str, theirs: str, found: Sizes, bias: bool, mlp_bias: bool) -> Iterator[Rule]:
    qkv = [f"{theirs}.self_attn.{name}_proj" for name in "qkv"]
    gate = [f"{theirs}.mlp.{name}_proj" for name in ("gate", "up")]
    yield from norm(f"{ours}.self_residual.norm", f"{theirs}.input_layernorm", found.dim, False)
    yield from linear(f"{ours}.self_attention.qkv", qkv, found.qkv, found.dim, bias, packed="_")
    yield from linear(f"{ours}.self_attention.out", f"{theirs}.self_attn.o_proj", found.dim, found.mixed, bias)
    yield from norm(f"{ours}.feedforward_residual.norm", f"{theirs}.post_attention_layernorm", found.dim, False)
    yield from linear(f"{ours}.feedforward.up", gate, (found.ff, found.ff), found.dim, mlp_bias, packed="_")
    yield from linear(f"{ours}.feedforward.down", f"{theirs}.mlp.down_proj", found.dim, found.ff, mlp_bias)
