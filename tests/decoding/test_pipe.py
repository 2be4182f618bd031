from __future__ import annotations

import io
import logging
import os
import threading
from pathlib import Path

import pytest
from toys import Pair, options, tiny_model

from transformer_kit.decoding.pipe import line_chunks, translate_pipe
from transformer_kit.decoding.translator import Translator
from transformer_kit.errors import DataError


def translator(**changes) -> Translator:
    return Translator(tiny_model(), Pair(), options(**{"beam": 1, **changes}), 64)


def through(data: bytes, *, scores: bool = False, **changes) -> list[bytes]:
    """The lines that the pipe writes for `data`."""
    sink = io.BytesIO()
    translate_pipe(io.BytesIO(data), sink, translator(**changes), scores=scores)
    out = sink.getvalue()
    assert not out or out.endswith(b"\n")
    return out.split(b"\n")[:-1]


def alone(text: str) -> bytes:
    return translator().translate([text])[0].encode()


def test_nothing_in_nothing_out() -> None:
    assert through(b"") == []


@pytest.mark.parametrize("data", [b"abc\nde\n", b"abc\r\nde\r\n", b"\xef\xbb\xbfabc\nde", b"abc\r\nde"])
def test_line_ends_and_bom_are_tolerated(data: bytes) -> None:
    assert through(data) == [alone("abc"), alone("de")]


def test_only_a_line_feed_ends_a_line() -> None:
    odd = "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\x1eh\ri"
    assert through(odd.encode() + b"\n\nabc") == [alone(odd), b"", alone("abc")]


def test_empty_lines_and_a_bom_alone_keep_their_place() -> None:
    assert through(b"\xef\xbb\xbf\nabc\n \n\xe2\x80\x8b\n\n") == [b"", alone("abc"), b"", b"", b""]
    assert through(b"\xef\xbb\xbf") == [b""]
    assert through(b"\n\n\n") == [b"", b"", b""]


def test_bad_bytes_are_replaced_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "transformer_kit"):
        assert through(b"abc\nm\xe4n\nde\n\xff\n", chunk=2) == [alone(t) for t in ("abc", "m\ufffdn", "de", "\ufffd")]
    (record,) = caplog.records
    assert "2 line(s) are not valid UTF-8 (the first is line 2)" in record.getMessage()


@pytest.mark.parametrize("count", [10, 11, 12, 21, 22, 23])
def test_as_many_lines_out_as_in_around_chunk_borders(count: int) -> None:
    assert len(through(b"ab\n" * count, chunk=11)) == count


def test_scores_and_n_best_have_columns() -> None:
    best = translator().translate_n_best(["abc"])[0][0]
    assert through(b"abc\n\n", scores=True) == [f"{best.score:.6f}\t{best.text}".encode(), b"0.000000\t"]
    rows = [line.split(b"\t") for line in through(b"abc\n\nde\n", beam=3, n_best=2)]
    assert [row[0] for row in rows] == [b"1", b"1", b"2", b"3", b"3"]
    assert all(len(row) == 3 for row in rows)
    assert float(rows[0][1]) >= float(rows[1][1])


def test_a_line_in_an_open_pipe_is_answered_before_the_next_is_written() -> None:
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()

    def work() -> None:
        with open(to_read, "rb") as source, open(from_write, "wb") as sink:
            translate_pipe(source, sink, translator(chunk=1000))

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    with open(from_read, "rb") as answers:
        for text in ("abc", "", "de"):
            os.write(to_write, text.encode() + b"\n")
            assert answers.readline() == alone(text) + b"\n"  # hangs (and the test's time-out ends it) if not flushed
        os.write(to_write, b"half")
        os.write(to_write, b" a line\nlast")
        os.close(to_write)
        assert answers.readline() == alone("half a line") + b"\n"
        assert answers.read() == alone("last") + b"\n"
    worker.join(10)
    assert not worker.is_alive()


def test_what_is_ready_comes_in_portions(tmp_path: Path) -> None:
    data = b"".join(b"%d\n" % i for i in range(30001))
    (tmp_path / "lines").write_bytes(data + b"end")
    for source in (io.BytesIO(data + b"end"), (tmp_path / "lines").open("rb")):
        with source:
            chunks = list(line_chunks(source, 7000))
        assert [len(chunk) for chunk in chunks] == [7000, 7000, 7000, 7000, 2002]
        assert b"".join(line for chunk in chunks for line in chunk) == data + b"end"


def test_a_reader_that_goes_away_ends_the_work_quietly(caplog: pytest.LogCaptureFixture) -> None:
    read, write = os.pipe()
    os.close(read)
    with open(write, "wb") as sink:  # closing flushes what is buffered, which must not fail either
        assert translate_pipe(io.BytesIO(b"ab\n" * 50), sink, translator()) == 0
    assert not caplog.records


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_is_said_once() -> None:
    with open("/dev/full", "wb") as sink, pytest.raises(DataError, match="the output cannot be written: No space left"):
        translate_pipe(io.BytesIO(b"ab\n"), sink, translator())


def test_naughty_strings_keep_their_count() -> None:
    if "TKIT_DATA" not in os.environ:
        pytest.skip("TKIT_DATA is not set: no robustness/blns.txt")
    data = (Path(os.environ["TKIT_DATA"]) / "robustness" / "blns.txt").read_bytes()
    out = through(data, chunk=2048, batch_tokens=4096, max_length=7)
    assert len(out) == data.count(b"\n") + (not data.endswith(b"\n"))
