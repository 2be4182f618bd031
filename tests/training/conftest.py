"""A model, an objective, a stream and options small enough to train in milliseconds."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from optimizer_toys import shipped
from torch import Tensor, nn
from training_toys import VOCAB, Stream

from transformer_kit.batch import Batch
from transformer_kit.console import NoProgress
from transformer_kit.training.checkpoint import CheckpointStore
from transformer_kit.training.loop import Trainer
from transformer_kit.training.optimizer import build_optimizer
from transformer_kit.training.options import (
    METRICS,
    AverageOptions,
    OptimizerOptions,
    TrainerOptions,
    ValidationOptions,
)
from transformer_kit.training.parallel import Parallel
from transformer_kit.training.precision import Precision
from transformer_kit.training.ranks_options import RanksOptions
from transformer_kit.training.step import Step

WIDTH = 5
BASE = TrainerOptions(
    steps=40,
    tokens=None,
    epochs=None,
    minutes=None,
    device="cpu",
    devices=1,
    ranks=RanksOptions(parallel="ddp", shard=None, timeout=60.0, restarts=0),
    threads=None,
    precision="fp32",
    compile=False,
    deterministic=False,
    activation_checkpointing=False,
    prefetch=None,
    accumulate_tokens=None,
    clip_norm=1.0,
    log_every=1,
    validate_every=None,
    save_every=None,
    save_async=True,
    keep_last=3,
    keep_best=1,
    best_metric="loss",
    patience=None,
    validation=ValidationOptions(bleu=None, samples=0),
    average=AverageOptions(kind="none", count=1),
    ema=None,
    final="last",
    max_skips=3,
    spike=None,
    watch=None,
    overfit_batch=False,
)


class Model(nn.Module):
    """Predicts a label from the token before it and the mean of the source; embedding and output are tied."""

    def __init__(self, dropout: float = 0.2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, WIDTH)
        self.middle = nn.Linear(WIDTH, WIDTH)
        self.output = nn.Linear(WIDTH, VOCAB)
        self.output.weight = self.embedding.weight
        self.dropout = nn.Dropout(dropout)

    def forward(self, batch: Batch) -> Tensor:
        assert batch.source is not None
        weight = batch.source.valid[..., None]
        source = (self.embedding(batch.source.ids) * weight).sum(1, keepdim=True) / weight.sum(1, keepdim=True)
        hidden = torch.tanh(self.middle(self.embedding(batch.target.ids) + source))
        return self.output(self.dropout(hidden))


@dataclass(frozen=True)
class Sums:
    loss: Tensor
    count: int
    metrics: dict[str, Tensor] = field(default_factory=dict)


class Objective(nn.Module):
    """Cross-entropy; `poison` makes the loss of some calls NaN."""

    def __init__(self, poison: Callable[[int], bool] = lambda call: False) -> None:
        super().__init__()
        self.poison = poison
        self.calls = 0

    def forward(self, model: nn.Module, batch: Batch) -> Sums:
        logits = model(batch)[batch.counted]
        loss = nn.functional.cross_entropy(logits, batch.labels[batch.counted], reduction="sum")
        self.calls += torch.is_grad_enabled()  # a second look at a batch is no call of its own
        if self.poison(self.calls):
            loss = loss * float("nan")
        correct = (logits.argmax(-1) == batch.labels[batch.counted]).sum()
        return Sums(loss, batch.num_labels, {"nll": loss.detach(), "correct": correct})


class Rows:
    """A tracker in memory."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def rewind(self, step: int, validated: int) -> None:
        pass

    def add(self, row: Any) -> None:
        self.rows.append(dict(row))

    def of(self, kind: str, *names: str) -> list[tuple[Any, ...]]:
        return [tuple(row[name] for name in names) for row in self.rows if row["kind"] == kind]


@dataclass
class Setup:
    """A trainer and everything that was put into it."""

    trainer: Trainer
    model: Model
    stream: Stream
    tracker: Rows
    store: CheckpointStore
    options: TrainerOptions


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Setup]:
    """`make(steps=5, ...)`: options by name, and parts by name; the checkpoints stand in the test's folder."""

    monkeypatch.setattr(os, "fsync", lambda handle: None)  # slow, and no test here pulls the plug

    def build(
        *,
        validate: Callable[[nn.Module], dict[str, float]] = lambda model: {"loss": 1.0},
        objective: nn.Module | None = None,
        dropout: float = 0.2,
        folder: str = "checkpoints",
        stream: Any = None,
        trackers: Any = None,
        progress: Any = None,
        schedule: Callable[[int], float] = lambda step: 0.01 / step,
        optimizer: OptimizerOptions | None = None,
        **options: Any,
    ) -> Setup:
        chosen = replace(BASE, **options)
        torch.manual_seed(3)
        model, stream, tracker = Model(dropout), stream or Stream(), Rows()
        store = CheckpointStore(
            tmp_path / folder,
            keep_last=chosen.keep_last,
            keep_best=chosen.keep_best,
            metric=chosen.best_metric,
            higher_is_better=METRICS[chosen.best_metric] == "higher",
        )
        trainer = Trainer(
            parallel=Parallel(Step(model, objective or Objective())),
            stream=stream,
            optimizer=build_optimizer(optimizer or shipped("adam"), model),
            schedule=schedule,
            options=chosen,
            precision=Precision(chosen.precision, torch.device("cpu"), "as asked"),
            store=store,
            seed=11,
            validate=validate,
            progress=progress or NoProgress(),
            trackers=[tracker, *(trackers or [])],
        )
        return Setup(trainer, model, stream, tracker, store, chosen)

    return build
