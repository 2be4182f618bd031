"""`tkit classify`, and the same for Python: lines in, labels out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Literal

from transformer_kit.data.dataset import shares
from transformer_kit.data.options import LabelsOptions
from transformer_kit.data.ragged import Ragged
from transformer_kit.decoding.pipe import line_pipe
from transformer_kit.decoding.reading import LineClassifier, Verdict
from transformer_kit.errors import RunError
from transformer_kit.objectives.classification import Classification
from transformer_kit.tasks.load import Loaded, load, model_limit, set_threads

Form = Literal["best", "all", "json"]


def make_classifier(run: str | Path, overrides: Sequence[str] = (), checkpoint: str | None = None) -> LineClassifier:
    """A classifier with the model, the tokenizer and the labels of a run.

    Args:
        run: the run folder.
        overrides: `decoding.batch_tokens=8192`, `trainer.device=cpu`, ….
        checkpoint: see `load`.

    Raises:
        TkitError: see `load`; RunError: the run was not trained to classify.
    """
    loaded = load(run, overrides, checkpoint)
    set_threads(loaded.config.trainer.threads)
    return classifier_of(loaded)


def classifier_of(loaded: Loaded) -> LineClassifier:
    """As `make_classifier`, of a run that is loaded already."""
    data, objective = loaded.config.data, loaded.objective
    if not isinstance(data, LabelsOptions) or not isinstance(objective, Classification) or loaded.labels is None:
        raise RunError(
            f"{loaded.folder} was not trained to classify: train one with objective=classification data=labels, "
            f"from this one by init.from={loaded.folder}"
        )
    longest = min(data.max_length, model_limit(loaded.config)) - (2 if data.columns.second is None else 3)

    def fit(first: Ragged, second: Ragged | None) -> tuple[Ragged, Ragged | None]:
        limits = shares(first.lengths, None if second is None else second.lengths, longest)
        return first.cut(limits[0]), None if second is None else second.cut(limits[1])

    return LineClassifier(
        loaded.model,
        objective.tokens,
        fit,
        loaded.tokenizers.source,
        loaded.labels,
        data.columns.second is not None,
        loaded.config.decoding,
    )


def classify_pipe(source: BinaryIO, sink: BinaryIO, classifier: LineClassifier, form: Form) -> int:
    """A verdict for every line of a stream; the number of lines. See `formatted` for what is written."""

    def answer(chunks: Iterable[list[str]]) -> Iterator[str]:
        for verdict in classifier.classify_chunks(chunks):
            yield formatted(verdict, form) + "\n"

    return line_pipe(source, sink, classifier.options.chunk, answer)


def formatted(verdict: Verdict | None, form: Form) -> str:
    """`label TAB probability`; for `all` the same of every label, most probable first; or a JSON object.

    A line without content has none: an empty line, or nulls.
    """
    if form == "json":
        nothing = {"label": None, "probability": None, "probabilities": None}
        return json.dumps(nothing if verdict is None else vars(verdict), ensure_ascii=False)
    if verdict is None:
        return ""
    given = verdict.probabilities
    labels = sorted(given, key=lambda label: -given[label]) if form == "all" else [verdict.label]
    return "\t".join(f"{label}\t{given[label]:.6f}" for label in labels)
