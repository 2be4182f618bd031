"""An encoder by itself, from built parts."""

from __future__ import annotations

from torch import Tensor, nn

from transformer_kit.batch import Batch, Tokens
from transformer_kit.models.base import Model, ModelOutput
from transformer_kit.models.heads import Head
from transformer_kit.models.stack import Stack
from transformer_kit.nn.embedding import TokenEmbedding


class EncoderOnly(Model):
    """Each token's state in the context of the whole row.

    Args:
        encoder: a stack that sees both directions.
        embedding: ids (and segments) to vectors.
        head: hidden states to logits.
        pooler: a dense layer for the state of the first cell, or None; see `pool`.

    Source:
        Devlin et al. 2019, section 3.
    """

    family = "encoder_only"

    def __init__(self, encoder: Stack, embedding: TokenEmbedding, head: Head, pooler: nn.Linear | None) -> None:
        super().__init__()
        self.encoder, self.embedding, self.pooler = encoder, embedding, pooler
        self.head = head

    @property
    def dim(self) -> int:
        return self.embedding.weight.shape[1]

    def forward(self, batch: Batch) -> ModelOutput:
        return self.read(batch.target)

    def read(self, tokens: Tokens) -> ModelOutput:
        return ModelOutput(*self.encoder(self.embedding(tokens.ids, tokens.types), tokens.cells))

    def pool(self, hidden: Tensor) -> Tensor:
        """tanh(W h₁ + b) of the first cell, as BERT sums a row up: (B, L, D) -> (B, D). Needs a pooler."""
        assert self.pooler is not None, "this model has no pooler"
        return self.pooler(hidden[:, 0]).tanh()
