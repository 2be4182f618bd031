"""Where a text that is still growing ends, and how much of it is certain."""

from __future__ import annotations

from collections.abc import Sequence

REPLACEMENT = "\ufffd"  # what a decoder writes for bytes that are not a character (yet)


def first_stop(text: str, stops: Sequence[str]) -> int | None:
    """Where the earliest stop string begins, or None."""
    found = [at for at in map(text.find, stops) if at >= 0]
    return min(found, default=None)


def certain(text: str, stops: Sequence[str]) -> str:
    """The part of a growing text that will stay, whatever comes: no half character, no beginning of a stop string.

    Args:
        text: so far; it holds no whole stop string.
    """
    text = text.rstrip(REPLACEMENT)
    held = 0
    for stop in stops:
        for length in range(min(len(stop) - 1, len(text)), held, -1):
            if text.endswith(stop[:length]):
                held = length
                break
    return text[: len(text) - held]
