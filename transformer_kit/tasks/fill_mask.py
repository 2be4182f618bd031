"""`tkit fill-mask`, and the same for Python: lines with masks in, the most probable fills out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from transformer_kit.decoding.filling import Fill, MaskFiller
from transformer_kit.decoding.pipe import line_pipe
from transformer_kit.errors import RunError
from transformer_kit.models.encoder_only import EncoderOnly
from transformer_kit.tasks.load import load, set_threads
from transformer_kit.tasks.reading import frame_of

MASK = "<mask>"


def make_filler(
    run: str | Path,
    overrides: Sequence[str] = (),
    checkpoint: str | None = None,
    *,
    fills: int = 5,
    mask: str = MASK,
) -> MaskFiller:
    """A filler with the model and the tokenizer of a run.

    Args:
        run: the run folder: an encoder that was trained with a mask.
        overrides: `decoding.batch_tokens=8192`, `trainer.device=cpu`, ….
        checkpoint: see `load`.
        fills, mask: see `MaskFiller`.

    Raises:
        TkitError: see `load`; RunError: the run has no mask, or no head that could fill it.
    """
    loaded = load(run, overrides, checkpoint)
    set_threads(loaded.config.trainer.threads)
    tokenizer, model = loaded.tokenizers.source, loaded.model
    specials = tokenizer.specials
    if not isinstance(model, EncoderOnly) or specials.mask is None:
        raise RunError(f"{loaded.folder} fills no masks: that takes an encoder_only model of objective=masked_lm")
    model.output()  # it may have no head, which is said here
    barred = specials.all if specials.unk is None else specials.all | {specials.unk}
    return MaskFiller(model, tokenizer, frame_of(loaded), specials.mask, barred, mask, fills, loaded.config.decoding)


def fill_pipe(source: BinaryIO, sink: BinaryIO, filler: MaskFiller, *, as_json: bool) -> int:
    """The fills of every line of a stream; the number of lines. See `formatted` for what is written."""

    def answer(chunks: Iterable[list[str]]) -> Iterator[str]:
        for number, fills in enumerate(filler.fill_chunks(chunks), 1):
            yield formatted(fills, number if filler.fills > 1 else None, as_json=as_json)

    return line_pipe(source, sink, filler.options.chunk, answer)


def formatted(fills: Sequence[Fill], number: int | None, *, as_json: bool) -> str:
    """`text TAB probability TAB filled line` for each fill, behind `number TAB` unless that is None; or a JSON list."""
    if as_json:
        rows = [{"text": fill.text, "probability": fill.probability, "line": fill.line} for fill in fills]
        return json.dumps(rows, ensure_ascii=False) + "\n"
    before = "" if number is None else f"{number}\t"
    # single characters and bytes can be a line feed, which would be one line more, or a tab, which would be one column
    texts = (fill.text.replace("\t", " ") for fill in fills)
    rows_of_text = (
        f"{before}{text}\t{fill.probability:.6f}\t{fill.line}" for text, fill in zip(texts, fills, strict=True)
    )
    return "".join(row.replace("\n", " ") + "\n" for row in rows_of_text)
