"""`tkit evaluate`: translate a test set and score it, or score hypotheses that are there already."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from transformer_kit.config.saved import load_run
from transformer_kit.config.schema import Config
from transformer_kit.data.corpus import check_parallel, corpus_files, corpus_name, read_lines, scan, split_columns
from transformer_kit.data.options import CorpusOptions, PairsOptions
from transformer_kit.data.prepare import with_generated
from transformer_kit.decoding.translator import Translator
from transformer_kit.errors import DataError
from transformer_kit.evaluation.bleu import Metric, Score, corpus_scores
from transformer_kit.evaluation.options import EvaluationOptions
from transformer_kit.evaluation.significance import Interval, bootstrap
from transformer_kit.tasks.load import Loaded, load, model_limit, set_threads


@dataclass(frozen=True)
class Evaluation:
    """Scores of one set of hypotheses.

    Attributes:
        scores: one per metric.
        intervals: their 95 % confidence intervals, or None each.
        hypotheses: the lines scored.
        seconds: time spent on translating; None where hypotheses were given.
        what: the files or the split that was scored.
    """

    scores: list[Score]
    intervals: list[Interval | None]
    hypotheses: list[str]
    seconds: float | None
    what: str


def score(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    options: EvaluationOptions,
    what: str,
    seconds: float | None = None,
) -> Evaluation:
    """Score hypotheses by every metric asked for, with confidence intervals if `options.bootstrap` is above 0."""
    scores = corpus_scores(
        hypotheses, references, metrics=options.metrics, lowercase=options.lowercase, language=options.language
    )
    intervals: list[Interval | None] = [None] * len(scores)
    if options.bootstrap:
        metrics = [Metric(name, lowercase=options.lowercase, language=options.language) for name in options.metrics]
        intervals = [
            bootstrap(hypotheses, references, metric, samples=options.bootstrap, seed=options.seed)
            for metric in metrics
        ]
    return Evaluation(scores, intervals, list(hypotheses), seconds, what)


def evaluate_run(
    run: Path,
    sources: Sequence[str] | None,
    references: Sequence[Sequence[str]] | None,
    options: EvaluationOptions,
    *,
    overrides: Sequence[str] = (),
    checkpoint: str | None = None,
    split: str = "test",
    what: str = "",
) -> Evaluation:
    """Translate with a run and score.

    Args:
        sources: what to translate; None takes the run's own `data.<split>`, with its references.
        references: one or more; needed with `sources`.
        options: how to score.
        what: how the result is called.
    """
    loaded = load(run, overrides, checkpoint)
    set_threads(loaded.config.trainer.threads)
    translator = Translator(loaded.model, loaded.tokenizers, loaded.config.decoding, model_limit(loaded.config))
    if sources is None:
        rows, own, what = _split_rows(loaded, split)
        references = [own]
    else:
        rows = translator.encode(sources)
    for number, lines in enumerate(references or [], 1):
        if len(lines) != len(rows):
            raise DataError(f"reference {number} has {len(lines)} lines, the source {len(rows)}: they are not parallel")
    began = time.perf_counter()
    hypotheses = translator.translate_ids(rows)
    return score(hypotheses, references or [], options, what, time.perf_counter() - began)


@dataclass(frozen=True)
class SplitCorpus:
    """The text of one corpus of a run's data."""

    options: CorpusOptions
    sources: list[str]
    references: list[str]


def split_text(config: Config, split: str) -> list[SplitCorpus]:
    """The corpora of one split (`valid` or `test`) of a run's data.

    Raises:
        DataError: the run names none, or its files are not there or not parallel.
    """
    found = []
    for options in getattr(with_generated(config.data), split):
        paths = corpus_files(options)
        check_parallel(paths, [scan(path) for path in paths])
        if len(paths) == 1:
            source, target = split_columns(read_lines(paths[0]), 1, str(paths[0]))
        else:
            source, target = read_lines(paths[0]), read_lines(paths[1])
        found.append(SplitCorpus(options, source, target))
    if not found:
        raise DataError(f"the run's configuration names no data.{split}: give --src and --ref")
    return found


def _split_rows(loaded: Loaded, split: str) -> tuple[list[list[int]], list[str], str]:
    """Source ids with the tag and prefix of their corpus, references, and the names of the corpora."""
    rows: list[list[int]] = []
    references: list[str] = []
    corpora = split_text(load_run(loaded.folder), split)  # checked: its environment variables must be set
    for corpus in corpora:
        marked = loaded.tokenizers.marked(corpus.options.tag, corpus.options.prefix)
        rows += Translator(loaded.model, marked, loaded.config.decoding, model_limit(loaded.config)).encode(
            corpus.sources
        )
        references += corpus.references
    return rows, references, ", ".join(corpus_name(corpus.options) for corpus in corpora)


def kind_of(run: str | Path) -> str:
    """What a run learnt from: `pairs`, `documents` or `labels`."""
    return load_run(run, check=False).data.kind


def suited(run: Path) -> tuple[list[str], str]:
    """The metrics that a run's text asks for (where it is Moses tokens, the papers' form too), and its language."""
    config = load_run(run, check=False)
    assert isinstance(config.data, PairsOptions), config.data.kind
    text = config.tokenizer.text
    extra = ["bleu_tok_lc"] if text.lowercase else ["bleu_tok"] if text.tokenize else []
    return ["bleu", *extra, "chrf", "ter"], config.data.target_language
