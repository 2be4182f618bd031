"""Layers that are run twice give the losses and gradients of layers that are run once, to the bit, dropout and all."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from transformer_kit.batch import Batch, pad
from transformer_kit.config.build import build_model
from transformer_kit.config.compose import compose
from transformer_kit.models.base import Model
from transformer_kit.models.stack import checkpoint_activations
from transformer_kit.nn.cross_entropy import linear_cross_entropy

VOCAB, PAD = 29, 0
SIZES = ["model.d_model=12", "model.d_ff=11", "model.num_heads=2", "model.max_length=37"]
DROPOUT = "model.dropout={embedding: 0.2, residual: 0.2, attention: 0.2, feedforward: 0.2}"
LAYERS = {
    "encoder_decoder": ["model.encoder.layers=2", "model.decoder.layers=3"],
    "decoder_only": ["model.decoder.layers=3"],
    "encoder_only": ["model.encoder.layers=2"],
}
PAIR = ["data.train=[{source: x, target: y}]", "data.valid=[{source: x, target: y}]"]
CASES = {
    "2017": ("encoder_decoder", ["model/residual=post", "model/position=sinusoidal"]),
    "t5": ("encoder_decoder", ["model/position=relative", "model/norm=rmsnorm", "model/feedforward=geglu"]),
    "alibi": ("encoder_decoder", ["model/position=alibi", "model/residual=sandwich"]),
    "llama": ("decoder_only", ["model/position=rope", "model/attention=mqa", "model/feedforward=swiglu"]),
    "windows": ("decoder_only", ["model/position=learned", "model.pattern=[{attention: {window: 3}}, {}]"]),
    "fused": ("decoder_only", ["model/position=relative", "model.attention.kernel=fused"]),
    "reference": ("decoder_only", ["model/position=relative", "model.attention.kernel=reference"]),
    "bert": ("encoder_only", ["model/position=learned", "model/attention=qk_norm"]),
}


def build(case: str) -> Model:
    family, changes = CASES[case]
    chosen = [f"model={family}", *SIZES, *LAYERS[family], DROPOUT, *changes, *PAIR]
    torch.manual_seed(3)
    return build_model(compose("train", chosen, check=False).model, VOCAB, VOCAB).train()


def batch(family: str) -> Batch:
    draw = torch.Generator().manual_seed(5)
    rows = [torch.randint(1, VOCAB, (length,), generator=draw) for length in (7, 3, 5)]
    target = pad(rows, PAD)
    source = pad([row.flip(0)[:4] for row in rows], PAD) if family == "encoder_decoder" else None
    return Batch(source, target, target.ids.roll(-1, 1), target.valid, 15, torch.arange(3))


def gradients(model: Model, given: Batch, on: bool, bf16: bool) -> tuple[Tensor, dict[str, Tensor], int]:
    """The loss, every gradient, and the bytes that autograd keeps between the two passes outside the layers."""
    kept = 0

    def count(tensor: Tensor) -> Tensor:
        nonlocal kept
        kept += tensor.nbytes
        return tensor

    checkpoint_activations(model, on)
    model.zero_grad()
    torch.manual_seed(11)
    with torch.autograd.graph.saved_tensors_hooks(count, lambda x: x), torch.autocast("cpu", enabled=bf16):
        states = model.prepare(model(given).hidden)[given.counted]
        loss, _, _ = linear_cross_entropy(states, *model.output(), given.labels[given.counted], 0.1, "all", PAD, 4)
    after = torch.get_rng_state()
    loss.backward()
    assert torch.equal(torch.get_rng_state(), after), "the second run moved the generator on"
    return loss.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}, kept


@pytest.mark.parametrize("bf16", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("case", CASES)
def test_equals_the_plain_pass_to_the_bit_and_keeps_less(case: str, bf16: bool) -> None:
    model = build(case)
    given = batch(CASES[case][0])
    loss, plain, kept = gradients(model, given, on=False, bf16=bf16)
    again, checkpointed, kept_then = gradients(model, given, on=True, bf16=bf16)
    assert torch.equal(loss, again)
    assert plain.keys() == checkpointed.keys()
    assert [name for name in plain if not torch.equal(plain[name], checkpointed[name])] == []
    assert kept_then < kept / 3


def test_is_for_training_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without gradients, and in evaluation mode, nothing is run twice."""

    def refuse(*args: Any, **options: Any) -> None:
        raise AssertionError("checkpointed")

    monkeypatch.setattr("transformer_kit.models.stack.checkpoint", refuse)
    model, given = build("llama"), batch("decoder_only")
    checkpoint_activations(model, True)
    with torch.no_grad():
        model(given)
    model.eval()(given)
    with pytest.raises(AssertionError, match="checkpointed"):
        model.train()(given)
