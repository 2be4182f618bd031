"""Training vocabularies on the training text, so that equal text and options give equal ids anywhere."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

import numpy as np
import sentencepiece

from transformer_kit.data.sentencepiece_tokenizer import BOS_ID, EOS_ID, ESCAPE, PAD_ID, SPACE, UNK_ID
from transformer_kit.data.symbol_tokenizers import byte_model, char_model
from transformer_kit.data.tokenizer import control_pieces
from transformer_kit.data.tokenizer_options import Kind, TokenizerOptions, Unicode
from transformer_kit.errors import DataError

THREADS = 16  # part of the result: sums are formed per thread. Fixed, so that it depends on no machine or setting.
MAX_LINE_BYTES = 16384  # SentencePiece leaves longer lines out
CODE_POINTS = 0x110000
LINES = 4096  # counted together

Lines = Callable[[], Iterable[str]]


def train_model(lines: Lines, options: TokenizerOptions, tags: list[str]) -> bytes:
    """The serialized vocabulary of the tokenizer that the options describe.

    Args and Raises: see `train_sentencepiece`.
    """
    controls = control_pieces(tags, options.mask, options.sentinels)
    if options.kind is Kind.byte:
        return byte_model(controls)
    if options.kind is Kind.char:
        return char_model(_alphabet(lines(), options.vocab_size, 4 + len(controls)), controls)
    return train_sentencepiece(lines, options, controls)


def _alphabet(lines: Iterable[str], vocab_size: int | None, reserved: int) -> str:
    # The text's characters and the line feed, in the order of their code points; the most frequent ones that fit.
    counts = np.zeros(CODE_POINTS, np.int64)
    iterator = iter(lines)
    while block := list(islice(iterator, LINES)):
        codes = np.frombuffer("".join(block).encode("utf-32-le", "replace"), "<u4")
        found, times = np.unique(codes, return_counts=True)
        counts[found] += times
    if not counts.any():
        raise DataError("no line to train a tokenizer on: each is empty; give other training text (data.train)")
    counts[ord("\n")] = counts.sum()  # there in any text, though lines are without it
    codes = np.flatnonzero(counts)
    if vocab_size is not None and reserved + len(codes) > vocab_size:
        kept = np.argsort(-counts[codes], kind="stable")[: max(1, vocab_size - reserved)]
        codes = np.sort(codes[kept])
    return "".join(map(chr, codes.tolist()))


def train_sentencepiece(lines: Lines, options: TokenizerOptions, controls: list[str]) -> bytes:
    """A serialized SentencePiece model.

    Args:
        lines: gives the training lines, after the text rule, anew at each call.
        controls: names that become control pieces.

    Raises:
        DataError: no usable line, or a vocabulary size that the text does not allow.
    """
    try:
        return _train(lines, options, controls, options.vocab_size)
    except RuntimeError as error:
        message = str(error)
    if "sentences_.empty()" in message:
        raise DataError(
            f"no line to train a tokenizer on: each is blank or longer than {MAX_LINE_BYTES:,} bytes; "
            "give other training text (data.train)"
        )
    smallest, largest = _needed(message), _allowed(message)
    if smallest is None and largest is None:
        raise DataError(f"SentencePiece could not be trained: {message}")
    if smallest is None:
        smallest = _smallest(lines, options, controls)
    raise DataError(_out_of_range(options, smallest, largest))


def _train(lines: Lines, options: TokenizerOptions, controls: list[str], vocab_size: int | None) -> bytes:
    model = io.BytesIO()
    identity = options.text.unicode is Unicode.identity
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=_usable(lines(), options.byte_fallback),
        model_writer=model,
        model_type=options.kind.value,
        vocab_size=vocab_size,
        character_coverage=options.character_coverage,
        byte_fallback=options.byte_fallback,
        normalization_rule_name=options.text.unicode.value,
        remove_extra_whitespaces=not identity,
        allow_whitespace_only_pieces=identity,
        control_symbols=controls,
        pad_id=PAD_ID,
        unk_id=UNK_ID,
        bos_id=BOS_ID,
        eos_id=EOS_ID,
        max_sentence_length=MAX_LINE_BYTES,
        train_extremely_large_corpus=False,
        num_threads=THREADS,
        minloglevel=2,
    )
    return model.getvalue()


def _usable(lines: Iterable[str], byte_fallback: bool) -> Iterator[str]:
    for line in lines:
        if "\x00" in line:  # no piece can hold it; byte fallback spells it
            line = line.replace("\x00", " ")
        if byte_fallback and SPACE in line:  # encoding escapes it
            line = line.replace(SPACE, ESCAPE + "u")
        if line:
            yield line


def _needed(message: str) -> int | None:
    found = re.search(r"required_chars\. \d+ vs (\d+)", message)
    return int(found[1]) if found else None


def _allowed(message: str) -> int | None:
    found = re.search(r"value <= (\d+)", message)
    return int(found[1]) if found else None


def _smallest(lines: Lines, options: TokenizerOptions, controls: list[str]) -> int:
    # Asking for too few pieces makes SentencePiece say how many it needs, before the slow part.
    try:
        _train(lines, options, controls, 5)
    except RuntimeError as error:
        return _needed(str(error)) or 5
    return 5


def _out_of_range(options: TokenizerOptions, smallest: int, largest: int | None) -> str:
    size = options.vocab_size
    if largest is None:
        needed, lower = "its alphabet", "lower tokenizer.character_coverage"
        if options.byte_fallback:
            needed, lower = "its alphabet and the 256 bytes", "set tokenizer.byte_fallback=false"
        return (
            f"tokenizer.vocab_size={size} is too small: this text needs at least {smallest:,} pieces for {needed}; "
            f"raise tokenizer.vocab_size, or {lower}"
        )
    span = f"from {smallest:,} to {largest:,}" if smallest <= largest else f"at most {largest:,}"
    return (
        f"tokenizer.vocab_size={size} is too large for this text: it allows {span} pieces; "
        "lower tokenizer.vocab_size, or give more text"
    )
