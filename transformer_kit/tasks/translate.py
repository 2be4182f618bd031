"""`tkit translate`, and the same for Python: text in, text out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from transformer_kit.config.schema import Config
from transformer_kit.decoding.pipe import translate_pipe
from transformer_kit.decoding.translator import Translator
from transformer_kit.errors import RunError
from transformer_kit.tasks.load import load, model_limit, set_threads


def make_translator(
    run: str | Path, overrides: Sequence[str] = (), checkpoint: str | None = None, tag: str | None = None
) -> Translator:
    """A translator with the model, the tokenizers and the search of a run.

    Args:
        run: the run folder.
        overrides: `decoding.beam=8`, `trainer.device=cpu`, ….
        checkpoint: see `load`.
        tag: the tag of the training corpus whose sources these are like.

    Raises:
        TkitError: see `load`; DataError: the tokenizer knows no such tag; RunError: the run answers no source.
    """
    loaded = load(run, overrides, checkpoint)
    check_translates(loaded.folder, loaded.config)
    set_threads(loaded.config.trainer.threads)
    tokenizers = loaded.tokenizers.marked(tag, None)
    return Translator(loaded.model, tokenizers, loaded.config.decoding, model_limit(loaded.config))


def check_translates(folder: Path, config: Config) -> None:
    """Raise `RunError` unless the run answers a source with a target."""
    kind, family = config.data.kind, config.model.family
    if kind == "labels":
        raise RunError(f"{folder} gives labels and translates nothing: use `tkit classify`")
    if family == "encoder_only":
        raise RunError(f"{folder} reads text and writes none (encoder_only): use `tkit fill-mask` or `embed`")
    if family == "decoder_only" and kind != "pairs":
        raise RunError(f"{folder} continues a text and translates none: use `tkit generate`")


def translate(
    run: str | Path,
    source: BinaryIO,
    sink: BinaryIO,
    *,
    overrides: Sequence[str] = (),
    checkpoint: str | None = None,
    tag: str | None = None,
    scores: bool = False,
) -> int:
    """Translate a stream line by line; the number of lines.

    Args:
        source, sink: UTF-8 text; see `translate_pipe` for the rules.
        scores: put `score TAB` in front of each translation.
    """
    return translate_pipe(source, sink, make_translator(run, overrides, checkpoint, tag), scores=scores)
