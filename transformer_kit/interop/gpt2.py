"""GPT-2: learned positions, pre-norm, one packed matrix for q, k and v; matrices stand transposed, (in, out)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from torch import Tensor

from transformer_kit.interop import options as make
from transformer_kit.interop.foreign import Foreign, activation_name
from transformer_kit.interop.layout import Extent, Layout, one_stack
from transformer_kit.interop.options import Plain, Sizes, sizes
from transformer_kit.interop.tables import Names, Piece, Rule, matrix, norm, vector


class GPT2(Layout):
    """`model_type: gpt2`, with or without the prefix `transformer.`."""

    names = Names("gpt2", prefixes=("transformer.",), skipped=(r"(transformer\.)?h\.\d+\.attn\.(bias|masked_bias)",))
    model_types = ("gpt2",)
    family = "decoder_only"

    def read(self, hf: Foreign, tensors: Collection[str] | None) -> Plain:
        hf.architecture("GPT2LMHeadModel", "GPT2Model")
        for key in ("scale_attn_by_inverse_layer_idx", "add_cross_attention"):
            hf.must_be(key, False)
        dim = hf.integer("n_embd", 768)
        return make.model(
            "decoder_only",
            d_model=dim,
            d_ff=hf.integer("n_inner", 4 * dim),
            num_heads=hf.integer("n_head", 12),
            head_dim=None,
            encoder=None,
            decoder=hf.layers("n_layer", 12),
            tie="output" if hf.flag("tie_word_embeddings", True) else "none",
            max_length=hf.integer("n_positions", 1024),
            rates=make.dropout(
                hf.number("embd_pdrop", 0.1), hf.number("resid_pdrop", 0.1), hf.number("attn_pdrop", 0.1), 0.0
            ),
            position=make.learned(),
            norm=make.layernorm(hf.number("layer_norm_epsilon", 1e-5)),
            residual=make.pre(),
            attention=make.attention(True, True, scale=None if hf.flag("scale_attn_weights", True) else 1.0),
            feedforward=make.dense(hf.activation("activation_function", "gelu_new"), True),
            head=make.linear_head(bias=False),
        )

    def write(self, options: Plain, extent: Extent) -> Plain:
        rates = options["dropout"]
        return {
            "architectures": ["GPT2LMHeadModel"],
            "model_type": "gpt2",
            "vocab_size": extent.source,
            "n_positions": options["max_length"],
            "n_embd": options["d_model"],
            "n_layer": options["decoder"]["layers"],
            "n_head": options["num_heads"],
            "n_inner": options["d_ff"],
            "activation_function": activation_name(options["feedforward"].get("activation", "gelu_tanh")),
            "layer_norm_epsilon": options["norm"].get("eps", 1e-5),
            "scale_attn_weights": options["attention"].get("scale") is None,
            "tie_word_embeddings": options["tie"] != "none",
            "embd_pdrop": rates["embedding"],
            "resid_pdrop": rates["residual"],
            "attn_pdrop": rates["attention"],
        }

    def extent(self, hf: Foreign) -> Extent:
        return one_stack(hf, 50257)

    def extent_of(self, state: Mapping[str, Tensor]) -> Extent:
        rows = len(state["embedding.weight"])
        return Extent(rows, rows)

    def rules(self, options: Plain, extent: Extent) -> list[Rule]:
        found, dim = sizes(options, "decoder"), options["d_model"]
        table = Piece("transformer.wte.weight", (extent.source, dim))
        rules = [matrix("decoder.position.table", "transformer.wpe.weight", options["max_length"], dim)]
        if options["tie"] == "none":
            rules.append(matrix("head.weight", "lm_head.weight", extent.source, dim))
        else:
            table = Piece(table.name, table.shape, ("lm_head.weight",))
        rules.append(Rule("embedding.weight", (table,)))
        for layer in range(found.layers):
            rules += _block(f"decoder.blocks.{layer}", f"transformer.h.{layer}", found)
        return [*rules, *norm("decoder.final_norm", "transformer.ln_f", dim, True)]


def _block(ours: str, theirs: str, found: Sizes) -> Iterator[Rule]:
    yield from norm(f"{ours}.self_residual.norm", f"{theirs}.ln_1", found.dim, True)
    yield from _conv(f"{ours}.self_attention.qkv_", f"{theirs}.attn.c_attn", sum(found.qkv), found.dim)
    yield from _conv(f"{ours}.self_attention.out.", f"{theirs}.attn.c_proj", found.dim, found.mixed)
    yield from norm(f"{ours}.feedforward_residual.norm", f"{theirs}.ln_2", found.dim, True)
    yield from _conv(f"{ours}.feedforward.up.", f"{theirs}.mlp.c_fc", found.ff, found.dim)
    yield from _conv(f"{ours}.feedforward.down.", f"{theirs}.mlp.c_proj", found.dim, found.ff)


def _conv(ours: str, theirs: str, rows: int, columns: int) -> Iterator[Rule]:
    """A linear map whose matrix stands transposed."""
    yield Rule(f"{ours}weight", (Piece(f"{theirs}.weight", (columns, rows)),), transposed=True)
    yield vector(f"{ours}bias", f"{theirs}.bias", rows)
