"""Which parameter is what: its role by the kind of module that holds it, and how far it stands from the head."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from torch import nn

from transformer_kit.models.stack import Stack
from transformer_kit.nn.block import Block
from transformer_kit.nn.embedding import TokenEmbedding
from transformer_kit.nn.norm.base import Norm
from transformer_kit.nn.position.base import Position

Role = Literal["matrix", "projection", "table", "norm", "bias"]
_TABLES = (TokenEmbedding, nn.Embedding, Position)
_NORMS = (Norm, nn.LayerNorm)


@dataclass(frozen=True)
class Member:
    """A parameter that is trained.

    Attributes:
        name: the first of its names.
        role: `matrix`, two axes inside a block (attention and feed-forward); `projection`, two axes elsewhere (a head
            of its own, its transform, a pooler, a classifier); `table`, rows looked up (embeddings, positions), also
            where a head shares them; `norm`, gains and shifts of norms; `bias`, every other vector.
        parts: the rows of each matrix that is packed into this one; a single number where none are.
        depth: layers from the head. 0: the head and whatever stands behind the last layer; 1: the last layer of its
            stack; …; one more than the first layer has: embeddings, position tables, and the norm behind them.
    """

    name: str
    parameter: nn.Parameter
    role: Role
    parts: tuple[int, ...]
    depth: int


def members(model: nn.Module) -> list[Member]:
    """Every parameter of a model that takes gradients, once, in the order of `named_parameters`."""
    roles: dict[nn.Parameter, Role] = {}
    parts: dict[nn.Parameter, tuple[int, ...]] = {}
    inside = {module for block in model.modules() if isinstance(block, Block) for module in block.modules()}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if roles.get(parameter) != "table":  # a table stays one where a head shares it
                roles[parameter] = _role(module, name, parameter, module in inside)
            parts[parameter] = _parts(module, name, parameter)
    depths = _depths(model)
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    return [Member(name, p, roles[p], parts[p], depths.get(p, 0)) for name, p in named]


def _role(module: nn.Module, name: str, parameter: nn.Parameter, in_block: bool) -> Role:
    if isinstance(module, _NORMS):
        return "norm"
    if isinstance(module, _TABLES):
        return "table"
    if parameter.dim() < 2 or name.split("_")[-1] == "bias":
        return "bias"
    return "matrix" if in_block and parameter.dim() == 2 else "projection"


def _parts(module: nn.Module, name: str, parameter: nn.Parameter) -> tuple[int, ...]:
    """Rows of the matrices that a module says (by `packed()`) lie in one of its parameters."""
    packed: Callable[[], dict[str, tuple[int, ...]]] | None = getattr(module, "packed", None)
    whole = tuple(parameter.shape[:1])
    return whole if packed is None else packed().get(name, whole)


def _depths(model: nn.Module) -> dict[nn.Parameter, int]:
    """Depths above 0; what several stacks share has the depth of the deepest."""
    stacks = [module for module in model.modules() if isinstance(module, Stack)]
    deepest = max((len(stack.blocks) for stack in stacks), default=0) + 1
    tables = (module for module in model.modules() if isinstance(module, TokenEmbedding))
    depths = dict(_at(deepest, tables))
    for stack in stacks:
        last = len(stack.blocks)
        entrance = [stack.position] if stack.input_norm is None else [stack.position, stack.input_norm]
        depths.update(_at(last + 1, entrance))
        for number, block in enumerate(stack.blocks):
            depths.update(_at(last - number, [block]))
    return depths


def _at(depth: int, modules: Iterable[nn.Module]) -> Iterator[tuple[nn.Parameter, int]]:
    for module in modules:
        yield from ((parameter, depth) for parameter in module.parameters())
