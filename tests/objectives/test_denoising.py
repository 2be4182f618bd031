from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from objective_toys import (
    SPECIALS,
    check_batch,
    check_padding_changes_nothing,
    check_two_steps,
    documents,
    lists,
    packed,
    real,
    toy,
)

from transformer_kit.batch import Batch
from transformer_kit.data.ragged import from_lists
from transformer_kit.data.rows import TextRows
from transformer_kit.errors import ConfigError
from transformer_kit.objectives.denoising import Denoising, Infilling, SpanCorruption

USUAL: dict[str, Any] = {"label_smoothing": 0.0, "smoothing_over": "all", "chunk": 7}
LENGTHS = (5, 17, 2, 11)
KINDS = ("t5", "bart")
both = pytest.mark.parametrize("kind", KINDS)


def objective(kind: str, **changes: Any) -> Denoising:
    if kind == "t5":
        return SpanCorruption(**{"specials": SPECIALS, "density": 0.3, "mean_length": 2.0, **USUAL, **changes})
    return Infilling(**{"specials": SPECIALS, "rate": 0.3, "mean_length": 2.0, **USUAL, **changes})


def sides(batch: Batch) -> tuple[list[list[int]], list[list[int]], list[list[int]]]:
    """What encoder and decoder read, and the labels."""
    assert batch.source is not None
    source = real(batch.source.ids, batch.source.valid)
    return source, real(batch.target.ids, batch.target.valid), real(batch.labels, batch.counted)


@both
@pytest.mark.parametrize("start", [SPECIALS.bos, SPECIALS.pad, SPECIALS.eos])
def test_ends_and_starts(kind: str, start: int) -> None:
    """The encoder's row ends with EOS; the decoder starts with `start`, and predicts what it reads next, and EOS."""
    own = replace(SPECIALS, start=start)
    batch = objective(kind, specials=own).collate(documents(*LENGTHS))
    check_batch(batch)
    for source, target, labels in zip(*sides(batch), strict=True):
        assert source[-1] == SPECIALS.eos
        assert target[0] == start
        assert target[1:] == labels[:-1]
        assert labels[-1] == SPECIALS.eos
    assert torch.equal(batch.counted, batch.target.valid)


def test_spans_restore_the_text() -> None:
    rows = documents(*LENGTHS)
    source, _, labels = sides(objective("t5").collate(rows))
    for text, given, target in zip(lists(rows.ids), source, labels, strict=True):
        spans: dict[int, list[int]] = {}
        for token in target[:-1]:
            if token in SPECIALS.sentinels:
                spans[last := token] = []
            else:
                spans[last].append(token)
        assert [token for each in given[:-1] for token in spans.get(each, [each])] == text
        used = [token for token in given if token in SPECIALS.sentinels]
        assert list(spans) == list(SPECIALS.sentinels[: len(used) + 1])
        assert used == list(SPECIALS.sentinels[: len(used)])


def test_infilling_asks_for_the_text() -> None:
    rows = documents(*LENGTHS)
    source, _, labels = sides(objective("bart").collate(rows))
    assert [row[:-1] for row in labels] == lists(rows.ids)
    for text, given in zip(lists(rows.ids), source, strict=True):
        assert SPECIALS.mask in given
        assert sum(token not in (SPECIALS.mask, SPECIALS.eos) for token in given) == len(text) - max(
            1, int(0.3 * len(text) + 0.5)
        )


@both
def test_special_tokens_of_the_data_are_left_out(kind: str) -> None:
    """Also in blocks, which are one text less the token that the next one begins with."""
    plain = documents(*LENGTHS)
    framed = replace(plain, ids=from_lists([[SPECIALS.bos, *row, SPECIALS.eos] for row in lists(plain.ids)]))
    assert sides(objective(kind).collate(framed)) == sides(objective(kind).collate(plain))
    rows = packed()
    batch = objective(kind).collate(rows)
    check_batch(batch)
    assert batch.source is not None
    assert batch.source.document is batch.target.document is None
    if kind == "bart":
        special = (SPECIALS.bos, SPECIALS.eos)
        assert [row[:-1] for row in sides(batch)[2]] == [
            [token for token in row[:-1] if token not in special] for row in lists(rows.ids)
        ]


@both
def test_a_rows_noise_is_its_own(kind: str) -> None:
    together = sides(objective(kind).collate(documents(*LENGTHS)))
    for number, length in enumerate(LENGTHS):
        alone = sides(objective(kind).collate(documents(length)))
        assert [side[number] for side in together] == [side[0] for side in alone]
    rows = documents(*LENGTHS)
    assert sides(objective(kind).collate(replace(rows, seeds=rows.seeds + 1))) != together


@both
def test_loss_is_the_formula(kind: str) -> None:
    """Token by token, from the logits of each row by itself."""
    model = toy("encoder_decoder")
    loss, count = 0.0, 0
    for length in LENGTHS:
        one = objective(kind).collate(documents(length))
        log_probs = model.logits(model(one).hidden)[0].log_softmax(-1)
        loss -= sum(log_probs[place, label].item() for place, label in enumerate(one.labels[0].tolist()))
        count += one.labels.shape[1]
    batch = objective(kind).collate(documents(*LENGTHS))
    sums = objective(kind)(model, batch)
    assert sums.count == count
    assert sums.loss.item() == pytest.approx(loss, rel=1e-10)
    smooth = objective(kind, label_smoothing=0.2)(model, batch)
    assert smooth.metrics["nll"].item() == pytest.approx(loss, rel=1e-10)
    assert smooth.loss.item() != pytest.approx(loss, rel=1e-3)


@both
def test_padding_changes_nothing(kind: str) -> None:
    made = objective(kind)
    alone = [made.collate(documents(length)) for length in LENGTHS]
    check_padding_changes_nothing(made, toy("encoder_decoder"), alone, made.collate(documents(*LENGTHS)))


@both
def test_two_steps(kind: str) -> None:
    check_two_steps(objective(kind), toy("encoder_decoder"), objective(kind).collate(documents(*LENGTHS)))


@both
def test_no_row_is_longer_than_told(kind: str) -> None:
    for rows in (documents(*range(1, 60)), replace(documents(60), packed=True)):
        batch = objective(kind).collate(rows)
        assert batch.source is not None
        longest = objective(kind).longest(59, rows.packed)
        assert batch.source.shape[1] <= longest
        assert batch.target.shape[1] <= longest
        assert kind == "t5" or batch.target.shape[1] == longest


@both
def test_rows_without_text(kind: str) -> None:
    """Only their ends are predicted."""
    rows = TextRows(from_lists([[], [7]]), None, np.array([1, 2]), np.arange(2), packed=False)
    batch = objective(kind).collate(rows)
    check_batch(batch)
    eos, first = SPECIALS.eos, SPECIALS.sentinels[0]
    expected = [[first, eos], [first, eos]] if kind == "t5" else [[eos], [7, eos]]
    assert sides(batch)[2] == expected
    assert objective(kind)(toy("encoder_decoder"), batch).loss.isfinite()


def test_every_wrong_option_is_named_at_once() -> None:
    none = replace(SPECIALS, mask=None, sentinels=(30,))
    with pytest.raises(ConfigError) as caught:
        objective("t5", specials=none, density=1.0, mean_length=0.5, label_smoothing=1.0)
    assert [line.split(":")[0] for line in caught.value.problems] == [
        "objective.density=1.0",
        "objective.mean_length=0.5",
        "objective",
        "objective.label_smoothing=1.0",
    ]
    assert "tokenizer.sentinels" in caught.value.problems[2]
    with pytest.raises(ConfigError, match=r"(?s)rate=1.5.*mean_length=0.*tokenizer.mask=true"):
        objective("bart", specials=none, rate=1.5, mean_length=0.0)
