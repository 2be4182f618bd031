"""The kinds of tokenizers that a saved folder may name, and where their classes stand."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from transformer_kit.errors import DataError

if TYPE_CHECKING:
    from transformer_kit.data.tokenizer import Tokenizer

KINDS = {
    "sentencepiece": "transformer_kit.data.sentencepiece_tokenizer.SentencePieceTokenizer",
    "char": "transformer_kit.data.symbol_tokenizers.CharTokenizer",
    "byte": "transformer_kit.data.symbol_tokenizers.ByteTokenizer",
    "tokenizers": "transformer_kit.data.tokenizers_imported.JsonTokenizer",
    "spiece": "transformer_kit.data.tokenizers_imported.PieceTokenizer",
    "marian": "transformer_kit.data.tokenizers_imported.MarianTokenizer",
    "llama2c": "transformer_kit.data.llama2c_tokenizer.Llama2cTokenizer",
}


def tokenizer_class(kind: str) -> type[Tokenizer]:
    """The class of a kind; its module is imported only now.

    Raises:
        DataError: there is no such kind.
    """
    if kind not in KINDS:
        raise DataError(f"there is no tokenizer of kind {kind!r}; the kinds are {', '.join(KINDS)}")
    module, name = KINDS[kind].rsplit(".", 1)
    found: type[Tokenizer] = getattr(importlib.import_module(module), name)
    return found
