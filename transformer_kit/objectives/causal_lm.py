"""Predict the next token of running text."""

from __future__ import annotations

import torch

from transformer_kit.batch import Batch
from transformer_kit.data.rows import LabelRows, TextRows
from transformer_kit.objectives.blocks import block, part, tokens_of
from transformer_kit.objectives.tokens import TokenObjective


class CausalLM(TokenObjective):
    """−log p(token | tokens before it), with a decoder-only model.

    Where rows hold several documents, a token sees only its own document, positions restart in each, and the first
    token of a document is predicted by nothing.

    Source: Radford et al. 2018, section 3.1, equation 1.
    """

    reads = "documents"
    families = frozenset({"decoder_only"})

    def collate(self, rows: TextRows | LabelRows) -> Batch:
        assert isinstance(rows, TextRows)
        document = None if rows.document is None else part(rows.document, 0, 1)
        target = tokens_of(part(rows.ids, 0, 1), self.specials.pad, document)
        labels, counts = block(part(rows.ids, 1, 0), self.specials.pad)
        if rows.document is not None and document is not None:
            (own, _), (following, _) = block(document, -1), block(part(rows.document, 1, 0), -1)
            counts = counts & (following == own)
        return Batch(None, target, labels, counts, int(counts.sum()), torch.as_tensor(rows.sample_ids).long())
