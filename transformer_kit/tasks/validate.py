"""What a training run measures on its validation data: likelihood, and BLEU of its own translations."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from torch import nn

from transformer_kit.config.schema import Config
from transformer_kit.data.batching import eval_batches
from transformer_kit.data.dataset import ParallelDataset
from transformer_kit.data.tokenizer import Tokenizers
from transformer_kit.decoding.translator import Translator, is_blank
from transformer_kit.evaluation.bleu import Metric
from transformer_kit.evaluation.perplexity import likelihood
from transformer_kit.logs import get_logger
from transformer_kit.tasks.load import model_limit

log = get_logger(__name__)


class Validation:
    """From a model to its scores: loss, perplexity, accuracy and, if asked for, bleu.

    BLEU is of the translations that `tkit translate` gives (the same search, fp32) against the raw references. The
    first translations are shown in the log.

    Args:
        config: the run's.
        dataset: prepared validation data.
        tokenizers: the run's.
        objective: what is trained; called without gradients.

    Attributes:
        hypotheses: the translations of the last call; empty where BLEU is not asked for.
    """

    def __init__(self, config: Config, dataset: ParallelDataset, tokenizers: Tokenizers, objective: nn.Module) -> None:
        self._config, self._dataset, self._tokenizers, self._objective = config, dataset, tokenizers, objective
        self._wanted = config.trainer.validation
        self._sources, self._references = (list(side) for side in zip(*dataset.texts(), strict=True))
        self.hypotheses: list[str] = []

    def __call__(self, model: nn.Module) -> Mapping[str, float]:
        config, limit = self._config, model_limit(self._config)
        batches = eval_batches(self._dataset, config.data.batch.tokens, limit)
        total = likelihood(model, self._objective, batches)
        scores = {"loss": total.loss, "perplexity": total.perplexity, "accuracy": total.accuracy}
        if self._wanted.bleu is not None:
            translator = Translator(model, self._tokenizers, config.decoding, limit)
            self.hypotheses = translator.translate_ids(self._ids())
            metric = Metric(self._wanted.bleu, lowercase=False, language=config.data.target_language)
            scores["bleu"] = metric.score(self.hypotheses, [self._references]).value
            self._show()
        return scores

    def _ids(self) -> list[list[int]]:
        """Source ids with the tag and prefix of their corpus; none where the line has no content, as in translation."""
        rows = enumerate(self._sources)
        return [[] if is_blank(line) else self._dataset.source(row).tolist() for row, line in rows]

    def _show(self) -> None:
        shown = zip(self._sources, self._references, self.hypotheses, strict=True)
        for source, reference, hypothesis in islice(shown, self._wanted.samples):
            log.info("  source      %s\n  reference   %s\n  hypothesis  %s", source, reference, hypothesis)
