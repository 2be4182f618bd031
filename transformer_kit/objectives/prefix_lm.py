"""Translation by a model of one stack: the source is a prefix that is seen in both directions."""

from __future__ import annotations

import torch
from torch import Tensor

from transformer_kit.batch import Batch, Tokens
from transformer_kit.models.base import Model
from transformer_kit.objectives.tokens import TokenObjective


class PrefixLM(TokenObjective):
    """−log p(target | source), with source and target in one row: `source EOS BOS target EOS`.

    The cells of the source see each other in both directions, those of the target the source and what is before them;
    positions go on from the source into the target; only the target is predicted.

    Source: Raffel et al. 2020, section 3.2.1, "prefix LM"; Liu et al. 2018.
    """

    reads = "pairs"
    families = frozenset({"decoder_only"})

    def hidden(self, model: Model, batch: Batch) -> Tensor:
        assert batch.source is not None, "a translation has a source"
        row = joined(batch.source, batch.target)
        return model.read(row).hidden[:, batch.source.shape[1] :]


def joined(source: Tokens, target: Tokens) -> Tokens:
    """Source and target in one row, the source as its prefix.

    Padding of the source stays where it is, between the two: it is seen by nobody and counts for no position.
    """
    lengths = source.valid.sum(1, keepdim=True)  # (B, 1)
    continued = torch.where(target.valid, target.at + lengths, 0)
    return Tokens(
        ids=torch.cat((source.ids, target.ids), 1),
        valid=torch.cat((source.valid, target.valid), 1),
        at=torch.cat((source.at, continued), 1),
        full=source.full and target.full,
        prefix=torch.cat((source.valid, torch.zeros_like(target.valid)), 1),
    )
