"""What a training run measures on its validation data: likelihood, and BLEU of its own translations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import islice

from torch import nn

from transformer_kit.config.schema import Config
from transformer_kit.data.dataset import DocumentDataset, ParallelDataset
from transformer_kit.data.options import PairsOptions
from transformer_kit.data.prepare import Prepared
from transformer_kit.data.streams import validation_batches
from transformer_kit.data.tokenizer import Tokenizers
from transformer_kit.decoding.translator import Translator, is_blank
from transformer_kit.evaluation.bleu import Metric
from transformer_kit.evaluation.perplexity import likelihood
from transformer_kit.logs import get_logger
from transformer_kit.objectives.base import Objective
from transformer_kit.tasks.generate import generator_of
from transformer_kit.tasks.load import model_limit
from transformer_kit.training.world import ALONE, World

log = get_logger(__name__)

PROMPT_TOKENS, SAMPLE_TOKENS = 12, 48


class Validation:
    """From a model to its scores: loss, accuracy, perplexity where tokens are predicted, and BLEU of translations.

    Args:
        config: the run's.
        prepared: the data, with a validation part.
        objective: what is trained; called without gradients.
        world: the ranks, which share the work; the scores are the same on each.

    Attributes:
        translations: those of the last call; None where the run makes none.
    """

    def __init__(self, config: Config, prepared: Prepared, objective: Objective, world: World = ALONE) -> None:
        self._config, self._prepared, self._objective, self._world = config, prepared, objective, world
        self.translations: Translations | None = None
        if isinstance(prepared.data, PairsOptions) and config.trainer.validation.bleu is not None:
            self.translations = Translations(config, prepared.valid, prepared.tokenizers, world)
        writes = prepared.data.kind == "documents" and config.model.family == "decoder_only"
        self._samples = Samples(config, prepared.valid, prepared.tokenizers) if writes and world.leads else None

    def __call__(self, model: nn.Module) -> Mapping[str, float]:
        prepared, collate = self._prepared, self._objective.collate
        batches = validation_batches(prepared.valid, prepared.data, collate, model_limit(self._config))
        own = islice(batches, self._world.rank, None, self._world.size)
        total = likelihood(model, self._objective, own, self._world.sum)
        scores = {"loss": total.loss, "accuracy": total.accuracy}
        if self._prepared.labels is None:
            scores["perplexity"] = total.perplexity
        if self.translations is not None:
            scores["bleu"] = self.translations.score(model)
        if self._samples is not None:
            self._samples.show(model)
        return scores


class Samples:
    """What a language model makes of the beginnings of validation documents, for the log."""

    def __init__(self, config: Config, dataset: DocumentDataset, tokenizers: Tokenizers) -> None:
        self._config, self._tokenizers = config, tokenizers
        shown = min(config.trainer.validation.samples, len(dataset))
        rows = [dataset.ids[row][:PROMPT_TOKENS].tolist() for row in range(shown)]
        self._prompts = tokenizers.target.decode(rows)

    def show(self, model: nn.Module) -> None:
        """Continue each beginning; the same draws at every validation."""
        options = replace(self._config.generation, num_samples=1, max_new_tokens=SAMPLE_TOKENS)
        generator = generator_of(model, self._tokenizers, self._config, options)
        for prompt, found in zip(self._prompts, generator.generate(self._prompts), strict=True):
            log.info("  %s|%s", *(text.replace("\n", "\\n") for text in (prompt, found[0].text)))


class Translations:
    """BLEU of the translations that `tkit translate` gives (the same search, fp32) against the raw references.

    The first ones are shown in the log.

    Attributes:
        hypotheses: the translations of the last call of `score`.
    """

    def __init__(self, config: Config, dataset: ParallelDataset, tokenizers: Tokenizers, world: World = ALONE) -> None:
        assert isinstance(config.data, PairsOptions)
        assert config.trainer.validation.bleu is not None
        self._config, self._dataset, self._tokenizers, self._world = config, dataset, tokenizers, world
        self._metric = Metric(config.trainer.validation.bleu, lowercase=False, language=config.data.target_language)
        self._sources, self._references = (list(side) for side in zip(*dataset.texts(), strict=True))
        self.hypotheses: list[str] = []

    def score(self, model: nn.Module) -> float:
        """Translate the validation data and compare."""
        config = self._config
        translator = Translator(model, self._tokenizers, config.decoding, model_limit(config))
        rank, size, rows = self._world.rank, self._world.size, self._ids()
        shares = self._world.gather(translator.translate_ids(rows[rank::size]))
        self.hypotheses = [shares[row % size][row // size] for row in range(len(rows))]
        shown = zip(self._sources, self._references, self.hypotheses, strict=True)
        for source, reference, hypothesis in islice(shown, config.trainer.validation.samples):
            log.info("  source      %s\n  reference   %s\n  hypothesis  %s", source, reference, hypothesis)
        value = self._metric.score(self.hypotheses, [self._references]).value if self._world.leads else 0.0
        return self._world.share(value)

    def _ids(self) -> list[list[int]]:
        """Source ids with the tag and prefix of their corpus; none where the line has no content, as in translation."""
        rows = enumerate(self._sources)
        return [[] if is_blank(line) else self._dataset.source(row).tolist() for row, line in rows]
