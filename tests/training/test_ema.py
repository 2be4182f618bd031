"""The moving average of the weights: its formula, what it leaves alone, where it is saved and used."""

from __future__ import annotations

import pytest
import torch
from optimizer_toys import shipped
from torch import nn

from transformer_kit.errors import CheckpointError
from transformer_kit.training.average import final_weights
from transformer_kit.training.checkpoint import EMA, MODEL
from transformer_kit.training.ema import Ema
from transformer_kit.training.options import OPTIMIZERS, AverageOptions
from transformer_kit.training.weights import load_tensors


def test_equals_the_formula():
    model = nn.Linear(3, 5).double()
    expected = model.weight.detach().clone()
    ema = Ema(model, 0.4)
    for step in range(1, 8):
        with torch.no_grad():
            model.weight.add_(step)
        ema.update(step)
        decay = min(0.4, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * model.weight.detach()
    assert torch.allclose(ema.tensors()["weight"], expected, rtol=1e-12)
    assert (1 + 7) / (10 + 7) > 0.4 > (1 + 4) / (10 + 4), "both sides of the minimum are seen"


def test_kept_in_fp32_of_what_is_trained():
    model = nn.Linear(3, 5).bfloat16()
    model.bias.requires_grad_(False)
    ema = Ema(model, 0.9999)
    first = model.weight.detach().float()
    with torch.no_grad():
        model.weight.add_(1.0)
        model.bias.add_(1.0)
    ema.update(10**6)
    found = ema.tensors()
    assert torch.allclose(found["weight"], first + 1e-4 * (model.weight.float() - first), rtol=1e-7, atol=0)
    assert found["weight"].dtype == torch.float32
    assert torch.equal(found["bias"], model.bias)


def test_applied_and_taken_back_to_the_bit():
    model = nn.Linear(3, 5)
    before = model.weight.detach().clone()
    ema = Ema(model, 0.5)
    with torch.no_grad():
        model.weight.mul_(3.0)
    own = model.weight.detach().clone()
    with ema.applied():
        assert torch.equal(model.weight, before)
    assert torch.equal(model.weight, own)
    with pytest.raises(RuntimeError), ema.applied():
        torch.zeros(2) @ model.weight
    assert torch.equal(model.weight, own)


def test_another_models_average():
    with pytest.raises(CheckpointError, match=r"x: holds no average of weight in the shape \(5, 3\)"):
        Ema(nn.Linear(3, 5), 0.5).load({"weight": torch.zeros(3, 5)}, "x")


def session(make, folder, steps, **options):
    setup = make(folder=folder, steps=steps, **options)
    setup.trainer.fit()
    return setup


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_resumed_equals_unbroken(make, name):
    """Weights, average, and moments, with each optimizer."""
    options = {"ema": 0.9, "optimizer": shipped(name), "final": "ema"}
    session(make, "whole", 23, **options)
    for stop in (7, 16, 23):
        last = session(make, "parts", stop, **options)
    whole, parts = (make(folder=folder, steps=23, **options).store.latest_good() for folder in ("whole", "parts"))
    for file in (EMA, MODEL):
        ours, theirs = load_tensors(whole.path / file), load_tensors(parts.path / file)
        assert all(torch.equal(ours[each], theirs[each]) for each in ours)
    ours, theirs = whole.trainer_state(), parts.trainer_state()
    assert ours.keys() == theirs.keys()
    for each, values in ours.items():
        assert all(torch.equal(values[key], theirs[each][key]) for key in values)
    tensors, kind, steps = final_weights(last.store, last.options)
    assert (kind, steps) == ("ema", [23])
    assert all(torch.equal(tensors[each], value) for each, value in load_tensors(whole.path / EMA).items())


def test_the_average_is_validated_and_the_best_of_it_offered(make):
    seen = []

    def validate(model):
        seen.append(model.embedding.weight.detach().clone())
        return {"loss": float(len(seen))}  # the first is the best

    setup = session(make, "c", 12, ema=0.9, validate=validate, validate_every=4, save_every=4, final="best")
    first = setup.store.best(1)[0]
    assert first.step == 4
    assert torch.equal(load_tensors(first.path / EMA)["embedding.weight"], seen[0])
    assert not torch.equal(load_tensors(first.path / MODEL)["embedding.weight"], seen[0])
    assert first.weights == first.path / EMA
    tensors, kind, steps = final_weights(setup.store, setup.options)
    assert (kind, steps) == ("best", [4])
    assert torch.equal(tensors["embedding.weight"], seen[0])


@pytest.mark.parametrize("final", ["last", "average"])
def test_the_weights_themselves_are_offered_where_asked_for(make, final):
    average = AverageOptions(kind="last", count=1)
    setup = session(make, "c", 5, ema=0.9, final=final, average=average)
    tensors, kind, _ = final_weights(setup.store, setup.options)
    assert kind == final
    assert all(torch.equal(tensors[name], value) for name, value in setup.model.state_dict().items() if name in tensors)


def test_a_skipped_update_leaves_it(make, monkeypatch):
    steps = []
    monkeypatch.setattr(Ema, "update", lambda ema, step: steps.append(step))
    poisoned = type(make().trainer._parallel.step.objective)(poison=lambda call: call == 2)
    setup = session(make, "c", 3, ema=0.9, objective=poisoned)
    assert setup.trainer.state.skipped == 1
    assert steps == [1, 2, 3]


def test_switched_on_it_begins_with_the_weights_of_the_checkpoint(make):
    before = session(make, "c", 5)
    weights = {name: value.clone() for name, value in before.model.state_dict().items()}
    assert before.store.latest_good().averaged is None
    after = make(folder="c", steps=5, ema=0.9)
    after.trainer.fit()
    assert torch.equal(after.trainer._ema.tensors()["middle.weight"], weights["middle.weight"])


def test_a_damaged_average_makes_a_damaged_checkpoint(make):
    setup = session(make, "c", 5, ema=0.9)
    file = setup.store.latest_good().averaged
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert setup.store.latest_good() is None
