"""What a disk may do to a file."""

from __future__ import annotations

import os
from pathlib import Path


def truncate(path: Path) -> None:
    """Lose the second half."""
    os.truncate(path, path.stat().st_size // 2)


def flip(path: Path) -> None:
    """Turn one bit in the middle."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
