"""What a user chooses about tokenizers. The defaults stand in conf/tokenizer."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import Enum

from transformer_kit.data.options import PATH, Problems, under

MOST_SENTINELS = 10_000


class Kind(Enum):
    """What an id stands for: a piece that SentencePiece found (in one of two ways), a character, or a byte."""

    unigram = "unigram"
    bpe = "bpe"
    char = "char"
    byte = "byte"

    @property
    def tokenizer(self) -> str:
        """The kind of tokenizer that this makes (`tokenizer_kinds.py`)."""
        return "sentencepiece" if self in (Kind.unigram, Kind.bpe) else self.value


class Unicode(Enum):
    """SentencePiece's normalisation; `identity` also keeps every space, the others join runs of spaces."""

    identity = "identity"
    nfkc = "nfkc"
    nmt_nfkc = "nmt_nfkc"


@dataclass
class TextOptions:
    """What happens to a line before it is cut into pieces. Stored with the tokenizer and applied at translation too.

    Attributes:
        normalize: Moses punctuation normalisation.
        tokenize: Moses tokenisation (undone after decoding).
        lowercase: lower-case the line.
        unicode: SentencePiece's own rule, applied last.
    """

    normalize: bool
    tokenize: bool
    lowercase: bool
    unicode: Unicode


@dataclass
class SamplingOptions:
    """Subword regularisation, in training only.

    Attributes:
        alpha: 0 is off. BPE: the probability of dropping a merge. Unigram: the smoothing exponent of the sampled
            segmentations (smaller is more varied).
    """

    alpha: float

    def problems(self) -> Problems:
        found: Problems = []
        if not 0 <= self.alpha <= 1:
            found.append(("alpha", f"must be from 0 (off) to 1, not {self.alpha}"))
        return found


@dataclass
class TokenizerOptions:
    """A vocabulary to train, or the folder of a trained one.

    Attributes:
        path: an existing tokenizer folder; all but `sampling` is then taken from there.
        kind: unigram or bpe (SentencePiece), char or byte.
        vocab_size: pieces, with the four control pieces, the tags and (with byte fallback) the 256 bytes; for char the
            most ids, of which the most frequent characters take what is left, or null for all; for byte null.
        joint: one vocabulary for both languages.
        byte_fallback: write unknown characters as bytes; then nothing is unknown.
        character_coverage: the share of the text's characters that the alphabet must cover, from 0.98 to 1
            (SentencePiece takes no less).
        max_lines: train on at most this many lines a side, evenly spaced over the corpora; null takes all.
        mask: whether there is an id that stands for a hidden token.
        sentinels: how many ids there are that stand for removed spans of text.
    """

    path: str | None = field(metadata=PATH)
    kind: Kind
    vocab_size: int | None
    joint: bool
    byte_fallback: bool
    character_coverage: float
    max_lines: int | None
    mask: bool
    sentinels: int
    text: TextOptions
    sampling: SamplingOptions

    def problems(self) -> Problems:
        found: Problems = []
        if self.vocab_size is not None and self.vocab_size < 5:
            found.append(("vocab_size", f"must be at least 5, not {self.vocab_size}"))
        if self.vocab_size is None and self.kind in (Kind.unigram, Kind.bpe):
            found.append(("vocab_size", f"kind {self.kind.value} needs a number"))
        if self.kind in (Kind.char, Kind.byte):
            found += self._one_way()
        if not 0.98 <= self.character_coverage <= 1:
            found.append(("character_coverage", f"must be from 0.98 to 1, not {self.character_coverage}"))
        if self.max_lines is not None and self.max_lines < 1:
            found.append(("max_lines", f"must be at least 1 or null, not {self.max_lines}"))
        if not 0 <= self.sentinels <= MOST_SENTINELS:
            found.append(("sentinels", f"must be from 0 to {MOST_SENTINELS:,}, not {self.sentinels}"))
        return found + under("sampling", self.sampling.problems())

    def misfits(self, kind: str) -> Problems:
        """What only pairs leave open, where the data are of another `data.kind`."""
        found: Problems = []
        if kind != "pairs" and not self.joint:
            found.append(("joint", f"data.kind={kind} has one side: set it to true"))
        if kind != "pairs" and self.sampling.alpha > 0:
            found.append(("sampling.alpha", f"data.kind={kind} is encoded once: set it to 0"))
        return found

    def _one_way(self) -> Problems:
        # What characters and bytes leave no choice of.
        kind = self.kind.value
        fixed: dict[str, tuple[object, object]] = {
            "byte_fallback": (self.byte_fallback, False),
            "character_coverage": (self.character_coverage, 1.0),
            "text.unicode": (self.text.unicode.value, "identity"),
            "sampling.alpha": (self.sampling.alpha, 0.0),
        }
        fixed |= {"vocab_size": (self.vocab_size, None)} if self.kind is Kind.byte else {}
        found = [(key, value, only) for key, (value, only) in fixed.items() if value != only]
        return [
            (key, f"kind {kind} allows only {json.dumps(only)}, not {json.dumps(value)}") for key, value, only in found
        ]
