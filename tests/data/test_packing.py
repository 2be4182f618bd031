from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from corpora import byte_options, documents_options
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_kit.batch import Batch, Tokens
from transformer_kit.data.dataset import DocumentDataset, TrainingCorpus
from transformer_kit.data.options import DocumentsOptions, TextCorpusOptions
from transformer_kit.data.packing import PackedStream, Pass, count_blocks, packed_validation
from transformer_kit.data.prepare import prepare
from transformer_kit.data.ragged import Ragged, from_lists, offsets_of
from transformer_kit.data.rows import LabelRows, TextRows
from transformer_kit.data.streams import PieceStream, training_stream, validation_batches
from transformer_kit.errors import DataError


@dataclass(frozen=True)
class Seen(Batch):
    """A batch that remembers the rows it was made of."""

    rows: TextRows | LabelRows = field(kw_only=True)


def collate(rows: TextRows | LabelRows) -> Batch:
    nothing = torch.zeros(len(rows), 1, dtype=torch.int64)
    cells = Tokens(nothing, nothing > 0, nothing, full=False)
    return Seen(None, cells, nothing, nothing > 0, 0, torch.as_tensor(rows.sample_ids), rows=rows)


class Dataset(DocumentDataset):
    """Documents in memory."""

    def __init__(self, documents: list[list[int]]) -> None:
        self._rows = from_lists(documents)
        self.about = SimpleNamespace(names=["made up"])  # type: ignore[assignment]  # only the names are read

    @property
    def ids(self) -> Ragged:
        return self._rows

    def __len__(self) -> int:
        return len(self._rows)


def numbered(*lengths: int, start: int = 0) -> list[list[int]]:
    """Documents whose tokens are all different."""
    offsets = offsets_of(np.array(lengths)) + start
    return [list(range(offsets[row], offsets[row + 1])) for row in range(len(lengths))]


def rows_of(batch: Batch) -> TextRows:
    assert isinstance(batch, Seen)
    assert isinstance(batch.rows, TextRows)
    return batch.rows


def listed(rows: Ragged | None) -> list[list[int]]:
    assert rows is not None
    return [rows[row].tolist() for row in range(len(rows))]


def epoch_of(stream: Any) -> list[Batch]:
    before, batches = stream.epoch, []
    for batch in stream:
        batches.append(batch)
        if stream.epoch > before:
            return batches
    raise AssertionError("endless")


def packed(*documents: list[list[int]], weights: tuple[float, ...] = (1.0, 1.0), **changes: Any) -> PackedStream:
    seed = changes.pop("seed", 5)
    corpora = [TrainingCorpus(Dataset(rows), weight) for rows, weight in zip(documents, weights, strict=False)]
    return PackedStream(corpora, documents_options(Path("x"), [], **changes), seed=seed, collate=collate)


DOCUMENTS = st.lists(st.integers(0, 9), min_size=1, max_size=12).filter(lambda lengths: sum(lengths) > 1)


@settings(max_examples=120, deadline=None)
@given(DOCUMENTS, st.integers(1, 11), st.integers(0, 99))
def test_blocks_are_the_stream_and_predict_each_token_once(lengths: list[int], length: int, seed: int) -> None:
    documents = numbered(*lengths)
    ragged = from_lists(documents)
    for made in (Pass.shuffled(ragged, length, np.random.default_rng(seed)), Pass.straight(ragged, length)):
        stream = [token for row in made.order for token in documents[row]]
        owner = [row for row in made.order for _ in documents[row]]
        assert Counter(made.order.tolist()) == Counter(range(len(lengths)))
        ids, numbers = made.blocks(np.arange(len(made)))
        rows, document = listed(ids), listed(numbers)
        assert [token for row in rows for token in row[1:]] == stream[1:]
        assert all(row[0] == before[-1] for before, row in pairwise(rows))
        assert rows[0][0] == stream[0]
        assert all(len(row) == length + 1 for row in rows[1:-1])
        assert all(2 <= len(row) <= length + 1 for row in (rows[0], rows[-1]))
        place = {token: position for position, token in enumerate(stream)}
        for row, number in zip(rows, document, strict=True):
            changes = np.diff([owner[place[token]] for token in row]) != 0
            assert number[0] == 0
            assert [b > a for a, b in pairwise(number)] == changes.tolist()
        assert len(made) - count_blocks(ragged, length) in (0, 1)
    straight = Pass.straight(ragged, length)
    assert len(straight) == count_blocks(ragged, length)
    assert straight.order.tolist() == list(range(len(lengths)))


def test_any_blocks_in_any_order() -> None:
    made = Pass.shuffled(from_lists(numbered(5, 0, 9, 2)), 3, np.random.default_rng(2))
    every, _ = made.blocks(np.arange(len(made)))
    some, _ = made.blocks(np.array([4, 0, 2]))
    assert listed(some) == [listed(every)[number] for number in (4, 0, 2)]


def predictions(batches: list[Batch]) -> Counter[int]:
    return Counter(token for batch in batches for row in listed(rows_of(batch).ids) for token in row[1:])


@pytest.mark.parametrize("lengths", [(101,), (7, 13, 1, 29, 5, 0, 31), (2,), (1, 1)])
def test_an_epoch_predicts_each_token_but_the_first_once(lengths: tuple[int, ...]) -> None:
    stream = packed(numbered(*lengths))
    total = sum(lengths)
    orders = []
    for _ in range(4):
        batches = epoch_of(stream)
        counts = predictions(batches)
        assert set(counts.values()) == {1}
        assert len(counts) == total - 1
        assert all(len(rows_of(batch)) <= 3 for batch in batches)  # 21 tokens a batch, blocks of 7
        assert all(len(rows_of(batch)) == 3 for batch in batches[:-1])
        assert all(rows_of(batch).packed for batch in batches)
        orders.append([listed(rows_of(batch).ids) for batch in batches])
    assert total < 3 or all(orders[0] != other for other in orders[1:])
    again = packed(numbered(*lengths))
    assert [listed(rows_of(batch).ids) for batch in epoch_of(again)] == orders[0]
    assert total < 3 or orders[0] != [listed(rows_of(b).ids) for b in epoch_of(packed(numbered(*lengths), seed=6))]


def test_the_windows_of_a_single_document_start_elsewhere_in_each_epoch() -> None:
    stream = packed(numbered(5_000))
    starts: list[int] = []
    for _ in range(12):
        rows = [row for batch in epoch_of(stream) for row in listed(rows_of(batch).ids)]
        within = {row[0] % 7 for row in rows if len(row) == 8 and row[0] > 0}
        assert len(within) == 1
        starts += within
        assert [row[0] for row in rows] != sorted(row[0] for row in rows)
    assert len(set(starts)) > 3


def test_documents_are_shuffled_anew() -> None:
    stream = packed(numbered(*[2] * 50))
    neighbours = []
    for _ in range(2):
        rows = [row for batch in epoch_of(stream) for row in listed(rows_of(batch).ids)]
        pairs = {(a, b) for row in rows for a, b in pairwise(row) if b != a + 1}
        neighbours.append(pairs)
    assert len(neighbours[0] & neighbours[1]) < 10


def test_documents_are_told_apart_on_demand() -> None:
    documents = numbered(3, 4, 5, 6)
    assert rows_of(next(iter(packed(documents)))).document is None
    owner = {token: number for number, row in enumerate(documents) for token in row}
    for batch in epoch_of(packed(documents, mask_documents=True)):
        rows = rows_of(batch)
        for ids, numbers in zip(listed(rows.ids), listed(rows.document), strict=True):
            assert numbers[0] == 0
            for (a, b), (m, n) in zip(pairwise(ids), pairwise(numbers), strict=True):
                assert n - m == int(owner[a] != owner[b])


def test_a_mixture_draws_blocks_by_weight_and_walks_evenly() -> None:
    # 15 and 30 blocks of 7; weights 2 : 1 give 45 · 30/60 = 22.5 each, so 23 and 22 (or the reverse).
    small, large = numbered(106), numbered(211, start=1000)
    stream = packed(small, large, weights=(2.0, 1.0))
    total: Counter[int] = Counter()
    for epoch in range(1, 7):
        total += predictions(epoch_of(stream))
        of_small = sum(count for token, count in total.items() if token < 1000)
        assert abs(of_small / total.total() - 0.5) < 0.05
        counts = [total[token] for token in range(1, 106)]
        assert max(counts) - min(counts) <= 1
        assert min(counts) in (22 * epoch // 15, 23 * epoch // 15)
    plain = Counter[int]()
    plain += predictions(epoch_of(packed(small, large)))
    assert set(plain.values()) == {1}
    assert len(plain) == 105 + 210


def test_sample_ids_and_seeds() -> None:
    stream = packed(numbered(106), numbered(211, start=1000), mask_documents=True)
    first = epoch_of(stream)
    ids = [one for batch in first for one in batch.sample_ids.tolist()]
    assert len(set(ids)) == len(ids)
    seeds = np.concatenate([rows_of(batch).seeds for batch in first])
    assert len(set(seeds.tolist())) == len(seeds)
    second = {
        one: seed
        for batch in epoch_of(stream)
        for one, seed in zip(batch.sample_ids.tolist(), rows_of(batch).seeds, strict=True)
    }
    assert all(second.get(one) != seed for one, seed in zip(ids, seeds, strict=True))


def same(one: Batch, other: Batch) -> bool:
    first, second = rows_of(one), rows_of(other)
    assert (first.document is None) == (second.document is None)
    return (
        listed(first.ids) == listed(second.ids)
        and (first.document is None or listed(first.document) == listed(second.document))
        and first.seeds.tolist() == second.seeds.tolist()
        and first.sample_ids.tolist() == second.sample_ids.tolist()
    )


def streams() -> dict[str, Any]:
    mixture = numbered(13, 29, 2, 17), numbered(101, start=1000)
    options = documents_options(Path("x"), [], pack=False)
    corpora = [TrainingCorpus(Dataset(rows), weight) for rows, weight in zip(mixture, (3.0, 1.0), strict=True)]
    return {
        "packed": lambda: packed(mixture[1]),
        "mixture": lambda: packed(*mixture, weights=(3.0, 1.0), mask_documents=True),
        "pieces": lambda: PieceStream(corpora, options, seed=5, collate=collate),
    }


@pytest.mark.parametrize("name", ["packed", "mixture", "pieces"])
def test_a_cursor_resumes_at_the_next_batch(name: str) -> None:
    make = streams()[name]
    stream = make()
    unbroken, cursors = [], [stream.state_dict()]
    for batch in islice(stream, 25):
        unbroken.append(batch)
        cursors.append(stream.state_dict())
    assert {cursor["epoch"] for cursor in cursors} >= {0, 1, 2}
    for stop in range(25):
        resumed = make()
        resumed.load_state_dict(cursors[stop])
        assert resumed.epoch == cursors[stop]["epoch"]
        for batch, expected in zip(islice(resumed, 3), unbroken[stop:], strict=False):
            assert same(batch, expected)


@pytest.mark.parametrize(("length", "tokens", "rows"), [(7, 21, 3), (5, 9, 1), (40, 40, 1)])
def test_validation_reads_the_stream_in_order(length: int, tokens: int, rows: int) -> None:
    documents = numbered(11, 0, 13, 9)
    options = documents_options(Path("x"), [], mask_documents=True)
    data = replace(options, batch=replace(options.batch, tokens=tokens))
    found = list(packed_validation(Dataset(documents), data, length))
    flat = [row for batch in found for row in listed(batch.ids)]
    assert flat == [list(range(start, min(start + length + 1, 33))) for start in range(0, 32, length)]
    assert all(len(batch) == rows for batch in found[:-1])
    again = list(packed_validation(Dataset(documents), data, length))
    assert [batch.seeds.tolist() for batch in found] == [batch.seeds.tolist() for batch in again]
    assert [one for batch in found for one in batch.sample_ids.tolist()] == list(range(len(flat)))


def test_validation_windows_fit_the_model() -> None:
    data: DocumentsOptions = documents_options(Path("x"), [], length=7)
    batches = list(validation_batches(Dataset(numbered(40)), data, collate, max_length=5))
    flat = [row for batch in batches for row in listed(rows_of(batch).ids)]
    assert [len(row) for row in flat] == [6] * 7 + [5]
    pieces = list(validation_batches(Dataset(numbered(40)), replace(data, pack=False), collate, max_length=3))
    assert max(len(row) for batch in pieces for row in listed(rows_of(batch).ids)) == 3


@settings(max_examples=60, deadline=None)
@given(DOCUMENTS, st.integers(1, 11))
def test_pieces_are_the_documents(lengths: list[int], length: int) -> None:
    documents = numbered(*lengths)
    expected = [row[at : at + length] for row in documents for at in range(0, len(row), length)]
    assert listed(Dataset(documents).pieces(length)) == expected


def test_pieces_come_once_within_the_budget() -> None:
    documents = numbered(*range(40))
    data = documents_options(Path("x"), [], pack=False)
    stream = PieceStream([TrainingCorpus(Dataset(documents), 1.0)], data, seed=5, collate=collate)
    for _ in range(2):
        batches = epoch_of(stream)
        for batch in batches:
            rows = rows_of(batch)
            assert len(rows) * int(rows.ids.lengths.max()) <= 21
            assert rows.document is None
            assert not rows.packed
        tokens = Counter(token for batch in batches for row in listed(rows_of(batch).ids) for token in row)
        assert tokens == Counter(range(sum(range(40))))
    held_out = list(validation_batches(Dataset(documents), data, collate))
    tokens = Counter(token for batch in held_out for row in listed(rows_of(batch).ids) for token in row)
    assert tokens == Counter(range(sum(range(40))))
    assert all(len(rows_of(b)) * int(rows_of(b).ids.lengths.max()) <= 21 for b in held_out)


def test_nothing_to_predict() -> None:
    with pytest.raises(DataError, match="made up: fewer than 2 tokens"):
        packed(numbered(1))
    with pytest.raises(DataError, match="made up: fewer than 2 tokens"):
        list(packed_validation(Dataset(numbered(1, 0)), documents_options(Path("x"), []), 7))


@pytest.mark.parametrize("pack", [True, False])
def test_from_text_to_batches(tmp_path: Path, pack: bool) -> None:
    (tmp_path / "a.txt").write_text("".join(f"line {number}\n" for number in range(30)))
    corpus = [TextCorpusOptions(text=str(tmp_path / "a.txt"))]
    options = documents_options(tmp_path, corpus, valid=corpus, pack=pack)
    prepared = prepare(options, byte_options())
    stream = training_stream(prepared, seed=1, collate=collate)
    assert isinstance(stream, PackedStream if pack else PieceStream)
    batches = epoch_of(stream)
    total = len(prepared.train[0].dataset.ids.flat)
    cells = sum(len(rows_of(batch).ids.flat) - pack * len(rows_of(batch)) for batch in batches)
    assert cells == total - pack
    text = [rows_of(batch).ids for batch in validation_batches(prepared.valid, options, collate)]
    tokens = sum(len(rows.flat) - pack * len(rows) for rows in text)
    assert tokens == total - pack
