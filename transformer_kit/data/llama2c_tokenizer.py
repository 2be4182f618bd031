"""The tokenizer of llama2.c: pairs of pieces are merged, the one with the best score first.

- A row begins with the piece of a space, as in llama2.c, unless the line is empty; decoding takes it away again.
- A character that is no piece becomes its UTF-8 bytes, which are the ids from 3 on.
- The file: int32 longest piece; then for each piece float32 score, int32 length, bytes. Ids: 0 unknown, 1 BOS, 2 EOS.
"""

from __future__ import annotations

import heapq
import re
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from transformer_kit.data.tokenizers_imported import ImportedTokenizer
from transformer_kit.errors import DataError
from transformer_kit.specials import Specials

UNKNOWN, BOS, EOS, FIRST_BYTE = 0, 1, 2, 3
BYTE = re.compile(rb"<0x([0-9A-F]{2})>")


class Llama2cTokenizer(ImportedTokenizer):
    """What `tokenizer.bin` or `tok512.bin` holds.

    Args:
        model: the bytes of the file.
        about: see `description`.
        tag, prefix: see `Tokenizer`.

    Raises:
        DataError: a damaged file.

    Source: Karpathy 2023, llama2.c, `run.c`, `encode` and `decode`.
    """

    kind = "llama2c"

    def __init__(self, model: bytes, about: Mapping[str, Any], tag: str | None = None, prefix: str = "") -> None:
        super().__init__(model, about, tag, prefix)
        self.table = read_pieces(model)
        self._bytes = [_byte_of(piece) for piece, _ in self.table]
        plain = range(FIRST_BYTE, len(self.table))
        self._ids = {self.table[number][0]: number for number in reversed(plain) if self._bytes[number] is None}

    def cut(self, lines: list[str]) -> list[list[int]]:
        return [self._merge(self._symbols(line)) for line in lines]

    def _symbols(self, line: str) -> list[int]:
        """The ids before any merge."""
        row = [self._ids[b" "]] if line and b" " in self._ids else []
        for character in line:
            encoded = character.encode("utf-8", "replace")
            known = self._ids.get(encoded)
            row += [known] if known is not None else [byte + FIRST_BYTE for byte in encoded]
        return row

    def _merge(self, row: list[int]) -> list[int]:
        """Make the best merge, the leftmost among equals, until there is none."""
        after = [*range(1, len(row)), -1] if row else []
        before = [*range(-1, len(row) - 1)]
        heap: list[tuple[float, int, int, int, int]] = []  # −score, place, the two ids, their merge

        def offer(left: int) -> None:
            right = after[left]
            merged = self._ids.get(self.table[row[left]][0] + self.table[row[right]][0]) if right >= 0 else None
            if merged is not None:
                heapq.heappush(heap, (-self.table[merged][1], left, row[left], row[right], merged))

        for place in range(len(row) - 1):
            offer(place)
        gone = -1
        while heap:
            _, left, first, second, merged = heapq.heappop(heap)
            right = after[left]
            if row[left] != first or right < 0 or row[right] != second:
                continue  # one of the two was merged meanwhile
            row[left], row[right] = merged, gone
            after[left] = after[right]
            if after[left] >= 0:
                before[after[left]] = left
            offer(left)
            if before[left] >= 0:
                offer(before[left])
        return [number for number in row if number != gone]

    def _join(self, rows: Sequence[Sequence[int]]) -> list[str]:
        return [self._text(row) for row in self._real(rows, len(self.table))]

    def _text(self, row: Sequence[int]) -> str:
        parts = [self.table[one][0] if self._bytes[one] is None else bytes([self._bytes[one] or 0]) for one in row]
        return b"".join(parts).removeprefix(b" ").decode("utf-8", "replace")

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [self.table[int(one)][0].decode("utf-8", "replace") for one in ids]

    def files(self) -> dict[str, bytes]:
        return {**super().files(), "tokenizer.bin": self.model}


def specials_of(vocab_size: int) -> Specials:
    """The ids with a meaning of their own; padding has none of its own and borrows that of the unknown piece."""
    return Specials(pad=UNKNOWN, bos=BOS, eos=EOS, unk=None, mask=None, sentinels=(), vocab_size=vocab_size, start=BOS)


def read_pieces(model: bytes) -> list[tuple[bytes, float]]:
    """Bytes and score of each piece.

    Raises:
        DataError: the file ends within a piece, or holds none.
    """
    table, at = [], 4
    while at < len(model):
        if at + 8 > len(model):
            raise DataError("the tokenizer's file ends within a piece; it is damaged or no llama2.c tokenizer")
        score, length = struct.unpack_from("<fi", model, at)
        at += 8
        if length < 0 or at + length > len(model):
            raise DataError("the tokenizer's file ends within a piece; it is damaged or no llama2.c tokenizer")
        table.append((model[at : at + length], score))
        at += length
    if len(table) < FIRST_BYTE + 256:
        raise DataError(f"the tokenizer's file holds {len(table)} pieces; a llama2.c tokenizer has at least 259")
    return table


def _byte_of(piece: bytes) -> int | None:
    """The byte that a piece such as `<0x0A>` stands for."""
    found = BYTE.fullmatch(piece)
    return int(found[1], 16) if found else None
