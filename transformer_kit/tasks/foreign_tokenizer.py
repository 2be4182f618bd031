"""The files of a tokenizer in a foreign folder."""

from __future__ import annotations

import json
from typing import Any

from transformer_kit.data.sentencepiece_tokenizer import SentencePieceTokenizer
from transformer_kit.data.subword_sampling import BPESampler, make_sampler
from transformer_kit.data.tokenizer import Tokenizer, Tokenizers
from transformer_kit.data.tokenizers_imported import ImportedTokenizer

HOLDS = {
    "tokenizers": ("gpt2", "llama", "mistral", "bert", "roberta", "t5", "bart", "marian"),
    "spiece": ("llama", "mistral", "t5"),
    "marian": ("marian",),
}
"""The layouts whose programs read each kind of imported tokenizer."""
PIECE_FILES = {"llama": "tokenizer.model", "mistral": "tokenizer.model", "t5": "spiece.model"}
CLASSES = {"llama": "LlamaTokenizer", "mistral": "LlamaTokenizer", "t5": "T5Tokenizer", "marian": "MarianTokenizer"}


def tokenizer_files(tokenizers: Tokenizers, layout: str) -> tuple[dict[str, bytes], str]:
    """The files by name, and why there are none, empty where there are.

    An imported tokenizer goes out as it came. Of ours, SentencePiece models fit where the program takes ids from the
    model, or from a vocabulary that is written beside it.
    """
    kind = tokenizers.target.kind
    if isinstance(tokenizers.source, ImportedTokenizer) and isinstance(tokenizers.target, ImportedTokenizer):
        if layout not in HOLDS.get(kind, ()):
            return {}, f"the {layout} layout has no file for a {kind} tokenizer"
        return tokenizers.source.files() | tokenizers.target.files(), ""
    if not isinstance(tokenizers.source, SentencePieceTokenizer):
        return {}, f"the {layout} layout has no file for a {kind} tokenizer"
    if not (tokenizers.source.rule.trivial and tokenizers.target.rule.trivial):
        return {}, "its text rule (Moses, lower-casing) has no place in a SentencePiece file"
    if layout == "marian":
        return _marian(tokenizers), ""
    if layout not in PIECE_FILES:
        return {}, f"the {layout} layout has no file for a SentencePiece model"
    if not tokenizers.joint:
        return {}, f"the {layout} layout has one vocabulary, this model two"
    wanted = "unigram" if layout == "t5" else "bpe"
    if isinstance(make_sampler(tokenizers.source.model, 0.0), BPESampler) != (wanted == "bpe"):
        return {}, f"programs that read the {layout} layout take a {wanted} SentencePiece model"
    about = _about(layout) | ({"extra_ids": 0} if layout == "t5" else {"add_bos_token": True, "add_eos_token": False})
    return {PIECE_FILES[layout]: tokenizers.source.model, "tokenizer_config.json": _json(about)}, ""


def _marian(tokenizers: Tokenizers) -> dict[str, bytes]:
    sides = {"source": tokenizers.source, "target": tokenizers.target}
    found = {f"{side}.spm": tokenizer.model for side, tokenizer in sides.items()}
    found["vocab.json"] = _vocabulary(tokenizers.source)
    if not tokenizers.joint:
        found["target_vocab.json"] = _vocabulary(tokenizers.target)
    return found | {"tokenizer_config.json": _json(_about("marian") | {"separate_vocabs": not tokenizers.joint})}


def _vocabulary(tokenizer: Tokenizer) -> bytes:
    pieces = tokenizer.pieces(range(tokenizer.vocab_size))
    return _json({piece: number for number, piece in enumerate(pieces)})


def _about(layout: str) -> dict[str, Any]:
    names = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    return {"tokenizer_class": CLASSES[layout], **names}


def _json(data: dict[str, Any]) -> bytes:
    return (json.dumps(data, indent=2, ensure_ascii=False) + "\n").encode()
