"""GPT-2, LLaMA and Mistral against `transformers`: logits, gradients, round trips, mutations."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers", reason="the oracle, transformers, is not installed (extra: dev)")

from hf_checks import (
    SINGLE,
    check_gradients,
    check_logits,
    check_mutations,
    check_round_trip,
    parametrize,
)
from hf_oracle import Case, transformers

pytestmark = pytest.mark.slow

IN_SINGLE = 2e-5  # the oracle's norms and turns are float32 whatever the model is

YARN = {
    "rope_type": "yarn",
    "rope_theta": 500.0,
    "factor": 4.0,
    "original_max_position_embeddings": 8,
    "beta_fast": 2.0,
    "beta_slow": 0.25,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 100.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}

CASES = [
    Case(
        "gpt2-21",
        "GPT2LMHeadModel",
        lambda: transformers.GPT2Config(vocab_size=53, n_positions=19, n_embd=21, n_layer=2, n_head=3, n_inner=45),
        {"attention.scale": 0.5, "feedforward.activation": "relu"},
    ),
    Case(
        "gpt2-65",
        "GPT2LMHeadModel",
        lambda: transformers.GPT2Config(
            vocab_size=101,
            n_positions=13,
            n_embd=65,
            n_layer=3,
            n_head=5,
            layer_norm_epsilon=0.1,
            activation_function="relu",
            tie_word_embeddings=False,
        ),
        {"norm.eps": 0.2, "feedforward.activation": "gelu"},
    ),
    Case(
        "llama-42-yarn",
        "LlamaForCausalLM",
        lambda: transformers.LlamaConfig(
            vocab_size=53,
            hidden_size=42,
            intermediate_size=59,
            num_hidden_layers=2,
            num_attention_heads=6,
            num_key_value_heads=3,
            head_dim=10,
            max_position_embeddings=32,
            rope_parameters=dict(YARN),
        ),
        {"position.attention_factor": 1.0, "position.layout": "interleaved", "position.theta": 600.0},
        exact=IN_SINGLE,
    ),
    Case(
        "llama-35-llama3",
        "LlamaForCausalLM",
        lambda: transformers.LlamaConfig(
            vocab_size=67,
            hidden_size=35,
            intermediate_size=47,
            num_hidden_layers=3,
            num_attention_heads=5,
            num_key_value_heads=1,
            head_dim=14,
            max_position_embeddings=64,
            rope_parameters=dict(LLAMA3),
            attention_bias=True,
            mlp_bias=True,
            tie_word_embeddings=True,
            rms_norm_eps=0.1,
        ),
        {"position.factor": 8.0, "norm.eps": 0.2, "feedforward.activation": "gelu"},
        exact=IN_SINGLE,
    ),
    Case(
        "llama-33-linear",
        "LlamaForCausalLM",
        lambda: transformers.LlamaConfig(
            vocab_size=61,
            hidden_size=33,
            intermediate_size=49,
            num_hidden_layers=1,
            num_attention_heads=3,
            head_dim=12,
            max_position_embeddings=64,
            rope_parameters={"rope_type": "linear", "factor": 3.0, "rope_theta": 10000.0},
        ),
        {"position.factor": 2.0},
        exact=IN_SINGLE,
    ),
    Case(
        "mistral-42-window-5",
        "MistralForCausalLM",
        lambda: transformers.MistralConfig(
            vocab_size=59,
            hidden_size=42,
            intermediate_size=55,
            num_hidden_layers=2,
            num_attention_heads=6,
            num_key_value_heads=2,
            head_dim=14,
            sliding_window=5,
        ),
        {"attention.window": 6, "position.theta": 100.0},
        exact=IN_SINGLE,
        alone=True,
    ),
    Case(
        "mistral-35-window-3",
        "MistralForCausalLM",
        lambda: transformers.MistralConfig(
            vocab_size=71,
            hidden_size=35,
            intermediate_size=67,
            num_hidden_layers=3,
            num_attention_heads=7,
            num_key_value_heads=7,
            head_dim=6,
            sliding_window=3,
            tie_word_embeddings=True,
        ),
        {"attention.window": None, "position.layout": "interleaved"},
        exact=IN_SINGLE,
        alone=True,
    ),
]


@parametrize(CASES)
def test_logits_in_float32(case: Case) -> None:
    check_logits(case, torch.float32, SINGLE)


@parametrize(CASES)
def test_logits_in_float64(case: Case) -> None:
    check_logits(case, torch.float64, case.exact)


@parametrize(CASES)
def test_gradients(case: Case) -> None:
    check_gradients(case)


@parametrize(CASES)
def test_round_trip(case: Case, tmp_path: Path) -> None:
    check_round_trip(case, tmp_path)


@parametrize(CASES)
def test_mutations_show(case: Case) -> None:
    check_mutations(case)
