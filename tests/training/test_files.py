"""Files that are hashed while they are written: past the page cache or not, the bytes and their hash are right."""

from __future__ import annotations

import errno
import hashlib
import os
import sys
from pathlib import Path

import pytest

from transformer_kit.training import files as module
from transformer_kit.training.files import Entry, HashedFile

PIECE = 2 * module.BLOCK
SIZES = [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE - module.BLOCK, 5 * PIECE + 3]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(module, "PIECE", PIECE)


def written(path: Path, data: bytes, chunk: int) -> Entry:
    with HashedFile(path) as file:
        for begin in range(0, len(data), chunk):
            assert file.write(memoryview(data)[begin : begin + chunk]) == len(data[begin : begin + chunk])
    return file.entry()


@pytest.mark.parametrize("place", ["disk", "memory", "no direct writing"])
@pytest.mark.parametrize("chunk", [1000, PIECE, 10 * PIECE])
def test_the_bytes_and_their_hash(tmp_path, monkeypatch, place, chunk):
    folder = tmp_path
    if place == "memory":
        folder = Path("/dev/shm") / f"tkit-{os.getpid()}-{tmp_path.name}"
        if not os.access("/dev/shm", os.W_OK):
            pytest.skip("there is no folder in memory here")
        folder.mkdir()
    if place == "no direct writing":
        monkeypatch.setattr(module, "_set_direct", lambda handle, wanted: False)
    try:
        for size in SIZES:
            data = os.urandom(size)
            entry = written(folder / str(size), data, chunk)
            assert (folder / str(size)).read_bytes() == data
            assert entry == Entry(size, hashlib.sha256(data).hexdigest())
    finally:
        for path in folder.iterdir() if place == "memory" else ():
            path.unlink()
        if place == "memory":
            folder.rmdir()


@pytest.mark.skipif(sys.platform != "linux", reason="the page cache is asked about in Linux's way")
def test_whole_pieces_go_past_the_page_cache(tmp_path, monkeypatch):
    """As far as this file system can, which the first write tells."""
    tried = []
    real = HashedFile._put

    def put(file):
        if file._filled == PIECE:
            tried.append(os.O_DIRECT & module.fcntl.fcntl(file._file.fileno(), module.fcntl.F_GETFL) != 0)
        real(file)

    monkeypatch.setattr(HashedFile, "_put", put)
    probe = os.open(tmp_path / "probe", os.O_CREAT | os.O_WRONLY)
    able = module._set_direct(probe, True)
    os.close(probe)
    written(tmp_path / "x", os.urandom(3 * PIECE + 1), 1000)
    assert tried == [able] * 3


class Odd:
    """A file whose writes are short, or which refuses to go past the cache although it promised."""

    def __init__(self, file, most, refuses):
        self.file, self.most, self.refuses = file, most, refuses

    def write(self, piece):
        direct = os.O_DIRECT & module.fcntl.fcntl(self.file.fileno(), module.fcntl.F_GETFL)
        if self.refuses and direct:
            raise OSError(errno.EINVAL, "Invalid argument")
        assert not direct or len(piece) % module.BLOCK == 0, "what goes past the cache is whole blocks"
        return self.file.write(piece[: self.most])

    def __getattr__(self, name):
        return getattr(self.file, name)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.file.close()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux writes past the cache")
@pytest.mark.parametrize(("most", "refuses"), [(1 << 30, True), (module.BLOCK, False), (1001, True), (1001, False)])
def test_a_disk_that_does_less_than_it_says(tmp_path, monkeypatch, most, refuses):
    data = os.urandom(3 * PIECE + 17)
    file = HashedFile(tmp_path / "x")
    monkeypatch.setattr(file, "_file", Odd(file._file, most, refuses))
    with file:
        file.write(data)
    assert (tmp_path / "x").read_bytes() == data
    assert file.entry() == Entry(len(data), hashlib.sha256(data).hexdigest())


def test_a_full_disk_is_an_error(tmp_path, monkeypatch):
    file = HashedFile(tmp_path / "x")
    monkeypatch.setattr(file, "_file", Odd(file._file, 0, False))
    monkeypatch.setattr(Odd, "write", lambda self, piece: os.write(os.open("/dev/full", os.O_WRONLY), piece))
    with pytest.raises(OSError, match="No space left"), file:
        file.write(bytes(PIECE))
    file = HashedFile(tmp_path / "y")
    monkeypatch.setattr(file, "_file", Odd(file._file, 0, False))
    with pytest.raises(OSError, match="No space left"), file:
        file.write(b"held back until the end")


def test_an_existing_file_is_left_alone(tmp_path):
    (tmp_path / "x").write_text("kept")
    with pytest.raises(FileExistsError):
        HashedFile(tmp_path / "x")
    assert (tmp_path / "x").read_text() == "kept"
