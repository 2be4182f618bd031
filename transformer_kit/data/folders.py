"""Folders that are there as a whole or not at all, and what identifies the files of a corpus."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import Any

from transformer_kit.data.corpus import FileFacts, scan
from transformer_kit.errors import DataError

FACTS = "files.json"
ABANDONED = 86_400.0  # seconds after which a temporary folder must be that of a killed process
SETTLED = 2.0  # seconds after which a file's time stamp would show a further change


@contextmanager
def new_folder(final: Path) -> Iterator[Path]:
    """A temporary folder beside `final` that takes its name when the block ends well, and vanishes when it does not.

    What a killed process left behind is removed by a later one.

    Raises:
        DataError: the disk is full or the place cannot be written.
    """
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        for old in final.parent.glob(f".{final.name}.*"):
            if time.time() - old.stat().st_mtime > ABANDONED:
                shutil.rmtree(old, ignore_errors=True)
        made = Path(tempfile.mkdtemp(prefix=f".{final.name}.", dir=final.parent))
    except OSError as error:
        raise DataError(f"{final.parent}: cannot be written ({error.strerror}); choose another data.cache") from None
    try:
        yield made
        made.chmod(0o755)  # mkdtemp's folders are private
        try:
            made.rename(final)
        except OSError:
            if not final.is_dir():  # else another process was faster, and its folder has the same content
                raise
    except OSError as error:
        raise DataError(
            f"{final}: cannot be written ({error.strerror}); free some space or change data.cache"
        ) from None
    finally:
        shutil.rmtree(made, ignore_errors=True)


def key_of(value: Any) -> str:
    """SHA-256 of plain data, in hexadecimal."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def facts_of(path: Path, cache: Path) -> FileFacts:
    """`scan(path)`, remembered in the cache for as long as the file's size, times and inode stay the same."""
    try:
        stat = path.stat()
    except OSError:
        return scan(path)  # which says what is wrong
    if S_ISDIR(stat.st_mode):
        return scan(path)
    if not S_ISREG(stat.st_mode):
        raise DataError(f"{path}: not a regular file; a corpus is read more than once, so write it to a file first")
    stamp = [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino, stat.st_dev]
    name = str(path.resolve())
    known = _read_facts(cache)
    if name in known and known[name]["stamp"] == stamp:
        return FileFacts(**known[name]["facts"])
    facts = scan(path)
    if time.time() - stat.st_ctime > SETTLED and path.stat().st_mtime_ns == stat.st_mtime_ns:
        _remember(cache, name, {"stamp": stamp, "facts": asdict(facts)})
    return facts


def _read_facts(cache: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        found = json.loads((cache / FACTS).read_text(encoding="utf-8"))
        if isinstance(found, dict):
            return found
    return {}


def _remember(cache: Path, name: str, entry: dict[str, Any]) -> None:
    # Only a shortcut: a cache that cannot be written is no error here. It is made by the first prepared folder.
    if not cache.is_dir():
        return
    with suppress(OSError), tempfile.NamedTemporaryFile("w", dir=cache, delete=False, encoding="utf-8") as file:
        json.dump(_read_facts(cache) | {name: entry}, file)
        file.close()
        os.replace(file.name, cache / FACTS)
