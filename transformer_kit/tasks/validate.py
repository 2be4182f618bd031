"""What a training run measures on its validation data: likelihood, and BLEU of its own translations."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import nn

from transformer_kit.config.schema import Config
from transformer_kit.data.batching import eval_batches
from transformer_kit.data.dataset import ParallelDataset
from transformer_kit.data.tokenizer import Tokenizers
from transformer_kit.decoding.translator import Translator
from transformer_kit.evaluation.bleu import Metric
from transformer_kit.evaluation.perplexity import likelihood
from transformer_kit.logs import get_logger
from transformer_kit.tasks.load import model_limit

log = get_logger(__name__)


def make_validation(
    config: Config, dataset: ParallelDataset, tokenizers: Tokenizers, objective: nn.Module
) -> Callable[[nn.Module], Mapping[str, float]]:
    """A function from a model to its scores: loss, perplexity, accuracy and, if asked for, bleu.

    BLEU is of the translations that `tkit translate` gives (the same search, fp32) against the raw references. The
    first translations are shown in the log.
    """
    wanted = config.trainer.validation
    sources, references = (list(side) for side in zip(*dataset.texts(), strict=True))
    language = config.data.target_language

    def validate(model: nn.Module) -> Mapping[str, float]:
        total = likelihood(model, objective, eval_batches(dataset, config.data.batch.tokens, model_limit(config)))
        scores = {"loss": total.loss, "perplexity": total.perplexity, "accuracy": total.accuracy}
        if wanted.bleu is not None:
            hypotheses = Translator(model, tokenizers, config.decoding, model_limit(config)).translate(sources)
            scores["bleu"] = (
                Metric(wanted.bleu, lowercase=False, language=language).score(hypotheses, [references]).value
            )
            for source, reference, hypothesis in list(zip(sources, references, hypotheses, strict=True))[
                : wanted.samples
            ]:
                log.info("  source      %s\n  reference   %s\n  hypothesis  %s", source, reference, hypothesis)
        return scores

    return validate
