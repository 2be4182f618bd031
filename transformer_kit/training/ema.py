"""An exponential moving average of the weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from transformer_kit.errors import CheckpointError
from transformer_kit.training.shards import put
from transformer_kit.training.weights import unique_tensors


class Ema:
    """ā_t = d_t ā_{t−1} + (1 − d_t) w_t with d_t = min(decay, (1 + t) / (10 + t)), over what is trained.

    The average is kept in float32 at least. Weights that are not trained are taken as they are.

    Args:
        model: whose weights are averaged, on its device; ā_0 is what it holds.
        decay: in (0, 1).

    Source: Polyak and Juditsky 1992; the warm-up is that of TensorFlow's ExponentialMovingAverage.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._model, self._decay = model, decay
        self._weights = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._averages: dict[str, Tensor] = {}
        self.restart()

    @torch.no_grad()
    def restart(self) -> None:
        """Begin anew from what the model holds."""
        self._averages = {
            name: weight.detach().to(torch.promote_types(weight.dtype, torch.float32), copy=True)
            for name, weight in self._weights.items()
        }

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the weights after update `step`."""
        decay = min(self._decay, (1 + step) / (10 + step))
        averages = list(self._averages.values())
        weights = [weight.to(a.dtype) for weight, a in zip(self._weights.values(), averages, strict=True)]
        torch._foreach_lerp_(averages, weights, 1 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The model with averaged weights; afterwards it holds its own again, to the bit."""
        kept = {name: weight.detach().clone() for name, weight in self._weights.items()}
        self._put(self._averages)
        try:
            yield
        finally:
            self._put(kept)

    def tensors(self) -> dict[str, Tensor]:
        """All of the model's tensors, those that are trained averaged; as `save_tensors` takes them."""
        return unique_tensors(self._model) | self._averages

    def load(self, tensors: Mapping[str, Tensor], origin: str) -> None:
        """Go on from what `tensors` gave, whole tensors.

        Raises:
            CheckpointError: they are another model's; `origin` names the file.
        """
        for name, average in self._averages.items():
            if name not in tensors or tensors[name].shape != average.shape:
                raise CheckpointError(f"{origin}: holds no average of {name} in the shape {tuple(average.shape)}")
            put(average, tensors[name])

    @torch.no_grad()
    def _put(self, values: Mapping[str, Tensor]) -> None:
        for name, weight in self._weights.items():
            weight.copy_(values[name])
