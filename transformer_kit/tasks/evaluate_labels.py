"""`tkit evaluate` of a run that classifies: how often it is right."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from transformer_kit.config.saved import load_run
from transformer_kit.data.labels import brief, read_labelled
from transformer_kit.data.options import LabelCorpusOptions, LabelsOptions
from transformer_kit.errors import ConfigError, DataError
from transformer_kit.evaluation.classification import ClassificationScores, classification_scores
from transformer_kit.tasks.classify import classifier_of
from transformer_kit.tasks.load import Loaded, load, set_threads


@dataclass(frozen=True)
class LabelEvaluation:
    """What a run makes of labelled texts.

    Attributes:
        scores: all of them.
        predicted: the label it gave to each text.
        seconds: spent on predicting.
        what: the files or the split.
    """

    scores: ClassificationScores
    predicted: list[str]
    seconds: float
    what: str


def evaluate_labels(
    run: str | Path,
    files: Sequence[Path] | None = None,
    *,
    split: str = "test",
    bootstrap: int = 1000,
    seed: int = 1,
    overrides: Sequence[str] = (),
    checkpoint: str | None = None,
) -> LabelEvaluation:
    """Classify labelled texts by a run and compare.

    Args:
        files: tab-separated, with the columns that the run was trained on; None takes the run's own `data.<split>`.
        bootstrap: resamples for the 95 % interval of the accuracy; 0 for none.
        seed: of the resampling.

    Raises:
        TkitError: see `load`; DataError: no data there, or a label that the run does not know.
    """
    if bootstrap < 0 or seed < 0:
        raise ConfigError(f"--bootstrap {bootstrap} and --seed {seed}: at least 0 is needed")
    loaded = load(run, overrides, checkpoint)
    set_threads(loaded.config.trainer.threads)
    classifier = classifier_of(loaded)
    columns = loaded.config.data
    assert isinstance(columns, LabelsOptions)
    numbers = {label: number for number, label in enumerate(classifier.labels)}
    gold: list[int] = []
    texts: list[list[str]] = []
    paths = _files(loaded, files, split)
    for path in paths:
        *sides, labels = read_labelled(path, columns.columns)
        for line, label in enumerate(labels, 1):
            if label not in numbers:
                known = ", ".join(map(brief, classifier.labels[:20]))
                raise DataError(f"{path}, line {line}: the label {brief(label)!r} is none of the run's ({known})")
        gold += [numbers[label] for label in labels]
        texts = [[*before, *more] for before, more in zip(texts or [[] for _ in sides], sides, strict=True)]
    began = time.perf_counter()
    verdicts = list(classifier.judge(texts[0], texts[1] if len(texts) > 1 else None))
    seconds = time.perf_counter() - began
    predicted = [numbers[verdict.label] for verdict in verdicts]
    scores = classification_scores(gold, predicted, classifier.labels, bootstrap=bootstrap, seed=seed)
    return LabelEvaluation(
        scores, [verdict.label for verdict in verdicts], seconds, ", ".join(path.name for path in paths)
    )


def _files(loaded: Loaded, files: Sequence[Path] | None, split: str) -> list[Path]:
    if files is not None:
        return list(files)
    corpora: list[LabelCorpusOptions] = getattr(load_run(loaded.folder).data, split)  # checked: variables must be set
    if not corpora:
        raise DataError(f"the run's configuration names no data.{split}: give --tsv FILE")
    return [Path(str(corpus.tsv)).expanduser() for corpus in corpora]
