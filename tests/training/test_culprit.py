"""Where a value that is not finite began is named, whatever module, parameter or function it was."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from transformer_kit.batch import translation_batch
from transformer_kit.config.build import build_model, build_objective
from transformer_kit.config.check import ANY_SPECIALS
from transformer_kit.config.compose import compose
from transformer_kit.errors import RunError
from transformer_kit.training.culprit import agreed, culprit
from transformer_kit.training.precision import Precision
from transformer_kit.training.step import Step

FP32 = Precision("fp32", torch.device("cpu"), "")
SMALL = ["model.d_model=12", "model.num_heads=3", "model.d_ff=20", "model.encoder.layers=2", "model.decoder.layers=2"]


@pytest.fixture(scope="module")
def config():
    return compose("train", ["data=demo", *SMALL, "model/residual=pre"])


@pytest.fixture
def step(config):
    torch.manual_seed(5)
    model = build_model(config.model, 17, 17, device="cpu")
    return Step(model, build_objective(config.objective, specials=ANY_SPECIALS)).train()


def batch_of(*lengths):
    rows = [torch.arange(length) % 11 + 4 for length in lengths]
    return translation_batch(rows, [row[:-1] for row in rows], range(len(rows)), pad_id=0, bos_id=2, eos_id=3)


BATCHES, SEEDS = [batch_of(3, 7), batch_of(5, 2, 5)], [23, 29]


def found(step, precision=FP32, batches=BATCHES, seeds=SEEDS):
    """What is named after the backward passes that an update makes."""
    for batch, seed in zip(batches, seeds, strict=True):
        torch.manual_seed(seed)
        with precision.autocast():
            sums = step(batch)
        sums.loss.backward()
    before = [parameter.grad.clone() for parameter in step.parameters() if parameter.grad is not None]
    name = culprit(step, batches, seeds, precision)
    after = [parameter.grad for parameter in step.parameters() if parameter.grad is not None]
    assert all(torch.equal(a, b) or not a.isfinite().all() for a, b in zip(before, after, strict=True))
    assert step.training
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in step.modules())
    return name


def test_nothing_is_named_where_all_is_finite(step):
    assert found(step) is None


PLACES = [
    ("source_embedding", "source_embedding"),
    ("encoder.blocks.0.self_attention", None),
    ("encoder.blocks.1.feedforward", None),
    ("encoder.final_norm", "encoder.final_norm"),
    ("decoder.blocks.1.cross_attention", None),
    ("decoder.blocks.0.feedforward_residual", None),
]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(("place", "exactly"), PLACES)
def test_the_module_of_a_bad_weight(step, place, exactly, bad):
    module = step.model.get_submodule(place)
    with torch.no_grad():
        next(module.parameters()).fill_(bad)
    name = found(step)
    assert name is not None
    assert name.startswith(place) if exactly is None else name == exactly
    held = [
        n for n, m in step.model.named_modules() if any(p is next(module.parameters()) for p in m._parameters.values())
    ]
    assert name in held, "the module itself, not one around it"


class Wrapped(nn.Module):
    """A module whose output is changed, outside of any module of its own."""

    def __init__(self, inner, change):
        super().__init__()
        self.inner, self.change = inner, change

    def forward(self, *args):
        output = self.inner(*args)
        return (self.change(output[0]), *output[1:]) if isinstance(output, tuple) else self.change(output)


def wrap(step, name, change):
    parent, _, last = name.rpartition(".")
    owner = step.model.get_submodule(parent)
    setattr(owner, last, Wrapped(step.model.get_submodule(name), change))


def test_what_is_computed_between_modules_belongs_to_the_one_around_them(step, monkeypatch):
    wrap(step, "encoder.blocks.1.feedforward", lambda x: x * math.inf)
    assert found(step) == "encoder.blocks.1.feedforward"
    embed = step.model.decoder.position.embed
    monkeypatch.setattr(step.model.decoder.position, "embed", lambda x, at: embed(x, at) / 0.0)
    assert found(step) == "encoder.blocks.1.feedforward", "the first is named"
    step.model.encoder.blocks[1].feedforward = step.model.encoder.blocks[1].feedforward.inner
    assert found(step) == "decoder"


def test_the_random_draws_are_those_of_the_update(step):
    """What is bad under the seed of the second batch alone is found."""
    torch.manual_seed(SEEDS[1])
    drawn = float(torch.rand(()))
    wrap(step, "source_embedding", lambda x: x * (math.nan if float(torch.rand(())) == drawn else 1.0))
    assert found(step) == "source_embedding"
    step.zero_grad()
    assert found(step, seeds=[31, 37]) is None


def test_every_batch_is_computed_although_the_first_was_bad(step):
    """Ranks that share weights make the same number of calls."""
    calls = []
    wrap(step, "target_embedding", lambda x: calls.append(len(x)) or x)
    wrap(step, "source_embedding", lambda x: x * math.nan)
    assert found(step) == "source_embedding"
    assert calls == [2, 3] * 2


def test_a_loss_that_is_bad_by_itself(step):
    inner = step.objective.forward
    step.objective.forward = lambda model, batch: (lambda s: type(s)(s.loss * math.nan, s.count, s.metrics))(
        inner(model, batch)
    )
    assert found(step) == "the loss"


def test_a_gradient_that_is_bad_on_the_way_back(step):
    """Everything before a bad place has bad gradients too: the last one is where it began."""
    bias = step.model.get_parameter("encoder.blocks.1.feedforward_residual.norm.bias")
    bias.register_hook(lambda gradient: gradient * math.inf)
    assert found(step) == "the gradient of encoder.blocks.1.feedforward_residual.norm.bias"
    step.zero_grad()
    wrap(step, "decoder.blocks.0.feedforward", _bad_backward)
    assert found(step) == "the gradient of decoder.blocks.0.feedforward.inner.down.weight"


def _bad_backward(x):
    x = x.view_as(x)
    x.register_hook(lambda gradient: gradient * math.nan) if x.requires_grad else None
    return x


def test_bf16(step):
    """Too large for a float32 product is too large under autocast as well."""
    with torch.no_grad():
        step.model.get_submodule("encoder.blocks.1.feedforward").apply(
            lambda module: [parameter.fill_(3e38) for parameter in module.parameters(recurse=False)]
        )
    name = found(step, Precision("bf16", torch.device("cpu"), ""))
    assert name is not None
    assert name.startswith("encoder.blocks.1.feedforward")


def test_what_several_ranks_found():
    assert agreed([None]) is None
    assert agreed(["encoder"]) == "encoder"
    assert agreed([None, "encoder", "the loss"]) == "encoder (rank 1)"
    assert agreed(["the gradient of a", None, "the loss"]) == "the loss (rank 2)"
    assert agreed([None, "the gradient of a"]) == "the gradient of a"


def test_the_log_names_it(make, caplog):
    setup = make(steps=4)
    setup.model.middle.weight.register_hook(
        lambda gradient: gradient * (math.nan if setup.trainer.state.step == 2 else 1)
    )
    calls = []
    setup.model.middle.bias.register_hook(lambda gradient: calls.append(1))
    with pytest.raises(RunError, match=r"first in the gradient of middle\.weight"):
        setup.trainer.fit()
    said = [record.getMessage() for record in caplog.records if "skipped (" in record.getMessage()]
    assert said[0] == "step 3: the gradient is not finite, first in the gradient of middle.weight; skipped (1 so far)"
    assert len(said) == 3
    assert len(calls) == 5, "no second backward pass"
