"""Next-token prediction: which cells count, what a document sees, and the loss by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from transformer_kit.batch import Batch, Specials, pad
from transformer_kit.data.ragged import Ragged, from_lists
from transformer_kit.data.rows import TextRows
from transformer_kit.models.base import ModelOutput
from transformer_kit.objectives.blocks import part, tokens_of, wrapped
from transformer_kit.objectives.causal_lm import CausalLM

VOCAB, WIDTH = 13, 5
PAD, BOS, EOS = 0, 2, 3


def specials(pad_id: int = PAD, eos: int = EOS) -> Specials:
    return Specials(pad_id, BOS, eos, 1, None, (), VOCAB, BOS)


def objective(**changes: int) -> CausalLM:
    return CausalLM(specials(**changes), 0.0, "all", 3)


def rows(ids: list[list[int]], document: list[list[int]] | None = None) -> TextRows:
    numbers = None if document is None else from_lists(document)
    seeds = np.arange(len(ids))
    return TextRows(from_lists(ids), numbers, seeds, seeds + 40, packed=document is not None)


class Table(nn.Module):
    """The state of a cell is a row of a table by its id."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.table = nn.Parameter(torch.randn(VOCAB, WIDTH, dtype=torch.float64))
        self.weight = nn.Parameter(torch.randn(VOCAB, WIDTH, dtype=torch.float64))

    def forward(self, batch: Batch) -> ModelOutput:
        return ModelOutput(self.table[batch.target.ids])

    def prepare(self, hidden: Tensor) -> Tensor:
        return hidden

    def output(self) -> tuple[Tensor, None]:
        return self.weight, None


def test_a_row_predicts_each_token_from_the_one_before() -> None:
    batch = objective().collate(rows([[2, 7, 0, 9, 3], [2, 4, 3]]))
    assert batch.source is None
    assert batch.target.ids.tolist() == [[2, 7, 0, 9], [2, 4, PAD, PAD]]
    assert batch.labels[batch.counted].tolist() == [7, 0, 9, 3, 4, 3]  # id 0 is the padding id, and counts
    assert batch.num_labels == 6
    assert batch.target.at.tolist() == [[0, 1, 2, 3], [0, 1, 0, 0]]
    assert batch.sample_ids.tolist() == [40, 41]
    assert batch.target.document is None


def test_packed_documents_restart_and_their_first_tokens_are_predicted_by_nothing() -> None:
    batch = objective().collate(rows([[5, 3, 2, 7, 3, 2, 9]], [[4, 4, 6, 6, 6, 7, 7]]))
    assert batch.target.ids.tolist() == [[5, 3, 2, 7, 3, 2]]
    assert batch.target.at.tolist() == [[0, 1, 0, 1, 2, 0]]
    assert batch.target.document is not None
    assert batch.target.document.tolist() == [[4, 4, 6, 6, 6, 7]]
    assert batch.counted.tolist() == [[True, False, True, True, False, True]]
    assert batch.labels[batch.counted].tolist() == [3, 7, 3, 9]


def test_the_next_document_s_first_token_is_no_label_of_a_row_that_holds_no_more_of_it() -> None:
    batch = objective().collate(rows([[5, 6, 7, 8], [8, 7, 6, 5]], [[0, 0, 0, 1], [2, 2, 2, 2]]))
    assert batch.target.document is None, "nothing to keep apart among what is read"
    assert batch.counted.tolist() == [[True, True, False], [True, True, True]]
    assert batch.num_labels == 5


def test_one_stream_without_documents_counts_every_token() -> None:
    batch = objective().collate(TextRows(from_lists([[5, 6, 7, 8], [8, 9]]), None, np.arange(2), np.arange(2), True))
    assert batch.labels[batch.counted].tolist() == [6, 7, 8, 9]


def test_padding_with_the_end_token_leaves_its_labels() -> None:
    """GPT-2 pads with its end token: supervised ends are as many as documents."""
    batch = objective(pad_id=EOS).collate(rows([[2, 7, 9, 3], [2, 3], [2, 4, 3]]))
    assert int((batch.labels[batch.counted] == EOS).sum()) == 3
    assert batch.num_labels == 3 + 1 + 2


def test_loss_by_hand() -> None:
    model, given = Table(), [[2, 7, 0, 9, 3], [2, 4, 3], [5]]
    sums = objective()(model, objective().collate(rows(given)))
    expected = sum(
        -torch.log_softmax(model.weight @ model.table[before], 0)[after]
        for row in given
        for before, after in itertools.pairwise(row)
    )
    torch.testing.assert_close(sums.loss, expected)
    assert sums.count == 6
    torch.testing.assert_close(sums.metrics["nll"].double(), expected.detach(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("begin", [0, 1, 3])
@pytest.mark.parametrize("end", [0, 2])
def test_part_is_a_slice_of_each_row(begin: int, end: int) -> None:
    given = [[5, 6, 7, 8, 9], [4], [], [2, 3], [7, 7, 7]]
    got = part(from_lists(given), begin, end)
    assert [got[row].tolist() for row in range(5)] == [
        row[begin : len(row) - end] if len(row) > end else [] for row in given
    ]


@pytest.mark.parametrize(("first", "last"), [(None, None), (11, None), (None, 12), (11, 12)])
def test_wrapped_puts_ids_around_each_row(first: int | None, last: int | None) -> None:
    given = [[5, 6], [], [7]]
    got = wrapped(from_lists(given), first, last)
    before, after = [] if first is None else [first], [] if last is None else [last]
    assert [got[row].tolist() for row in range(3)] == [[*before, *row, *after] for row in given]


def test_blocks_are_those_of_pad() -> None:
    given = [[5, 6, 7], [], [8]]
    got, expected = tokens_of(from_lists(given), 9), pad(given, 9)
    for name in ("ids", "valid", "at"):
        assert torch.equal(getattr(got, name), getattr(expected, name))
    assert got.full == expected.full
    empty = tokens_of(Ragged(np.zeros(0, np.int64), np.zeros(1, np.int64)), 9)
    assert empty.shape == (0, 0)
