"""What happens to a line before it is cut into pieces, and how that is undone after decoding.

The Moses rules are sacremoses'; a rule is plain data, so it is stored with the tokenizer and compared by value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any


@dataclass(frozen=True)
class TextRule:
    """The rule of one language.

    Attributes:
        language: ISO 639-1 code; Moses has rules of its own for some languages.
        normalize: Moses punctuation normalisation.
        tokenize: Moses tokenisation, without escaping (`&` stays `&`).
        lowercase: lower-case the line.
    """

    language: str
    normalize: bool
    tokenize: bool
    lowercase: bool

    @property
    def trivial(self) -> bool:
        """True when lines stay as they are."""
        return not (self.normalize or self.tokenize or self.lowercase)

    def apply(self, lines: list[str]) -> list[str]:
        """The lines lower-cased, normalised and tokenised, in this order (that of Multi30k's publishers)."""
        if self.trivial:
            return lines
        return [_by_line(self._apply, line) for line in lines]

    def undo(self, lines: list[str]) -> list[str]:
        """Join Moses tokens to running text again; case and punctuation stay as they are."""
        if not self.tokenize:
            return lines
        return [_by_line(lambda part: str(self._detokenizer.detokenize(part.split())), line) for line in lines]

    @cached_property
    def _apply(self) -> Callable[[str], str]:
        # Built once and kept: sacremoses compiles its tables in the constructors.
        steps: list[Callable[[str], str]] = [str.lower] if self.lowercase else []
        if self.normalize:
            from sacremoses import MosesPunctNormalizer

            steps.append(MosesPunctNormalizer(lang=self.language).normalize)
        if self.tokenize:
            tokenizer = _moses_tokenizer(self.language)
            steps.append(lambda line: str(tokenizer.tokenize(line, escape=False, return_str=True)))

        def chain(line: str) -> str:
            for step in steps:
                line = step(line)
            return line

        return chain

    @cached_property
    def _detokenizer(self) -> Any:
        from sacremoses import MosesDetokenizer

        return MosesDetokenizer(lang=self.language)


def _by_line(rule: Callable[[str], str], text: str) -> str:
    # Documents hold line feeds, which Moses would take for spaces.
    return "\n".join(map(rule, text.split("\n"))) if "\n" in text else rule(text)


def _moses_tokenizer(language: str) -> Any:
    from sacremoses import MosesTokenizer

    class PreparedTokenizer(MosesTokenizer):
        """Builds the two sets of letters once, not for every word in front of a full stop: three times as fast."""

        lower, letters = frozenset(MosesTokenizer.IsLower), frozenset(MosesTokenizer.IsAlpha)

        def islower(self, text: str) -> bool:
            return self.lower.issuperset(text)

        def isanyalpha(self, text: str) -> bool:
            return not self.letters.isdisjoint(text)

    return PreparedTokenizer(lang=language)
