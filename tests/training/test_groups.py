"""Every parameter of every family has one role, one depth and one place in each optimizer."""

from __future__ import annotations

import pytest
from optimizer_toys import shipped, small
from torch import nn

from transformer_kit.config.schema import FAMILIES
from transformer_kit.models.classifier import Classifier
from transformer_kit.training.groups import members
from transformer_kit.training.optimizer import build_optimizer
from transformer_kit.training.options import OPTIMIZERS


@pytest.mark.parametrize("tie", ["none", "output"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_groups_are_complete_and_disjoint(name, family, tie):
    model = small(family, tie=tie)
    held = [p for group in build_optimizer(shipped(name), model).param_groups for p in group["params"]]
    assert len(held) == len(set(held))
    assert set(held) == set(model.parameters())


def test_roles_by_name():
    model = small("encoder_decoder")
    found = {member.name: member for member in members(model)}
    assert list(found) == [name for name, _ in model.named_parameters()]
    roles = {
        "encoder.position.table": "table",
        "encoder.input_norm.weight": "norm",
        "encoder.blocks.0.self_attention.qkv_weight": "matrix",
        "encoder.blocks.0.self_attention.qkv_bias": "bias",
        "encoder.blocks.0.self_attention.out.weight": "matrix",
        "encoder.blocks.1.self_residual.norm.weight": "norm",
        "decoder.blocks.2.cross_attention.qkv_weight": "matrix",
        "decoder.blocks.2.feedforward.up_weight": "matrix",
        "decoder.blocks.2.feedforward.down.weight": "matrix",
        "source_embedding.weight": "table",
        "head.weight": "projection",
    }
    assert {name: found[name].role for name in roles} == roles
    assert found["encoder.blocks.0.self_attention.qkv_weight"].parts == (20, 10, 6)
    assert found["decoder.blocks.2.feedforward.up_weight"].parts == (7, 7)
    assert found["decoder.blocks.2.feedforward.down.weight"].parts == (12,)
    assert {m.role for m in found.values() if m.parameter.dim() < 2} == {"norm", "bias"}


def test_roles_elsewhere():
    found = {
        member.name: member.role
        for member in members(Classifier(small("encoder_only", tie="output"), 3, "first", True, 0.0))
    }
    assert found["body.embedding.weight"] == "table"
    assert found["classifier.weight"] == found["body.pooler.weight"] == "projection"


def test_a_shared_table_is_one_whichever_module_comes_first():
    head, table = nn.Linear(3, 5, bias=False), nn.Embedding(5, 3)
    head.weight = table.weight
    assert [m.role for m in members(nn.Sequential(head, table))] == ["table"]
    assert [m.role for m in members(nn.Sequential(table, head))] == ["table"]


def test_depths():
    found = {member.name: member.depth for member in members(small("encoder_decoder"))}
    expected = {
        "head.weight": 0,
        "decoder.final_norm.weight": 0,
        "decoder.blocks.2.feedforward.down.weight": 1,
        "decoder.blocks.0.cross_attention.qkv_weight": 3,
        "encoder.blocks.1.self_attention.qkv_bias": 1,
        "encoder.blocks.0.self_residual.norm.bias": 2,
        "encoder.position.table": 3,
        "encoder.input_norm.weight": 3,
        "source_embedding.weight": 4,
        "target_embedding.weight": 4,
    }
    assert {name: found[name] for name in expected} == expected


def test_a_learning_rate_for_each_depth():
    model = small("encoder_only")
    optimizer = build_optimizer(shipped("muon", layer_decay=0.5, matrix_lr=3.0), model)
    names = {parameter: name for name, parameter in model.named_parameters()}
    factors = {names[p]: group["factor"] for group in optimizer.param_groups for p in group["params"]}
    assert factors["encoder.blocks.1.feedforward.up_weight"] == 3.0 * 0.5
    assert factors["encoder.blocks.0.feedforward.up_weight"] == 3.0 * 0.25
    assert factors["encoder.blocks.0.self_residual.norm.weight"] == 0.25
    assert factors["embedding.weight"] == 0.125
    assert factors["head.transform.weight"] == factors["encoder.final_norm.weight"] == 1.0


@pytest.mark.parametrize("tables", [False, True])
@pytest.mark.parametrize("name", ["adamw", "adafactor", "muon"])
def test_what_decays(name, tables):
    model = small("encoder_decoder")
    optimizer = build_optimizer(shipped(name, weight_decay=0.3, decay_tables=tables), model)
    decays = {p: group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    for member in members(model):
        decaying = member.role in ("matrix", "projection") or (tables and member.role == "table")
        assert decays[member.parameter] == (0.3 if decaying else 0.0), member.name
