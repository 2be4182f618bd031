"""No positions: the order of tokens shows only through a causal mask."""

from __future__ import annotations

from transformer_kit.nn.position.base import Position


class NoPosition(Position):
    """All three hooks neutral.

    Source: Haviv et al. 2022, "Transformer Language Models without Positional Encodings Still Learn Positional
    Information", for decoders; an encoder without positions sees a bag of tokens.
    """
