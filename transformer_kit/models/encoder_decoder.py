"""The encoder–decoder of 2017 and its variants, from built parts."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer_kit.batch import Batch, Tokens
from transformer_kit.models.stack import Memory, Stack, add_sums
from transformer_kit.nn.block import Block
from transformer_kit.nn.embedding import TokenEmbedding
from transformer_kit.nn.state import DecoderState


@dataclass(frozen=True)
class ModelOutput:
    """What a model returns: hidden states, not logits, so that a loss can project in chunks and where it counts.

    Attributes:
        hidden: (B, T, D).
        aux: auxiliary sums for the loss, by name.
    """

    hidden: Tensor
    aux: dict[str, Tensor] = field(default_factory=dict)


class EncoderDecoder(nn.Module):
    """p(target | source) = Π_t softmax(W · decoder(target before t, encoder(source)))

    Tying is a matter of what is passed: the same embedding twice shares source and target; `output=None` shares the
    target embedding with the output projection.

    Args:
        encoder: reads the source.
        decoder: reads the target, causal, with cross-attention.
        source_embedding: source ids to vectors.
        target_embedding: target ids to vectors.
        output: the projection to logits, D -> V, or None to use the target embedding's table.

    Source:
        Vaswani et al. 2017, sections 3.1 and 3.4.
    """

    def __init__(
        self,
        encoder: Stack,
        decoder: Stack,
        source_embedding: TokenEmbedding,
        target_embedding: TokenEmbedding,
        output: nn.Linear | None,
    ) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder
        self.source_embedding, self.target_embedding = source_embedding, target_embedding
        self.projection = output

    def encode(self, source: Tokens) -> Memory:
        """Read the source once: (B, S) ids -> (B, S, D)."""
        return self._encode(source)[0]

    def decode(self, target: Tokens, memory: Memory) -> Tensor:
        """Hidden states of a given target (teacher forcing): (B, T) ids -> (B, T, D)."""
        return self._decode(target, memory)[0]

    def forward(self, batch: Batch) -> ModelOutput:
        assert batch.source is not None, "an encoder–decoder reads a source"
        memory, encoder_aux = self._encode(batch.source)
        hidden, decoder_aux = self._decode(batch.target, memory)
        return ModelOutput(hidden, add_sums(encoder_aux, decoder_aux))

    def output(self) -> tuple[Tensor, Tensor | None]:
        """Weight (V, D) and bias (V,) or None of the projection to logits."""
        if self.projection is None:
            return self.target_embedding.weight, None
        return self.projection.weight, self.projection.bias

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., D) -> (..., V)."""
        weight, bias = self.output()
        return F.linear(hidden, weight, bias)

    @torch.no_grad()
    def start(self, memory: Memory, beams: int, max_length: int) -> DecoderState:
        """An empty decoding state over a source that was read.

        Args:
            memory: B sentences.
            beams: rows per sentence, >= 1; row = sentence · beams + beam.
            max_length: the most target cells, BOS included.
        """
        cross = []
        for block in self.decoder.blocks:
            assert isinstance(block, Block)
            assert block.cross_attention is not None
            keys, values = block.cross_attention.remember(memory.hidden)
            cross.append((keys.contiguous(), values.contiguous()))
        sentences, device = memory.hidden.shape[0], memory.hidden.device
        valid = None if memory.full else memory.valid
        return DecoderState(len(cross), cross, valid, sentences, beams, max_length, device)

    @torch.no_grad()
    def extend(self, ids: Tensor, state: DecoderState, valid: Tensor | None = None) -> Tensor:
        """Append cells to every row; `state` grows. No gradients, here and in `start`.

        Args:
            ids: (R, t) int64, the next t tokens of each row.
            state: what came before.
            valid: (R, t) bool, False at padding (a left-padded prompt); None when all are real tokens.

        Returns:
            hidden (R, t, D).
        """
        at = state.append(ids.shape[1], valid)
        return self.decoder(self.target_embedding(ids), at, valid, state=state)[0]

    def _encode(self, source: Tokens) -> tuple[Memory, dict[str, Tensor]]:
        valid = None if source.full else source.valid
        hidden, aux = self.encoder(self.source_embedding(source.ids), source.at, valid, source.document)
        return Memory(hidden, source.valid, source.full), aux

    def _decode(self, target: Tokens, memory: Memory) -> tuple[Tensor, dict[str, Tensor]]:
        valid = None if target.full else target.valid
        x = self.target_embedding(target.ids)
        return self.decoder(x, target.at, valid, target.document, memory=memory)
