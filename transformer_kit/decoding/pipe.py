"""Pipes: bytes in, bytes out, one result for one line, answered as soon as a line is there.

A single line written to a pipe that stays open is answered at once: what is read is what is ready, never a full chunk.
While input keeps coming, lines are gathered into chunks, which sort better by length.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO

from transformer_kit.data.corpus import BOM, Flaws, decode_lines
from transformer_kit.decoding.translator import Candidate, Translator
from transformer_kit.errors import DataError
from transformer_kit.logs import get_logger

log = get_logger(__name__)

_READ = 1 << 16
_GRACE = 0.01  # seconds to wait for more of what is still being written before answering what is there


def translate_pipe(source: BinaryIO, sink: BinaryIO, translator: Translator, *, scores: bool = False) -> int:
    """Translate every line of `source` into `sink`; returns how many lines were answered.

    With `n_best` 1 a line gives one line: the translation, after `score TAB` if `scores` is set. With more, each line
    gives its candidates, best first, one a line: `number of the input line TAB score TAB translation`; an empty line
    gives one candidate. Every result is flushed as soon as it is there. A reader that goes away ends the work quietly.

    Raises:
        DataError: the output cannot be written, on a full disk for example.
    """
    numbered = translator.options.n_best > 1

    def answer(chunks: Iterable[list[str]]) -> Iterator[str]:
        for number, candidates in enumerate(translator.translate_chunks(chunks), 1):
            yield _format(candidates, number if numbered else None, scores or numbered)

    return line_pipe(source, sink, translator.options.chunk, answer)


def line_pipe(
    source: BinaryIO, sink: BinaryIO, most: int, answer: Callable[[Iterable[list[str]]], Iterator[str]]
) -> int:
    """Answer every line of `source` in `sink`, flushed as soon as it is there; returns how many lines were answered.

    A reader that goes away ends the work quietly.

    Args:
        most: lines read ahead at most.
        answer: from portions of lines to one text a line, each with its line end, in order; a portion is answered
            before the next is asked for.

    Raises:
        DataError: the output cannot be written, on a full disk for example.
    """
    answered = 0
    lines = _Text()
    try:
        for text in answer(map(lines.decode, line_chunks(source, most))):
            write(sink, text.encode("utf-8", errors="replace"))
            answered += 1
    except BrokenPipeError:
        _silence(sink)
    finally:
        for warning in lines.flaws.warnings("input"):
            log.warning(warning)
    return answered


def write(sink: BinaryIO, data: bytes) -> None:
    """Write and flush.

    Raises:
        BrokenPipeError: the reader went away.
        DataError: the output cannot be written.
    """
    try:
        sink.write(data)
        sink.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        _silence(sink)
        raise DataError(f"the output cannot be written: {error.strerror}") from None


def _silence(sink: BinaryIO) -> None:
    """Let what is still buffered go nowhere, or closing the sink at exit would complain of the broken pipe again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, sink.fileno())
    finally:
        os.close(nowhere)


def line_chunks(source: BinaryIO, most: int) -> Iterator[list[bytes]]:
    """The lines of a stream, each with its `\\n`, in portions of 1 to `most` that are there without waiting.

    Only `\\n` ends a line; bytes after the last one are a line too.
    """
    lines: list[bytes] = []
    tail: list[bytes] = []  # of a line that has not ended yet; joined once, so that a huge line costs no more
    while True:
        if lines and (len(lines) >= most or not _ready(source, _GRACE)):
            yield lines[:most]
            lines = lines[most:]
            continue
        _ready(source, None)
        block = source.read1(_READ)  # type: ignore[attr-defined]  # buffered readers have it, BinaryIO does not say so
        if not block:
            break
        *whole, rest = block.split(b"\n")
        if whole:
            lines.append(b"".join((*tail, whole[0], b"\n")))
            lines.extend(line + b"\n" for line in whole[1:])
            tail = []
        tail.append(rest)
    if any(tail):
        lines.append(b"".join(tail))
    for start in range(0, len(lines), most):
        yield lines[start : start + most]


def _ready(source: BinaryIO, seconds: float | None) -> bool:
    """Whether a read would return at once (something, or the end), waiting up to `seconds`; None waits for it."""
    try:
        handle = source.fileno()
    except (OSError, ValueError):  # a buffer in memory
        return True
    return bool(select.select([handle], [], [], seconds)[0])


class _Text:
    """Raw lines to text by the rules of `data/corpus.py`, numbered through the stream."""

    def __init__(self) -> None:
        self.seen = 0
        self.flaws = Flaws()

    def decode(self, lines: list[bytes]) -> list[str]:
        block = b"".join(lines)
        if not self.seen:
            block = block.removeprefix(BOM)
        text = decode_lines(block, self.seen + 1, self.flaws) or [""]  # a BOM alone is one empty line
        self.seen += len(lines)
        return text


def _format(candidates: list[Candidate], number: int | None, scores: bool) -> str:
    lines = []
    for candidate in candidates:
        fields = [] if number is None else [str(number)]
        if scores:
            fields.append(f"{candidate.score:.6f}")
        lines.append("\t".join([*fields, candidate.text]) + "\n")
    return "".join(lines)
