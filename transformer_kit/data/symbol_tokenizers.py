"""Tokenizers whose ids are single characters or single bytes.

The model is JSON: `controls`, the names of the ids behind BOS and EOS, and for characters `characters`, the alphabet.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transformer_kit.data.text_rules import TextRule
from transformer_kit.data.tokenizer import MASK, SENTINEL, Tokenizer
from transformer_kit.errors import DataError
from transformer_kit.specials import Specials

UNKNOWN = "\ufffd"  # what an unknown character is decoded to


def char_model(characters: str, controls: Sequence[str]) -> bytes:
    """The model of a `CharTokenizer`."""
    return json.dumps({"controls": list(controls), "characters": characters}).encode()


def byte_model(controls: Sequence[str]) -> bytes:
    """The model of a `ByteTokenizer`."""
    return json.dumps({"controls": list(controls)}).encode()


class CharTokenizer(Tokenizer):
    """One id for each character of an alphabet; any other character is unknown.

    Ids: 0 padding, 1 unknown, 2 BOS, 3 EOS, controls, characters.
    """

    kind = "char"

    def __init__(self, model: bytes, rule: TextRule, tag: str | None = None, prefix: str = "") -> None:
        added, alphabet = _read(model, "controls", "characters")
        names = ["<pad>", "<unk>", "<s>", "</s>", *added]
        self._names = [*names, *alphabet]
        self._text = ["" if number != 1 else UNKNOWN for number in range(len(names))] + list(alphabet)
        codes = _codes(alphabet)
        self._ids = np.ones(int(codes.max(initial=0)) + 2, np.int32)  # code point -> id; unknown, as the last one is
        self._ids[codes] = len(names) + np.arange(len(alphabet))
        specials = _specials(names, pad=0, unk=1, bos=2, eos=3, vocab_size=len(self._names))
        controls = {name: number for number, name in enumerate(names) if number > 3}
        super().__init__(model, rule, specials, controls=controls, tag=tag, prefix=prefix)

    def cut(self, lines: list[str]) -> list[list[int]]:
        codes = np.minimum(_codes("".join(lines)), len(self._ids) - 1)
        return _split(self._ids[codes], [len(line) for line in lines])

    def _join(self, rows: Sequence[Sequence[int]]) -> list[str]:
        return ["".join([self._text[number] for number in row]) for row in rows]

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [self._names[number] for number in ids]


class ByteTokenizer(Tokenizer):
    """One id for each byte of the UTF-8 text: nothing is unknown, and every text comes back.

    Ids: 0 padding, 1 BOS, 2 EOS, controls, the 256 bytes. A row that is no UTF-8 decodes with U+FFFD where it is not.
    """

    kind = "byte"

    def __init__(self, model: bytes, rule: TextRule, tag: str | None = None, prefix: str = "") -> None:
        (added,) = _read(model, "controls")
        names = ["<pad>", "<s>", "</s>", *added]
        self._first = len(names)
        self._names = names + [f"<0x{byte:02X}>" for byte in range(256)]
        specials = _specials(names, pad=0, unk=None, bos=1, eos=2, vocab_size=len(self._names))
        controls = {name: number for number, name in enumerate(names) if number > 2}
        super().__init__(model, rule, specials, controls=controls, tag=tag, prefix=prefix)

    def cut(self, lines: list[str]) -> list[list[int]]:
        encoded = [line.encode("utf-8", "replace") for line in lines]
        ids = np.frombuffer(b"".join(encoded), np.uint8).astype(np.int32) + self._first
        return _split(ids, [len(line) for line in encoded])

    def _join(self, rows: Sequence[Sequence[int]]) -> list[str]:
        return [self._decoded(np.asarray(row, np.int64)) for row in rows]

    def _decoded(self, row: NDArray[np.int64]) -> str:
        return (row[row >= self._first] - self._first).astype(np.uint8).tobytes().decode("utf-8", "replace")

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [self._names[number] for number in ids]


def _read(model: bytes, *keys: str) -> list[Any]:
    try:
        found = json.loads(model)
        return [found[key] for key in keys]
    except (ValueError, KeyError, TypeError):
        raise DataError("the tokenizer's model is damaged (it is no JSON, or incomplete); train it again") from None


def _specials(names: list[str], *, pad: int, unk: int | None, bos: int, eos: int, vocab_size: int) -> Specials:
    return Specials(
        pad=pad,
        bos=bos,
        eos=eos,
        unk=unk,
        mask=names.index(MASK) if MASK in names else None,
        sentinels=tuple(number for number, name in enumerate(names) if SENTINEL.match(name)),
        vocab_size=vocab_size,
        start=bos,
    )


def _codes(text: str) -> NDArray[np.uint32]:
    # (characters,): code points; a lone surrogate becomes that of `?`.
    return np.frombuffer(text.encode("utf-32-le", "replace"), "<u4")


def _split(ids: NDArray[np.int32], lengths: list[int]) -> list[list[int]]:
    flat: list[int] = ids.tolist()
    rows, start = [], 0
    for length in lengths:
        rows.append(flat[start : start + length])
        start += length
    return rows
