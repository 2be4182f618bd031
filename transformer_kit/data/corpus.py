"""Lines out of files, under one set of rules.

- A line ends at `\\n` alone; U+2028, NEL, FF and a lone CR are characters of a line. `\\r\\n` counts as `\\n`.
- A BOM at the start of a file is dropped. A last line without `\\n` is a line.
- Bytes that are not UTF-8 become U+FFFD; such lines, and lines with NUL, are counted, and the first one is named.
- gzip is known by its first two bytes, not by the file's name.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from transformer_kit.data.options import CorpusOptions
from transformer_kit.errors import DataError
from transformer_kit.logs import get_logger

log = get_logger(__name__)
BLOCK = 1 << 20  # bytes read at a time
BOM = b"\xef\xbb\xbf"


@dataclass
class Flaws:
    """Lines of one file that hold bytes a text should not hold."""

    bad_utf8: int = 0
    first_bad: int = 0  # line numbers count from 1; 0 = none
    nul: int = 0
    first_nul: int = 0

    def add(self, other: Flaws) -> None:
        self.first_bad = self.first_bad or other.first_bad
        self.first_nul = self.first_nul or other.first_nul
        self.bad_utf8 += other.bad_utf8
        self.nul += other.nul

    def warnings(self, name: str) -> list[str]:
        """One line for each kind of flaw that the file `name` has."""
        lines = []
        if self.bad_utf8:
            what = f"{self.bad_utf8:,} line(s) are not valid UTF-8 (the first is line {self.first_bad})"
            lines.append(f"{name}: {what}; the bad bytes were read as U+FFFD")
        if self.nul:
            lines.append(
                f"{name}: {self.nul:,} line(s) hold a NUL byte (the first is line {self.first_nul}); kept as is"
            )
        return lines


def decode_lines(data: bytes, first_line: int, flaws: Flaws) -> list[str]:
    """The lines of a block of bytes that starts at a line start; the final `\\n` is optional.

    Args:
        first_line: the number of the first line in its file, from 1.
        flaws: counts are added here.
    """
    if not data:
        return []
    lines = decode_text(data, first_line, flaws).split("\n")
    return lines[:-1] if data.endswith(b"\n") else lines


def decode_text(data: bytes, first_line: int, flaws: Flaws) -> str:
    """The text of such a block, with `\\n` alone at the ends of lines; arguments as for `decode_lines`."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        text = _decode_line_by_line(data, first_line, flaws)
    if "\x00" in text:
        holding = [number for number, line in enumerate(text.split("\n"), first_line) if "\x00" in line]
        flaws.add(Flaws(nul=len(holding), first_nul=holding[0]))
    return text.replace("\r\n", "\n")


def _decode_line_by_line(data: bytes, first_line: int, flaws: Flaws) -> str:
    lines = []
    for number, raw in enumerate(data.split(b"\n"), first_line):
        try:
            lines.append(raw.decode("utf-8"))
        except UnicodeDecodeError:
            lines.append(raw.decode("utf-8", errors="replace"))
            flaws.add(Flaws(bad_utf8=1, first_bad=number))
    return "\n".join(lines)


class LineReader:
    """Iterates over the lines of a binary stream as they arrive, for pipes.

    Attributes:
        flaws: what was odd in the lines so far.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self.stream = stream
        self.flaws = Flaws()

    def __iter__(self) -> Iterator[str]:
        for number, raw in enumerate(iter(self.stream.readline, b""), 1):
            yield from decode_lines(raw.removeprefix(BOM) if number == 1 else raw, number, self.flaws) or [""]


@contextmanager
def open_text(path: Path | str) -> Iterator[io.BufferedReader]:
    """The (decompressed) bytes of a file; every failure to read it is a `DataError` that names it."""
    try:
        with open(path, "rb") as raw:
            if raw.peek(2)[:2] == b"\x1f\x8b":
                with gzip.GzipFile(fileobj=raw, mode="rb") as unpacked:
                    yield io.BufferedReader(unpacked, BLOCK)
            else:
                yield raw
    except FileNotFoundError:
        raise DataError(f"{path}: no such file (the current folder is {Path.cwd()})") from None
    except IsADirectoryError:
        raise DataError(f"{path}: is a folder; give a text file") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: damaged gzip file ({error}); compress it again") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from None


def read_lines(path: Path | str) -> list[str]:
    """All lines of a file that fits into memory; flaws are logged as warnings."""
    with open_text(path) as stream:
        reader = LineReader(stream)
        lines = list(reader)
    for warning in reader.flaws.warnings(str(path)):
        log.warning(warning)
    return lines


@dataclass(frozen=True)
class FileFacts:
    """What identifies the content of a text file: its number of lines and the SHA-256 of its bytes, unpacked."""

    lines: int
    sha256: str


def scan(path: Path | str) -> FileFacts:
    """Count and hash a file in one pass."""
    digest, lines, last = hashlib.sha256(), 0, b"\n"
    with open_text(path) as stream:
        while block := stream.read(BLOCK):
            digest.update(block)
            lines += block.count(b"\n")
            last = block[-1:]
    return FileFacts(lines + (last != b"\n"), digest.hexdigest())


def count_lines(path: Path | str) -> int:
    """The number of lines; the last one counts without its `\\n` too."""
    return scan(path).lines


def corpus_files(corpus: CorpusOptions) -> list[Path]:
    """The files of a corpus: [source, target], or [tsv]."""
    if corpus.tsv is not None:
        return [Path(corpus.tsv).expanduser()]
    assert corpus.source is not None
    assert corpus.target is not None
    return [Path(corpus.source).expanduser(), Path(corpus.target).expanduser()]


def corpus_name(corpus: CorpusOptions) -> str:
    return corpus.name or corpus_files(corpus)[0].name


def check_full(paths: list[Path], facts: list[FileFacts]) -> None:
    """Raise `DataError` where a file is empty."""
    for path, fact in zip(paths, facts, strict=True):
        if fact.lines == 0:
            raise DataError(f"{path}: the file is empty; a corpus needs at least one line")


def check_parallel(paths: list[Path], facts: list[FileFacts]) -> int:
    """The number of pairs.

    Raises:
        DataError: a file is empty, or the two sides differ in length.
    """
    check_full(paths, facts)
    if len(facts) == 2 and facts[0].lines != facts[1].lines:
        counts = " but ".join(f"{path} has {fact.lines:,} lines" for path, fact in zip(paths, facts, strict=True))
        raise DataError(f"{counts}: the two sides must be line-parallel")
    return facts[0].lines


@dataclass(frozen=True)
class RawChunk:
    """Some consecutive lines of a corpus, undecoded: one block of bytes a side, or one for both in a TSV file."""

    first_line: int
    blocks: tuple[bytes, ...]


def raw_chunks(paths: list[Path], size: int) -> Iterator[RawChunk]:
    """The files' lines, `size` at a time; the files are known to be parallel."""
    with open_text(paths[0]) as first, open_text(paths[-1]) as second:
        streams: list[io.BufferedReader] = [first, second][: len(paths)]
        start = 1
        while True:
            blocks = tuple(b"".join(islice(stream, size)) for stream in streams)
            if not blocks[0]:
                return
            if start == 1:
                blocks = tuple(block.removeprefix(BOM) or b"\n" for block in blocks)
            yield RawChunk(start, blocks)
            start += size


def block_chunks(path: Path, size: int) -> Iterator[RawChunk]:
    """A file's lines, `size` at a time and those up to the next blank line."""
    with open_text(path) as stream:
        start = 1
        while lines := list(islice(stream, size)):
            while lines[-1].strip() and (line := stream.readline()):
                lines.append(line)
            if start == 1:
                lines[0] = lines[0].removeprefix(BOM) or b"\n"
            yield RawChunk(start, (b"".join(lines),))
            start += len(lines)


def whole_file(path: Path) -> Iterator[RawChunk]:
    """A file as one chunk."""
    with open_text(path) as stream:
        yield RawChunk(1, (stream.read().removeprefix(BOM),))


def decode_chunk(chunk: RawChunk, paths: list[str], flaws: list[Flaws]) -> tuple[list[str], list[str]]:
    """The source and target lines of a chunk.

    Args:
        paths: one per block, for messages.
        flaws: one per block; counts are added here.
    """
    blocks = [decode_lines(block, chunk.first_line, found) for block, found in zip(chunk.blocks, flaws, strict=True)]
    if len(blocks) == 2:
        return blocks[0], blocks[1]
    return split_columns(blocks[0], chunk.first_line, paths[0])


def split_columns(lines: Iterable[str], first_line: int, path: str) -> tuple[list[str], list[str]]:
    """The first two tab-separated columns; a blank line is a pair of empty sides.

    Raises:
        DataError: a line holds text but no tab.
    """
    sources, targets = [], []
    for number, line in enumerate(lines, first_line):
        cells = line.split("\t", 2)
        if len(cells) == 1 and line.strip():
            raise DataError(f"{path}, line {number}: no tab; each line must hold source TAB target")
        sources.append(cells[0])
        targets.append(cells[1] if len(cells) > 1 else "")
    return sources, targets
