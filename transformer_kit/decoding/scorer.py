"""What the search sees of a model: logits of the next token for each row, and a state that it can rearrange."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from transformer_kit.batch import Tokens


class State(Protocol):
    """What a model remembers of the rows being decoded; row = sentence * beams + beam."""

    def reorder(self, rows: Tensor) -> None:
        """Let row r go on from what row rows[r] has been; `rows` (R,) stays within each sentence."""

    def keep(self, sentences: Tensor) -> None:
        """Drop all sentences but these, (B',) int64 rising, with their rows."""


S = TypeVar("S", bound=State)


class Scorer(Protocol[S]):
    """Scores continuations."""

    def start(self, sources: Tokens, beams: int, max_length: int) -> S:
        """Read the sources and make room for `beams` rows a sentence of at most `max_length` tokens."""

    def step(self, last: Tensor, state: S) -> Tensor:
        """Append `last` (R,) to the rows; float32 logits (R, V) of the token after it."""


class Seq2Seq(Protocol):
    """The part of a model that turns a source into a target that decoding uses."""

    def begin(self, source: Tokens, beams: int, max_length: int) -> Any: ...

    def extend(self, ids: Tensor, state: Any) -> Tensor: ...

    def logits(self, hidden: Tensor) -> Tensor: ...


class ModelScorer:
    """A model with its caches, as the search sees it.

    Args:
        model: in evaluation mode.
        precision: `fp32` or `bf16` (autocast; the logits are float32 either way).
    """

    def __init__(self, model: Seq2Seq, precision: str) -> None:
        self.model = model
        self.precision = precision

    def start(self, sources: Tokens, beams: int, max_length: int) -> Any:
        with self._autocast(sources.ids):
            return self.model.begin(sources, beams, max_length)

    def step(self, last: Tensor, state: Any) -> Tensor:
        with self._autocast(last):
            hidden = self.model.extend(last[:, None], state)  # (R, 1, D)
            return self.model.logits(hidden[:, -1]).float()

    def _autocast(self, like: Tensor) -> torch.autocast:
        return torch.autocast(like.device.type, dtype=torch.bfloat16, enabled=self.precision == "bf16")
