from __future__ import annotations

import gzip
import logging
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from corpora import ENGLISH, byte_options, documents_options, sentences, tokenizer_options

from transformer_kit.data import corpus as corpus_module
from transformer_kit.data import prepare as module
from transformer_kit.data.dataset import DocumentDataset
from transformer_kit.data.options import DocumentsOptions, TextCorpusOptions, Unit
from transformer_kit.data.prepare import Prepared, prepare, prepare_split
from transformer_kit.data.report import report
from transformer_kit.data.tokenizer_options import SamplingOptions
from transformer_kit.errors import ConfigError, DataError

BYTES = byte_options()
TEXT = "To be,\nor not\n\nto be.\n \n\nThat\nis\n"


@pytest.fixture(autouse=True)
def _records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("transformer_kit"), "propagate", True)


def written(folder: Path, text: str | bytes, name: str = "text.txt", **options: Any) -> TextCorpusOptions:
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return TextCorpusOptions(text=str(folder / name), **options)


def texts_of(prepared: Prepared) -> list[str]:
    dataset = prepared.train[0].dataset
    return prepared.tokenizers.source.decode([dataset.ids[row] for row in range(len(dataset))])


def ids_of(prepared: Prepared) -> list[list[int]]:
    dataset = prepared.train[0].dataset
    return [dataset.ids[row].tolist() for row in range(len(dataset))]


@pytest.mark.parametrize(
    ("unit", "documents"),
    [
        (Unit.line, ["To be,", "or not", "to be.", "That", "is"]),
        (Unit.block, ["To be,\nor not", "to be.", "That\nis"]),
        (Unit.file, [TEXT]),
    ],
)
def test_units(tmp_path: Path, unit: Unit, documents: list[str]) -> None:
    options = documents_options(tmp_path, [written(tmp_path, TEXT)], unit=unit, valid=[written(tmp_path, TEXT)])
    prepared = prepare(options, BYTES)
    assert texts_of(prepared) == documents
    counts = prepared.train[0].dataset.about.counts
    assert counts.kept == len(documents)
    assert counts.dropped == ({"blank": 3} if unit is Unit.line else {})
    assert prepared.valid.characters == sum(map(len, documents))
    assert prepared.labels is None
    assert prepared.tokenizers.source is prepared.tokenizers.target


@pytest.mark.parametrize(("bos", "eos"), [(True, True), (True, False), (False, True), (False, False)])
def test_marks_around_documents(tmp_path: Path, bos: bool, eos: bool) -> None:
    prepared = prepare(documents_options(tmp_path, [written(tmp_path, "ab\nc\n")], bos=bos, eos=eos), BYTES)
    own = prepared.tokenizers.source
    plain = own.encode(["ab", "c"])
    assert ids_of(prepared) == [[own.bos_id] * bos + row + [own.eos_id] * eos for row in plain]
    assert prepared.train[0].dataset.about.counts.texts["text"].tokens == 3


def test_a_file_is_cut_by_shares_of_its_characters(tmp_path: Path) -> None:
    text = "Ä" * 30 + "b" * 41 + "\r\n" + "c" * 30  # 102 characters, CRLF is one
    left, right = (written(tmp_path, text, start=start, end=end) for start, end in ((0.0, 0.9), (0.9, 1.0)))
    options = documents_options(tmp_path, [left], valid=[right], unit=Unit.file, bos=False, eos=False)
    prepared = prepare(options, BYTES)
    whole = text.replace("\r\n", "\n")
    assert texts_of(prepared) == [whole[:91]]
    assert (prepared.valid.characters, prepared.valid.bytes) == (11, 11)
    train = prepared.train[0].dataset
    assert (train.characters, train.bytes) == (91, 121)


def test_the_vocabulary_is_that_of_the_training_part(tmp_path: Path) -> None:
    left, right = (written(tmp_path, "abcabcab" + "xy", start=s, end=e) for s, e in ((0.0, 0.8), (0.8, 1.0)))
    options = documents_options(tmp_path, [left], valid=[right], unit=Unit.file, bos=False, eos=False)
    prepared = prepare(options, byte_options(kind="char"))
    assert prepared.tokenizers.source.vocab_size == 4 + len("abc\n")
    assert prepared.valid.ids.flat.tolist() == [1, 1]
    assert prepared.valid.about.counts.texts["text"].unknown == 2


def test_file_forms_give_equal_ids(tmp_path: Path) -> None:
    text = "\n".join(["a b", "", "c\x0bd\u2028e\x85f\rg", "h"]).encode()
    for unit in Unit:
        expected = None
        forms = {
            "lf": text + b"\n",
            "crlf": text.replace(b"\n", b"\r\n") + b"\r\n",
            "bom": b"\xef\xbb\xbf" + text + b"\n",
            "gzip": gzip.compress(text + b"\n"),
        } | ({"no_end": text} if unit is not Unit.file else {})
        for name, raw in forms.items():
            corpus = written(tmp_path, raw, name)
            found = ids_of(prepare(documents_options(tmp_path, [corpus], unit=unit), BYTES))
            expected = expected or found
            assert found == expected
        assert len(expected or []) == {Unit.line: 3, Unit.block: 2, Unit.file: 1}[unit]


def test_chunks_and_workers_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paragraphs = ["\n".join(sentences(1 + number % 7, ENGLISH, number)) for number in range(60)]
    text = "\n\n\n".join(paragraphs).encode() + b"\nbad \xff\n\n\x00\n"
    found = []
    for workers, chunk in ((1, 4096), (1, 1), (2, 7)):
        monkeypatch.setattr(module, "CHUNK", chunk)
        cache = str(tmp_path / f"{workers}-{chunk}")
        options = documents_options(tmp_path, [written(tmp_path, text)], unit=Unit.block, workers=workers, cache=cache)
        prepared = prepare(options, BYTES)
        found.append((ids_of(prepared), prepared.train[0].dataset.about.counts))
        assert texts_of(prepared)[:59] == paragraphs[:59]
        bad, nul = prepared.train[0].dataset.about.warnings
        assert "1 line(s) are not valid UTF-8" in bad
        assert "1 line(s) hold a NUL byte" in nul
    assert found[0] == found[1] == found[2]


def test_what_is_stored_follows_the_options_it_depends_on(tmp_path: Path) -> None:
    corpus = written(tmp_path, "ab\n\ncd\n")
    options = documents_options(tmp_path, [corpus])
    folder = prepare(options, BYTES).train[0].dataset.folder
    same: list[DocumentsOptions] = [
        replace(options, length=3, mask_documents=True),
        replace(options, pack=False, mask_documents=False, temperature=2.0),
        replace(options, train=[replace(corpus, weight=3.0)]),
    ]
    assert {prepare(one, BYTES).train[0].dataset.folder for one in same} == {folder}
    other = [replace(options, unit=Unit.block), replace(options, bos=False), replace(options, eos=False)]
    assert len({prepare(one, BYTES).train[0].dataset.folder for one in other} | {folder}) == 4


def test_texts_that_hold_nothing(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"text\.txt: the file is empty"):
        prepare(documents_options(tmp_path, [written(tmp_path, "")]), BYTES)
    with pytest.raises(DataError, match=r"text\.txt: 0 of 2 documents left \(blank 2\); check the files"):
        prepare(documents_options(tmp_path, [written(tmp_path, "\n \u3000\n")]), BYTES)
    assert [path.name.split("-")[0] for path in (tmp_path / "prepared").iterdir()] == ["tokenizer"]
    with pytest.raises(DataError, match=r"gone\.txt: no such file"):
        prepare(documents_options(tmp_path, [TextCorpusOptions(text=str(tmp_path / "gone.txt"))]), BYTES)
    with pytest.raises(ConfigError, match=r"data\.train: no corpus"):
        prepare(documents_options(tmp_path, []), BYTES)


def test_options_that_only_pairs_have_are_refused(tmp_path: Path) -> None:
    options = documents_options(tmp_path, [written(tmp_path, "a\n")])
    with pytest.raises(ConfigError) as error:
        prepare(options, tokenizer_options(joint=False, sampling=SamplingOptions(0.1)))
    assert [line.split(":")[0] for line in error.value.problems] == ["tokenizer.joint", "tokenizer.sampling.alpha"]


def test_sentencepiece_learns_from_the_lines_of_documents(tmp_path: Path) -> None:
    lines = sentences(120, ENGLISH, 1)
    corpus = written(tmp_path, "\n".join(lines) + "\n")
    fingerprints = set()
    for unit in Unit:
        options = documents_options(tmp_path, [corpus], unit=unit, bos=False, eos=False)
        prepared = prepare(options, tokenizer_options())
        fingerprints.add(prepared.tokenizers.fingerprint)
        text = "\n".join(texts_of(prepared))
        assert text.rstrip("\n") == "\n".join(lines)  # identity and byte fallback keep line feeds
    assert len(fingerprints) == 1


def test_test_data_are_prepared_alike(tmp_path: Path) -> None:
    train, test = written(tmp_path, "abc\n"), [written(tmp_path, "c\nab\n", "t"), written(tmp_path, "b\n", "u")]
    options = documents_options(tmp_path, [train], test=test)
    prepared = prepare(options, BYTES)
    dataset = prepare_split(options.test, options, prepared.tokenizers)
    assert isinstance(dataset, DocumentDataset)
    assert prepared.tokenizers.source.decode([dataset.ids[row].tolist() for row in range(3)]) == ["c", "ab", "b"]
    assert dataset.about.names == ["t", "u"]


def test_report(tmp_path: Path) -> None:
    options = documents_options(tmp_path, [written(tmp_path, "ab cd\n\nef\n")], valid=[written(tmp_path, "x\n", "v")])
    for pack in (True, False):
        data = replace(options, pack=pack, mask_documents=False, length=4, batch=replace(options.batch, tokens=8))
        found = report(prepare(data, BYTES))
        (_, columns, text), (title, row_columns, rows) = found.tables()
        assert text[0] == ["train", "text.txt", "text", "2", "3", "7", "7", "2.333", "0.000 %"]
        assert title == "Documents, batches of 8 tokens"
        assert rows[0][2:6] == ["3", "2", "blank 1", "0"]
        assert len(columns) == len(text[0])
        assert len(row_columns) == len(rows[0])
        # 11 tokens with BOS and EOS: 10 predictions in 3 blocks of 4, 2 a batch; or rows of 3, 4 | 4
        assert rows[0][6:] == (["2", "83.3 %"] if pack else ["2", "91.7 %"])
    assert found.as_dict()["kind"] == "documents"


@pytest.mark.slow
@pytest.mark.parametrize("unit", [Unit.line, Unit.block])
def test_memory_does_not_grow_with_the_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unit: Unit) -> None:
    monkeypatch.setattr(module, "CHUNK", 256)
    monkeypatch.setattr(corpus_module, "BLOCK", 1 << 14)
    peaks = []
    for size in (100, 1_000, 8_000):  # the first one warms up
        corpus = written(
            tmp_path, "\n".join(f"{line}\n" * (1 + (unit is Unit.line)) for line in sentences(size, ENGLISH, 1))
        )
        tracemalloc.start()
        prepare(documents_options(tmp_path, [corpus], unit=unit), BYTES)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[2] < 1.3 * peaks[1]


def test_one_column_of_tab_separated_lines(tmp_path: Path) -> None:
    """The other columns are no text; a line without it is named; a column goes with lines alone."""
    corpus = written(tmp_path, "a\tone two\tx\nb\tthree\n", column=2)
    assert texts_of(prepare(documents_options(tmp_path, [corpus], unit=Unit.line), BYTES)) == ["one two", "three"]
    short = written(tmp_path, "a\tone\nb\n", "short.tsv", column=2)
    with pytest.raises(DataError, match=r"short.tsv, line 2: 1 column"):
        prepare(documents_options(tmp_path, [short], unit=Unit.line), BYTES)
    with pytest.raises(ConfigError, match=r"train.0.column: a column can be taken only with unit: line"):
        prepare(documents_options(tmp_path, [corpus], unit=Unit.block), BYTES)


def test_another_alphabet_of_equal_size_is_refused(tmp_path: Path) -> None:
    options = documents_options(tmp_path, [written(tmp_path, "abcd\n")])
    prepared = prepare(options, byte_options(kind="char"))
    other = prepare(documents_options(tmp_path, [written(tmp_path, "efgh\n")]), byte_options(kind="char"))
    assert prepared.tokenizers.source.vocab_size == other.tokenizers.source.vocab_size
    with pytest.raises(DataError, match="is not the one that the model or data were made with"):
        DocumentDataset(prepared.train[0].dataset.folder, other.tokenizers.fingerprint)
