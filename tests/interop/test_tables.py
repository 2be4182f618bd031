"""Rules of tensors: both directions, and what does not fit is named."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from transformer_kit.config.build import build_model
from transformer_kit.errors import CheckpointError, ConfigError
from transformer_kit.interop.foreign import Foreign
from transformer_kit.interop.layouts import LAYOUTS, layout_named, layout_of
from transformer_kit.interop.rope import halves
from transformer_kit.interop.tables import Names, Piece, Rule, to_ours, to_theirs
from transformer_kit.training.weights import unique_tensors

NAMES = Names("test", prefixes=("model.",), skipped=(r"h\.\d+\.bias",))
RULES = [
    Rule("qkv", (Piece("model.q", (3, 2)), Piece("model.k", (5, 2)), Piece("model.v", (7, 2)))),
    Rule("up", (Piece("fc", (2, 11)),), transposed=True),
    Rule("table", (Piece("places", (13, 2)),), spare=2),
    Rule("bias", (Piece("logits", (1, 5)),), flat=True, optional=True),
    Rule("words", (Piece("shared", (5, 2), ("lm_head",)),)),
]


def tensors() -> dict[str, torch.Tensor]:
    shapes = {piece.name: piece.shape for rule in RULES for piece in rule.pieces}
    made = {name: torch.randn(shape) for name, shape in shapes.items()}
    made["places"][:2] = 0
    return made


def test_both_directions() -> None:
    given = tensors()
    ours = to_ours(given, RULES, NAMES)
    assert {name: tuple(tensor.shape) for name, tensor in ours.items()} == {
        "qkv": (15, 2),
        "up": (11, 2),
        "table": (11, 2),
        "bias": (5,),
        "words": (5, 2),
    }
    assert torch.equal(ours["up"], given["fc"].T)
    assert torch.equal(ours["qkv"][3:8], given["model.k"])
    back = to_theirs(ours, RULES, NAMES)
    assert back.keys() == given.keys()
    assert all(torch.equal(back[name], given[name]) for name in given)


def test_prefixes_aliases_buffers_and_absent_biases() -> None:
    given = tensors()
    bare = {name.removeprefix("model."): tensor for name, tensor in given.items()}
    bare |= {"h.3.bias": torch.zeros(1), "lm_head": bare.pop("shared")}
    del bare["logits"]
    ours, expected = to_ours(bare, RULES, NAMES), to_ours(given, RULES, NAMES)
    assert all(torch.equal(ours[name], expected[name]) for name in ("qkv", "up", "table", "words"))
    assert not ours["bias"].any()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"model.k": None}, r"model\.k \(5, 2\) is missing"),
        ({"extra": torch.zeros(17)}, r"extra \(17,\) has no place"),
        ({"model.v": torch.zeros(2, 7)}, r"model\.v is \(2, 7\), the configuration makes it \(7, 2\)"),
        ({"lm_head": torch.zeros(5, 2)}, r"lm_head differs from shared"),
        ({"lm_head": torch.zeros(4, 2)}, r"lm_head is \(4, 2\)"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, Any], told: str) -> None:
    given = {name: tensor for name, tensor in (tensors() | change).items() if tensor is not None}
    with pytest.raises(CheckpointError, match=told):
        to_ours(given, RULES, NAMES)


def test_a_state_that_does_not_fit_is_named() -> None:
    ours = to_ours(tensors(), RULES, NAMES)
    for change, told in (
        ({"qkv": torch.zeros(14, 2)}, r"qkv is \(14, 2\), it must be \(15, 2\)"),
        ({"more": torch.zeros(3)}, r"more \(3,\) has no place"),
    ):
        with pytest.raises(CheckpointError, match=told):
            to_theirs(ours | change, RULES, NAMES)
    del ours["words"]
    with pytest.raises(CheckpointError, match="words is missing"):
        to_theirs(ours, RULES, NAMES)


def test_pairs_move_half_a_head_apart() -> None:
    rows = torch.arange(12)  # two heads of six: pairs (0, 1), (2, 3), …
    assert halves(rows, 6).tolist() == [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]


CONFIGS: dict[str, dict[str, Any]] = {
    "gpt2": {"vocab_size": 53, "n_positions": 19, "n_embd": 21, "n_layer": 2, "n_head": 3},
    "llama": {
        "vocab_size": 53,
        "hidden_size": 42,
        "intermediate_size": 59,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 3,
        "head_dim": 10,
    },
    "mistral": {
        "vocab_size": 53,
        "hidden_size": 42,
        "intermediate_size": 59,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "head_dim": 6,
        "sliding_window": 5,
    },
    "bert": {
        "vocab_size": 53,
        "hidden_size": 21,
        "intermediate_size": 45,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "max_position_embeddings": 17,
        "architectures": ["BertForMaskedLM"],
    },
    "roberta": {
        "vocab_size": 53,
        "hidden_size": 21,
        "intermediate_size": 45,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "max_position_embeddings": 17,
        "architectures": ["RobertaForMaskedLM"],
    },
    "t5": {"vocab_size": 53, "d_model": 33, "d_kv": 7, "d_ff": 51, "num_layers": 2, "num_heads": 5},
    "bart": {
        "vocab_size": 53,
        "d_model": 21,
        "encoder_layers": 2,
        "decoder_layers": 3,
        "encoder_attention_heads": 3,
        "decoder_attention_heads": 3,
        "encoder_ffn_dim": 45,
        "decoder_ffn_dim": 45,
    },
    "marian": {
        "vocab_size": 53,
        "decoder_vocab_size": 61,
        "share_encoder_decoder_embeddings": False,
        "d_model": 21,
        "encoder_layers": 2,
        "decoder_layers": 3,
        "encoder_attention_heads": 3,
        "decoder_attention_heads": 3,
        "encoder_ffn_dim": 45,
        "decoder_ffn_dim": 45,
    },
}


def config(name: str, **changes: Any) -> dict[str, Any]:
    return CONFIGS[name] | {"model_type": name} | changes


def options(name: str, **changes: Any) -> dict[str, Any]:
    return LAYOUTS[name].model_options(config(name, **changes))


@pytest.mark.parametrize("name", list(LAYOUTS))
def test_rules_are_those_of_the_model_that_is_built(name: str) -> None:
    layout = layout_of(config(name))
    extent = layout.extent(Foreign(config(name), name))
    state = unique_tensors(build_model(options(name), extent.source, extent.target))
    written, tensors = layout.to_hf(state, options(name))
    again = layout.from_hf(tensors, written)
    assert again.keys() == state.keys()
    assert all(torch.equal(again[key], state[key]) for key in state)
    assert layout.model_options(written, tensors.keys()) == options(name)


@pytest.mark.parametrize(
    ("name", "change", "told"),
    [
        ("gpt2", {"activation_function": "mish"}, "activation_function='mish': no such activation"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
        ("gpt2", {"architectures": ["GPT2ForSequenceClassification"]}, "architectures"),
        ("gpt2", {"n_embd": "21"}, "n_embd='21': must be a whole number"),
        ("gpt2", {"quantization_config": {}}, "quantised"),
        ("gpt2", {"n_layer": 10**9}, "no model has more than"),
        ("gpt2", {"architectures": "GPT2Model"}, "must be a list"),
        ("gpt2", {"layer_norm_epsilon": "x"}, "must be a number"),
        ("gpt2", {"tie_word_embeddings": 1}, "must be true or false"),
        ("llama", {"rope_scaling": {"type": "longrope"}}, "rope_type='longrope': no such rotary scaling"),
        ("llama", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_type='dynamic'"),
        ("llama", {"rope_scaling": {"type": "linear"}}, "rope_scaling.factor is missing"),
        ("llama", {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary"),
        ("llama", {"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "one set"),
        ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ("bert", {"is_decoder": True}, "is_decoder"),
        ("roberta", {"pad_token_id": 3}, "pad_token_id=3"),
        ("t5", {"feed_forward_proj": "gated-mish"}, "feed_forward_proj"),
        ("t5", {"architectures": ["T5EncoderModel"]}, "architectures"),
        ("bart", {"decoder_ffn_dim": 47}, "decoder_ffn_dim=47: differs from encoder_ffn_dim=45"),
        ("bart", {"normalize_before": True}, "normalize_before"),
        ("marian", {"static_position_embeddings": False}, "static_position_embeddings"),
    ],
)
def test_what_no_model_computes_is_refused(name: str, change: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        options(name, **change)


def test_unknown_layouts_are_told() -> None:
    with pytest.raises(ConfigError, match="model_type='opt': not read here"):
        layout_of({"model_type": "opt"})
    with pytest.raises(ConfigError, match="must be one of gpt2"):
        layout_named("opt")


ALIBI = {"_target_": "transformer_kit.nn.position.alibi.Alibi"}
SANDWICH = {"_target_": "transformer_kit.nn.residual.sandwich.SandwichNorm"}


@pytest.mark.parametrize(
    ("name", "change", "told"),
    [
        (
            "gpt2",
            {"position": ALIBI},
            r"model\.decoder\.position=Alibi: the gpt2 layout cannot hold it; there it is Learned",
        ),
        ("gpt2", {"head_dim": 5}, r"model\.decoder\.head_dim=5"),
        ("gpt2", {"pattern": [{"attention": {"window": 4}}, {}]}, r"decoder\.0\.attention\.window=4"),
        ("llama", {"pattern": [{}, {"attention": {"window": 4}}]}, r"decoder\.1\.attention\.window=4"),
        ("llama", {"position": ALIBI}, "Alibi"),
        ("llama", {"v_head_dim": 4}, r"v_head_dim=4"),
        ("mistral", {"residual": SANDWICH}, "Sandwich"),
        ("bert", {"position": ALIBI}, "Alibi"),
        ("t5", {"attention": options("t5")["attention"] | {"scale": None}}, r"attention\.scale"),
        ("t5", {"tie": "none"}, r"model\.tie=none"),
        ("bart", {"embedding": {"scale": False, "norm": False, "types": 0}}, r"embedding\.norm=False"),
        ("marian", {"norm": options("marian")["norm"] | {"eps": 0.5}}, r"norm\.eps=0\.5"),
    ],
)
def test_what_a_layout_cannot_hold_is_refused_by_name(name: str, change: dict[str, Any], told: str) -> None:
    changed = options(name) | change
    layout = LAYOUTS[name]
    extent = layout.extent(Foreign(config(name), name))
    state = unique_tensors(build_model(changed, extent.source, extent.target))
    with pytest.raises(ConfigError, match=told):
        layout.to_hf(state, changed)


def test_another_family_is_refused() -> None:
    with pytest.raises(ConfigError, match="the bert layout holds encoder_only models"):
        LAYOUTS["bert"].to_hf({}, options("gpt2"))


def test_rope_of_two_spellings() -> None:
    old = options("llama", rope_theta=500.0, rope_scaling={"type": "linear", "factor": 2.0})
    new = options("llama", rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0})
    assert old["position"] == new["position"]
    assert old["position"]["theta"] == 500.0


def test_ntk_goes_out_as_a_larger_theta() -> None:
    ntk = {
        "_target_": "transformer_kit.nn.position.rotary_scaling.NtkRotary",
        "theta": 100.0,
        "layout": "interleaved",
        "factor": 4.0,
    }
    given = options("llama") | {"position": ntk}
    state = unique_tensors(build_model(given, 53))
    written, tensors = LAYOUTS["llama"].to_hf(state, given)
    again = LAYOUTS["llama"].model_options(written, tensors.keys())
    assert again["position"]["theta"] == pytest.approx(100 * 4 ** (10 / 8))


def test_what_is_no_weight_is_named() -> None:
    """Whole numbers and values that are not finite would pass as weights and spoil every output."""
    for spoilt, word in ((torch.ones(5, 2, dtype=torch.int32), "int32"), (torch.full((5, 2), float("nan")), "finite")):
        with pytest.raises(CheckpointError, match=rf"shared .*{word}"):
            to_ours(tensors() | {"shared": spoilt}, RULES, NAMES)
