"""`tkit embed`, and the same for Python: lines in, vectors out."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from transformer_kit.data.corpus import BOM, Flaws, decode_lines
from transformer_kit.decoding.pipe import line_pipe, write
from transformer_kit.decoding.reading import Embedder
from transformer_kit.logs import get_logger
from transformer_kit.models.classifier import Pooling
from transformer_kit.tasks.load import load, set_threads
from transformer_kit.tasks.reading import frame_of

log = get_logger(__name__)


def make_embedder(
    run: str | Path,
    overrides: Sequence[str] = (),
    checkpoint: str | None = None,
    *,
    pooling: Pooling = "mean",
    normalize: bool = False,
) -> Embedder:
    """An embedder with the model and the tokenizer of a run of any family.

    Args:
        run: the run folder.
        overrides: `decoding.batch_tokens=8192`, `trainer.device=cpu`, ….
        checkpoint: see `load`.
        pooling, normalize: see `Embedder`.

    Raises:
        TkitError: see `load` and `Embedder`.
    """
    loaded = load(run, overrides, checkpoint)
    set_threads(loaded.config.trainer.threads)
    return Embedder(
        loaded.model, loaded.tokenizers.source, frame_of(loaded), pooling, normalize, loaded.config.decoding
    )


def embed_pipe(source: BinaryIO, sink: BinaryIO, embedder: Embedder) -> int:
    """A JSON list of numbers for every line of a stream; the number of lines."""

    def answer(chunks: Iterable[list[str]]) -> Iterator[str]:
        for vector in embedder.embed_chunks(chunks):
            # `.9g` gives a float32 back exactly
            yield "[" + ", ".join(json.dumps(float(f"{value:.9g}")) for value in vector) + "]\n"

    return line_pipe(source, sink, embedder.options.chunk, answer)


def embed_array(source: BinaryIO, sink: BinaryIO, embedder: Embedder) -> int:
    """An array (lines, D) float32 in NumPy's format, a row for every line of a stream; the number of lines."""
    flaws = Flaws()
    data = source.read()
    lines = decode_lines(data.removeprefix(BOM), 1, flaws) or ([""] if data else [])
    for warning in flaws.warnings("input"):
        log.warning(warning)
    array = io.BytesIO()
    np.save(array, embedder.embed(lines))
    write(sink, array.getvalue())
    return len(lines)
