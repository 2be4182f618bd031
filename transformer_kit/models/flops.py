"""How much a model computes: floating-point operations of its matrix products, from shapes.

- Counted are the real tokens of a batch; padding is no work that a model asks for.
- A product of (m, k) and (k, n) takes 2·m·k·n operations. A training update takes three times those of its forward
  pass: the gradient of each product is two of the same size.
- Attention counts all pairs of cells of a document, also where a causal mask hides half of them; a window counts as
  many as it is wide. Norms, activations, softmax, dropout, look-ups and the optimizer count nothing, nor does what is
  computed a second time (activation checkpointing) or for frozen parameters alone.

Source: Kaplan et al. 2020, section 2.1; Chowdhery et al. 2022, appendix B ("model FLOPs utilization").
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from transformer_kit.batch import Batch, Tokens
from transformer_kit.models.base import Model
from transformer_kit.models.classifier import Classifier
from transformer_kit.models.decoder_only import DecoderOnly
from transformer_kit.models.encoder_decoder import EncoderDecoder
from transformer_kit.models.encoder_only import EncoderOnly
from transformer_kit.models.heads import LinearHead
from transformer_kit.models.stack import Stack
from transformer_kit.nn.attention import Attention, MultiHeadAttention
from transformer_kit.nn.block import Block


@dataclass(frozen=True)
class _Extent:
    """Real cells of one side of a batch, and pairs of them that belong together."""

    cells: int
    pairs: int

    @classmethod
    def of(cls, tokens: Tokens) -> _Extent:
        """Σ n and Σ n² over documents of n cells; as positions restart in each, n² = 2 Σ at + n."""
        cells = tokens.ids.numel() if tokens.full else int(tokens.valid.sum())
        return cls(cells, 2 * int(tokens.at.sum()) + cells)


class _StackCost:
    """Multiply-adds of a stack's forward pass: per cell, per cell of the memory, and per pair of cells."""

    def __init__(self, stack: Stack) -> None:
        self.causal = stack.causal
        self.cell = self.memory_cell = self.memory_pair = 0
        self.pair: Counter[int | None] = Counter()  # by window
        for block in stack.blocks:
            assert isinstance(block, Block)
            own, cross = block.self_attention, block.cross_attention
            self.cell += _matrices(own) + _matrices(block.feedforward)
            self.pair[own.window] += _per_pair(own)
            if cross is not None:
                read = _remembered(cross)
                self.cell += _matrices(cross) - read
                self.memory_cell += read
                self.memory_pair += _per_pair(cross)

    def of(self, extent: _Extent, memory_cells: int = 0, memory_pairs: int = 0) -> int:
        total = self.cell * extent.cells + self.memory_cell * memory_cells + self.memory_pair * memory_pairs
        for window, cost in self.pair.items():
            seen = extent.pairs
            if window is not None:
                seen = min(seen, extent.cells * (window if self.causal else 2 * window - 1))
            total += cost * seen
        return total


class TrainingCost:
    """Operations of a forward and backward pass.

    Args:
        model: of any family.
    """

    def __init__(self, model: Model) -> None:
        self._row, self._label = 0, 0
        body: nn.Module = model
        if isinstance(model, Classifier):
            body = model.body
            self._row = _matrices(model.classifier) + (0 if model.pooler is None else _matrices(model.pooler))
            if model.shares_pooler and isinstance(body, EncoderOnly) and body.pooler is not None:
                self._row += _matrices(body.pooler)
        else:
            self._label = _per_label(model)
        assert isinstance(body, EncoderDecoder | DecoderOnly | EncoderOnly)
        self._encoder = None if isinstance(body, DecoderOnly) else _StackCost(body.encoder)
        self._decoder = None if isinstance(body, EncoderOnly) else _StackCost(body.decoder)

    def of(self, batch: Batch) -> int:
        """Of one batch."""
        macs = self._label * batch.num_labels + self._row * len(batch.labels)
        target = _Extent.of(batch.target)
        if batch.source is None:
            stack = self._decoder if self._encoder is None else self._encoder
            assert stack is not None
            return 6 * (macs + stack.of(target))
        source = _Extent.of(batch.source)
        cross = int((batch.source.valid.sum(1) * batch.target.valid.sum(1)).sum())
        assert self._decoder is not None
        if self._encoder is None:  # both in one row
            row = _Extent(source.cells + target.cells, source.pairs + target.pairs + 2 * cross)
            return 6 * (macs + self._decoder.of(row))
        return 6 * (macs + self._encoder.of(source) + self._decoder.of(target, source.cells, cross))


def _parts(module: nn.Module) -> Iterator[nn.Parameter]:
    yield from (parameter for parameter in module.parameters() if parameter.ndim == 2)


def _matrices(module: nn.Module) -> int:
    """Multiply-adds for one cell that meets every matrix of a module once."""
    return sum(matrix.numel() for matrix in _parts(module))


def _per_pair(attention: Attention) -> int:
    """A score and a share of a value, in every head."""
    if not isinstance(attention, MultiHeadAttention):
        return 0  # of a kind not known here
    return attention.num_heads * (attention.head_dim + attention.v_head_dim)


def _remembered(attention: Attention) -> int:
    """Of a cross-attention's matrices those that the memory meets: keys and values."""
    if not isinstance(attention, MultiHeadAttention):
        return 0
    return sum(attention.sizes[1:]) * attention.qkv_weight.shape[1]


def _per_label(model: Model) -> int:
    """What the head does for each label: its transform, and the projection, shared or not."""
    if not isinstance(model.head, LinearHead):
        return 0
    projection, _ = model.output()
    own = sum(matrix.numel() for matrix in _parts(model.head) if matrix is not projection)
    return own + projection.numel()
