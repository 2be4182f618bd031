"""What a run says of its speed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from transformer_kit.training.precision import Precision
from transformer_kit.training.throughput import Work, product_rate

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", ["fp32", "bf16"])
def test_the_rate_of_a_product(name, monkeypatch):
    monkeypatch.setattr("transformer_kit.training.throughput.SIZES", {"cpu": 64})
    torch.manual_seed(5)
    before = torch.get_rng_state()
    rate = product_rate(Precision(name, CPU, ""), seconds=0.0)
    assert 1e6 < rate < 1e14
    assert torch.equal(torch.get_rng_state(), before)


def test_a_module_that_is_no_model_of_ours_counts_nothing(make):
    work = Work(nn.Linear(3, 5))
    work.add(make().stream.batch([0, 1]))
    assert work.flops_per_token is None
    assert work.labels > 0


def test_summary(make):
    setup = make(steps=9, log_every=100)
    summary = setup.trainer.fit()
    cells = real = 0
    for chunk in setup.stream.given:
        batch = setup.stream.batch(chunk)
        cells += batch.source.ids.numel() + batch.target.ids.numel()
        real += int(batch.source.valid.sum() + batch.target.valid.sum())
    assert summary.padding_efficiency == pytest.approx(real / cells)
    assert summary.update_seconds == pytest.approx(summary.tokens / summary.tokens_per_second)
    assert make(steps=9).trainer.fit().padding_efficiency is None, "this session made no update"
