"""`tkit evaluate` of a run that learnt from running text: how well it predicts a text."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from transformer_kit.batch import Batch
from transformer_kit.config.saved import load_run
from transformer_kit.data.corpus import Flaws
from transformer_kit.data.dataset import DocumentDataset
from transformer_kit.data.documents import Documents
from transformer_kit.data.encoding import is_blank
from transformer_kit.data.options import DocumentsOptions, TextCorpusOptions
from transformer_kit.data.ragged import Ragged, from_lists
from transformer_kit.data.streams import validation_batches
from transformer_kit.errors import ConfigError, DataError, RunError
from transformer_kit.evaluation.perplexity import likelihood
from transformer_kit.evaluation.windows import ContextRule, Running, TextScores, window_batches
from transformer_kit.logs import get_logger
from transformer_kit.objectives.causal_lm import CausalLM
from transformer_kit.tasks.load import Loaded, load, model_limit, set_threads

log = get_logger(__name__)

_LINES = 1 << 16  # read at a time


@dataclass(frozen=True)
class TextEvaluation:
    """What a run makes of a text.

    Attributes:
        scores: of the tokens that it predicted.
        documents: how many there are.
        seconds: spent on predicting.
        what: the files or the split.
    """

    scores: TextScores
    documents: int
    seconds: float
    what: str


def evaluate_text(
    run: str | Path,
    files: Sequence[Path] | None = None,
    *,
    split: str = "test",
    stride: int | None = None,
    overrides: Sequence[str] = (),
    checkpoint: str | None = None,
) -> TextEvaluation:
    """Score a text by a run.

    A causal model predicts every token under a context rule (`evaluation/windows.py`), a masked or denoising one what
    its objective hides, which is the same in every evaluation and in validation.

    Args:
        files: what to read; None takes the run's own `data.<split>`.
        stride: tokens that each window predicts; None cuts into windows of `data.length` that do not overlap.

    Raises:
        TkitError: see `load`; DataError: there is nothing to read; ConfigError: a stride out of range.
    """
    loaded = load(run, overrides, checkpoint)
    data = loaded.config.data
    if not isinstance(data, DocumentsOptions):
        raise RunError(f"{loaded.folder} did not learn from documents: it cannot be scored on running text")
    set_threads(loaded.config.trainer.threads)
    corpora = _corpora(loaded, files, split)
    texts = [text for corpus in corpora for text in read_documents(data, corpus)]
    what = ", ".join(corpus.name or Path(str(corpus.text)).name for corpus in corpora)
    tokenizer = loaded.tokenizers.source
    before, after = ([tokenizer.bos_id] if data.bos else []), ([tokenizer.eos_id] if data.eos else [])
    ids = from_lists([before + row + after for row in tokenizer.cut(tokenizer.normalize(texts))])
    if len(ids.flat) < 2:
        raise DataError(f"{what}: fewer than 2 tokens, so there is nothing to predict")
    batches, rule = _batches(loaded, data, ids, stride)
    began = time.perf_counter()
    found = likelihood(loaded.model, loaded.objective, batches)
    characters, size = sum(map(len, texts)), sum(len(text.encode("utf-8", "replace")) for text in texts)
    scores = TextScores(found, characters, size, rule, whole=isinstance(loaded.objective, CausalLM))
    return TextEvaluation(scores, len(texts), time.perf_counter() - began, what)


def read_documents(data: DocumentsOptions, corpus: TextCorpusOptions) -> list[str]:
    """The documents of a file as training reads them, without blank ones."""
    form, flaws = Documents(data), [Flaws()]
    paths = form.files(corpus)
    reader = form.reader(corpus)
    chunks = form.chunks(paths, _LINES)
    texts = [text for chunk in chunks for text in reader.texts(chunk, flaws)[0] if not is_blank(text)]
    for warning in flaws[0].warnings(str(paths[0])):
        log.warning(warning)
    return texts


def _corpora(loaded: Loaded, files: Sequence[Path] | None, split: str) -> list[TextCorpusOptions]:
    if files is not None:
        return [TextCorpusOptions(text=str(path)) for path in files]
    found: list[TextCorpusOptions] = getattr(load_run(loaded.folder).data, split)  # checked: variables must be set
    if not found:
        raise DataError(f"the run's configuration names no data.{split}: give --text FILE")
    return found


def _batches(loaded: Loaded, data: DocumentsOptions, ids: Ragged, stride: int | None) -> tuple[Iterator[Batch], str]:
    """What is predicted, and from what, in words."""
    length, budget, objective = min(data.length, model_limit(loaded.config)), data.batch.budget, loaded.objective
    if not isinstance(objective, CausalLM):
        if stride is not None:
            raise ConfigError("--stride is for causal models; this one predicts what its objective hides")
        options: Any = replace(data, length=length)
        batches = validation_batches(Held(ids), options, objective.collate)
        return batches, "what its objective hides, the same every time"
    if stride is not None and not 1 <= stride <= length:
        raise ConfigError(f"--stride is {stride}; it must be from 1 to {length}, the tokens of a window")
    rule = ContextRule(length, stride or length)
    return window_batches(_running(data, ids), rule, objective.collate, max(budget, length)), str(rule)


def _running(data: DocumentsOptions, ids: Ragged) -> list[Running]:
    """The texts that are read from beginning to end: one stream where training packs documents, else each by itself."""
    flat = ids.flat.astype(np.int64)
    if data.pack:
        documents = np.repeat(np.arange(len(ids)), ids.lengths) if data.mask_documents else None
        return [Running(flat, documents)]
    return [Running(flat[start:end], None) for start, end in zip(ids.offsets[:-1], ids.offsets[1:], strict=True)]


class Held(DocumentDataset):
    """Documents in memory."""

    def __init__(self, ids: Ragged) -> None:
        self._held = ids

    @property
    def ids(self) -> Ragged:
        return self._held
