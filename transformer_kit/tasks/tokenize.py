"""`tkit tokenize`: corpus to vocabulary to memory-mapped ids."""

from __future__ import annotations

from transformer_kit.config.schema import Config
from transformer_kit.data.prepare import prepare
from transformer_kit.data.report import Report, report


def tokenize(config: Config) -> Report:
    """Train the tokenizers and encode the corpora into `data.cache`, or find both there; what it found, in numbers.

    Raises:
        DataError: files that are missing, empty or not parallel, a vocabulary size that the text does not allow.
    """
    return report(prepare(config.data, config.tokenizer))
