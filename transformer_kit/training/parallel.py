"""How the steps of several ranks make one gradient.

The loop calls `parallel.module` on a batch, and backward on its loss, for as many batches on every rank; within `last`
the backward pass leaves the sum over all ranks, divided by their number, in the parameters (`scale` undoes that).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from transformer_kit.training.norms import total_norm
from transformer_kit.training.ranks_options import RanksOptions
from transformer_kit.training.step import Step
from transformer_kit.training.world import ALONE, World


class Parallel:
    """One process alone; the base of the others.

    Args:
        step: model and objective, on their device.
        world: the ranks.

    Attributes:
        module: what is called on a batch.
        scale: what the loss is multiplied by, so that the gradient is the sum over ranks.
        collective: whether a forward pass needs all ranks, so that none may run one by itself.
    """

    scale = 1.0
    collective = False

    def __init__(self, step: Step, world: World = ALONE) -> None:
        self.step, self.world = step, world
        self.module: nn.Module = step

    def last(self, is_last: bool) -> AbstractContextManager[None]:
        """Around the forward and backward pass of a batch: whether it is the window's last."""
        return nullcontext()

    def norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """The norm of the whole gradient, a plain scalar, the same on every rank."""
        return total_norm(gradients)

    @contextmanager
    def whole(self) -> Iterator[nn.Module]:
        """A model with whole weights, which any rank may call by itself: for validation."""
        yield self.step.model


class Replicated(Parallel):
    """Each rank holds the whole model; torch's DistributedDataParallel averages gradients while it computes them."""

    def __init__(self, step: Step, world: World) -> None:
        super().__init__(step, world)
        self.scale = float(world.size)
        with warnings.catch_warnings():  # torch renames broadcast_buffers; the new name is not in all versions
            warnings.simplefilter("ignore", FutureWarning)
            self._ddp = DistributedDataParallel(step, gradient_as_bucket_view=True, broadcast_buffers=False)
        self.module = self._ddp

    @contextmanager
    def last(self, is_last: bool) -> Iterator[None]:
        with nullcontext() if is_last else self._ddp.no_sync():
            yield


def make_parallel(step: Step, world: World, options: RanksOptions, device: torch.device) -> Parallel:
    """The step of this rank on its device, ready to be called; parameters may be other objects afterwards.

    Args:
        step: where `is_spread`, its parameters need values on rank 0 alone (`training/whole_weights.py`).

    Raises:
        ConfigError: the ranks do not divide into copies.
    """
    options.check(world.size)
    if world.size == 1:
        return Parallel(step.to(device), world)
    if options.parallel == "ddp":
        return Replicated(step.to(device), world)
    from transformer_kit.training.sharded import Sharded

    return Sharded(step, world, device, options.shard)


def is_spread(world: World, options: RanksOptions) -> bool:
    """Whether the ranks hold parts of a model, and none the whole of it."""
    return world.size > 1 and options.parallel == "fsdp"
