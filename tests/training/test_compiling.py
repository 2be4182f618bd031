"""Compiled layers: the losses and gradients of layers as they are written, in few graphs for all lengths."""

from __future__ import annotations

import logging
import shutil

import pytest
import torch

from transformer_kit.batch import Batch, pad
from transformer_kit.config.build import build_model
from transformer_kit.config.compose import compose
from transformer_kit.models.base import Model
from transformer_kit.models.stack import Stack, checkpoint_activations
from transformer_kit.nn.cross_entropy import linear_cross_entropy
from transformer_kit.nn.position.rotary import plainly_turned, turned
from transformer_kit.training.compiling import Compiler, as_padded

VOCAB, PAD = 29, 0
LENGTHS = [(7, 3, 5), (4, 9), (6, 6, 6, 6), (11, 2, 3, 8, 5), (3, 17), (5, 5), (2, 13, 4)]
SIZES = ["model.d_model=12", "model.d_ff=11", "model.num_heads=2", "model.max_length=37"]
PAIR = ["data.train=[{source: x, target: y}]", "data.valid=[{source: x, target: y}]"]
T5 = ["model/position=relative", "model/norm=rmsnorm", "model.encoder.layers=2", "model.decoder.layers=3"]
CASES = {  # a family, changes, and the graphs that it takes
    "t5": ("encoder_decoder", T5, 2),
    "llama": ("decoder_only", ["model/position=rope", "model/attention=mqa", "model.decoder.layers=3"], 1),
}


def build(family: str, changes: list[str], rate: float) -> Model:
    dropout = f"model.dropout={{embedding: {rate}, residual: {rate}, attention: {rate}, feedforward: {rate}}}"
    torch.manual_seed(3)
    chosen = [f"model={family}", *SIZES, dropout, *changes, *PAIR]
    return build_model(compose("train", chosen, check=False).model, VOCAB, VOCAB).train()


def batch(family: str, lengths: tuple[int, ...], seed: int) -> Batch:
    draw = torch.Generator().manual_seed(seed)
    rows = [torch.randint(1, VOCAB, (length,), generator=draw) for length in lengths]
    target = pad(rows, PAD)
    source = pad([row.flip(0)[: 2 + seed] for row in rows], PAD) if family == "encoder_decoder" else None
    return Batch(source, target, target.ids.roll(-1, 1), target.valid, sum(lengths), torch.arange(len(lengths)))


def loss_of(model: Model, given: Batch) -> torch.Tensor:
    states = model.prepare(model(given).hidden)[given.counted]
    return linear_cross_entropy(states, *model.output(), given.labels[given.counted], 0.1, "all", PAD, 4)[0]


def losses(model: Model, family: str, updates: int) -> list[float]:
    """The losses of some updates by plain gradient descent, over batches of changing sizes, some without padding."""
    found = []
    for number in range(updates):
        given = batch(family, LENGTHS[number % len(LENGTHS)], number % len(LENGTHS))
        model.zero_grad()
        loss = loss_of(model, as_padded(given) if model_is_compiled(model) else given)
        (loss / given.num_labels).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter -= 0.1 * parameter.grad
        found.append(loss.item() / given.num_labels)
    return found


def model_is_compiled(model: Model) -> bool:
    return any(module.compiled is not None for module in model.modules() if isinstance(module, Stack))


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("case", CASES)
def test_twenty_updates_equal_those_without(case: str, backend: str) -> None:
    if backend == "inductor" and shutil.which("g++") is None:
        pytest.skip("no C++ compiler")
    torch._dynamo.reset()
    family, changes, graphs = CASES[case]
    expected = losses(build(family, changes, 0.0), family, 20)
    compiler, model = Compiler(backend), build(family, changes, 0.0)
    compiler.apply(model)
    got = losses(model, family, 20)
    assert got == pytest.approx(expected, abs=1e-4)
    assert expected[0] - expected[14] > 0.05  # it did learn: 14 is 0 again
    assert compiler.graphs == graphs


@pytest.mark.slow
def test_dropout_is_replayed_where_layers_are_run_again(caplog: pytest.LogCaptureFixture) -> None:
    torch._dynamo.reset()
    model, given = build(*CASES["llama"][:2], 0.2), batch("decoder_only", LENGTHS[0], 0)
    compiler = Compiler("aot_eager")
    compiler.apply(model)
    found = []
    for again in (False, True):
        checkpoint_activations(model, again)
        model.zero_grad()
        torch.manual_seed(11)
        loss_of(model, as_padded(given)).backward()
        found.append([parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
    with caplog.at_level(logging.INFO, logger="transformer_kit"):
        compiler.report(1)
        compiler.report(2)
    own = [record.getMessage() for record in caplog.records if record.name.startswith("transformer_kit")]
    assert own == [f"compiled the layers: {compiler.graphs} graphs"]
    model.eval()  # neither validation nor decoding is compiled
    before = compiler.graphs
    model(batch("decoder_only", (3,), 0))
    assert compiler.graphs == before


@pytest.mark.parametrize("family", ["decoder_only", "encoder_decoder"])
def test_padding_behind_the_tokens_needs_no_mask_in_a_causal_stack(family: str) -> None:
    """Where "causal" is all that the mask says, counted cells have the states that the whole mask gives them."""
    model = build(family, ["model/position=sinusoidal"], 0.0)
    given = batch(family, LENGTHS[3], 3)
    whole = model(given).hidden[given.counted]
    seen = []

    def run(block, x, view, cross):  # type: ignore[no-untyped-def]  # as run_layer
        seen.append(view.seen.causal_only)
        return block(x, view, cross)

    for module in model.modules():
        if isinstance(module, Stack):
            module.compiled = run
    torch.testing.assert_close(model(given).hidden[given.counted], whole, rtol=0, atol=1e-5)
    layers = len(model.decoder.blocks)  # type: ignore[union-attr, arg-type]  # an encoder–decoder, read as a Model
    assert sum(seen) == layers


@pytest.mark.parametrize("layout", ["interleaved", "half"])
def test_the_turn_for_a_compiler_is_the_turn(layout: str) -> None:
    draw = torch.Generator().manual_seed(1)
    x, cos, sin = (torch.randn(shape, generator=draw) for shape in ((2, 3, 5, 14), (2, 1, 5, 7), (2, 1, 5, 7)))
    torch.testing.assert_close(plainly_turned(x, cos, sin, layout), turned(x, cos, sin, layout), rtol=0, atol=1e-6)
