"""How a model reads prompts, and the ids that stand around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from transformer_kit.batch import pad
from transformer_kit.decoding.scorer import ModelScorer, Seq2Seq, State


@dataclass(frozen=True)
class Marks:
    """The ids around a text.

    Attributes:
        pad: of padding cells.
        before: what stands in front of every prompt: BOS, if the model knows the beginning of a text by it.
        after: what stands behind every prompt: EOS, if the prompt is a source.
        ends: what ends a text.
        barred: what is never emitted.
    """

    pad: int
    before: tuple[int, ...]
    after: tuple[int, ...]
    ends: frozenset[int]
    barred: frozenset[int]


S = TypeVar("S", bound=State)


class Reader(Protocol[S]):
    """A model that reads prompts and scores what comes next.

    Attributes:
        continues: whether prompt and continuation are one text (a decoder), or two (an encoder–decoder).
    """

    continues: bool

    def start(self, prompts: Sequence[Sequence[int]], new: int) -> tuple[S, Tensor]:
        """Read the prompts and make room for `new` tokens; float32 logits (R, V) of the first one."""

    def step(self, last: Tensor, state: S) -> Tensor:
        """Append `last` (R,); float32 logits (R, V) of the token after it."""


class Causal(Protocol):
    """The part of a decoder-only model that generation uses."""

    def start(self, sentences: int, beams: int, max_length: int) -> Any: ...

    def extend(self, ids: Tensor, state: Any, valid: Tensor | None = None) -> Tensor: ...

    def logits(self, hidden: Tensor) -> Tensor: ...


class CausalReader:
    """A decoder-only model: prompts of different lengths are padded on the left.

    Args:
        model: in evaluation mode.
        pad_id: of padding cells.
        precision: `fp32` or `bf16` (autocast; the logits are float32 either way).
        device: of the model.
    """

    continues = True

    def __init__(self, model: Causal, pad_id: int, precision: str, device: torch.device) -> None:
        self.model, self.pad_id, self.precision, self.device = model, pad_id, precision, device

    def start(self, prompts: Sequence[Sequence[int]], new: int) -> tuple[Any, Tensor]:
        tokens = pad(prompts, self.pad_id, "left").to(self.device)
        state = self.model.start(len(prompts), 1, tokens.shape[1] + new)
        return state, self._extend(tokens.ids, state, None if tokens.full else tokens.valid)

    def step(self, last: Tensor, state: Any) -> Tensor:
        return self._extend(last[:, None], state, None)

    def _extend(self, ids: Tensor, state: Any, valid: Tensor | None) -> Tensor:
        with torch.autocast(ids.device.type, dtype=torch.bfloat16, enabled=self.precision == "bf16"):
            return self.model.logits(self.model.extend(ids, state, valid)[:, -1]).float()


class SourceReader:
    """An encoder–decoder: the prompt is its source.

    Args:
        start_id: what the decoder reads first.
        device: of the model.
    """

    continues = False

    def __init__(self, model: Seq2Seq, pad_id: int, start_id: int, precision: str, device: torch.device) -> None:
        self.scorer = ModelScorer(model, precision)
        self.pad_id, self.start_id, self.device = pad_id, start_id, device

    def start(self, prompts: Sequence[Sequence[int]], new: int) -> tuple[Any, Tensor]:
        sources = pad(prompts, self.pad_id).to(self.device)
        state = self.scorer.start(sources, 1, new)
        first = torch.full((len(prompts),), self.start_id, dtype=torch.int64, device=self.device)
        return state, self.step(first, state)

    def step(self, last: Tensor, state: Any) -> Tensor:
        return self.scorer.step(last, state)
