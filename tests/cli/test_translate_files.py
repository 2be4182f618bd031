"""The files that `tkit translate` and `tkit evaluate` read and write: plain, gzip, links, devices, folders."""

from __future__ import annotations

import gzip
import os
import threading
from pathlib import Path

import pytest

from transformer_kit.cli import translate as command
from transformer_kit.errors import DataError


@pytest.mark.parametrize("packed", [False, True])
def test_text_may_be_packed(tmp_path: Path, packed: bool) -> None:
    path, text = tmp_path / "x.en", b"one\ntwo\n"
    path.write_bytes(gzip.compress(text) if packed else text)
    with command.source_lines(path) as lines:
        assert lines.read() == text


@pytest.mark.parametrize("name", ["absent", "."])
def test_what_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match=str(tmp_path)), command.source_lines(tmp_path / name):
        pass


def test_closed_streams_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    monkeypatch.setattr("sys.stdout", None)
    with pytest.raises(DataError, match="stdin is closed"):
        command.source_lines(None)
    with pytest.raises(DataError, match="stdout is closed"), command.sink(None):
        pass


def test_a_folder_is_refused_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is a folder"), command.sink(tmp_path):
        raise AssertionError("it must not come to this")
    assert list(tmp_path.iterdir()) == []


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    link, file = tmp_path / "link", tmp_path / "there" / "file"
    link.symlink_to(file)
    for text in (b"first", b"second"):
        with command.sink(link) as out:
            out.write(text)
        assert link.is_symlink()
        assert file.read_bytes() == text


def test_a_device_is_written_to() -> None:
    reader, writer = os.openpty()  # no /dev/null: a fault here would replace the machine's own
    try:
        with command.sink(Path(os.ttyname(writer))) as out:
            out.write(b"through")
        assert os.read(reader, 100) == b"through"
    finally:
        os.close(reader)
        os.close(writer)


def test_a_named_pipe_is_written_to(tmp_path: Path) -> None:
    pipe, heard = tmp_path / "pipe", list[bytes]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: heard.append(pipe.read_bytes()))
    reader.start()
    with command.sink(pipe) as out:
        out.write(b"through")
    reader.join()
    assert heard == [b"through"]
    assert pipe.is_fifo()
