"""Random segmentations of text into the pieces of a SentencePiece model, decided by one seed a line and nothing else.

- Unigram: a segmentation x is drawn with probability proportional to exp(alpha · Σ score(x_i)) over all segmentations.
  Source: Kudo (2018), Subword Regularization, section 3.3, with l = ∞.
- BPE: at each step each possible merge is left out with probability alpha, and the best of the others is made; the word
  is done when none is left. Source: Provilkov et al. (2020), BPE-Dropout, algorithm 1.
- SentencePiece samples too, but its generator differs from process to process whatever its seed; training that goes on
  in a new process would read other pieces than training without a break.
- No piece holds a space behind another character, unless a model was trained to cross words; so a line falls into
  words that are drawn independently, and what a word needs is remembered.
"""

from __future__ import annotations

import math
import re
import struct
from abc import ABC, abstractmethod
from bisect import bisect
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, groupby, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transformer_kit.data.draws import uniform

BLOCK = 256  # lines whose random numbers are made together
LONGEST, WORDS = 40, 1 << 14  # a word of at most so many characters is remembered, and so many of them
UNIGRAM = 1  # SentencePiece's numbers for its kinds of models and of pieces
NORMAL, UNKNOWN, USER_DEFINED, UNUSED, BYTE = 1, 2, 4, 5, 6
UNKNOWN_PENALTY = 10.0  # below the worst piece, as SentencePiece scores an unknown character
NONE = -math.inf  # the score of a merge that there is not
NEVER = 1 << 30  # more merges than a line can have

Step = tuple[int, tuple[int, ...]]  # where a piece starts, and its ids
Lattice = list[tuple[tuple[float, ...], tuple[Step, ...]]]


def make_sampler(model: bytes, alpha: float) -> SubwordSampler:
    """The sampler for a serialized SentencePiece model.

    Args:
        alpha: in [0, 1]; BPE: the probability of leaving a merge out; unigram: the smoothing exponent.
    """
    pieces: list[tuple[str, float, int]] = []
    kind = UNIGRAM
    for number, value in _fields(model):
        if number == 1:
            piece = dict(_fields(value))
            pieces.append((piece[1].decode(), struct.unpack("<f", piece.get(2, bytes(4)))[0], piece.get(3, NORMAL)))
        elif number == 2:
            kind = dict(_fields(value)).get(3, UNIGRAM)
    return (UnigramSampler if kind == UNIGRAM else BPESampler)(pieces, alpha)


class SubwordSampler(ABC):
    """Draws segmentations of normalised text.

    Args:
        pieces: text, score and kind of each piece, in the order of their ids.
        alpha: as in `make_sampler`.
    """

    def __init__(self, pieces: list[tuple[str, float, int]], alpha: float) -> None:
        self.alpha = alpha
        self._ids = {text: (number,) for number, (text, _, kind) in enumerate(pieces) if kind in (NORMAL, USER_DEFINED)}
        self._bytes = [number for number, (_, _, kind) in enumerate(pieces) if kind == BYTE]
        self._unknown = next(number for number, (_, _, kind) in enumerate(pieces) if kind == UNKNOWN)
        textual = [text for text, _, kind in pieces if kind in (NORMAL, USER_DEFINED, UNUSED)]
        crossing = any(re.search("[^▁]▁", text) for text in textual)
        self._words = re.compile("(?s:.+)" if crossing else "▁*[^▁]+|▁+")

    def sample(self, lines: Sequence[str], seeds: Sequence[int]) -> list[list[int]]:
        """Ids of a random segmentation of each line.

        Args:
            lines: as SentencePiece's `normalize` gives them.
            seeds: one non-negative integer a line.
        """
        rows: list[list[int]] = []
        for start in range(0, len(lines), BLOCK):
            block = lines[start : start + BLOCK]
            # A word of n characters needs n numbers at most: each ends a piece, makes a merge, or ends the merging.
            lengths = np.fromiter(map(len, block), np.int64, len(block))
            draws = self._prepared(uniform(np.asarray(seeds[start : start + BLOCK]), lengths, 0)).tolist()
            end = 0
            for line in block:
                row: list[int] = []
                at, end = end, end + len(line)
                for word in self._words.findall(line):
                    at = self._cut(word, draws, at, row)
                rows.append(row if self._bytes else self._joined(row))
        return rows

    def _prepared(self, draws: NDArray[np.float64]) -> NDArray:
        return draws

    @abstractmethod
    def _cut(self, word: str, draws: list, at: int, row: list[int]) -> int:
        # Append a word's ids to the row, by the draws from `at` on; returns where the next word's draws start.
        ...

    def _spelt(self, character: str) -> tuple[int, ...]:
        # The ids of a character that is no piece.
        return tuple(self._bytes[byte] for byte in character.encode()) if self._bytes else (self._unknown,)

    def _joined(self, row: list[int]) -> list[int]:
        # SentencePiece makes one unknown piece of neighbouring unknown characters.
        if self._unknown not in row:
            return row
        return [one for number, run in groupby(row) for one in ([number] if number == self._unknown else run)]


class UnigramSampler(SubwordSampler):
    """Forward filtering, backward sampling.

    F(e) = log Σ over pieces from s to e of exp(F(s) + alpha · score); from the end of a word backwards, the last piece
    up to e starts at s with probability exp(F(s) + alpha · score − F(e)).
    """

    def __init__(self, pieces: list[tuple[str, float, int]], alpha: float) -> None:
        super().__init__(pieces, alpha)
        normal = [score for _, score, kind in pieces if kind == NORMAL]
        self._unknown_score = min(normal) - UNKNOWN_PENALTY
        # A user-defined piece beats whatever else spells its text.
        self._scores = {
            text: len(text) * max(normal) - 0.1 if kind == USER_DEFINED else score
            for text, score, kind in pieces
            if kind in (NORMAL, USER_DEFINED)
        }
        self._longest = max(map(len, self._scores))
        self._remembered = lru_cache(WORDS)(self._lattice)

    def _cut(self, word: str, draws: list[float], at: int, row: list[int]) -> int:
        lattice = self._remembered(word) if len(word) <= LONGEST else self._lattice(word)
        end, backwards = len(word), []
        while end:
            shares, steps = lattice[end]
            end, ids = steps[bisect(shares, draws[at])]
            at += 1
            backwards.append(ids)
        for ids in reversed(backwards):
            row += ids
        return at

    def _lattice(self, word: str) -> Lattice:
        # For each end: the pieces that end there, and their cumulative probabilities without the last, which is 1.
        forward = [0.0]
        lattice: Lattice = [((), ())]
        for end in range(1, len(word) + 1):
            steps, scores = self._steps(word, end)
            logs = [forward[start] + self.alpha * score for (start, _), score in zip(steps, scores, strict=True)]
            top = max(logs)
            weights = [math.exp(log - top) for log in logs]
            total = sum(weights)
            forward.append(top + math.log(total))
            lattice.append((tuple(accumulate(weight / total for weight in weights[:-1])), tuple(steps)))
        return lattice

    def _steps(self, word: str, end: int) -> tuple[list[Step], list[float]]:
        # The pieces that end there, and their scores; there is an unknown one if the last character is no piece.
        steps: list[Step] = []
        scores: list[float] = []
        for start in range(max(0, end - self._longest), end):
            text = word[start:end]
            if text in self._ids:
                steps.append((start, self._ids[text]))
                scores.append(self._scores[text])
        if word[end - 1] not in self._ids:
            steps.append((end - 1, self._spelt(word[end - 1])))
            scores.append(self._unknown_score)
        return steps, scores


class BPESampler(SubwordSampler):
    """Merges with dropout. Merges rank by the score of the piece that they make, equal ones from left to right."""

    def __init__(self, pieces: list[tuple[str, float, int]], alpha: float) -> None:
        super().__init__(pieces, alpha)
        self._scores = {text: score for text, score, kind in pieces if kind in (NORMAL, USER_DEFINED, UNUSED)}
        self._unused = {text: (number,) for number, (text, _, kind) in enumerate(pieces) if kind == UNUSED}
        self._whole = {text for text, _, kind in pieces if kind == USER_DEFINED}
        longest_first = sorted(self._whole, key=len, reverse=True)
        self._symbols = re.compile("|".join([*map(re.escape, longest_first), "."]), re.DOTALL)
        self._remembered = lru_cache(WORDS)(self._plain)

    def _prepared(self, draws: NDArray[np.float64]) -> NDArray[np.int64]:
        # How many of the best merges are left out: k or more with probability alpha^k.
        rate = min(math.log(self.alpha), -1e-300) if self.alpha > 0 else NONE
        return np.minimum(np.log(draws) / rate, NEVER).astype(np.int64)

    def _cut(self, word: str, draws: list[int], at: int, row: list[int]) -> int:
        if len(word) <= LONGEST:
            ids, merges = self._remembered(word)
            if not any(draws[at : at + merges]):
                row += ids
                return at + merges
        return self._merge(word, draws, at, row)

    def _plain(self, word: str) -> tuple[tuple[int, ...], int]:
        # The ids without dropout, and the number of merges.
        row: list[int] = []
        merges = self._merge(word, [0] * len(word), 0, row)
        return tuple(row), merges

    def _merge(self, word: str, draws: list[int], at: int, row: list[int]) -> int:
        symbols = self._symbols.findall(word)
        split: dict[str, tuple[str, str]] = {}
        scores = [self._score(left, right, split) for left, right in pairwise(symbols)]
        while scores and (best := max(scores)) > NONE:
            left_out = draws[at]
            at += 1
            if left_out:
                ranked = sorted((-score, place) for place, score in enumerate(scores) if score > NONE)
                if left_out >= len(ranked):
                    break
                place = ranked[left_out][1]
            else:
                place = scores.index(best)
            symbols[place : place + 2] = [symbols[place] + symbols[place + 1]]
            del scores[place]
            for near in (place - 1, place):
                if 0 <= near < len(scores):
                    scores[near] = self._score(symbols[near], symbols[near + 1], split)
        for symbol in symbols:
            self._spell(symbol, split, row)
        return at

    def _score(self, left: str, right: str, split: dict[str, tuple[str, str]]) -> float:
        merged = left + right
        score = self._scores.get(merged, NONE)
        if left in self._whole or right in self._whole:  # never merged
            return NONE
        if merged in self._unused:
            split[merged] = left, right
        return score

    def _spell(self, symbol: str, split: dict[str, tuple[str, str]], row: list[int]) -> None:
        # An unused piece serves for merging only: what is left of it falls into its parts again.
        if symbol in split:
            for part in split[symbol]:
                self._spell(part, split, row)
        else:
            row += self._ids.get(symbol) or self._unused.get(symbol) or self._spelt(symbol)


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    # Number and value of each field of a protocol buffer message: an int, or bytes.
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = _varint(message, at)
            yield number, value
            continue
        if wire == 2:
            size, at = _varint(message, at)
        else:
            size = 8 if wire == 1 else 4
        yield number, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    # The number that starts there, and where it ends.
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
