"""Published configurations lead to the named models of `conf/model`, option by option."""

from __future__ import annotations

from typing import Any

import pytest

from transformer_kit.config.build import build_model, count_parameters
from transformer_kit.config.compose import compose
from transformer_kit.interop.foreign import Foreign
from transformer_kit.interop.holds import check_holds
from transformer_kit.interop.layouts import layout_of

BERT = {
    "model_type": "bert",
    "architectures": ["BertModel"],
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
}
T5: dict[str, Any] = {
    "model_type": "t5",
    "architectures": ["T5ForConditionalGeneration"],
    "vocab_size": 32128,
    "d_model": 512,
    "d_kv": 64,
    "d_ff": 2048,
    "num_layers": 6,
    "num_heads": 8,
    "relative_attention_num_buckets": 32,
    "layer_norm_epsilon": 1e-6,
    "n_positions": 512,
}
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_scaling": None,
    "tie_word_embeddings": False,
}
LLAMA3 = {
    "vocab_size": 128256,
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "rope_theta": 500000.0,
}
MISTRAL = {
    "model_type": "mistral",
    "architectures": ["MistralForCausalLM"],
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "max_position_embeddings": 32768,
    "sliding_window": 4096,
}
BART = {
    "model_type": "bart",
    "vocab_size": 50265,
    "d_model": 768,
    "encoder_layers": 6,
    "decoder_layers": 6,
    "encoder_ffn_dim": 3072,
    "decoder_ffn_dim": 3072,
    "encoder_attention_heads": 12,
    "decoder_attention_heads": 12,
    "max_position_embeddings": 1024,
    "activation_function": "gelu",
    "scale_embedding": False,
}
PUBLISHED: dict[str, tuple[dict[str, Any], int]] = {
    "gpt2": ({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_ctx": 1024}, 124_439_808),
    "bert_base": (BERT, 109_482_240),
    "t5_small": (T5, 60_506_624),
    "t5_v1_1_small": (
        T5
        | {"d_ff": 1024, "num_heads": 6, "num_layers": 8, "feed_forward_proj": "gated-gelu"}
        | {"tie_word_embeddings": False},
        76_961_152,
    ),
    "llama2_7b": (LLAMA, 6_738_415_616),
    "llama3_8b": (LLAMA | LLAMA3, 8_030_261_248),
    "mistral_7b": (LLAMA | MISTRAL, 7_241_732_096),
    # Two rows of each position table are never read, and left out; the bias of the logits is not counted there.
    "bart_base": (BART, 139_420_416 - 2 * 2 * 768 + 50_265),
}


QUICK = ("t5_v1_1_small", "mistral_7b")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in PUBLISHED]
)
def test_published_configuration(name: str) -> None:
    config, parameters = PUBLISHED[name]
    layout = layout_of(config)
    options = layout.model_options(config)
    extent = layout.extent(Foreign(config, name))
    model = build_model(options, extent.source, extent.target, device="meta")
    assert count_parameters(model) == parameters
    named = compose("train", [f"model={name}"], check=False).plain()["model"]
    if name == "bart_base":
        named["max_length"] -= 2
        named["head"]["bias"] = True
    if name == "mistral_7b":
        named["max_length"] = 32768
    if "layout" in named["position"]:
        named["position"]["layout"] = (
            "half"  # the named models have their pairs adjoin, which is the same but for order
        )
    check_holds(name, named, options)
