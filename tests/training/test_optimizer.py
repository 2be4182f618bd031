"""Optimizers against their papers' algorithms in float64, and what they save."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from optimizer_toys import CONF, gradient, shipped, small, train
from torch import nn

from transformer_kit.errors import CheckpointError
from transformer_kit.training.groups import members
from transformer_kit.training.optimizer import build_optimizer, load_optimizer_state, optimizer_state, set_lr
from transformer_kit.training.options import OPTIMIZERS

ADAM = shipped("adam")
ADAMW = shipped("adamw", betas=[0.8, 0.95], weight_decay=0.3)
ALL = [ADAM, ADAMW, shipped("adafactor", weight_decay=0.3), shipped("muon", layer_decay=0.7)]


def model_of(*sizes):
    torch.manual_seed(1)
    return nn.Sequential(*(nn.Linear(a, b) for a, b in itertools.pairwise(sizes))).double()


def test_every_optimizer_ships():
    assert sorted(entry.name for entry in CONF.joinpath("optimizer").iterdir()) == sorted(
        f"{n}.yaml" for n in OPTIMIZERS
    )
    for name in OPTIMIZERS:
        assert shipped(name).name == name
        assert shipped(name).problems() == []


@pytest.mark.parametrize("options", [ADAM, ADAMW], ids=lambda o: o.name)
def test_equals_the_papers_algorithm(options):
    model = model_of(3, 5, 7)
    expected = [parameter.detach().clone() for parameter in model.parameters()]
    train(model, build_optimizer(options, model), 4)
    (b1, b2), eps = options.betas, options.eps
    for index, value in enumerate(expected):
        decay = options.weight_decay if value.dim() >= 2 else 0.0
        m = v = torch.zeros_like(value)
        for step in range(1, 5):
            draw = torch.Generator().manual_seed(100 * step + index)
            g = torch.randn(value.shape, generator=draw, dtype=torch.float64)
            m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
            value -= 0.1 / step * decay * value
            value -= 0.1 / step * (m / (1 - b1**step)) / ((v / (1 - b2**step)).sqrt() + eps)
    assert all(torch.allclose(a, b, rtol=1e-10) for a, b in zip(model.parameters(), expected, strict=True))


def test_frozen_parameters_stay():
    model = model_of(3, 5)
    model[0].bias.requires_grad_(False)
    optimizer = build_optimizer(ADAMW, model)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.3]
    before = model[0].bias.clone()
    train(model, optimizer, 2)
    assert torch.equal(model[0].bias, before)


@pytest.mark.parametrize("options", ALL, ids=lambda o: o.name)
def test_saved_and_loaded_goes_on_to_the_bit(options, tmp_path):
    whole, parts = small("encoder_decoder"), small("encoder_decoder")
    train(whole, build_optimizer(options, whole), 6)
    first = build_optimizer(options, parts)
    train(parts, first, 2)
    torch.save(optimizer_state(first, parts), tmp_path / "state")
    second = build_optimizer(options, parts)
    load_optimizer_state(second, parts, torch.load(tmp_path / "state", weights_only=True), "state")
    train(parts, second, 4, first=3)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), parts.parameters(), strict=True))


def test_another_optimizer_takes_each_parameters_own_moments():
    """AdamW orders its groups differently; names, not places, say what belongs to what."""
    model = model_of(3, 5, 7)
    adam = build_optimizer(ADAM, model)
    train(model, adam, 3)
    saved = copy.deepcopy(optimizer_state(adam, model))
    adamw = build_optimizer(ADAMW, model)
    load_optimizer_state(adamw, model, saved, "state")
    for name, parameter in model.named_parameters():
        assert torch.equal(adamw.state[parameter]["exp_avg"], saved[name]["exp_avg"])
    assert adamw.param_groups[0]["betas"] == (0.8, 0.95), "options are the new ones"
    train(model, adamw, 1, first=4)


@pytest.mark.parametrize(
    ("before", "after"), list(itertools.product(ALL, ALL)), ids=lambda o: o.name if hasattr(o, "name") else None
)
def test_any_optimizer_goes_on_from_the_state_of_any_other(before, after, caplog):
    model = small("encoder_decoder")
    first = build_optimizer(before, model)
    train(model, first, 2)
    saved = copy.deepcopy(optimizer_state(first, model))
    second = build_optimizer(after, model)
    load_optimizer_state(second, model, saved, "run/trainer.pt")
    parameters = dict(model.named_parameters())
    kept = {name for name in saved if parameters[name] in second.state}
    adams, muons = {"adam", "adamw"}, {name for name, values in saved.items() if "momentum_buffer" in values}
    if before.name == after.name or {before.name, after.name} <= adams:
        assert kept == saved.keys()
    elif {before.name, after.name} & adams and "muon" in (before.name, after.name):
        others = {member.name for member in members(model) if member.role != "matrix"}
        assert kept == others, "which muon leaves to adamw"
        assert before.name != "muon" or kept == saved.keys() - muons
    else:
        assert not kept
    anew = len(saved) - len(kept)
    said = f"run/trainer.pt is of another optimizer: the moments of {anew} of {len(saved)} parameters begin anew"
    assert [record.message for record in caplog.records] == ([said] if anew else [])
    train(model, second, 1, first=3)
    assert all(parameter.isfinite().all() for parameter in parameters.values())
    assert optimizer_state(second, model).keys() == saved.keys()


@pytest.mark.parametrize("scaled", [False, True], ids=["fixed lr", "lr/step"])
def test_adafactor_equals_the_published_code(scaled):
    """The reference is that of transformers, with the rates of each step given to it."""
    reference = pytest.importorskip("transformers.optimization").Adafactor
    model, other = model_of(3, 5, 7).float(), model_of(3, 5, 7).float()
    optimizer = build_optimizer(shipped("adafactor"), model)
    oracle = reference(other.parameters(), lr=0.0, scale_parameter=True, relative_step=False, warmup_init=False)
    for step in range(1, 6):
        rate = 0.1 / step if scaled else 0.1
        set_lr(optimizer, rate)
        oracle.param_groups[0]["lr"] = rate
        for index, (a, b) in enumerate(zip(model.parameters(), other.parameters(), strict=True)):
            a.grad = gradient(a, step, index)
            b.grad = a.grad.clone()
        optimizer.step()
        oracle.step()
    assert all(
        torch.allclose(a, b, rtol=1e-5, atol=1e-7) for a, b in zip(model.parameters(), other.parameters(), strict=True)
    )


def test_adafactor_keeps_rows_that_were_never_seen():
    table = nn.Embedding(5, 3)
    optimizer = build_optimizer(shipped("adafactor"), table)
    before = table.weight.detach().clone()
    set_lr(optimizer, 0.01)
    table(torch.tensor([1, 3])).sum().backward()
    optimizer.step()
    assert table.weight.isfinite().all()
    assert torch.equal(table.weight[[0, 2, 4]], before[[0, 2, 4]])
    assert optimizer.state[table.weight]["row_var"].shape == (5, 1)


@pytest.mark.parametrize(
    ("saved", "says"),
    [
        ([], "another model"),
        ({"9.weight": {}}, "another model"),
        ({"0.bias": {"exp_avg": torch.zeros(7)}}, r"0\.bias has another shape"),
    ],
)
def test_a_state_that_does_not_fit(saved, says):
    model = model_of(3, 5)
    with pytest.raises(CheckpointError, match=says):
        load_optimizer_state(build_optimizer(ADAM, model), model, saved, "trainer.pt")
