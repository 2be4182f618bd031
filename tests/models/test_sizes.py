"""Parameter counts of the named models with the vocabularies of the originals, to the unit, built without memory."""

from __future__ import annotations

from importlib.resources import files

import pytest

from transformer_kit.config.build import build_model, count_parameters
from transformer_kit.config.compose import compose
from transformer_kit.config.schema import ModelOptions

CONF = files("transformer_kit.conf").joinpath("model")

SIZES = {
    "gpt2": (50257, 124_439_808),
    "gpt2_medium": (50257, 354_823_168),
    "gpt2_large": (50257, 774_030_080),
    "gpt2_xl": (50257, 1_557_611_200),
    "bert_base": (30522, 109_482_240),
    "bert_large": (30522, 335_141_888),
    "roberta_base": (50265, 124_697_433),
    "t5_small": (32128, 60_506_624),
    "t5_base": (32128, 222_903_552),
    "t5_v1_1_small": (32128, 76_961_152),
    "bart_base": (50265, 139_420_416),
    "bart_large": (50265, 406_291_456),
    "marian_base": (58101, 73_944_309),
    "llama2_7b": (32000, 6_738_415_616),
    "llama3_8b": (128256, 8_030_261_248),
    "tinyllama": (32000, 1_100_048_384),
    "mistral_7b": (32000, 7_241_732_096),
}
"""Vocabulary and parameters; tied where the original ties, and each shared matrix counted once."""


def options(*overrides: str) -> ModelOptions:
    return compose("train", ["data=demo", *overrides], check=False).model


@pytest.mark.parametrize("name", SIZES)
def test_parameters_of_named_models(name: str) -> None:
    vocabulary, parameters = SIZES[name]
    assert count_parameters(build_model(options(f"model={name}"), vocabulary, device="meta")) == parameters


def test_every_named_model_is_counted() -> None:
    """All files of `conf/model` but the three families."""
    named = {entry.name.removesuffix(".yaml") for entry in CONF.iterdir() if entry.name.endswith(".yaml")}
    assert named == {*SIZES, "decoder_only", "encoder_only", "encoder_decoder"}


@pytest.mark.parametrize("name", ["gpt2", "bert_base", "t5_v1_1_small", "bart_base", "marian_base", "mistral_7b"])
def test_slots_of_named_models_can_be_exchanged(name: str) -> None:
    """What a named model says of a slot does not leak into another choice for it."""
    chosen = ["size=tiny", "position=alibi", "norm=rmsnorm", "residual=sandwich", "attention=mqa", "feedforward=swiglu"]
    got = options(f"model={name}", *(f"model/{choice}" for choice in chosen))
    assert (got.d_model, got.d_ff, got.num_heads) == (128, 256, 4)
    assert got.attention["num_kv_heads"] == 1
    assert got.feedforward["activation"] == "silu"
    build_model(got, 97, device="meta")


def test_llama3_1_is_llama3_with_scaled_rotations() -> None:
    got = options("model=llama3_8b", "model/position=rope_llama3").position
    assert (got["theta"], got["factor"], got["original_max_length"]) == (5e5, 8.0, 8192)
