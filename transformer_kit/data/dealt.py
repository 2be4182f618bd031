"""Endless batches that several ranks share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

from transformer_kit.batch import Batch


class Dealt(ABC):
    """Batches in one order, each made by one rank alone; the cursor moves over all of them on every rank."""

    @abstractmethod
    def dealt(self, rank: int, ranks: int) -> Iterator[Batch | None]:
        """All batches; None in place of those that are for other ranks: batch i is for rank i mod `ranks`.

        Batches are counted from the first one given here, wherever the cursor stood.
        """

    def __iter__(self) -> Iterator[Batch]:
        for batch in self.dealt(0, 1):
            assert batch is not None
            yield batch
