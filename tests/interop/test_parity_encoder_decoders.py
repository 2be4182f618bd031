"""T5, BART and Marian against `transformers`: logits, gradients, round trips, mutations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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

IN_SINGLE = 2e-5  # the oracle's norms are float32 whatever the model is


def untie(model: Any) -> None:
    """A projection of its own, as published T5 v1.1 models have it; new ones of the oracle are always tied."""
    model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.lm_head.weight))


@torch.no_grad()
def exact_waves(model: Any) -> None:
    """The fixed position tables of Marian, not rounded to float32."""
    for stack in (model.model.encoder, model.model.decoder):
        table = stack.embed_positions.weight
        rows, dim = table.shape
        column = torch.arange(dim, dtype=torch.float64)
        turns = torch.arange(rows, dtype=torch.float64)[:, None] / 10000 ** (2 * (column // 2) / dim)
        table.copy_(torch.cat((turns[:, 0::2].sin(), turns[:, 1::2].cos()), 1))


def t5(**options: Any) -> Any:
    return transformers.T5Config(
        relative_attention_num_buckets=8, relative_attention_max_distance=7, decoder_start_token_id=0, **options
    )


def bart(**options: Any) -> Any:
    return transformers.BartConfig(max_position_embeddings=17, **options)


def marian(**options: Any) -> Any:
    return transformers.MarianConfig(
        max_position_embeddings=17, eos_token_id=0, scale_embedding=True, activation_function="swish", **options
    )


def sizes(heads: int, inner: int, encoder: int, decoder: int) -> dict[str, int]:
    return {
        "encoder_attention_heads": heads,
        "decoder_attention_heads": heads,
        "encoder_ffn_dim": inner,
        "decoder_ffn_dim": inner,
        "encoder_layers": encoder,
        "decoder_layers": decoder,
    }


RELATIVE = {"position.max_distance": 20, "feedforward.activation": "silu", "attention.scale": 0.5}
FIXED = {"position.layout": "interleaved", "embedding.scale": False, "feedforward.activation": "gelu"}

CASES = [
    Case(
        "t5-33",
        "T5ForConditionalGeneration",
        lambda: t5(vocab_size=53, d_model=33, d_kv=7, d_ff=51, num_layers=2, num_decoder_layers=3, num_heads=5),
        {**RELATIVE, "head.scale": False},
        exact=IN_SINGLE,
        positions=False,
    ),
    Case(
        "t5-21",
        "T5ForConditionalGeneration",
        lambda: t5(vocab_size=101, d_model=21, d_kv=9, d_ff=39, num_layers=3, num_heads=3, layer_norm_epsilon=0.1),
        {**RELATIVE, "norm.eps": 0.2},
        exact=IN_SINGLE,
        positions=False,
    ),
    Case(
        "t5-v1.1-33",
        "T5ForConditionalGeneration",
        lambda: t5(
            vocab_size=61,
            d_model=33,
            d_kv=5,
            d_ff=47,
            num_layers=2,
            num_heads=7,
            feed_forward_proj="gated-gelu",
            tie_word_embeddings=False,
        ),
        {**RELATIVE, "head.scale": True},
        exact=IN_SINGLE,
        positions=False,
        prepare=untie,
    ),
    Case(
        "t5-v1.1-27",
        "T5ForConditionalGeneration",
        lambda: t5(
            vocab_size=73,
            d_model=27,
            d_kv=11,
            d_ff=35,
            num_layers=1,
            num_decoder_layers=3,
            num_heads=3,
            feed_forward_proj="gated-gelu",
            tie_word_embeddings=False,
        ),
        RELATIVE,
        exact=IN_SINGLE,
        positions=False,
        prepare=untie,
    ),
    Case(
        "bart-21",
        "BartForConditionalGeneration",
        lambda: bart(vocab_size=53, d_model=21, **sizes(3, 45, 2, 3)),
        {"feedforward.activation": "relu", "embedding.scale": True},
        left=False,
        positions=False,
    ),
    Case(
        "bart-65",
        "BartForConditionalGeneration",
        lambda: bart(vocab_size=101, d_model=65, scale_embedding=True, **sizes(5, 77, 3, 1)),
        {"norm.eps": 0.1, "attention.scale": 0.5},
        left=False,
        positions=False,
    ),
    Case(
        "marian-21",
        "MarianMTModel",
        lambda: marian(vocab_size=53, pad_token_id=52, decoder_start_token_id=52, d_model=21, **sizes(3, 45, 2, 3)),
        FIXED,
        left=False,
        positions=False,
        prepare=exact_waves,
    ),
    Case(
        "marian-66-two-vocabularies",
        "MarianMTModel",
        lambda: marian(
            vocab_size=61,
            decoder_vocab_size=73,
            share_encoder_decoder_embeddings=False,
            pad_token_id=60,
            decoder_start_token_id=60,
            d_model=66,
            **sizes(11, 35, 3, 1),
        ),
        FIXED,
        left=False,
        positions=False,
        prepare=exact_waves,
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
