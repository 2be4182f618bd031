from __future__ import annotations

import errno
import gzip
import logging
import os
import shutil
import tracemalloc
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from corpora import ENGLISH, GERMAN, MOSES, data_options, made_up, sentences, tokenizer_options, write

from transformer_kit.data import prepare as module
from transformer_kit.data.dataset import DatasetWriter, ParallelDataset
from transformer_kit.data.options import CorpusOptions, FilterOptions, GenerateOptions
from transformer_kit.data.prepare import Prepared, prepare
from transformer_kit.data.report import report
from transformer_kit.data.tokenizer import Tokenizers
from transformer_kit.data.tokenizer_options import SamplingOptions
from transformer_kit.data.tokenizer_training import Lines
from transformer_kit.errors import ConfigError, DataError

TOKENIZER = tokenizer_options()


@pytest.fixture(autouse=True)
def _records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("transformer_kit"), "propagate", True)


def ids_of(prepared: Prepared) -> list[tuple[list[int], list[int]]]:
    dataset = prepared.train[0].dataset
    return [(dataset.source(row).tolist(), dataset.target(row).tolist()) for row in range(len(dataset))]


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def leftovers(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_ids_and_text_are_those_of_the_lines(tmp_path: Path) -> None:
    english, german = sentences(29, ENGLISH, 1), sentences(29, GERMAN, 2)
    prepared = prepare(data_options(tmp_path, [write(tmp_path, "c", english, german)]), TOKENIZER)
    dataset, tokenizers = prepared.train[0].dataset, prepared.tokenizers
    assert list(dataset.texts()) == list(zip(english, german, strict=True))
    expected = list(zip(tokenizers.source.encode(english), tokenizers.target.encode(german), strict=True))
    assert ids_of(prepared) == expected
    assert dataset.source_lengths.tolist() == [len(source) for source, _ in expected]
    assert dataset.target_lengths.tolist() == [len(target) for _, target in expected]
    counts = dataset.about.counts
    assert counts.read == counts.kept == 29
    assert counts.texts["source"].words == sum(len(line.split()) for line in english)
    assert counts.texts["target"].tokens == sum(len(target) for _, target in expected)
    assert counts.texts["source"].unknown == 0


def test_file_forms_give_equal_ids(tmp_path: Path) -> None:
    english, german = sentences(23, ENGLISH, 1), sentences(23, GERMAN, 2)
    corpus = write(tmp_path, "lf", english, german)
    tokenizers = prepare(data_options(tmp_path, [corpus]), TOKENIZER).tokenizers
    expected = ids_of(prepare(data_options(tmp_path, [corpus]), TOKENIZER))
    plain = ["\n".join(lines).encode() for lines in (english, german)]
    forms = {
        "crlf": [text.replace(b"\n", b"\r\n") + b"\r\n" for text in plain],
        "bom": [b"\xef\xbb\xbf" + text + b"\n" for text in plain],
        "no_end": plain,
        "gzip": [gzip.compress(text + b"\n") for text in plain],
    }
    for name, (source, target) in forms.items():
        (tmp_path / f"{name}.en").write_bytes(source)
        (tmp_path / f"{name}.de").write_bytes(target)
        form = CorpusOptions(source=str(tmp_path / f"{name}.en"), target=str(tmp_path / f"{name}.de"))
        assert ids_of(prepare(data_options(tmp_path, [form]), TOKENIZER, tokenizers)) == expected
        assert ids_of(prepare(data_options(tmp_path, [form]), TOKENIZER)) == expected  # a vocabulary of its own
    (tmp_path / "pairs.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in zip(english, german, strict=True)))
    tsv = CorpusOptions(tsv=str(tmp_path / "pairs.tsv"))
    assert ids_of(prepare(data_options(tmp_path, [tsv]), TOKENIZER)) == expected


def test_unicode_separators_inside_lines_move_nothing(tmp_path: Path) -> None:
    english = [f"the{mark}dog" for mark in "\u2028\u2029\x85\x0b\x0c\x1c\x1d\x1e\r"] + sentences(40, ENGLISH, 1)
    german = [f"das {number}" for number in range(len(english))]
    prepared = prepare(
        data_options(tmp_path, [write(tmp_path, "c", english, german)]), tokenizer_options(vocab_size=307)
    )
    assert list(prepared.train[0].dataset.texts()) == list(zip(english, german, strict=True))


@pytest.mark.parametrize("split", ["train", "valid"])
def test_a_side_that_is_short_stops_before_any_work(tmp_path: Path, split: str) -> None:
    good, bad = made_up(tmp_path, "good", 20), made_up(tmp_path, "bad", 20)
    path = Path(bad.target or "")
    path.write_text(path.read_text().split("\n", 1)[1])
    corpora = {"train": [good], "valid": [good]} | {split: [good, bad]}
    with pytest.raises(DataError) as error:
        prepare(data_options(tmp_path, corpora["train"], valid=corpora["valid"]), TOKENIZER)
    assert f"{bad.source} has 20 lines but {bad.target} has 19 lines" in str(error.value)
    assert leftovers(tmp_path / "prepared") == []


def test_missing_and_empty_files_are_named(tmp_path: Path) -> None:
    corpus = made_up(tmp_path, "c", 20)
    Path(corpus.target or "").write_text("")
    with pytest.raises(DataError, match=r"c\.de: the file is empty"):
        prepare(data_options(tmp_path, [corpus]), TOKENIZER)
    Path(corpus.target or "").unlink()
    with pytest.raises(DataError, match=r"c\.de: no such file"):
        prepare(data_options(tmp_path, [corpus]), TOKENIZER)
    assert leftovers(tmp_path / "prepared") == []


def test_what_cannot_be_read_twice_is_refused(tmp_path: Path) -> None:
    corpus = made_up(tmp_path, "c", 20)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="pipe: not a regular file"):
        prepare(data_options(tmp_path, [replace(corpus, source=str(tmp_path / "pipe"))]), TOKENIZER)
    with pytest.raises(DataError, match="is a folder"):
        prepare(data_options(tmp_path, [replace(corpus, source=str(tmp_path))]), TOKENIZER)


def test_remains_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    options = data_options(tmp_path, [made_up(tmp_path, "c", 31)])
    folder = prepare(options, TOKENIZER).train[0].dataset.folder
    shutil.rmtree(folder)
    old, young = (folder.parent / f".{folder.name}.{name}" for name in ("old", "young"))
    for left in (old, young):
        left.mkdir()
    os.utime(old, (0, 0))
    assert prepare(options, TOKENIZER).train[0].dataset.folder == folder
    assert (old.exists(), young.exists()) == (False, True)


def test_filters_count_each_reason_and_keep_the_rest_aligned(tmp_path: Path) -> None:
    words = ["the", "dog"]
    english = ["", "\u3000\t", "the dog", "dog", " ".join(words * 9), "the dog sees", "cat", "the dog"]
    german = ["der", "Hund", " ", "der Hund mag das Haus unter der Katze", "Hund", "der Hund", "Hund", "der Hund"]
    corpus = write(tmp_path, "c", english, german)
    base = made_up(tmp_path, "base", 99)
    filters = FilterOptions(min_length=2, max_length=9, max_ratio=2.0)
    options = data_options(tmp_path, [base, corpus], filter=filters, valid=[corpus])
    prepared = prepare(options, tokenizer_options(vocab_size=313))
    dataset = prepared.train[1].dataset
    lengths = {line: len(row) for line, row in zip(english, prepared.tokenizers.source.encode(english), strict=True)}
    assert [lengths[line] for line in ("dog", "the dog", "the dog sees", english[4])] == [1, 2, 5, 18]
    assert dataset.about.counts.dropped == {"empty side": 3, "too short": 3, "length ratio": 1}
    assert list(dataset.texts()) == [("the dog", "der Hund")]
    # Validation keeps every line in its place.
    assert prepared.valid is not None
    assert list(prepared.valid.texts()) == list(zip(english, german, strict=True))
    assert (prepared.valid.about.counts.empty, prepared.valid.about.counts.dropped) == (3, {})
    loose = replace(options, filter=FilterOptions(min_length=1, max_length=9, max_ratio=2.0))
    counts = prepare(loose, tokenizer_options(vocab_size=313)).train[1].dataset.about.counts
    assert counts.dropped == {"empty side": 3, "too long": 2, "length ratio": 2}


def test_filters_that_leave_nothing_say_so_and_write_nothing(tmp_path: Path) -> None:
    options = data_options(tmp_path, [made_up(tmp_path, "c", 20)], filter=FilterOptions(1, 300, None))
    prepare(options, TOKENIZER)
    before = leftovers(tmp_path / "prepared")
    with pytest.raises(DataError, match=r"c: 0 of 20 pairs left \(too short 20\); loosen data\.filter"):
        prepare(replace(options, filter=FilterOptions(50, 300, None)), TOKENIZER)
    assert leftovers(tmp_path / "prepared") == before


def test_prepared_data_are_found_again_and_follow_every_change(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    corpus = made_up(tmp_path, "c", 31)
    options = data_options(tmp_path, [corpus])
    first = prepare(options, TOKENIZER)
    folder = first.train[0].dataset.folder
    made = [record.getMessage() for record in caplog.records]
    assert [line.split()[0] for line in made] == ["trained", "prepared"]
    caplog.clear()
    stamps = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert prepare(options, TOKENIZER).train[0].dataset.folder == folder
    assert caplog.records == []
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == stamps
    # Batches, weights and workers are no part of what is stored.
    heavier = replace(options, train=[replace(corpus, weight=2.0)], workers=2, temperature=3.0)
    assert prepare(heavier, TOKENIZER).train[0].dataset.folder == folder
    # Other options, another tokenizer or other text are.
    seen = {folder}
    for changed, tokenizer in (
        (replace(options, filter=FilterOptions(1, 250, None)), TOKENIZER),
        (replace(options, train=[replace(corpus, prefix="go ")]), TOKENIZER),
        (options, tokenizer_options(vocab_size=300)),
        (options, tokenizer_options(sampling=SamplingOptions(0.1))),
    ):
        seen.add(prepare(changed, tokenizer).train[0].dataset.folder)
    path = Path(corpus.source or "")
    path.write_text(path.read_text().replace("dog", "cat"))  # as long as before
    last = prepare(options, TOKENIZER).train[0].dataset
    assert last.folder not in seen
    assert len(seen) == 5
    assert not any("dog" in source for source, _ in last.texts())


def test_changed_text_is_seen_when_its_facts_were_remembered(tmp_path: Path) -> None:
    corpus = made_up(tmp_path, "c", 31)
    path = Path(corpus.source or "")
    options = data_options(tmp_path, [corpus])
    (tmp_path / "prepared").mkdir()
    monkey_old = path.stat().st_mtime_ns - 10**12
    os.utime(path, ns=(monkey_old, monkey_old))
    first = prepare(options, TOKENIZER)
    path.write_text(path.read_text().replace("dog", "cat"))
    os.utime(path, ns=(monkey_old, monkey_old))  # equal size and time stamp; the change time gives it away
    assert prepare(options, TOKENIZER).train[0].dataset.folder != first.train[0].dataset.folder


def test_damaged_data_are_made_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    options = data_options(tmp_path, [made_up(tmp_path, "c", 31)])
    dataset = prepare(options, TOKENIZER).train[0].dataset
    good = files_of(dataset.folder)
    for name in ("source.ids.values", "about.json"):
        (dataset.folder / name).write_bytes(good[name][:-3])
        assert files_of(prepare(options, TOKENIZER).train[0].dataset.folder) == good
        assert "not a complete prepared corpus" in caplog.text
        caplog.clear()


def test_a_full_disk_is_named_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = data_options(tmp_path, [made_up(tmp_path, "c", 31)])

    def full(self: DatasetWriter, chunk: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(DatasetWriter, "append", full)
    with pytest.raises(DataError, match=r"cannot be written \(No space left on device\)"):
        prepare(options, TOKENIZER)
    assert [name.split("-")[0] for name in leftovers(tmp_path / "prepared")] == ["tokenizer"]


def test_an_interruption_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: DatasetWriter, about: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(DatasetWriter, "finish", interrupted)
    with pytest.raises(KeyboardInterrupt):
        prepare(data_options(tmp_path, [made_up(tmp_path, "c", 31)]), TOKENIZER)
    assert [name.split("-")[0] for name in leftovers(tmp_path / "prepared")] == ["tokenizer"]


@pytest.mark.parametrize("text", [TOKENIZER.text, pytest.param(MOSES, marks=pytest.mark.slow)])
def test_workers_and_chunks_change_no_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: object) -> None:
    corpus = made_up(tmp_path, "c", 83)
    for path, line in ((corpus.source, b"bad \xff\n"), (corpus.target, b"NUL \x00\n")):
        Path(path or "").write_bytes(Path(path or "").read_bytes() + line)
    tokenizer = tokenizer_options(vocab_size=307, text=text)
    results = []
    for workers, chunk in ((1, 4096), (2, 10)):
        monkeypatch.setattr(module, "CHUNK", chunk)
        prepared = prepare(
            data_options(tmp_path, [corpus], workers=workers, cache=str(tmp_path / str(workers))), tokenizer
        )
        results.append((prepared.tokenizers.fingerprint, files_of(prepared.train[0].dataset.folder)))
        warnings = prepared.train[0].dataset.about.warnings
        assert [line.split(": ", 1)[1][:9] for line in warnings] == ["1 line(s)", "1 line(s)"]
        assert all("is line 84" in line for line in warnings)
    assert results[0] == results[1]


def test_a_line_without_tab_stops_two_workers_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 10)
    (tmp_path / "pairs.tsv").write_text("the dog\tder Hund\n" * 33 + "no tab here\n")
    options = data_options(tmp_path, [CorpusOptions(tsv=str(tmp_path / "pairs.tsv"))], workers=2)
    base = prepare(data_options(tmp_path, [made_up(tmp_path, "c", 99)]), TOKENIZER)
    with pytest.raises(DataError, match=r"pairs\.tsv, line 34: no tab"):
        prepare(options, TOKENIZER, base.tokenizers)


def test_tags_and_prefixes(tmp_path: Path) -> None:
    tagged = made_up(tmp_path, "tagged", 40, tag="<2de>")
    literal = write(tmp_path, "literal", ["<2de> the dog"] * 3, ["<2de> der Hund"] * 3)
    prefixed = made_up(tmp_path, "prefixed", 40, seed=5, prefix="see: ")
    prepared = prepare(data_options(tmp_path, [tagged, literal, prefixed], valid=[tagged, literal]), TOKENIZER)
    source = prepared.tokenizers.source
    first, second, third = (corpus.dataset for corpus in prepared.train)
    for row in range(40):
        assert first.source(row).tolist() == [4, *source.encode([first.text(row)[0]])[0]]
        assert third.source(row).tolist() == source.encode(["see: " + third.text(row)[0]])[0]
    assert 4 not in second.source(0)
    assert 4 not in second.target(0)
    assert not third.text(0)[0].startswith("see")
    assert prepared.valid is not None
    assert [int(prepared.valid.source(row)[0] == 4) for row in range(43)] == [1] * 40 + [0] * 3
    # What goes into a translator for such text:
    marked = prepared.tokenizers.marked("<2de>", None).source
    assert marked.encode([first.text(0)[0]])[0] == first.source(0).tolist()


def test_swapped_tokenizers_are_refused(tmp_path: Path) -> None:
    options = data_options(tmp_path, [made_up(tmp_path, "c", 99)])
    mine, other = prepare(options, TOKENIZER), prepare(options, tokenizer_options(character_coverage=0.99))
    assert mine.tokenizers.source.vocab_size == other.tokenizers.source.vocab_size
    with pytest.raises(DataError, match="is not the one that the model or data were made with"):
        ParallelDataset(mine.train[0].dataset.folder, other.tokenizers.fingerprint)
    # In the cache, under the name of the first one:
    (cached,) = (path for path in (tmp_path / "prepared").glob("tokenizer-*") if _fingerprint(path) == _of(mine))
    other.tokenizers.save(cached)
    with pytest.raises(DataError, match="holds another tokenizer than was written there; delete it"):
        prepare(options, TOKENIZER)


def _fingerprint(folder: Path) -> str:
    return Tokenizers.load(folder).fingerprint


def _of(prepared: Prepared) -> str:
    return prepared.tokenizers.fingerprint


def test_an_existing_tokenizer_is_taken_as_it_is(tmp_path: Path) -> None:
    options = data_options(tmp_path, [made_up(tmp_path, "c", 99)])
    first = prepare(options, TOKENIZER)
    first.tokenizers.save(tmp_path / "mine")
    other = replace(options, train=[made_up(tmp_path, "d", 9, seed=4)], cache=str(tmp_path / "other"))
    found = prepare(other, tokenizer_options(path=str(tmp_path / "mine"), vocab_size=7777))
    assert _of(found) == _of(first)
    assert not list((tmp_path / "other").glob("tokenizer-*"))
    with pytest.raises(DataError, match="knows no tag '<new>'"):
        prepare(
            replace(other, train=[replace(other.train[0], tag="<new>")]), tokenizer_options(path=str(tmp_path / "mine"))
        )


def test_tokenizers_learn_from_training_text_alone(tmp_path: Path) -> None:
    train, valid = made_up(tmp_path, "c", 99), write(tmp_path, "v", ["xyzzy ж"] * 50, ["plugh ж"] * 50)
    alone = prepare(data_options(tmp_path, [train]), TOKENIZER)
    both = prepare(data_options(tmp_path, [train], valid=[valid]), TOKENIZER)
    assert _of(alone) == _of(both)


def test_max_lines_takes_evenly_spaced_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[list[str]] = []

    def spy(lines: Lines, *_: object) -> bytes:
        taken.append(list(lines()))
        raise DataError("seen enough")

    monkeypatch.setattr(module, "train_model", spy)
    corpora = [
        write(tmp_path, name, [f"{name} {row}" for row in range(size)], [f"{row}" for row in range(size)])
        for name, size in (("a", 7), ("b", 13))
    ]
    for chunk in (4096, 3):
        monkeypatch.setattr(module, "CHUNK", chunk)
        with pytest.raises(DataError, match="seen enough"):
            prepare(data_options(tmp_path, corpora), tokenizer_options(max_lines=5, joint=False))
    assert taken[0] == taken[1] == ["a 3", "b 0", "b 4", "b 8", "b 12"]


def test_generated_corpora(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformer_kit.data import synthetic

    def small(folder: Path, seed: int) -> None:
        for split, count in (("train", 31), ("valid", 7), ("test", 5)):
            made_up(folder, split, count, seed=seed)

    monkeypatch.setattr(synthetic, "generate", small)
    generate = GenerateOptions(name="demo_phrases", seed=3)
    options = data_options(tmp_path, [], generate=generate)
    prepared = prepare(options, TOKENIZER)
    assert len(prepared.train[0].dataset) == 31
    assert prepared.valid is not None
    assert len(prepared.valid) == 7
    (test,) = prepared.data.test
    assert isinstance(test, CorpusOptions)
    assert Path(test.source or "").read_text().count("\n") == 5
    reverse = prepare(replace(options, source_language="de", target_language="en"), TOKENIZER)
    assert reverse.train[0].dataset.text(0) == prepared.train[0].dataset.text(0)[::-1]
    assert len(list((tmp_path / "prepared").glob("demo_phrases-*"))) == 1


def test_all_option_problems_come_at_once(tmp_path: Path) -> None:
    options = data_options(tmp_path, [CorpusOptions(source="a"), CorpusOptions(tsv="b", weight=-1.0, tag="<s>")])
    with pytest.raises(ConfigError) as error:
        prepare(replace(options, workers=0), tokenizer_options(vocab_size=2))
    keys = [line.split(":")[0] for line in error.value.problems]
    assert keys == [
        "data.train.0.target",
        "data.train.1.weight",
        "data.train.1.tag",
        "data.workers",
        "tokenizer.vocab_size",
    ]


def test_report(tmp_path: Path) -> None:
    corpus = write(tmp_path, "c", ["the dog"] * 40 + [""], ["der Hund"] * 40 + ["x"])
    held_out = write(tmp_path, "v", ["the dog"] * 40 + [""], ["der Hund ж"] * 40 + ["x"])
    base = made_up(tmp_path, "base", 99)
    options = data_options(tmp_path, [base, corpus], valid=[held_out])
    found = report(prepare(options, tokenizer_options(byte_fallback=False, vocab_size=60)))
    (_, text_columns, text), (pairs_title, pair_columns, pairs) = found.tables()
    assert all(len(row) == len(text_columns) for row in text)
    assert all(len(row) == len(pair_columns) for row in pairs)
    assert "97 tokens" in pairs_title
    unknown = [float(row[-1].removesuffix(" %")) for row in text]
    assert unknown[:5] == [0] * 5
    assert unknown[5] > 10
    assert pairs[1][:5] == ["train", "c", "41", "40", "empty side 1"]
    assert pairs[2][:5] == ["valid", "v", "41", "41", "1 with an empty side stay"]
    plain = found.as_dict()["corpora"][1]
    assert plain["dropped"] == {"empty side": 1}
    assert 0 < plain["efficiency"] <= 1
    assert set(asdict(found.corpora[1].padding)) <= set(plain)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 512)
    peaks = []
    tokenizers = prepare(data_options(tmp_path, [made_up(tmp_path, "base", 99)]), TOKENIZER).tokenizers
    for size in (2_000, 10_000):
        options = data_options(tmp_path, [made_up(tmp_path, str(size), size)])
        tracemalloc.start()
        prepare(options, TOKENIZER, tokenizers)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.3 * peaks[0]


def test_large_vocabularies_get_wider_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = data_options(tmp_path, [made_up(tmp_path, "c", 31)])
    tokenizers = prepare(options, TOKENIZER).tokenizers
    narrow = prepare(options, TOKENIZER, tokenizers)
    assert narrow.train[0].dataset.source(0).dtype == np.uint16
    monkeypatch.setattr(tokenizers.target, "vocab_size", 70_000)
    wide = prepare(replace(options, cache=str(tmp_path / "wide")), TOKENIZER, tokenizers)
    assert wide.train[0].dataset.source(0).dtype == np.int32
    assert ids_of(wide) == ids_of(narrow)
