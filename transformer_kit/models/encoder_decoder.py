"""The encoder–decoder of 2017 and its variants, from built parts."""

from __future__ import annotations

import torch
from torch import Tensor

from transformer_kit.batch import Batch, Cells, Tokens
from transformer_kit.models.base import Model, ModelOutput
from transformer_kit.models.heads import Head
from transformer_kit.models.stack import Memory, Stack, add_sums
from transformer_kit.nn.block import Block
from transformer_kit.nn.embedding import TokenEmbedding
from transformer_kit.nn.state import DecoderState


class EncoderDecoder(Model):
    """p(target | source) = Π_t softmax(head(decoder(target before t, encoder(source))))

    Tying is a matter of what is passed: the same embedding twice shares source and target.

    Args:
        encoder: reads the source.
        decoder: reads the target, causal, with cross-attention.
        source_embedding: source ids to vectors.
        target_embedding: target ids to vectors.
        head: hidden states to logits.

    Source:
        Vaswani et al. 2017, sections 3.1 and 3.4.
    """

    family = "encoder_decoder"

    def __init__(
        self,
        encoder: Stack,
        decoder: Stack,
        source_embedding: TokenEmbedding,
        target_embedding: TokenEmbedding,
        head: Head,
    ) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder
        self.source_embedding, self.target_embedding = source_embedding, target_embedding
        self.head = head

    @property
    def dim(self) -> int:
        return self.target_embedding.weight.shape[1]

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

    def read(self, tokens: Tokens) -> ModelOutput:
        memory, aux = self._encode(tokens)
        return ModelOutput(memory.hidden, aux)

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
    def begin(self, source: Tokens, beams: int, max_length: int) -> DecoderState:
        """Read a source and get ready to write its target; see `start`."""
        return self.start(self.encode(source), beams, max_length)

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
        return self.decoder(self.target_embedding(ids), Cells(at, valid), state=state)[0]

    def _encode(self, source: Tokens) -> tuple[Memory, dict[str, Tensor]]:
        hidden, aux = self.encoder(self.source_embedding(source.ids, source.types), source.cells)
        return Memory(hidden, source.valid, source.full), aux

    def _decode(self, target: Tokens, memory: Memory) -> tuple[Tensor, dict[str, Tensor]]:
        return self.decoder(self.target_embedding(target.ids), target.cells, memory=memory)
