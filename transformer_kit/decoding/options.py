"""The options of decoding: what `decoding.*` in a config means. No torch here, so that configs are checked at once."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

PENALTIES = ("gnmt", "power", "none")
PRECISIONS = ("fp32", "bf16")


@dataclass
class LengthPenaltyOptions:
    """How a hypothesis' log-probability is divided by its length; L counts its tokens including EOS.

    Attributes:
        kind: `gnmt` ((5 + L) / 6)^alpha, `power` L^alpha, `none` 1.
        alpha: the exponent, at least 0; unused by `none`.
    """

    kind: str
    alpha: float

    def problems(self) -> list[tuple[str, str]]:
        found = []
        if self.kind not in PENALTIES:
            found.append(("kind", f"is {self.kind!r}; valid are {', '.join(PENALTIES)}"))
        if not (isfinite(self.alpha) and self.alpha >= 0):
            found.append(("alpha", f"is {self.alpha}; a finite number of at least 0 is needed"))
        return found


@dataclass
class DecodingOptions:
    """How sources become hypotheses.

    Attributes:
        beam: hypotheses kept alive per sentence; 1 is greedy decoding.
        length_penalty: how hypotheses of different lengths are compared.
        n_best: hypotheses returned per sentence, at most `beam`.
        min_length: the fewest tokens of a hypothesis, EOS included; 0 and 1 both allow an empty translation.
        max_extra: a hypothesis has at most (source tokens, EOS included) + max_extra tokens, EOS included.
        max_length: an absolute limit on the same count; null for none (the model's own limit always holds).
        batch_tokens: sentences × beam × longest source, EOS included, in one batch; a line that is more by itself is a
            batch of its own.
        chunk: lines read ahead at most, to be sorted by length; a pipe never waits for a chunk to fill.
        precision: `fp32`, in which a hypothesis does not depend on its neighbours, or `bf16`.
        detokenize: undo the tokenisation of the tokenizer's text rule (Moses) in the output.
    """

    beam: int
    length_penalty: LengthPenaltyOptions
    n_best: int
    min_length: int
    max_extra: int
    max_length: int | None
    batch_tokens: int
    chunk: int
    precision: str
    detokenize: bool

    def problems(self) -> list[tuple[str, str]]:
        """(key, message) for each value out of range."""
        found = [(f"length_penalty.{key}", message) for key, message in self.length_penalty.problems()]
        for key, least in (("beam", 1), ("n_best", 1), ("min_length", 0), ("max_extra", 0)):
            if getattr(self, key) < least:
                found.append((key, f"is {getattr(self, key)}; at least {least} is needed"))
        for key in ("batch_tokens", "chunk"):
            if getattr(self, key) < 1:
                found.append((key, f"is {getattr(self, key)}; at least 1 is needed"))
        if self.n_best > self.beam >= 1:
            found.append(("n_best", f"is {self.n_best}, more than beam={self.beam}; raise beam or lower n_best"))
        if self.max_length is not None and self.max_length < 1:
            found.append(("max_length", f"is {self.max_length}; at least 1 is needed, or null for no limit"))
        elif self.max_length is not None and self.min_length > self.max_length:
            found.append(("min_length", f"is {self.min_length}, more than max_length={self.max_length}"))
        if self.precision not in PRECISIONS:
            found.append(("precision", f"is {self.precision!r}; valid are {', '.join(PRECISIONS)}"))
        return found
