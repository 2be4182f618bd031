"""Corpus scores of hypotheses against references, each with the signature that makes it comparable.

One and the same output differs by points between ways to tokenise it, so no number is shown without its label:

- `bleu`: sacreBLEU on running text (tokenize 13a), what to report.
- `bleu_intl`: the same with international tokenisation.
- `bleu_tok`, `bleu_tok_lc`: both sides normalised and tokenised as Moses does (sacremoses), the latter lower-cased too,
  then scored as they are (tokenize none): the form of most papers on Multi30k.
- `chrf`, `ter`: sacreBLEU's chrF2 and TER (which ignores case by default).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version

from sacrebleu.metrics.base import Metric as SacreMetric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from transformer_kit.errors import ConfigError, DataError
from transformer_kit.evaluation.options import METRICS
from transformer_kit.logs import get_logger

log = get_logger(__name__)


@dataclass(frozen=True)
class Score:
    """One corpus score.

    Attributes:
        name: one of `METRICS`.
        label: what a table heads it with.
        value: 0 to 100 (TER: 0 and up, lower is better).
        signature: how it was computed.
        detail: sacreBLEU's own details (n-gram precisions, brevity penalty); empty for metrics without.
    """

    name: str
    label: str
    value: float
    signature: str
    detail: str

    @property
    def higher_is_better(self) -> bool:
        return self.name != "ter"

    def __str__(self) -> str:
        return f"{self.label} = {self.value:.2f}  {self.signature}"


class Metric:
    """A corpus metric: how both sides are prepared, and sacreBLEU's scorer behind it.

    Args:
        name: one of `METRICS`.
        lowercase: ignore case (`bleu`, `bleu_intl`, `chrf`).
        language: of the text, for the Moses rules.
    """

    def __init__(self, name: str, *, lowercase: bool, language: str) -> None:
        if name not in METRICS:
            raise ConfigError(f"metric {name!r} is unknown; valid are {', '.join(METRICS)}")
        self.name = name
        self.prepare: Callable[[Sequence[str]], list[str]] = list
        self._preparation = ""
        self.scorer: SacreMetric
        if name in ("bleu_tok", "bleu_tok_lc"):
            lower = name == "bleu_tok_lc"
            self.scorer = BLEU(tokenize="none", lowercase=lower, force=True)
            self.prepare = moses(language, lower)
            self._preparation = f"|prep:norm+tok{'+lc' * lower}.{language}.sacremoses-{version('sacremoses')}"
            self.label = "BLEU (tokenised, lower-cased)" if lower else "BLEU (tokenised)"
        elif name in ("bleu", "bleu_intl"):
            self.scorer = BLEU(tokenize="13a" if name == "bleu" else "intl", lowercase=lowercase, force=True)
            self.label = "BLEU" if name == "bleu" else "BLEU (intl)"
        elif name == "chrf":
            self.scorer = CHRF(lowercase=lowercase)
            self.label = "chrF2"
        else:
            self.scorer = TER()
            self.label = "TER"
        if lowercase and name in ("bleu", "bleu_intl", "chrf"):
            self.label += " (lower-cased)"

    def score(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Score:
        """The score of the whole corpus.

        Args:
            hypotheses: one line each, empty ones included.
            references: one or more translations of the corpus, each with as many lines.
        """
        prepared = [self.prepare(lines) for lines in references]
        result = self.scorer.corpus_score(self.prepare(hypotheses), prepared)
        detail = result.format(width=2).partition(" = ")[2].partition(" ")[2] if isinstance(self.scorer, BLEU) else ""
        return Score(self.name, self.label, float(result.score), self.signature(), detail)

    def signature(self) -> str:
        """How the last score was computed."""
        return f"{self.scorer.get_signature()}{self._preparation}"


def corpus_scores(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    metrics: Sequence[str],
    lowercase: bool,
    language: str,
) -> list[Score]:
    """Scores by several metrics; one warning if the hypotheses look tokenised.

    Args:
        hypotheses: running text, one line each; an empty line is an empty hypothesis and counts.
        references: one or more translations, each with as many lines.
        metrics: names out of `METRICS`.
        lowercase: see `Metric`.
        language: see `Metric`.

    Raises:
        DataError: no references, no lines, or sides of different lengths.
    """
    check_lines(hypotheses, references)
    if (found := looks_tokenised(hypotheses)) is not None:
        log.warning("the hypotheses look tokenised (%s); BLEU is meant for running text: detokenise them first", found)
    return [Metric(name, lowercase=lowercase, language=language).score(hypotheses, references) for name in metrics]


def check_lines(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> None:
    """Refuse sides that cannot be line-parallel.

    Raises:
        DataError: what does not fit, with the counts.
    """
    if not references:
        raise DataError("there is no reference to score against; give at least one")
    for number, lines in enumerate(references, 1):
        if len(lines) != len(hypotheses):
            raise DataError(
                f"reference {number} has {len(lines)} lines but there are {len(hypotheses)} hypotheses; "
                "scoring needs one reference line for each hypothesis"
            )
    if not hypotheses:
        raise DataError("there are no hypotheses to score: the file is empty")


def looks_tokenised(lines: Sequence[str]) -> str | None:
    """What makes hypotheses look like pieces or tokens instead of text, with a count, or None.

    One line in twenty is enough: subword marks (`▁`, `@@`), or a full stop that stands apart at the end.
    """
    marks: dict[str, Callable[[str], bool]] = {
        "▁": lambda line: "▁" in line,
        "@@": lambda line: "@@ " in line or line.endswith("@@"),
        " .": lambda line: line.endswith(" ."),
    }
    for mark, shows in marks.items():
        count = sum(map(shows, lines))
        if count and count * 20 >= len(lines):
            return f"{count} of {len(lines)} lines with {mark!r}"
    return None


def moses(language: str, lower: bool) -> Callable[[Sequence[str]], list[str]]:
    """Moses punctuation normalisation and tokenisation, and lower-casing if asked for, of lists of lines."""
    from transformer_kit.data.text_rules import TextRule

    rule = TextRule(language, normalize=True, tokenize=True, lowercase=lower)
    return lambda lines: rule.apply(list(lines))
