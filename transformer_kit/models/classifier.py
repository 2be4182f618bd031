"""A classifier of texts around a model of any family."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn

from transformer_kit.batch import Batch, Tokens
from transformer_kit.errors import ConfigError
from transformer_kit.models.base import Model, ModelOutput
from transformer_kit.models.decoder_only import DecoderOnly
from transformer_kit.models.encoder_decoder import EncoderDecoder
from transformer_kit.models.encoder_only import EncoderOnly
from transformer_kit.models.heads import NoHead
from transformer_kit.nn.dropout import Dropout

Pooling = Literal["first", "mean", "last"]
STD = 0.02  # of a fresh head


class Classifier(Model):
    """softmax(W dropout(pool(states)) + b): one label for a row.

    `pool` takes the state of the first or of the last real token, or the mean of all of them. Of an encoder–decoder the
    encoder reads. What has no part in it (the head over the vocabulary, a decoder behind the encoder) takes no
    gradients.

    Args:
        body: reads the rows.
        classes: C, the number of labels.
        pooling: first, mean or last.
        pooler: put tanh(P h + p) behind the pooling: the body's own where it has one and its first token is taken.
        dropout: rate before the classifier.

    Attributes:
        classifier: W (C, D) and b (C,), drawn from N(0, 0.02²) and 0, as are P and p.

    Shape: a batch with its rows in `target` -> hidden (B, 1, C), which are logits.
    Source: Devlin et al. 2019, section 4.1; last token: Radford et al. 2018, section 3.2.
    """

    def __init__(self, body: Model, classes: int, pooling: Pooling, pooler: bool, dropout: float) -> None:
        assert isinstance(body, EncoderOnly | DecoderOnly | EncoderDecoder)
        super().__init__()
        self.head = NoHead()
        self.body, self.pooling = body, pooling
        self.shares_pooler = pooler and pooling == "first" and isinstance(body, EncoderOnly) and body.pooler is not None
        self.pooler = _fresh(body.dim, body.dim) if pooler and not self.shares_pooler else None
        self.dropout = Dropout(dropout)
        self.classifier = _fresh(body.dim, classes)
        for parameter in _idle(body, self.shares_pooler):
            parameter.requires_grad_(False)

    @property
    def family(self) -> str:  # type: ignore[override]  # that of the body
        return self.body.family

    @property
    def dim(self) -> int:
        return self.body.dim

    def forward(self, batch: Batch) -> ModelOutput:
        states = self.read(batch.target)
        pooled = pool(states.hidden, batch.target, self.pooling)
        pooler = self.body.pooler if self.shares_pooler and isinstance(self.body, EncoderOnly) else self.pooler
        if pooler is not None:
            pooled = pooler(pooled).tanh()
        return ModelOutput(self.classifier(self.dropout(pooled))[:, None], states.aux)

    def read(self, tokens: Tokens) -> ModelOutput:
        embedding = self.body.source_embedding if isinstance(self.body, EncoderDecoder) else self.body.embedding
        told_apart = embedding.types is not None and len(embedding.types.weight) > 1
        return self.body.read(tokens if told_apart else replace(tokens, types=None))

    def output(self) -> tuple[Tensor, Tensor | None]:
        raise ConfigError("this model tells classes apart and has no output over a vocabulary: use `tkit classify`")

    def logits(self, hidden: Tensor) -> Tensor:
        """What `forward` gives are logits: (..., C) -> (..., C)."""
        return hidden


def pool(hidden: Tensor, tokens: Tokens, pooling: Pooling) -> Tensor:
    """One state for a row: that of its first or last real token, or the mean of all: (B, L, D) -> (B, D).

    Rows have at least one real token, and padding may be on either side.
    """
    if pooling == "mean":
        real = tokens.valid[..., None]  # (B, L, 1)
        total = hidden.masked_fill(~real, 0.0).sum(1, dtype=torch.promote_types(hidden.dtype, torch.float32))
        return (total / real.sum(1)).to(hidden.dtype)
    cells = torch.arange(hidden.shape[1], device=hidden.device)
    if pooling == "first":
        which = cells.masked_fill(~tokens.valid, len(cells)).amin(1)
    else:
        which = cells.masked_fill(~tokens.valid, -1).amax(1)
    return hidden[torch.arange(len(hidden), device=hidden.device), which]


def _fresh(inputs: int, outputs: int) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.normal_(layer.weight, std=STD)
    nn.init.zeros_(layer.bias)
    return layer


def _idle(body: EncoderOnly | DecoderOnly | EncoderDecoder, shares_pooler: bool) -> Iterator[nn.Parameter]:
    """The parameters on which a classifier's output does not depend."""
    yield from body.head.parameters()
    if isinstance(body, EncoderOnly) and body.pooler is not None and not shares_pooler:
        yield from body.pooler.parameters()
    if isinstance(body, EncoderDecoder):
        yield from body.decoder.parameters()
        if body.target_embedding is not body.source_embedding:
            yield from body.target_embedding.parameters()
