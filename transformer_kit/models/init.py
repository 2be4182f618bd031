"""How parameters start, by role; one named scheme each."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from transformer_kit.errors import ConfigError
from transformer_kit.nn.embedding import TokenEmbedding


def glorot(model: nn.Module) -> None:
    """Glorot-uniform matrices, zero biases, embeddings from N(0, 1/D); gains and position tables as they are made.

    A module whose matrices are packed lists them by `matrices()`, and each is drawn by its own shape.

    Source:
        Glorot and Bengio 2010, equation 16; tensor2tensor's defaults.
    """
    packed: set[nn.Module] = set()
    for module in model.modules():
        matrices: Callable[[], tuple[Tensor, ...]] | None = getattr(module, "matrices", None)
        if matrices is not None:
            packed.update(module.modules())
            for matrix in matrices():
                nn.init.xavier_uniform_(matrix)
        elif isinstance(module, nn.Linear) and module not in packed:
            nn.init.xavier_uniform_(module.weight)
        if isinstance(module, TokenEmbedding):
            nn.init.normal_(module.weight, std=module.weight.shape[1] ** -0.5)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.zeros_(parameter)


SCHEMES: dict[str, Callable[[nn.Module], None]] = {"glorot": glorot}


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
