"""An objective that misbehaves on one rank, at one of its calls in training; trusted through TKIT_TRUST."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import torch
from torch import nn

from transformer_kit.batch import Batch
from transformer_kit.objectives.base import Sums
from transformer_kit.objectives.translation import Translation

RESTARTED = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


class Faulty(Translation):
    """FAULT=kind:rank:call says what goes wrong; once, not again after a restart of the ranks.

    `kind@validation` counts the calls in validation.
    """

    calls = 0

    def forward(self, model: nn.Module, batch: Batch) -> Sums:
        sums = super().forward(model, batch)
        kind, rank, call = os.environ["FAULT"].split(":")
        if os.environ.get("RANK", "0") != rank or RESTARTED:
            return sums
        if kind == "slow-validation":
            if not self.training:
                time.sleep(float(call))
            return sums
        kind, _, when = kind.partition("@")
        if self.training == (when == "validation"):
            return sums
        self.calls += torch.is_grad_enabled() == self.training  # a second look at a batch is no call of its own
        if self.calls != int(call):
            return sums
        return self._fail(kind, sums)

    def _fail(self, kind: str, sums: Sums) -> Sums:
        if kind == "raise":
            raise ZeroDivisionError("a fault of this rank")
        if kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "freeze":
            os.kill(os.getpid(), signal.SIGSTOP)
        if kind == "sleep":
            time.sleep(3600)
        if kind.startswith("SIG"):
            for name in kind.split("+"):
                os.kill(os.getpid(), getattr(signal, name))
        if kind == "nan":
            changed: dict[str, Any] = {**sums.metrics}
            return Sums(sums.loss * float("nan"), sums.count, changed)
        return sums
