"""A batch of which nothing counts: the loss is 0, and 0 is added to every gradient that a real batch gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from objective_toys import SPECIALS, documents, labelled, lists, text, toy
from torch import nn

from transformer_kit.batch import Batch, translation_batch
from transformer_kit.data.rows import LabelRows, TextRows
from transformer_kit.objectives.base import Objective
from transformer_kit.objectives.causal_lm import CausalLM
from transformer_kit.objectives.classification import Classification
from transformer_kit.objectives.denoising import Infilling, SpanCorruption
from transformer_kit.objectives.masked_lm import MaskedLM
from transformer_kit.objectives.prefix_lm import PrefixLM
from transformer_kit.objectives.translation import Translation

LENGTHS = (5, 17, 2, 11)


def usual(spread: str = "all") -> dict[str, Any]:
    return {"specials": SPECIALS, "label_smoothing": 0.1, "smoothing_over": spread, "chunk": 7}


def classifier(pooling: str, pooler: bool) -> Classification:
    return Classification(specials=SPECIALS, pooling=pooling, pooler=pooler, dropout=0.0, label_smoothing=0.1)


PAIRS = {
    "all": ("encoder_decoder", Translation(**usual(), rdrop=0.0)),
    "others": ("encoder_decoder", Translation(**usual("others"), rdrop=0.0)),
    "others but pad": ("encoder_decoder", Translation(**usual("others_but_pad"), rdrop=0.0)),
    "rdrop": ("encoder_decoder", Translation(**usual("others_but_pad"), rdrop=5.0)),
    "prefix": ("decoder_only", PrefixLM(**usual())),
}
ROWS = {
    "causal": ("decoder_only", CausalLM(**usual())),
    "masked": ("encoder_only", MaskedLM(rate=0.3, masked=0.8, replaced=0.1, **usual())),
    "spans": ("encoder_decoder", SpanCorruption(density=0.3, mean_length=2.0, **usual())),
    "infilling": ("encoder_decoder", Infilling(rate=0.3, mean_length=2.0, **usual())),
    "first": ("encoder_only", classifier("first", False)),
    "last": ("decoder_only", classifier("last", True)),
    "mean": ("encoder_decoder", classifier("mean", True)),
}


def pairs() -> Batch:
    rows = lists(text(*LENGTHS))
    return translation_batch([row[::-1] for row in rows], rows, range(len(rows)), pad_id=0, bos_id=2, eos_id=3)


def grads(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("bf16", [False, True], ids=["fp64", "bf16"])
@pytest.mark.parametrize("case", [*PAIRS, *ROWS])
def test_adds_nothing_and_leaves_nothing_out(case: str, bf16: bool) -> None:
    family, objective = (PAIRS | ROWS)[case]
    batch = pairs() if case in PAIRS else objective.collate(rows_for(objective))
    head = {"head": "mlm"} if case == "masked" else {}
    model = objective.adapt(toy(family, **head), 2).train().double()
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        objective.train()(model, batch).loss.backward()
    expected = grads(model)
    empty = batch.uncounted()
    assert (len(empty.labels), empty.num_labels, bool(empty.counted.any())) == (1, 0, False)
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        sums = objective(model, empty)
    assert sums.count == 0
    assert [float(value.detach()) for value in (sums.loss, *sums.metrics.values())] == [0.0] * (1 + len(sums.metrics))
    sums.loss.backward()
    after = grads(model)
    assert [name for name in expected if not torch.equal(after[name], expected[name])] == []
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        objective(model, empty).loss.backward()
    alone = grads(model)
    assert alone.keys() == expected.keys()
    assert not any(bool(grad.any()) for grad in alone.values())


def rows_for(objective: Objective) -> TextRows | LabelRows:
    return labelled(*LENGTHS) if objective.reads == "labels" else documents(*LENGTHS)


def test_copies_what_a_device_takes() -> None:
    """What is known of the counted cells before a batch goes to a device is known of none."""
    empty = pairs()._with_places().uncounted()
    assert empty.places is None
    assert empty._with_places().places.tolist() == []
    assert np.array_equal(empty.sample_ids, [0])
