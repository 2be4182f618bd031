"""The options of evaluation: what `evaluation.*` in a config means."""

from __future__ import annotations

from dataclasses import dataclass

METRICS = ("bleu", "bleu_intl", "bleu_tok", "bleu_tok_lc", "chrf", "ter")


@dataclass
class EvaluationOptions:
    """How hypotheses are scored against references.

    Attributes:
        metrics: any of `bleu` (sacreBLEU, 13a), `bleu_intl`, `bleu_tok` and `bleu_tok_lc` (hypotheses and references
            normalised and tokenised as Moses does, the latter lower-cased as in papers on Multi30k), `chrf`, `ter`.
        lowercase: ignore case in `bleu`, `bleu_intl` and `chrf`; shown in the signature. TER ignores it by itself.
        language: the target language, for the Moses rules.
        bootstrap: resamples for a 95 % confidence interval of each metric; 0 for none.
        seed: of the resampling.
    """

    metrics: list[str]
    lowercase: bool
    language: str
    bootstrap: int
    seed: int

    def problems(self) -> list[tuple[str, str]]:
        """(key, message) for each value out of range."""
        found = []
        if unknown := [name for name in self.metrics if name not in METRICS]:
            found.append(("metrics", f"holds {', '.join(unknown)}; valid are {', '.join(METRICS)}"))
        if not self.metrics:
            found.append(("metrics", f"is empty; name at least one of {', '.join(METRICS)}"))
        if self.bootstrap < 0:
            found.append(("bootstrap", f"is {self.bootstrap}; at least 0 is needed"))
        if self.seed < 0:
            found.append(("seed", f"is {self.seed}; at least 0 is needed"))
        return found
