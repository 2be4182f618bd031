"""FSDP2: each rank holds some rows of every weight, gradient and moment, and whole weights only while it needs them.

- Weights are gathered, and gradients summed, in groups: each layer of a stack is one; everything else (embeddings,
  heads, position tables, last norms) is one group with the whole step, so that a table that the embedding and the head
  share is one parameter of one group.
- Hybrid sharding: the ranks form a grid of copies × shard. The ranks of a row hold one copy together; gradients are
  summed over all.
- The weights come from rank 0, one tensor at a time: no rank ever has them all on its device, and the others need never
  have had them (`training/whole_weights.py`).
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from transformer_kit.models.empty import emptied
from transformer_kit.nn.block import Block
from transformer_kit.training.parallel import Parallel
from transformer_kit.training.shards import gathered, put, whole
from transformer_kit.training.step import Step
from transformer_kit.training.weights import unique_tensors
from transformer_kit.training.whole_weights import buffers_from_rank_0, from_rank_0
from transformer_kit.training.world import World

COPIES, SHARD = "copies", "shard"


class Sharded(Parallel):
    """The ranks hold one model together, or one for each row of ranks.

    Args:
        step: its parameters become others, spread over the ranks; they begin with the values that they have on rank 0,
            and need none elsewhere.
        world: the ranks.
        device: of this rank.
        shard: how many hold one copy together, a divisor of all; None: all.
    """

    collective = True

    def __init__(self, step: Step, world: World, device: torch.device, shard: int | None = None) -> None:
        super().__init__(step, world)
        buffers_from_rank_0(step, device)
        values = {name: emptied(parameter) for name, parameter in step.named_parameters()}
        self._replica = _Replica(step)
        shard_step(step, grid(device.type, world.size, shard))
        step._apply(lambda tensor: torch.empty_like(tensor, device=device) if tensor.is_meta else tensor)
        for name, parameter in step.named_parameters():
            put(parameter, from_rank_0(values.pop(name), device))

    @contextmanager
    def last(self, is_last: bool) -> Iterator[None]:
        assert isinstance(self.step, FSDPModule)
        self.step.set_requires_gradient_sync(is_last)
        self.step.set_is_last_backward(is_last)
        yield

    @contextmanager
    def whole(self) -> Iterator[nn.Module]:
        """A replica with the weights of now; all ranks enter it together, and each may use it by itself."""
        with self._replica.filled(self.step.model) as model:
            yield model


def grid(device: str, ranks: int, shard: int | None) -> DeviceMesh:
    """The ranks by what they hold: one row for each copy."""
    if shard is None or shard == ranks:
        return init_device_mesh(device, (ranks,), mesh_dim_names=(SHARD,))
    assert ranks % shard == 0, "see RanksOptions.check"
    return init_device_mesh(device, (ranks // shard, shard), mesh_dim_names=(COPIES, SHARD))


def full_state(model: nn.Module) -> dict[str, Tensor]:
    """A model's whole weights on the CPU of rank 0, as `save_tensors` takes them, tied ones once; elsewhere nothing.

    All ranks call it together.
    """
    return gathered(unique_tensors(model))


def shard_step(step: Step, mesh: DeviceMesh) -> None:
    """Spread a step's parameters over the ranks of a grid. Gradients become sums over all ranks, not means."""
    groups = [module for module in step.modules() if isinstance(module, Block)]
    for module in (*groups, step):
        sharded = fully_shard(module, mesh=mesh)
        assert isinstance(sharded, FSDPModule)
        sharded.set_gradient_divide_factor(1.0)
        sharded.set_force_sum_reduction_for_comms(True)


class _Replica:
    """A model of the same modules, without weights but while it is used.

    Args:
        step: before it is sharded, without weights.
    """

    def __init__(self, step: Step) -> None:
        self._model = copy.deepcopy(step.model, {id(step.compiler): step.compiler}).requires_grad_(False)
        names = {id(parameter): name for name, parameter in self._model.named_parameters()}
        self._places: dict[str, list[tuple[nn.Module, str]]] = defaultdict(list)
        for module in self._model.modules():
            for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
                self._places[names[id(parameter)]].append((module, name))
        self._empty = dict(self._model.named_parameters())

    @contextmanager
    def filled(self, source: nn.Module) -> Iterator[nn.Module]:
        """With the weights that `source` holds now, and its mode."""
        self._model.train(source.training)
        try:
            for name, parameter in source.named_parameters():
                self._put(name, nn.Parameter(whole(parameter.detach()), False))
            yield self._model
        finally:
            for name, parameter in self._empty.items():
                self._put(name, parameter)

    def _put(self, name: str, parameter: nn.Parameter) -> None:
        for module, attribute in self._places[name]:
            setattr(module, attribute, parameter)
