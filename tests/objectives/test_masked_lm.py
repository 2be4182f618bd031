from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from objective_toys import (
    SPECIALS,
    TEXT,
    UNKNOWN,
    check_batch,
    check_padding_changes_nothing,
    check_two_steps,
    documents,
    lists,
    packed,
    real,
    toy,
)

from transformer_kit.data.ragged import from_lists
from transformer_kit.data.rows import TextRows
from transformer_kit.errors import ConfigError
from transformer_kit.objectives.masked_lm import MaskedLM

OPTIONS: dict[str, Any] = {
    "rate": 0.3,
    "masked": 0.8,
    "replaced": 0.1,
    "label_smoothing": 0.0,
    "smoothing_over": "all",
    "chunk": 7,
}
LENGTHS = (5, 17, 1, 11)


def objective(**changes: Any) -> MaskedLM:
    return MaskedLM(**{"specials": SPECIALS, **OPTIONS, **changes})


def test_a_document_stands_between_bos_and_eos() -> None:
    """Also where the data have put them there already; labels are the text, the input differs only where it counts."""
    plain = documents(*LENGTHS)
    framed = replace(plain, ids=from_lists([[SPECIALS.bos, *row, SPECIALS.eos] for row in lists(plain.ids)]))
    batch = objective().collate(plain)
    check_batch(batch)
    assert batch.source is None
    assert real(batch.labels, batch.target.valid) == lists(framed.ids)
    assert (batch.target.ids == batch.labels)[~batch.counted].all()
    other = objective().collate(framed)
    assert torch.equal(other.target.ids, batch.target.ids)
    assert torch.equal(other.counted, batch.counted)


def test_only_text_is_counted() -> None:
    """Never padding, BOS, EOS, unknown; a share of the text, one token at least; what is put in is mask or text."""
    rows = documents(*range(1, 40))
    rows.ids.flat[::9] = UNKNOWN
    batch = objective().collate(rows)
    assert not batch.counted[~batch.target.valid].any()
    assert set(batch.labels[batch.counted].tolist()) <= set(TEXT)
    assert set(batch.target.ids[batch.counted].tolist()) <= {SPECIALS.mask, *TEXT}
    for row, counts in zip(lists(rows.ids), batch.counted, strict=True):
        candidates = sum(token != UNKNOWN for token in row)
        assert int(counts.sum()) == (max(1, int(0.3 * candidates + 0.5)) if candidates else 0)


def test_blocks_are_read_as_they_are() -> None:
    """Less the token that the next block begins with; each document by itself, positions restart."""
    rows = packed()
    batch = objective().collate(rows)
    check_batch(batch)
    assert rows.document is not None
    assert batch.target.document is not None
    assert real(batch.labels, batch.target.valid) == [row[:-1] for row in lists(rows.ids)]
    assert real(batch.target.document, batch.target.valid) == [row[:-1] for row in lists(rows.document)]
    assert set(batch.labels[batch.counted].tolist()) <= set(TEXT)
    assert batch.counted.any(dim=1).all()


def test_a_rows_noise_is_its_own() -> None:
    """Whatever it is batched with; another seed gives other noise."""
    together = objective().collate(documents(*LENGTHS))
    for number, length in enumerate(LENGTHS):
        alone = objective().collate(documents(length))
        there = together.target.valid[number]
        assert torch.equal(together.target.ids[number, there], alone.target.ids[0])
        assert torch.equal(together.counted[number, there], alone.counted[0])
    rows = documents(*LENGTHS)
    again = objective().collate(replace(rows, seeds=rows.seeds + 1))
    assert not torch.equal(again.counted, together.counted)


@pytest.mark.parametrize("head", ["linear", "mlm"])
def test_loss_is_the_formula(head: str) -> None:
    """Token by token, from the logits of each row by itself."""
    model = toy("encoder_only", head=head)
    loss, correct, count = 0.0, 0, 0
    for length in LENGTHS:
        one = objective().collate(documents(length))
        log_probs = model.logits(model.read(one.target).hidden)[0].log_softmax(-1)
        for place in one.counted[0].nonzero().flatten().tolist():
            label = int(one.labels[0, place])
            loss -= log_probs[place, label].item()
            correct += int(log_probs[place].argmax()) == label
            count += 1
    sums = objective()(model, objective().collate(documents(*LENGTHS)))
    assert sums.count == count == 2 + 5 + 1 + 3
    assert sums.loss.item() == pytest.approx(loss, rel=1e-10)
    assert sums.metrics["nll"].item() == pytest.approx(loss, rel=1e-10)
    assert sums.metrics["correct"].item() == correct


def test_perplexity_knows_no_smoothing() -> None:
    model, batch = toy("encoder_only"), objective().collate(documents(*LENGTHS))
    plain, smooth = objective()(model, batch), objective(label_smoothing=0.3)(model, batch)
    assert smooth.loss.item() != pytest.approx(plain.loss.item(), rel=1e-3)
    assert smooth.metrics["nll"].item() == pytest.approx(plain.loss.item(), rel=1e-10)


def test_padding_changes_nothing() -> None:
    alone = [objective().collate(documents(length)) for length in LENGTHS]
    check_padding_changes_nothing(objective(), toy("encoder_only"), alone, objective().collate(documents(*LENGTHS)))


def test_packed_is_unpacked() -> None:
    """A block gives the loss of its documents one by one, under the same noise."""
    model, rows = toy("encoder_only"), packed()
    batch = objective().collate(rows)
    assert batch.target.document is not None
    loss = 0.0
    for row in range(2):
        for number in batch.target.document[row, batch.target.valid[row]].unique():
            cells = batch.target.valid[row] & (batch.target.document[row] == number)
            one = objective().collate(documents(1))
            at = torch.arange(int(cells.sum()))[None]
            ids = batch.target.ids[None, row, cells]
            target = replace(one.target, ids=ids, valid=torch.ones_like(ids, dtype=torch.bool), at=at)
            log_probs = model.logits(model.read(target).hidden)[0].log_softmax(-1)
            gold = log_probs.gather(1, batch.labels[row, cells, None])[batch.counted[row, cells]]
            loss -= gold.sum().item()
    assert objective()(model, batch).loss.item() == pytest.approx(loss, rel=1e-10)


def test_two_steps() -> None:
    check_two_steps(objective(), toy("encoder_only", head="mlm"), objective().collate(documents(*LENGTHS)))


def test_no_row_is_longer_than_told() -> None:
    assert objective().collate(documents(*LENGTHS)).target.shape[1] == objective().longest(17, packed=False)
    assert objective().collate(packed()).target.shape[1] == objective().longest(20, packed=True)


def test_rows_without_text() -> None:
    """They count nothing, and the loss of nothing is 0."""
    rows = TextRows(from_lists([[], [SPECIALS.bos]]), None, np.array([1, 2]), np.arange(2), packed=False)
    batch = objective().collate(rows)
    check_batch(batch)
    assert batch.num_labels == 0
    assert objective()(toy("encoder_only"), batch).loss.item() == 0


def test_every_wrong_option_is_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        objective(specials=replace(SPECIALS, mask=None), rate=0.0, masked=0.95, chunk=0)
    problems = "\n".join(caught.value.problems)
    assert len(caught.value.problems) == 4
    for part in ("objective.rate=0.0", "objective.replaced=0.1", "tokenizer.mask=true", "objective.chunk=0"):
        assert part in problems
