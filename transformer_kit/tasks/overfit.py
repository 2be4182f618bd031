"""`trainer.overfit_batch`: a check of a new set-up. The first batch, again and again, must be learnt by heart.

Dropout stays as configured; the loss that counts is measured without it, on the batch itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from transformer_kit.batch import Batch
from transformer_kit.data.streams import Stream
from transformer_kit.evaluation.perplexity import likelihood
from transformer_kit.logs import get_logger
from transformer_kit.objectives.base import Objective
from transformer_kit.training.options import TrainerOptions

log = get_logger(__name__)

NEAR_ZERO = 0.1
"""Nats for each label above the least possible loss: less counts as learnt by heart."""


class OneBatch:
    """The first batch of a stream without end; giving it once is an epoch.

    Args:
        stream: one that has given no batch yet.
    """

    def __init__(self, stream: Stream) -> None:
        self.batch: Batch = next(iter(stream))
        self.epoch = 0

    def __iter__(self) -> Iterator[Batch]:
        while True:
            self.epoch += 1
            yield self.batch

    def dealt(self, rank: int, ranks: int) -> Iterator[Batch]:
        """The batch, on every rank: an epoch is one batch of each."""
        return iter(self)

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch = state["epoch"]


class BatchValidation:
    """The scores of a model on one batch, without dropout: loss, accuracy and perplexity.

    Attributes:
        translations: None: nothing is decoded.
    """

    translations = None

    def __init__(self, batch: Batch, objective: Objective) -> None:
        self._batch, self._objective = batch, objective

    def __call__(self, model: nn.Module) -> Mapping[str, float]:
        total = likelihood(model, self._objective, [self._batch])
        return {"loss": total.loss, "accuracy": total.accuracy, "perplexity": total.perplexity}


def for_one_batch(options: TrainerOptions) -> TrainerOptions:
    """The options that training goes by; of any other run they stay as they are.

    Such a run chooses its best model by what is measured on the batch, keeps no moving average, which lags behind, and
    skips no spike: the batch that comes next is the same.
    """
    if not options.overfit_batch:
        return options
    metric = "loss" if options.best_metric == "bleu" else options.best_metric
    final = "last" if options.final == "ema" else options.final
    return replace(options, best_metric=metric, ema=None, spike=None, final=final)


@dataclass(frozen=True)
class Verdict:
    """How well the batch was learnt.

    Attributes:
        loss: the mean for each label.
        floor: the least that it can be, which label smoothing puts above 0.
        learnt: whether it is less than `NEAR_ZERO` above.
    """

    loss: float
    floor: float
    learnt: bool


def judge(loss: float, floor: float, step: int) -> Verdict:
    """Compare the loss with its floor; a warning says it when the batch was not learnt by heart."""
    learnt = loss - floor < NEAR_ZERO
    if not learnt:
        log.warning(
            "the one batch was not learnt by heart: after %d updates its loss is %.4g, and could be %.4g. More "
            "trainer.steps, a higher schedule.lr, a shorter schedule.warmup or less dropout may be all it takes; if "
            "not, data, labels or model are not what they should be",
            step,
            loss,
            floor,
        )
    return Verdict(loss, floor, learnt)
