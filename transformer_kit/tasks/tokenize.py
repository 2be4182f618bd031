"""`tkit tokenize`: corpus to vocabulary to memory-mapped ids."""

from __future__ import annotations

from transformer_kit.config.schema import Config
from transformer_kit.data.prepare import prepare
from transformer_kit.data.report import Report, report
from transformer_kit.errors import ConfigError


def tokenize(config: Config) -> Report:
    """Train the tokenizers and encode the corpora into `data.cache`, or find both there; what it found, in numbers.

    Raises:
        ConfigError: the token budget, which the report tells the batches of, is no number.
        DataError: files that are missing, empty or not parallel, a vocabulary size that the text does not allow.
    """
    if config.data.batch.tokens == "auto":
        raise ConfigError("data.batch.tokens: auto is measured when a training begins; give a number here")
    return report(prepare(config.data, config.tokenizer))
