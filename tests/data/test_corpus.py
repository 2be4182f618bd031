from __future__ import annotations

import gzip
import io
import logging
from pathlib import Path

import pytest

from transformer_kit.data.corpus import (
    Flaws,
    LineReader,
    count_lines,
    decode_chunk,
    decode_lines,
    open_text,
    raw_chunks,
    read_lines,
    split_columns,
)
from transformer_kit.errors import DataError

# Everything that str.splitlines would break at, and \n does not.
SEPARATORS = ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\r"]


@pytest.mark.parametrize("separator", SEPARATORS)
def test_only_newline_ends_a_line(tmp_path: Path, separator: str) -> None:
    path = tmp_path / "text"
    lines = [f"one{separator}two", "three", f"{separator}four"]
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    assert read_lines(path) == lines
    assert count_lines(path) == path.read_bytes().count(b"\n")


def test_line_endings_bom_and_missing_final_newline_change_nothing(tmp_path: Path) -> None:
    lines = ["a b", "", "c", "dé"]
    body = "\n".join(lines)
    forms = [body + "\n", body, (body + "\n").replace("\n", "\r\n"), "\ufeff" + body, "\ufeff" + body + "\n"]
    for number, form in enumerate(forms):
        path = tmp_path / str(number)
        path.write_bytes(form.encode())
        assert read_lines(path) == lines
        assert count_lines(path) == 4
        chunks = list(raw_chunks([path], 3))
        assert [line for chunk in chunks for line in decode_lines(chunk.blocks[0], 1, Flaws())] == lines


@pytest.mark.parametrize("lines", [["\ufeff"], ["", ""], [""], ["\ufeff", "a"], ["x\r"]])
def test_lines_that_are_nearly_nothing_stay_lines(tmp_path: Path, lines: list[str]) -> None:
    path = tmp_path / "text"
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    expected = [lines[0].removeprefix("\ufeff").removesuffix("\r"), *lines[1:]]
    assert read_lines(path) == expected
    (chunk,) = raw_chunks([path], 5)
    assert decode_lines(chunk.blocks[0], 1, Flaws()) == expected


def test_empty_stream_has_no_lines(tmp_path: Path) -> None:
    assert list(LineReader(io.BytesIO(b""))) == []
    (tmp_path / "empty").touch()
    assert read_lines(tmp_path / "empty") == []
    assert list(raw_chunks([tmp_path / "empty"], 3)) == []


def test_gzip_is_known_by_its_content(tmp_path: Path) -> None:
    path = tmp_path / "text"  # no .gz
    path.write_bytes(gzip.compress(b"a\nb\n"))
    assert read_lines(path) == ["a", "b"]
    (tmp_path / "plain.gz").write_bytes(b"c\n")
    assert read_lines(tmp_path / "plain.gz") == ["c"]


def test_bad_bytes_are_replaced_and_counted_with_the_first_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("transformer_kit"), "propagate", True)
    path = tmp_path / "text"
    path.write_bytes(b"fine\nb\xe4d\n\xff\xfe\nn\x00l\n")
    assert read_lines(path) == ["fine", "b\ufffdd", "\ufffd\ufffd", "n\x00l"]
    text = caplog.text
    assert "2 line(s) are not valid UTF-8 (the first is line 2)" in text
    assert "1 line(s) hold a NUL byte (the first is line 4)" in text
    assert str(path) in text
    assert len(caplog.records) == 2


def test_flaws_of_later_blocks_keep_the_first_line_number() -> None:
    flaws = Flaws()
    decode_lines(b"a\n\xff\n", 11, flaws)
    decode_lines(b"\xff\n\xff\n\x00", 13, flaws)
    assert flaws == Flaws(bad_utf8=3, first_bad=12, nul=1, first_nul=15)


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere: no such file \(the current folder is "):
        count_lines(tmp_path / "nowhere")
    with pytest.raises(DataError, match="is a folder"):
        count_lines(tmp_path)
    broken = tmp_path / "broken.gz"
    broken.write_bytes(gzip.compress(b"line\n" * 1000)[:-9])
    with pytest.raises(DataError, match=r"broken\.gz: damaged gzip"):
        count_lines(broken)
    with pytest.raises(DataError, match=r"broken\.gz: damaged gzip"), open_text(broken) as stream:
        list(stream)


def test_a_line_is_given_out_before_the_next_is_read() -> None:
    class Pipe(io.RawIOBase):
        reads = 0

        def readline(self, size: int | None = -1, /) -> bytes:
            self.reads += 1
            return b"line\n"

    pipe = Pipe()
    lines = iter(LineReader(pipe))  # type: ignore[arg-type]  # only its read is used
    assert (next(lines), pipe.reads) == ("line", 1)
    assert (next(lines), pipe.reads) == ("line", 2)


def test_tsv_takes_two_columns_and_names_a_line_without_tab(tmp_path: Path) -> None:
    assert split_columns(["a\tb", "", "c\td\tmore", "\te"], 1, "f") == (["a", "", "c", ""], ["b", "", "d", "e"])
    path = tmp_path / "pairs.tsv"
    path.write_text("a\tb\nc\nd\te\n")
    first, second = raw_chunks([path], 2)
    assert decode_chunk(second, [str(path)], [Flaws()]) == (["d"], ["e"])
    with pytest.raises(DataError, match=r"pairs\.tsv, line 2: no tab"):
        decode_chunk(first, [str(path)], [Flaws()])
