"""Predict the next target token, given the source and the target before it."""

from __future__ import annotations

from transformer_kit.objectives.tokens import TokenObjective


class Translation(TokenObjective):
    """−log p(target | source), token by token, with an encoder–decoder.

    Source: Vaswani et al. 2017, section 5.
    """

    reads = "pairs"
    families = frozenset({"encoder_decoder"})
