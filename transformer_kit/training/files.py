"""Files that reach the disk, and a manifest that tells whether they came back as they went."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

MANIFEST = "manifest.json"


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


def write_manifest(folder: Path, names: Sequence[str]) -> None:
    """Flush the named files of a folder, and write their sizes and hashes beside them."""
    entries = {}
    for name in names:
        flush(folder / name)
        entries[name] = {"bytes": (folder / name).stat().st_size, "sha256": sha256(folder / name)}
    path = folder / MANIFEST
    path.write_text(json.dumps({"format": 1, "files": entries}, indent=1) + "\n", encoding="utf-8")
    flush(path)


def why_damaged(folder: Path, names: Sequence[str], optional: Sequence[str] = ()) -> str | None:
    """What is wrong with a folder written with `write_manifest`; None if it is as it was.

    Args:
        names: files that must be there; no others that the manifest names are read.
        optional: files that may be there, and in the manifest.
    """
    try:
        entries = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
        more = [name for name in optional if name in entries or (folder / name).exists()]
        hashes = {name: str(entries[name]["sha256"]) for name in (*names, *more)}
    except FileNotFoundError:
        return f"{MANIFEST} is missing"
    except (OSError, ValueError, KeyError, TypeError):
        return f"{MANIFEST} cannot be read"
    for name, expected in hashes.items():
        try:
            if sha256(folder / name) != expected:
                return f"{name} differs from its SHA-256"
        except FileNotFoundError:
            return f"{name} is missing"
        except OSError as error:
            return f"{name} cannot be read ({error.strerror})"
    return None
