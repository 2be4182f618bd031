"""The nearest valid spelling of a word that a user mistyped."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(word: str, valid: Iterable[str]) -> str:
    """`; did you mean 'x'?` with the nearest valid word, or nothing where none is near."""
    close = difflib.get_close_matches(word, list(valid), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""


def nearest_key(key: str, valid: Iterable[str]) -> str:
    """Like `nearest` for dotted keys; a key whose last part is spelt right, only elsewhere, counts as near.

    `steps` finds `trainer.steps` and `trainer.stps` finds `trainer.steps`.
    """
    keys = list(valid)
    last = key.rpartition(".")[2]
    same_leaf = [other for other in keys if other.rpartition(".")[2] == last]
    if same_leaf:
        return f"; did you mean {' or '.join(repr(other) for other in sorted(same_leaf)[:3])}?"
    return nearest(key, keys)
