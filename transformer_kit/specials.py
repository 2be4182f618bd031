"""The ids of a vocabulary that have a meaning of their own. No torch here: the processes that encode text read this."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Specials:
    """The ids with a meaning of their own, which text never produces, and the size of the vocabulary.

    Attributes:
        pad: fills cells behind the end of a row.
        bos: begins a row (`[CLS]` in BERT).
        eos: ends a row (`[SEP]` in BERT).
        unk: stands for what the vocabulary cannot spell; None where it can spell everything.
        mask: the place of a token to guess; None where there is none.
        sentinels: mark the places of removed spans, in the order of use.
        vocab_size: V.
        start: what a decoder reads first; `bos` unless a model was trained otherwise (T5 and Marian: pad, BART: eos).
    """

    pad: int
    bos: int
    eos: int
    unk: int | None
    mask: int | None
    sentinels: tuple[int, ...]
    vocab_size: int
    start: int

    @property
    def all(self) -> frozenset[int]:
        """Every id that text never produces; `unk`, which text may, is not among them."""
        own = {self.pad, self.bos, self.eos, self.start, *self.sentinels}
        return frozenset(own if self.mask is None else own | {self.mask})
