"""A stream of batches small enough to train on in milliseconds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from transformer_kit.batch import Batch, translation_batch

VOCAB = 13


class Stream:
    """Samples in an order of their own each epoch, `rows` a batch; records what it gives."""

    def __init__(self, samples: int = 23, rows: int = 3, epoch: int = 0) -> None:
        made = torch.Generator().manual_seed(7)
        lengths = torch.randint(2, 8, (samples, 2), generator=made).tolist()
        self.pairs = [[torch.randint(4, VOCAB, (n,), generator=made) for n in pair] for pair in lengths]
        self.rows = rows
        self.epoch = epoch
        self.index = 0
        self.given: list[list[int]] = []

    def __iter__(self) -> Iterator[Batch]:
        while True:
            order = torch.randperm(len(self.pairs), generator=torch.Generator().manual_seed(self.epoch)).tolist()
            chunks = [order[i : i + self.rows] for i in range(0, len(order), self.rows)]
            chunk = chunks[self.index]
            self.index += 1
            if self.index == len(chunks):
                self.epoch, self.index = self.epoch + 1, 0
            self.given.append(chunk)
            yield self.batch(chunk)

    def dealt(self, rank: int, ranks: int) -> Iterator[Batch | None]:
        for given, batch in enumerate(self):
            yield batch if given % ranks == rank else None

    def batch(self, chunk: list[int]) -> Batch:
        sources, targets = zip(*(self.pairs[i] for i in chunk), strict=True)
        return translation_batch(sources, targets, chunk, pad_id=0, bos_id=2, eos_id=3)

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "batch": self.index}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.index = state["epoch"], state["batch"]
