"""Files that reach the disk, and a manifest that tells whether they came back as they went.

The names in a manifest are plain ones inside its folder, at most one folder down, and no links: nothing else is read.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import mmap
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

if sys.platform != "win32":
    import fcntl

MANIFEST = "manifest.json"
PIECE = 1 << 22  # bytes hashed and written at once: still in a cache when they are written, few calls in all
BLOCK = 4096  # bytes: what is written past the page cache begins and ends at multiples of it
_PLAIN = re.compile(r"(?!\.{1,2}(?:/|$))[\w.-]+(?:/(?!\.{1,2}$)[\w.-]+)?")


@dataclass(frozen=True)
class Entry:
    """What a manifest holds of a file.

    Attributes:
        bytes: its size.
        sha256: in hex.
    """

    bytes: int
    sha256: str


class HashedFile:
    """A new file that is hashed while it is written; as a context it is flushed to disk on the way out.

    Whole pieces go to the disk past the page cache where the file system can (`O_DIRECT`): copying them into the cache
    takes processor time from whoever computes beside, the more where its pages have to be made first, and they would
    push out what is read again. Python's lock is free while a piece is copied, hashed or written.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("xb", buffering=0)
        self._hash = hashlib.sha256()
        self._bytes = 0
        self._piece = mmap.mmap(-1, PIECE)  # begins at a page, as the disk asks
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._piece))
        self._filled = 0
        self._direct = _set_direct(self._file.fileno(), True)

    def write(self, data: bytes | memoryview) -> int:
        """Append all of the data; what does not fill a piece is held back."""
        whole = np.frombuffer(data, np.uint8)
        at = 0
        while at < whole.size:
            count = min(PIECE - self._filled, whole.size - at)
            ctypes.memmove(self._address + self._filled, whole.ctypes.data + at, count)
            self._filled += count
            at += count
            if self._filled == PIECE:
                self._put()
        return at

    def flush(self) -> None:
        """What is held back stays so until the end."""

    def entry(self) -> Entry:
        """What was written, when the context has ended."""
        return Entry(self._bytes, self._hash.hexdigest())

    def __enter__(self) -> HashedFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._file:
            if kind is None:
                self._put()
                os.fsync(self._file.fileno())

    def _put(self) -> None:
        """Hash and write what is held back."""
        piece = memoryview(self._piece)[: self._filled]
        self._hash.update(piece)
        self._bytes += len(piece)
        self._filled = 0
        while len(piece):
            if self._direct and len(piece) % BLOCK:
                self._direct = _set_direct(self._file.fileno(), False)
            try:
                piece = piece[self._file.write(piece) :]
            except OSError as error:
                if not (self._direct and error.errno == errno.EINVAL):
                    raise
                self._direct = _set_direct(self._file.fileno(), False)  # larger blocks, or promised and not kept


def _set_direct(handle: int, wanted: bool) -> bool:
    """Switch writing past the page cache on or off, where the file system can; is it on now?"""
    if sys.platform != "linux":
        return False
    flags = fcntl.fcntl(handle, fcntl.F_GETFL)
    try:
        fcntl.fcntl(handle, fcntl.F_SETFL, flags | os.O_DIRECT if wanted else flags & ~os.O_DIRECT)
    except OSError:
        return False
    return wanted


def sha256(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def flush(path: Path) -> None:
    """Make a file's bytes, or a folder's names, durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_text(path: Path, text: str) -> Entry:
    """Write a new file in UTF-8, flushed to disk."""
    with HashedFile(path) as file:
        file.write(text.encode())
    return file.entry()


def write_manifest(folder: Path, entries: Mapping[str, Entry]) -> None:
    """Write the sizes and hashes of files, by their names inside the folder, beside them."""
    files = {name: asdict(entry) for name, entry in entries.items()}
    write_text(folder / MANIFEST, json.dumps({"format": 1, "files": files}, indent=1) + "\n")


def is_plain(name: str) -> bool:
    """Whether a name leads to a file of its folder, or of a folder in it, and nowhere else."""
    return _PLAIN.fullmatch(name) is not None


def why_damaged(folder: Path, names: Sequence[str], optional: Sequence[str] = (), inner: str = "") -> str | None:
    """What is wrong with a folder written with `write_manifest`; None if it is as it was.

    Args:
        names: files that must be there; no others that the manifest names are read.
        optional: files that may be there, and in the manifest.
        inner: a folder in it, of which every file that is there, or in the manifest, must be in both.
    """
    try:
        hashes = {name: str(entry["sha256"]) for name, entry in _manifest(folder).items()}
    except FileNotFoundError:
        return f"{MANIFEST} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"{MANIFEST} cannot be read"
    for name in hashes:
        if not is_plain(name):
            return f"{MANIFEST} names {name!r}, which is no plain name inside its folder"
    more = [name for name in optional if name in hashes or (folder / name).exists()]
    if inner:
        there = [f"{inner}/{path.name}" for path in (folder / inner).iterdir()] if (folder / inner).is_dir() else []
        more += sorted({name for name in hashes if name.startswith(f"{inner}/")} | set(there))
    for name in dict.fromkeys((*names, *more)):
        expected = hashes.get(name)
        try:
            if _leads_out(folder, name):
                return f"{name} is a link"
            if expected is None:
                return f"{name} is not in {MANIFEST}"
            if sha256(folder / name) != expected:
                return f"{name} differs from its SHA-256"
        except FileNotFoundError:
            return f"{name} is missing"
        except OSError as error:
            return f"{name} cannot be read ({error.strerror})"
    return None


def _manifest(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"])


def _leads_out(folder: Path, name: str) -> bool:
    """Whether a file, or the folder in between, is a symbolic link."""
    path = folder / name
    return path.is_symlink() or (path.parent != folder and path.parent.is_symlink())
