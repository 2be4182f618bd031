from __future__ import annotations

import gzip
import logging
import os
from collections import Counter
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from corpora import ENGLISH, byte_options, labels_options, sentences, tokenizer_options
from hypothesis import given, settings
from hypothesis import strategies as st
from test_packing import Seen, collate, epoch_of, listed

from transformer_kit.batch import Batch
from transformer_kit.data import prepare as module
from transformer_kit.data.dataset import LabelDataset
from transformer_kit.data.labels import Labelled, read_labelled
from transformer_kit.data.options import ColumnOptions, LabelCorpusOptions
from transformer_kit.data.prepare import Prepared, prepare, prepare_split
from transformer_kit.data.ragged import from_lists
from transformer_kit.data.report import report
from transformer_kit.data.rows import LabelRows
from transformer_kit.data.streams import LabelStream, training_stream, validation_batches
from transformer_kit.errors import ConfigError, DataError

BYTES = byte_options()
PAIR = ColumnOptions(text=3, second=1, label=2)


@pytest.fixture(autouse=True)
def _records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("transformer_kit"), "propagate", True)


def written(folder: Path, text: str | bytes, name: str = "train.tsv") -> LabelCorpusOptions:
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return LabelCorpusOptions(tsv=str(folder / name))


def made_up(folder: Path, count: int, name: str = "train.tsv", seed: int = 1) -> LabelCorpusOptions:
    lines = [f"{line}\t{'abc'[len(line) % 3]}\n" for line in sentences(count, ENGLISH, seed)]
    return written(folder, "".join(lines), name)


def rows_of(batch: Batch) -> LabelRows:
    assert isinstance(batch, Seen)
    assert isinstance(batch.rows, LabelRows)
    return batch.rows


def content(dataset: LabelDataset) -> list[Any]:
    columns = [listed(dataset.column(name)) for name in dataset.about.columns if name.endswith("ids")]
    return [*zip(*columns, dataset.labels.tolist(), strict=True)]


def test_texts_and_the_numbers_of_their_labels(tmp_path: Path) -> None:
    train = written(tmp_path, "the dog\tgood\nb\t bad \n\tgood\nthe cat\tgood\textra\n")
    valid = written(tmp_path, "a cat\tbad\n", "dev.tsv")
    prepared = prepare(labels_options(tmp_path, [train], valid=[valid]), BYTES)
    assert prepared.labels == ["bad", "good"]
    encode = prepared.tokenizers.source.encode
    expected = zip(encode(["the dog", "b", "", "the cat"]), [1, 0, 1, 1], strict=True)
    dataset = prepared.train[0].dataset
    assert content(dataset) == list(expected)
    assert content(prepared.valid) == [(encode(["a cat"])[0], 0)]
    counts = dataset.about.counts
    assert (counts.read, counts.kept, counts.empty) == (4, 4, 1)
    assert counts.labels == {"bad": 1, "good": 3}
    assert not dataset.paired


def test_pairs_of_texts_in_any_columns(tmp_path: Path) -> None:
    train = written(tmp_path, "one\tyes\ttwo\nthree\tno\tfour\n")
    prepared = prepare(labels_options(tmp_path, [train], columns=PAIR), BYTES)
    encode = prepared.tokenizers.source.encode
    assert prepared.train[0].dataset.paired
    assert content(prepared.train[0].dataset) == [
        (*encode(["two", "one"]), 1),
        (*encode(["four", "three"]), 0),
    ]
    assert read_labelled(tmp_path / "train.tsv", PAIR) == [["two", "four"], ["one", "three"], ["yes", "no"]]


def test_file_forms_give_equal_rows(tmp_path: Path) -> None:
    text = "a\u2028b\tx\nc\x0bd\ty\ne\x85\rf\tx"
    forms = {
        "lf": text.encode() + b"\n",
        "no_end": text.encode(),
        "crlf": text.replace("\n", "\r\n").encode() + b"\r\n",
        "bom": b"\xef\xbb\xbf" + text.encode(),
        "gzip": gzip.compress(text.encode()),
    }
    found = []
    for name, raw in forms.items():
        prepared = prepare(labels_options(tmp_path, [written(tmp_path, raw, name)]), BYTES)
        assert prepared.labels == ["x", "y"]
        found.append(content(prepared.train[0].dataset))
    assert len(found[0]) == 3
    assert all(one == found[0] for one in found)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\tx\nb\n", r"train\.tsv, line 2: 1 column, but data\.columns\.label is 2"),
        ("a\tx\n\n", r"train\.tsv, line 2: 1 column, but data\.columns\.label is 2"),
        ("a\tx\nb\t \n", r"train\.tsv, line 2: no label in column 2"),
        ("", r"train\.tsv: the file is empty"),
    ],
)
def test_lines_that_are_no_examples(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        prepare(labels_options(tmp_path, [written(tmp_path, text)]), BYTES)
    assert not list(tmp_path.glob("prepared/corpus-*"))


@pytest.mark.parametrize("workers", [1, 2])
def test_a_label_that_training_does_not_know(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    monkeypatch.setattr(module, "CHUNK", 2)
    train = written(tmp_path, "a\tx\nb\ty\n")
    valid = written(tmp_path, "a\tx\nb\ty\nc\ty\nd\tz\n", "dev.tsv")
    with pytest.raises(DataError, match=r"dev\.tsv, line 4: the label 'z' is none of the training text's \(x, y\)"):
        prepare(labels_options(tmp_path, [train], valid=[valid], workers=workers), BYTES)


def test_bad_bytes_are_counted(tmp_path: Path) -> None:
    train = written(tmp_path, b"a\tx\n\xff\ty\n\x00\tx\n")
    warnings = prepare(labels_options(tmp_path, [train]), BYTES).train[0].dataset.about.warnings
    assert [line.split(": ", 1)[1][:9] for line in warnings] == ["1 line(s)"] * 2
    assert "is line 2" in warnings[0]


def test_several_files_are_one_corpus_and_are_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [made_up(tmp_path, 17), made_up(tmp_path, 13, "more.tsv", 5)]
    options = labels_options(tmp_path, files, valid=files[:1])
    first = prepare(options, BYTES)
    assert len(first.train) == 1
    assert len(first.train[0].dataset) == 30
    assert first.train[0].dataset.about.names == ["train.tsv", "more.tsv"]
    monkeypatch.setattr(Labelled, "learn", None)  # the labels are known, so nothing is read again
    again = prepare(options, BYTES)
    assert again.labels == first.labels
    assert again.valid.folder == first.valid.folder
    assert prepare(replace(options, max_length=9), BYTES).train[0].dataset.folder == first.train[0].dataset.folder
    # Other training labels give other numbers, so held-out data are prepared anew.
    monkeypatch.undo()
    other = replace(options, train=[written(tmp_path, "p\t0\nq\ta\nr\tb\ns\tc\n", "other.tsv")])
    tokenizers = first.tokenizers
    assert prepare(other, BYTES, tokenizers).valid.folder != prepare(options, BYTES, tokenizers).valid.folder


def test_test_data_take_the_labels_of_the_run(tmp_path: Path) -> None:
    options = labels_options(tmp_path, [written(tmp_path, "a\tx\nb\ty\n")], test=[written(tmp_path, "b\ty\n", "t")])
    prepared = prepare(options, BYTES)
    found = prepare_split(options.test, options, prepared.tokenizers, prepared.labels)
    assert found.labels.tolist() == [1]
    with pytest.raises(DataError, match="label 'y' is none of"):
        prepare_split(options.test, options, prepared.tokenizers, ["x"])


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=8), st.integers(2, 40))
def test_pairs_are_cut_at_the_longer_text(sizes: list[tuple[int, int]], longest: int) -> None:
    class Made(LabelDataset):
        def __init__(self) -> None:
            self._sides = {
                f"{name}.ids": from_lists([[1] * size[side] for size in sizes])
                for side, name in enumerate(("first", "second"))
            }

        def column(self, name: str) -> Any:
            return self._sides[name]

        @property
        def paired(self) -> bool:
            return True

    for (first, second), a, b in zip(sizes, *Made().limits(np.arange(len(sizes)), longest), strict=True):
        assert a <= first
        assert b <= second
        assert a + b == min(first + second, longest)
        # One token at a time from the longer one, the second where they are equally long.
        while first + second > longest:
            first, second = (first, second - 1) if second >= first else (first - 1, second)
        assert (a, b) == (first, second)


def stream_of(prepared: Prepared, seed: int = 5) -> LabelStream:
    stream = training_stream(prepared, seed=seed, collate=collate)
    assert isinstance(stream, LabelStream)
    return stream


def test_batches_fit_the_budget_and_every_row_comes_once(tmp_path: Path) -> None:
    train = made_up(tmp_path, 60)
    prepared = prepare(labels_options(tmp_path, [train], valid=[train]), BYTES)
    dataset = prepared.train[0].dataset
    stream = stream_of(prepared)
    for batches in (
        epoch_of(stream),
        epoch_of(stream),
        list(validation_batches(prepared.valid, prepared.data, collate)),
    ):
        drawn = Counter(one for batch in batches for one in batch.sample_ids.tolist())
        assert drawn == Counter(range(60))
        for batch in batches:
            rows = rows_of(batch)
            assert rows.second is None
            assert len(rows) * (int(rows.first.lengths.max()) + 2) <= 41
            for ids, label, sample in zip(listed(rows.first), rows.labels, rows.sample_ids, strict=True):
                assert ids == dataset.column("first.ids")[sample][:11].tolist()
                assert label == dataset.labels[sample]
    limited = list(validation_batches(prepared.valid, prepared.data, collate, max_length=7))
    assert max(int(rows_of(batch).first.lengths.max()) for batch in limited) == 5
    assert stream.over_budget == 0


def test_pairs_fit_the_budget(tmp_path: Path) -> None:
    train = written(tmp_path, "".join(f"{'a' * (n % 11)}\t{n % 2}\t{'b' * (n % 7)}\n" for n in range(50)))
    prepared = prepare(labels_options(tmp_path, [train], columns=PAIR), BYTES)
    batches = epoch_of(stream_of(prepared))
    for batch in batches:
        rows = rows_of(batch)
        assert rows.second is not None
        assert len(rows) * (int((rows.first.lengths + rows.second.lengths).max()) + 3) <= 41
    pairs = [(rows_of(batch).first, rows_of(batch).second) for batch in batches]
    assert max(int((first.lengths + second.lengths).max()) for first, second in pairs if second is not None) == 10


def test_a_cursor_resumes_at_the_next_batch(tmp_path: Path) -> None:
    data = labels_options(tmp_path, [made_up(tmp_path, 40)])
    prepared = prepare(replace(data, batch=replace(data.batch, pool=17)), BYTES)
    stream = stream_of(prepared)
    unbroken, cursors = [], [stream.state_dict()]
    for batch in islice(stream, 40):
        unbroken.append(rows_of(batch))
        cursors.append(stream.state_dict())
    assert {cursor["epoch"] for cursor in cursors} >= {0, 1, 2}
    for stop in range(0, 40, 3):
        resumed = stream_of(prepared)
        resumed.load_state_dict(cursors[stop])
        for batch, expected in zip(islice(resumed, 3), unbroken[stop:], strict=False):
            found = rows_of(batch)
            assert listed(found.first) == listed(expected.first)
            assert found.labels.tolist() == expected.labels.tolist()
            assert found.seeds.tolist() == expected.seeds.tolist()
    other = epoch_of(stream_of(prepared, seed=6))
    assert [b.sample_ids.tolist() for b in other] != [b.sample_ids.tolist() for b in epoch_of(stream_of(prepared))]


def test_options_that_only_pairs_have_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tokenizer\.joint: data\.kind=labels has one side"):
        prepare(labels_options(tmp_path, [made_up(tmp_path, 5)]), tokenizer_options(joint=False))
    with pytest.raises(ConfigError, match=r"data\.train: no corpus"):
        prepare(labels_options(tmp_path, []), BYTES)


def test_report(tmp_path: Path) -> None:
    train = written(tmp_path, "".join(f"text\tlabel {n % 23:02}\n" for n in range(46)) + "x\tlabel 00\n")
    found = report(prepare(labels_options(tmp_path, [train], valid=[train]), BYTES))
    tables = found.tables()
    assert [title for title, _, _ in tables] == ["Text", "Texts, batches of 41 tokens", "Labels"]
    for _, columns, rows in tables:
        assert all(len(row) == len(columns) for row in rows)
    labels = tables[2][2]
    assert labels[0] == ["train", "train.tsv", "label 00", "3", "6.4 %"]
    assert labels[20] == ["train", "train.tsv", "3 others", "6", "12.8 %"]
    assert tables[0][2][0][:4] == ["train", "train.tsv", "text", "47"]
    assert found.as_dict()["corpora"][0]["labels"]["label 22"] == 2


def test_sst2(tmp_path: Path) -> None:
    if "TKIT_DATA" not in os.environ:
        pytest.skip("TKIT_DATA does not name the data folder")
    folder = Path(os.environ["TKIT_DATA"]) / "sst2"
    train, valid = (LabelCorpusOptions(tsv=str(folder / f"{name}.tsv")) for name in ("train", "dev"))
    options = labels_options(tmp_path, [train], valid=[valid], max_length=64)
    prepared = prepare(replace(options, batch=replace(options.batch, tokens=2048)), BYTES)
    assert prepared.labels == ["0", "1"]
    assert (len(prepared.train[0].dataset), len(prepared.valid)) == (6920, 872)
    assert sum(len(batch.sample_ids) for batch in epoch_of(stream_of(prepared))) == 6920


def test_one_label_is_nothing_to_learn(tmp_path: Path) -> None:
    train = written(tmp_path, "a\tsame\nb\tsame\n")
    with pytest.raises(DataError, match=r"data\.train holds only the label 'same': two are needed"):
        prepare(labels_options(tmp_path, [train]), BYTES)


def test_texts_taken_for_labels_do_not_fill_the_screen(tmp_path: Path) -> None:
    train = written(tmp_path, "".join(f"{n}\t{n} {'long ' * 50}\n" for n in range(40)))
    valid = written(tmp_path, f"1\tnew {'long ' * 50}\n", "valid.tsv")
    with pytest.raises(DataError, match="is none of the training text's") as caught:
        prepare(labels_options(tmp_path, [train], valid=[valid]), BYTES)
    assert len(str(caught.value).partition("the label")[2]) < 700
