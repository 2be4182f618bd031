"""BERT and RoBERTa against `transformers`: logits, gradients, round trips, mutations, pooler, segments, classifiers."""

from __future__ import annotations

from dataclasses import replace
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
from hf_oracle import Case, config_of, difference, inputs, oracle, ours, scatter, transformers

from transformer_kit.batch import Tokens
from transformer_kit.config.build import build_model
from transformer_kit.interop.files import write_folder
from transformer_kit.interop.layouts import layout_of
from transformer_kit.models.classifier import Classifier
from transformer_kit.models.encoder_only import EncoderOnly
from transformer_kit.training.weights import fill

pytestmark = pytest.mark.slow

SMALL = {
    "vocab_size": 53,
    "hidden_size": 21,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 45,
    "max_position_embeddings": 17,
}
LARGER = {
    "vocab_size": 101,
    "hidden_size": 65,
    "num_hidden_layers": 3,
    "num_attention_heads": 5,
    "intermediate_size": 77,
    "max_position_embeddings": 19,
    "hidden_act": "relu",
    "layer_norm_eps": 0.1,
}
MUTATIONS = {"feedforward.activation": "silu", "attention.scale": 0.6}

CASES = [
    Case("bert-21", "BertForMaskedLM", lambda: transformers.BertConfig(**SMALL), MUTATIONS),
    Case(
        "bert-65",
        "BertForMaskedLM",
        lambda: transformers.BertConfig(**LARGER, type_vocab_size=3, tie_word_embeddings=False),
        {**MUTATIONS, "norm.eps": 0.2, "head.activation": "gelu"},
    ),
    Case(
        "roberta-21",
        "RobertaForMaskedLM",
        lambda: transformers.RobertaConfig(**SMALL, type_vocab_size=1),
        MUTATIONS,
        positions=False,
    ),
    Case(
        "roberta-65",
        "RobertaForMaskedLM",
        lambda: transformers.RobertaConfig(**LARGER),
        {**MUTATIONS, "norm.eps": 0.2, "head.activation": "relu"},
        positions=False,
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


def bare(case: Case) -> Any:
    torch.manual_seed(0)
    config = case.config()
    config._attn_implementation = "eager"
    name = case.model.replace("ForMaskedLM", "Model")
    model = getattr(transformers, name)(config).eval()
    scatter(model)
    return model


def load(auto: Any, folder: Path) -> Any:
    """The oracle's model of a folder, in which every tensor had its place."""
    model, info = auto.from_pretrained(folder, attn_implementation="eager", output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    return model.eval()


@parametrize([CASES[0], CASES[3]])
@torch.no_grad()
def test_states_pooler_and_segments(case: Case, tmp_path: Path) -> None:
    model = bare(case)
    _, own = ours(model)
    assert isinstance(own, EncoderOnly)
    tokens: Tokens = inputs(model).batch("right").target
    types = (torch.arange(tokens.shape[1]) % model.config.type_vocab_size).expand(tokens.shape)
    found = model(tokens.ids, attention_mask=tokens.valid.long(), token_type_ids=types)
    hidden = own.read(replace(tokens, types=types)).hidden
    assert difference(hidden[tokens.valid], found.last_hidden_state[tokens.valid]) <= SINGLE
    assert difference(own.pool(hidden), found.pooler_output) <= SINGLE
    without = own.read(tokens).hidden
    assert (difference(without[tokens.valid], hidden[tokens.valid]) > SINGLE) == (model.config.type_vocab_size > 1)
    config, tensors = config_of(model), dict(model.state_dict())
    layout = layout_of(config)
    write_folder(tmp_path, *layout.to_hf(layout.from_hf(tensors, config), layout.model_options(config, tensors.keys())))
    again = load(transformers.AutoModel, tmp_path)(tokens.ids, attention_mask=tokens.valid.long(), token_type_ids=types)
    assert difference(again.pooler_output, found.pooler_output) <= 1e-6


@parametrize([CASES[0], CASES[2]])
@torch.no_grad()
def test_classifier(case: Case, tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = case.config()
    config._attn_implementation, config.num_labels = "eager", 5
    model = getattr(transformers, case.model.replace("ForMaskedLM", "ForSequenceClassification"))(config).eval()
    scatter(model)
    data, tensors = config_of(model), dict(model.state_dict())
    layout = layout_of(data)
    options, state = layout.model_options(data, tensors.keys()), layout.from_hf(tensors, data)
    body = build_model(options, config.vocab_size)
    own = Classifier(body, 5, "first", True, 0.0).eval()
    fill(own, state, "the oracle")
    batch = inputs(model).batch("right")
    expected = model(batch.target.ids, attention_mask=batch.target.valid.long()).logits
    assert difference(own(batch).hidden[:, 0], expected) <= SINGLE
    written, tensors = layout.to_hf(state, options)
    assert written["architectures"] == [type(model).__name__]
    again = layout.from_hf(tensors, written)
    assert all(torch.equal(again[name], state[name]) for name in state)
    write_folder(tmp_path, written, tensors)
    loaded = load(transformers.AutoModelForSequenceClassification, tmp_path)
    assert difference(loaded(batch.target.ids, attention_mask=batch.target.valid.long()).logits, expected) <= 1e-6


@torch.no_grad()
def test_names_of_old_files() -> None:
    model = oracle(CASES[0])
    config = config_of(model)
    layout = layout_of(config)
    tensors = dict(model.state_dict())
    old = {name.replace("LayerNorm.weight", "LayerNorm.gamma"): tensor for name, tensor in tensors.items()}
    old |= {"cls.seq_relationship.weight": torch.zeros(2, 21), "bert.embeddings.position_ids": torch.arange(17)[None]}
    state, again = layout.from_hf(tensors, config), layout.from_hf(old, config)
    assert all(torch.equal(again[name], state[name]) for name in state)
