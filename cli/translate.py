"""`tkit translate`."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from transformer_kit.errors import DataError

RunOption = Annotated[Path, typer.Option("-m", "--model", help="The run folder.", show_default=False)]
Checkpoint = Annotated[
    str | None,
    typer.Option("--checkpoint", help="best, last or a step, instead of the run's final model.", show_default=False),
]
UseOverrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[OVERRIDES]...",
        help="Options that the weights do not depend on: decoding.beam=8 decoding=greedy trainer.device=cpu.",
        show_default=False,
    ),
]


def translate(
    model: RunOption,
    overrides: UseOverrides = None,
    source: Annotated[
        Path | None,
        typer.Option("-i", "--input", help="Text to translate, plain or gzip; stdin by default.", show_default=False),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Where translations go; stdout by default.", show_default=False),
    ] = None,
    scores: Annotated[bool, typer.Option("--scores", help="Put `score TAB` in front of each translation.")] = False,
    tag: Annotated[
        str | None,
        typer.Option("--tag", help="The tag of the training corpus that the text is like.", show_default=False),
    ] = None,
    checkpoint: Checkpoint = None,
) -> None:
    """Translate text, one line in, one line out, nothing else on stdout.

    An empty line stays empty. With decoding.n_best above 1 each line gives several: number TAB score TAB translation.
    """
    from transformer_kit.tasks.translate import translate as task

    with source_lines(source) as lines, sink(output) as out:
        task(model, lines, out, overrides=overrides or [], checkpoint=checkpoint, tag=tag, scores=scores)


def source_lines(path: Path | None) -> contextlib.AbstractContextManager[BinaryIO]:
    """The lines of a file, plain or gzip, or of stdin.

    Raises:
        DataError: there is nothing to read.
    """
    if path is None:
        if sys.stdin is None:
            raise DataError("stdin is closed: give -i FILE, or text through a pipe")
        return contextlib.nullcontext(sys.stdin.buffer)
    if path.exists() and not path.is_file() and not path.is_dir():
        return path.open("rb")  # a pipe: nothing is read ahead to see whether it is gzip
    from transformer_kit.data.corpus import open_text

    return open_text(path)


@contextlib.contextmanager
def sink(path: Path | None) -> Iterator[BinaryIO]:
    """Stdout, or a file that appears whole or not at all; a device or a named pipe is written to as it stands.

    Raises:
        DataError: it cannot be written; said before anything is computed.
    """
    if path is None:
        if sys.stdout is None:
            raise DataError("stdout is closed: give -o FILE")
        yield sys.stdout.buffer
        return
    if path.is_dir():
        raise DataError(f"{path}: cannot be written: it is a folder; give a file")
    try:
        final, temporary = path.resolve(), None  # behind a link, so that the link stays
        if path.absolute().parts[1] in ("dev", "proc") or (path.exists() and not path.is_file()):
            handle = os.open(path, os.O_WRONLY | os.O_APPEND)
        else:
            handle, temporary = tempfile.mkstemp(prefix=".tkit.", dir=final.parent)
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {error.strerror}") from None
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        if temporary is not None:
            os.chmod(temporary, 0o666 & ~_umask())
            os.replace(temporary, final)
    except BaseException:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        raise


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
