"""Norms of watched updates: right, and without effect on anything else."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from transformer_kit.batch import translation_batch
from transformer_kit.config.build import build_model
from transformer_kit.config.compose import compose
from transformer_kit.training.watch import Record, units

SMALL = ["model.d_model=12", "model.num_heads=3", "model.d_ff=20", "model.encoder.layers=2", "model.decoder.layers=1"]


def small(*more):
    torch.manual_seed(5)
    config = compose("train", ["data=demo", *SMALL, "model/residual=pre", *more])
    return build_model(config.model, 17, 17, device="cpu").train()


def batch_of(*lengths):
    rows = [torch.arange(length) % 11 + 4 for length in lengths]
    return translation_batch(rows, [row[:-1] for row in rows], range(len(rows)), pad_id=0, bos_id=2, eos_id=3)


def rms(x, valid):
    return float(x.detach()[valid].double().square().mean().sqrt())


@pytest.mark.parametrize("options", [{}, {"accumulate_tokens": 29}, {"precision": "bf16"}])
def test_nothing_else_changes(make, options):
    plain, watched = make(folder="a", steps=7, **options), make(folder="b", steps=7, watch=3, **options)
    plain.trainer.fit()
    watched.trainer.fit()
    names = ("step", "loss", "grad_norm", "samples", "lr")
    assert watched.tracker.of("train", *names) == plain.tracker.of("train", *names)
    assert all(torch.equal(a, b) for a, b in zip(plain.model.parameters(), watched.model.parameters(), strict=True))
    assert [row[0] for row in watched.tracker.of("norms", "step")] == [3, 6]
    assert plain.tracker.of("norms", "step") == []
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in watched.model.modules())


def test_the_norms_are_those_of_the_update(make):
    before = make(folder="a", steps=4, dropout=0.0, clip_norm=0.01)
    before.trainer.fit()
    setup = make(folder="b", steps=5, dropout=0.0, clip_norm=0.01, watch=5)
    setup.trainer.fit()
    (row,) = (row for row in setup.tracker.rows if row["kind"] == "norms")
    total = math.sqrt(sum(value**2 for name, value in row.items() if name.startswith("gradient/")))
    assert total == pytest.approx(setup.tracker.of("train", "grad_norm")[-1][0], rel=1e-5), "before clipping"
    old, new = dict(before.model.named_parameters()), dict(setup.model.named_parameters())
    for unit in ("embedding", "middle"):
        weights = [old[name] for name in old if name.startswith(f"{unit}.")]
        changes = [new[name] - old[name] for name in old if name.startswith(f"{unit}.")]
        size = math.sqrt(sum(float(each.detach().double().square().sum()) for each in weights))
        change = math.sqrt(sum(float(each.detach().double().square().sum()) for each in changes))
        assert row[f"weight/{unit}"] == pytest.approx(size, rel=1e-6)
        assert row[f"update/{unit}"] == pytest.approx(change / size, rel=1e-4)
    assert old["output.bias"].shape == (13,)
    assert row["weight/output"] < row["weight/embedding"], "the tied matrix counts where it comes first"


def test_units_are_layers_and_parts():
    names = [name for name, _ in units(small())]
    assert [name for name in names if "blocks" in name] == ["encoder.blocks.0", "encoder.blocks.1", "decoder.blocks.0"]
    assert {"encoder.final_norm", "decoder.final_norm", "source_embedding", "head"} <= set(names)


def test_activations_are_of_real_cells_over_the_whole_window():
    model, window = small(), [batch_of(3, 7), batch_of(5, 2, 5)]
    model.eval()  # without dropout, to compute them again
    record = Record(model)
    with record.listening():
        for batch in window:
            model(batch)
    record.before()
    found = {name: value for name, value in record.after().items() if name.startswith("activation/")}
    assert set(found) == {
        f"activation/{name}"
        for name in ("encoder.input", "encoder.blocks.0", "encoder.blocks.1", "encoder.final_norm", "decoder.input",
                     "decoder.blocks.0", "decoder.final_norm")
    }  # fmt: skip
    hidden, entered = [], []
    for batch in window:
        hidden.append(model(batch).hidden[batch.target.valid])
        entered.append(model.source_embedding(batch.source.ids)[batch.source.valid])
    assert found["activation/decoder.final_norm"] == pytest.approx(rms(torch.cat(hidden), ...), rel=1e-6)
    assert found["activation/encoder.input"] == pytest.approx(rms(torch.cat(entered), ...), rel=1e-6)


def test_a_layer_that_runs_again_is_counted_once():
    model, batch = small(), batch_of(3, 7)
    model.eval()
    once, twice = Record(model), Record(model)
    with once.listening():
        model(batch)
    with twice.listening():
        model(batch)
        block = copy.deepcopy(model.encoder.blocks[0])
        for hook in block._forward_hooks.values():  # as activation checkpointing does, behind the stack's back
            hook(block, (), (torch.full((2, 8, 12), 1e6), {}))
    assert once.after() == twice.after()


def test_frozen_parts_have_weights_and_no_gradient():
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 7))
    model[0].requires_grad_(False)
    record = Record(model)
    with record.listening():
        model(torch.ones(2, 3)).sum().backward()
    record.before()
    names = {name for name in record.after() if not name.startswith("activation/")}
    assert names == {"weight/0", "weight/1", "gradient/1", "update/1"}
