"""How parameters start, by role; one named scheme each.

Gains of norms stay as they are made, biases start at zero in all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

from torch import Tensor, nn

from transformer_kit.errors import ConfigError
from transformer_kit.models.heads import LinearHead
from transformer_kit.models.stack import Stack
from transformer_kit.nn.attention import MultiHeadAttention
from transformer_kit.nn.embedding import TokenEmbedding

Role = Literal["matrix", "embedding", "head"]
OUTPUTS = ("self_attention.out.weight", "cross_attention.out.weight", "feedforward.down.weight")
"""The last matrix of a sub-layer: how the names of those parameters end."""


def glorot(model: nn.Module) -> None:
    """Glorot-uniform matrices, embeddings from N(0, 1/D); position tables as they are made.

    Source:
        Glorot and Bengio 2010, equation 16; tensor2tensor's defaults.
    """
    for role, tensor in _by_role(model):
        if role == "embedding":
            nn.init.normal_(tensor, std=tensor.shape[1] ** -0.5)
        else:
            nn.init.xavier_uniform_(tensor)
    _zero_biases(model)


def bert(model: nn.Module) -> None:
    """N(0, 0.02²) for every matrix, embedding and position table.

    Source:
        Devlin et al. 2019, as published with its code, without the truncation at two deviations.
    """
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.02)
    _zero_biases(model)


def gpt2(model: nn.Module) -> None:
    """As `bert`, but the last matrix of each sub-layer from N(0, 0.02² / n) in a stack of n sub-layers.

    So the n summands of the residual stream have together the spread of one.

    Source:
        Radford et al. 2019, section 2.3.
    """
    bert(model)
    for stack in model.modules():
        if isinstance(stack, Stack):
            last = [parameter for name, parameter in stack.named_parameters() if name.endswith(OUTPUTS)]
            for matrix in last:
                nn.init.normal_(matrix, std=0.02 / len(last) ** 0.5)


def t5(model: nn.Module) -> None:
    """N(0, 1 / inputs) for matrices, N(0, 1) for embeddings and for a head of its own; queries less by 1/√K.

    For models whose attention does not scale its scores, and whose tied head scales what it projects.

    Source:
        Raffel et al. 2020, as published with its code (mesh TensorFlow's initialisers).
    """
    for role, tensor in _by_role(model):
        nn.init.normal_(tensor, std=tensor.shape[1] ** -0.5 if role == "matrix" else 1.0)
    for module in model.modules():
        if isinstance(module, MultiHeadAttention):
            queries = module.matrices()[0]
            nn.init.normal_(queries, std=(queries.shape[1] * module.head_dim) ** -0.5)
    _zero_biases(model)


def _by_role(model: nn.Module) -> Iterator[tuple[Role, Tensor]]:
    """Every table and matrix of the model but those of positions, in the order of its modules.

    A module whose matrices are packed lists them by `matrices()`, and each is drawn by its own shape.
    """
    packed: set[nn.Module] = set()
    for module in model.modules():
        matrices: Callable[[], tuple[Tensor, ...]] | None = getattr(module, "matrices", None)
        if matrices is not None:
            packed.update(module.modules())
            yield from (("matrix", matrix) for matrix in matrices())
        elif isinstance(module, nn.Linear) and module not in packed:
            yield "matrix", module.weight
        elif isinstance(module, TokenEmbedding):
            yield "embedding", module.weight
        elif isinstance(module, LinearHead) and module.weight is not None:
            yield "head", module.weight


def _zero_biases(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.zeros_(parameter)


SCHEMES: dict[str, Callable[[nn.Module], None]] = {"glorot": glorot, "bert": bert, "gpt2": gpt2, "t5": t5}


def initialise(model: nn.Module, scheme: str) -> None:
    """Draw every parameter anew.

    Args:
        model: any module of this package.
        scheme: a name in `SCHEMES` (the config's `model.init`).

    Raises:
        ConfigError: no such scheme.
    """
    if scheme not in SCHEMES:
        raise ConfigError(f"model.init={scheme}: must be one of {', '.join(SCHEMES)}")
    SCHEMES[scheme](model)
