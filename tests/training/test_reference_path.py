"""The fast paths train as the readable ones do: losses of 200 updates, side by side, with dropout everywhere."""

from __future__ import annotations

import statistics

import pytest
import torch

from transformer_kit.batch import Batch, Specials, pad
from transformer_kit.config.build import build_model, build_objective
from transformer_kit.config.compose import compose
from transformer_kit.models.encoder_decoder import EncoderDecoder
from transformer_kit.nn.attention import MultiHeadAttention
from transformer_kit.nn.cross_entropy import reference_cross_entropy
from transformer_kit.nn.feedforward import blocked
from transformer_kit.objectives import tokens
from transformer_kit.training.optimizer import build_optimizer
from transformer_kit.training.parallel import Parallel
from transformer_kit.training.precision import resolve_device, resolve_precision
from transformer_kit.training.schedule import build_schedule
from transformer_kit.training.step import Step
from transformer_kit.training.update import Updater
from transformer_kit.training.windows import Window

VOCABULARY, PAD, BOS, EOS = 97, 0, 1, 2
UPDATES = 200


def task(number: int) -> Batch:
    """Pairs of unequal lengths; the target is the source, shifted by one type and shortened."""
    generator = torch.Generator().manual_seed(number)
    sources, inputs, labels = [], [], []
    for length in torch.randint(5, 24, (13,), generator=generator).tolist():
        source = torch.randint(3, VOCABULARY - 1, (length,), generator=generator).tolist()
        target = [token + 1 for token in source[: length - 2]]
        sources.append([*source, EOS])
        inputs.append([BOS, *target])
        labels.append([*target, EOS])
    target, gold = pad(inputs, PAD), pad(labels, PAD)
    return Batch(pad(sources, PAD), target, gold.ids, gold.valid, int(gold.valid.sum()), torch.arange(13))


def losses(precision: str, monkeypatch: pytest.MonkeyPatch, *, fast: bool) -> list[float]:
    """The loss a label of each update."""
    rates = "{embedding: 0.1, residual: 0.1, attention: 0.1, feedforward: 0.1}"
    given = ["model.d_model=64", "model.d_ff=96", "model.num_heads=2", "model.encoder.layers=2"]
    given += ["model.decoder.layers=2", f"model.dropout={rates}", "schedule=constant", "schedule.lr=1e-3"]
    given += ["model/residual=pre"]
    given += ["optimizer.eps=1e-5"]  # a gradient of next to nothing would be a step of full size, in either direction
    given += ["schedule.warmup=20", "objective.chunk=29", "data.train=[{source: x, target: y}]"]
    config = compose("train", [*given, "data.valid=[{source: x, target: y}]"])
    with monkeypatch.context() as patch:
        if not fast:
            patch.setattr(blocked, "_LARGEST", 0)
            patch.setattr(tokens, "linear_cross_entropy", lambda *args: reference_cross_entropy(*args[:-1]))
        torch.manual_seed(3)
        model = build_model(config.model, VOCABULARY, VOCABULARY).train()
        assert isinstance(model, EncoderDecoder)
        for module in model.modules():
            if isinstance(module, MultiHeadAttention) and not fast:
                module.kernel = "reference"
        specials = Specials(PAD, BOS, EOS, None, None, (), VOCABULARY, BOS)
        updater = Updater(
            Parallel(Step(model, build_objective(config.objective, specials=specials))),
            build_optimizer(config.optimizer, model),
            build_schedule(config.schedule),
            resolve_precision(precision, resolve_device("cpu")),
            clip_norm=1.0,
            seed=7,
        )
        found = []
        for number in range(UPDATES):
            outcome = updater.run(Window.of([task(number % 23)]), number, number + 1)
            found.append(outcome.loss / outcome.labels)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-3), ("bf16", 1e-2)])
def test_200_updates_lose_alike(precision: str, tolerance: float, monkeypatch: pytest.MonkeyPatch) -> None:
    readable = losses(precision, monkeypatch, fast=False)
    quick = losses(precision, monkeypatch, fast=True)
    assert readable[-1] < 0.9 * readable[0], "it learns"
    mean = statistics.fmean(abs(one - other) for one, other in zip(readable, quick, strict=True))
    assert mean < tolerance, mean
    assert quick != readable, "two ways, not one"
