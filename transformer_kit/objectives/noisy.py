"""What the objectives share that spoil a text and predict what was there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from transformer_kit.batch import Specials
from transformer_kit.data.ragged import Ragged, filtered
from transformer_kit.data.rows import TextRows
from transformer_kit.errors import ConfigError
from transformer_kit.nn.cross_entropy import Spread
from transformer_kit.objectives.blocks import part
from transformer_kit.objectives.tokens import TokenObjective


class NoisyObjective(TokenObjective):
    """Learns from documents, under noise that depends on each row's seed alone.

    A block of packed documents overlaps the next one by a token, which is left to that one.

    Args:
        problems: what the objective itself has found wrong with its options.
        specials, label_smoothing, smoothing_over, chunk: as in `TokenObjective`.

    Attributes:
        special: (V,) bool, True at the ids that text never produces.

    Raises:
        ConfigError: one line for each problem.
    """

    reads = "documents"

    def __init__(
        self,
        problems: Sequence[str],
        specials: Specials,
        label_smoothing: float,
        smoothing_over: Spread,
        chunk: int,
    ) -> None:
        found = list(problems)
        try:
            super().__init__(specials, label_smoothing, smoothing_over, chunk)
        except ConfigError as error:
            found += error.problems
        if found:
            raise ConfigError(found)
        self.special = np.zeros(specials.vocab_size, bool)
        self.special[list(specials.all)] = True

    def text(self, rows: TextRows) -> Ragged:
        """Each row's tokens without the special ones."""
        ids = part(rows.ids, 0, 1) if rows.packed else rows.ids
        return filtered(ids, ~self.special[ids.flat])


def share(name: str, value: float, *, most: float = 1.0) -> list[str]:
    """The problem with an option that is a share of something, if there is one: it must be above 0."""
    if 0 < value <= most:
        return []
    return [f"objective.{name}={value}: must be above 0 and at most {most:g}"]
