"""The values that travel from data to models: padded blocks of token ids and the batches made of them.

Padding is known by `valid`, never by an id, so a real token may have any id and the labels of padding cells are
masked by length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from transformer_kit.specials import Specials as Specials

Side = Literal["right", "left"]


@dataclass(frozen=True)
class Cells:
    """Where the cells of a block stand and which of them belong together; what a stack knows of its input.

    Attributes:
        at: (B, L) int64; the position of each token, 0 at padding, restarting in each packed document.
        valid: (B, L) bool, True at real tokens; None when all are.
        document: (B, L) int64 number of the document that a cell belongs to, or None when a row is one document.
        prefix: (B, L) bool, True at cells that the whole row sees although the stack is causal; None: there are none.
        behind: whether all padding is known to stand behind the tokens of its row.
    """

    at: Tensor
    valid: Tensor | None = None
    document: Tensor | None = None
    prefix: Tensor | None = None
    behind: bool = False


@dataclass(frozen=True)
class Tokens:
    """A padded block of token ids.

    Attributes:
        ids: (B, L) int64; padding cells hold the padding id.
        valid: (B, L) bool; True at real tokens.
        at: (B, L) int64; the position of each token, 0 at padding, restarting in each packed document.
        full: True when no cell is padding (known when the block is made, so that masks need not look).
        document: (B, L) int64 number of the document that a cell belongs to, or None when a row is one document.
        prefix: (B, L) bool; see `Cells`.
        types: (B, L) int64 number of the segment (first or second sentence) that a cell belongs to; None: all 0.
        behind: whether all padding is known to stand behind the tokens of its row.
    """

    ids: Tensor
    valid: Tensor
    at: Tensor
    full: bool
    document: Tensor | None = None
    prefix: Tensor | None = None
    types: Tensor | None = None
    behind: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        return self.ids.shape[0], self.ids.shape[1]

    @property
    def cells(self) -> Cells:
        return Cells(self.at, None if self.full else self.valid, self.document, self.prefix, self.behind)

    def repeated(self, times: int) -> Tokens:
        """All rows, then all rows again, and so on: B becomes times · B."""

        def more(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor.repeat(times, 1)

        ids, valid, at = self.ids.repeat(times, 1), self.valid.repeat(times, 1), self.at.repeat(times, 1)
        document, prefix, types = more(self.document), more(self.prefix), more(self.types)
        return Tokens(ids, valid, at, self.full, document, prefix, types, self.behind)

    def to(self, device: torch.device | str) -> Tokens:
        """On another device; from pinned memory the copy does not wait for what the device has in hand."""
        if self.ids.device == torch.device(device):
            return self
        return self._each(lambda tensor: tensor.to(device, non_blocking=tensor.is_pinned()))

    def pinned(self) -> Tokens:
        """In memory from which a GPU reads by itself."""
        return self._each(Tensor.pin_memory)

    def _each(self, change: Callable[[Tensor], Tensor]) -> Tokens:
        def changed(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else change(tensor)

        ids, valid, at = change(self.ids), change(self.valid), change(self.at)
        document, prefix, types = changed(self.document), changed(self.prefix), changed(self.types)
        return Tokens(ids, valid, at, self.full, document, prefix, types, self.behind)

    def rows(self, which: slice) -> Tokens:
        """Some of the rows, as wide as before."""

        def part(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor[which]

        ids, valid, at = self.ids[which], self.valid[which], self.at[which]
        document, prefix, types = part(self.document), part(self.prefix), part(self.types)
        return Tokens(ids, valid, at, self.full, document, prefix, types, self.behind)


def pad(rows: Sequence[Sequence[int] | Tensor], pad_id: int, side: Side = "right", length: int | None = None) -> Tokens:
    """Stack rows of ids into one block.

    Args:
        rows: B sequences of ids (lists, int64 tensors or numpy arrays).
        pad_id: what padding cells hold.
        side: where the padding goes.
        length: L, at least the longest row; the longest row by default.
    """
    lengths = torch.tensor([len(row) for row in rows], dtype=torch.int64)
    longest = int(lengths.max()) if len(rows) else 0
    width = longest if length is None else length
    assert width >= longest, "length is shorter than the longest row"
    steps = torch.arange(width)
    if side == "left":
        at = steps[None, :] - (width - lengths[:, None])
        valid = at >= 0
    else:
        at = steps[None, :].expand(len(rows), width)
        valid = at < lengths[:, None]
    flat = torch.cat([torch.as_tensor(row, dtype=torch.int64) for row in rows]) if len(rows) else steps[:0]
    ids = torch.full((len(rows), width), pad_id, dtype=torch.int64)
    ids[valid] = flat
    full = bool((lengths == width).all())
    return Tokens(ids, valid, torch.where(valid, at, 0), full, behind=side == "right")


@dataclass(frozen=True)
class Batch:
    """One batch of examples.

    Attributes:
        source: what the encoder of an encoder–decoder reads; None for a model of one stack.
        target: what the model predicts from: for a decoder BOS and the tokens but the last, for an encoder its input.
        labels: (B, T) int64; what each cell of `target` predicts; anything where `counted` is False. Where a whole row
            has one label: (B, 1).
        counted: shaped like `labels`, bool; True where a label counts in the loss.
        num_labels: the number of True cells of `counted`.
        sample_ids: (B,) int64; which samples of the data set these rows are.
        places: (num_labels,) int64; where in the flattened `counted` the True cells stand, known before the batch goes
            to a device that would have to be waited for; None: look when needed.
    """

    source: Tokens | None
    target: Tokens
    labels: Tensor
    counted: Tensor
    num_labels: int
    sample_ids: Tensor
    places: Tensor | None = None

    def repeated(self, times: int) -> Batch:
        """All rows, then all rows again, and so on: B becomes times · B."""
        places = self.places
        if places is not None:
            places = torch.cat([places + time * self.counted.numel() for time in range(times)])
        return Batch(
            None if self.source is None else self.source.repeated(times),
            self.target.repeated(times),
            self.labels.repeat(times, 1),
            self.counted.repeat(times, 1),
            self.num_labels * times,
            self.sample_ids.repeat(times),
            places,
        )

    def to(self, device: torch.device | str) -> Batch:
        """On another device; from pinned memory the copies do not wait for what the device has in hand."""
        if self.labels.device == torch.device(device):
            return self
        return self._with_places()._each(
            lambda tokens: tokens.to(device), lambda tensor: tensor.to(device, non_blocking=tensor.is_pinned())
        )

    def pinned(self) -> Batch:
        """In memory from which a GPU reads by itself."""
        return self._with_places()._each(Tokens.pinned, Tensor.pin_memory)

    def _with_places(self) -> Batch:
        if self.places is not None or self.num_labels == self.labels.numel():
            return self
        return replace(self, places=self.counted.flatten().nonzero().squeeze(1))

    def _each(self, tokens: Callable[[Tokens], Tokens], change: Callable[[Tensor], Tensor]) -> Batch:
        return Batch(
            None if self.source is None else tokens(self.source),
            tokens(self.target),
            change(self.labels),
            change(self.counted),
            self.num_labels,
            self.sample_ids,
            None if self.places is None else change(self.places),
        )

    def uncounted(self) -> Batch:
        """The first example, none of whose labels counts: its loss is a sum over nothing, its gradients are zeros."""
        first = self.rows(slice(0, 1))
        return replace(first, counted=torch.zeros_like(first.counted), num_labels=0, places=None)

    def rows(self, which: slice) -> Batch:
        """Some of the examples, as wide as before."""
        counted = self.counted[which]
        return Batch(
            None if self.source is None else self.source.rows(which),
            self.target.rows(which),
            self.labels[which],
            counted,
            int(counted.sum()),
            self.sample_ids[which],
        )


def translation_batch(
    sources: Sequence[Sequence[int] | Tensor],
    targets: Sequence[Sequence[int] | Tensor],
    sample_ids: Sequence[int],
    *,
    pad_id: int,
    bos_id: int,
    eos_id: int,
    side: Side = "right",
) -> Batch:
    """The batch of a sequence-to-sequence model.

    The encoder reads `source EOS`, the decoder reads `BOS target` and predicts `target EOS`; so S is the longest source
    plus one and T the longest target plus one.

    Args:
        sources, targets: ids without BOS and EOS.
    """
    end, begin = torch.tensor([eos_id]), torch.tensor([bos_id])
    as_ids = [torch.as_tensor(row, dtype=torch.int64) for row in targets]
    source = pad([torch.cat((torch.as_tensor(row, dtype=torch.int64), end)) for row in sources], pad_id, side)
    target = pad([torch.cat((begin, row)) for row in as_ids], pad_id, side)
    labels = pad([torch.cat((row, end)) for row in as_ids], pad_id, side)
    total = sum(len(row) + 1 for row in as_ids)
    return Batch(source, target, labels.ids, labels.valid, total, torch.as_tensor(sample_ids, dtype=torch.int64))
