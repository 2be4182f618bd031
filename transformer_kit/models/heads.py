"""From hidden states to logits over the vocabulary: the slot `model/head`."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer_kit.errors import ConfigError
from transformer_kit.nn.embedding import TokenEmbedding
from transformer_kit.nn.feedforward.activations import find_activation
from transformer_kit.nn.residual.base import MakeNorm


class Head(nn.Module):
    """Something before a projection, and the projection: W prepare(h) + b.

    W is the table of an embedding, shared with it, or the head's own. The projection itself is left to the caller, who
    does it in chunks and only where a label counts.

    Build-time facts, taken if the constructor names them: `dim`, `vocab_size`, `tied` (the embedding to share, or
    None), `make_norm`.
    """

    def prepare(self, hidden: Tensor) -> Tensor:
        """(..., D) -> (..., D)."""
        return hidden

    def output(self) -> tuple[Tensor, Tensor | None]:
        """Weight (V, D) and bias (V,) or None."""
        raise NotImplementedError


class LinearHead(Head):
    """W h + b, with h times 1/√D where `scale` says so.

    Args:
        dim: D.
        vocab_size: V.
        tied: the embedding whose table is W; None for a matrix of its own.
        bias: whether there is a b.
        scale: multiply h by 1/√D, as T5 does where the table is shared.

    Source: Vaswani et al. 2017, section 3.4; Press and Wolf 2017 (sharing); Raffel et al. 2020 (scale).
    """

    def __init__(self, dim: int, vocab_size: int, tied: TokenEmbedding | None, bias: bool, scale: bool) -> None:
        super().__init__()
        self._tied = (tied,)  # a tuple keeps the embedding from being registered, and saved, a second time
        self.weight = None if tied else nn.Parameter(torch.empty(vocab_size, dim))
        self.bias = nn.Parameter(torch.zeros(vocab_size)) if bias else None
        self.factor = dim**-0.5 if scale else 1.0
        if self.weight is not None:
            nn.init.xavier_uniform_(self.weight)

    def prepare(self, hidden: Tensor) -> Tensor:
        return hidden if self.factor == 1.0 else hidden * self.factor

    def output(self) -> tuple[Tensor, Tensor | None]:
        (tied,) = self._tied
        if self.weight is not None:
            return self.weight, self.bias
        assert tied is not None
        return tied.weight, self.bias


class TransformedHead(LinearHead):
    """W norm(activation(T h + t)) + b, the head of masked language models.

    Args:
        dim, vocab_size, tied, bias: as in `LinearHead`.
        make_norm: builds the norm.
        activation: a name in `ACTIVATIONS`.

    Source: Devlin et al. 2019, as published with its code.
    """

    def __init__(
        self,
        dim: int,
        vocab_size: int,
        tied: TokenEmbedding | None,
        make_norm: MakeNorm,
        bias: bool,
        activation: str,
    ) -> None:
        super().__init__(dim, vocab_size, tied, bias, scale=False)
        self.transform = nn.Linear(dim, dim)
        self.activation = find_activation(activation)
        self.norm = make_norm()

    def prepare(self, hidden: Tensor) -> Tensor:
        transformed: Tensor = self.norm(self.activation(F.linear(hidden, self.transform.weight, self.transform.bias)))
        return transformed


class NoHead(Head):
    """For a model that is used for its hidden states alone."""

    def __init__(self) -> None:
        super().__init__()

    def output(self) -> tuple[Tensor, Tensor | None]:
        raise ConfigError("model.head: this model has no output over a vocabulary; choose model/head=linear or mlm")
