"""A language model of one causal stack, from built parts."""

from __future__ import annotations

import torch
from torch import Tensor

from transformer_kit.batch import Batch, Cells, Tokens
from transformer_kit.models.base import Model, ModelOutput
from transformer_kit.models.heads import Head
from transformer_kit.models.stack import Stack
from transformer_kit.nn.embedding import TokenEmbedding
from transformer_kit.nn.state import DecoderState


class DecoderOnly(Model):
    """p(tokens) = Π_t softmax(head(decoder(tokens before t)))

    Cells of a prefix see each other in both directions (`Tokens.prefix`); the rest is causal.

    Args:
        decoder: a causal stack without cross-attention.
        embedding: ids to vectors.
        head: hidden states to logits.

    Source:
        Liu et al. 2018, "Generating Wikipedia by Summarizing Long Sequences"; Radford et al. 2018; prefixes: Raffel et
        al. 2020, section 3.2.1.
    """

    family = "decoder_only"

    def __init__(self, decoder: Stack, embedding: TokenEmbedding, head: Head) -> None:
        super().__init__()
        self.decoder, self.embedding = decoder, embedding
        self.head = head

    @property
    def dim(self) -> int:
        return self.embedding.weight.shape[1]

    def forward(self, batch: Batch) -> ModelOutput:
        return self.read(batch.target)

    def read(self, tokens: Tokens) -> ModelOutput:
        return ModelOutput(*self.decoder(self.embedding(tokens.ids, tokens.types), tokens.cells))

    @torch.no_grad()
    def start(self, sentences: int, beams: int, max_length: int) -> DecoderState:
        """An empty decoding state.

        Args:
            sentences: B.
            beams: rows per sentence, >= 1; row = sentence · beams + beam.
            max_length: the most cells of a row.
        """
        layers, device = len(self.decoder.blocks), self.embedding.weight.device
        return DecoderState(layers, [], None, sentences, beams, max_length, device)

    @torch.no_grad()
    def begin(self, source: Tokens, beams: int, max_length: int) -> DecoderState:
        """Read a source as the prefix of the row and get ready to write its target behind it.

        Args:
            source: (B, S); padding is seen by nobody and counts for no position.
            beams: rows per sentence, >= 1.
            max_length: the most target cells, BOS included.
        """
        state = self.start(source.shape[0], 1, source.shape[1] + max_length)
        self.extend(source.ids, state, source.cells.valid, prefix=True)
        state.spread(beams)
        return state

    @torch.no_grad()
    def extend(self, ids: Tensor, state: DecoderState, valid: Tensor | None = None, prefix: bool = False) -> Tensor:
        """Append cells to every row; `state` grows. No gradients, here and in `start`.

        Args:
            ids: (R, t) int64, the next t tokens of each row.
            state: what came before.
            valid: (R, t) bool, False at padding (prompts of several lengths, padded on either side); None when all are
                real tokens.
            prefix: these cells see each other in both directions.

        Returns:
            hidden (R, t, D).
        """
        at = state.append(ids.shape[1], valid)
        cells = Cells(at, valid, prefix=torch.ones_like(ids, dtype=torch.bool) if prefix else None)
        return self.decoder(self.embedding(ids), cells, state=state)[0]
