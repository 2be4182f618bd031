"""The Python face of a run: `from transformer_kit import load, Translator`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from transformer_kit.decoding.translator import Candidate
from transformer_kit.tasks.translate import make_translator


class Translator:
    """Translates text with a trained run.

        Translator("runs/demo").translate(["the old dog sleeps ."])

    Args:
        run: the run folder.
        overrides: as on the command line: `"decoding.beam=8"`, `"trainer.device=cpu"`.
        checkpoint: `best`, `last` or a step, instead of the run's final model.
        tag: the tag of the training corpus that the text is like.

    Raises:
        TkitError: the run cannot be used; the message says why.
    """

    def __init__(self, run: str | Path, *overrides: str, checkpoint: str | None = None, tag: str | None = None) -> None:
        self._translator = make_translator(run, overrides, checkpoint, tag)

    def translate(self, lines: Sequence[str]) -> list[str]:
        """The best translation of each line, in order; an empty line stays empty."""
        if isinstance(lines, str):  # would be taken for lines of one character
            raise TypeError("translate takes a list of lines: write translate([line])")
        return self._translator.translate(lines)

    def translate_n_best(self, lines: Sequence[str]) -> list[list[Candidate]]:
        """The `decoding.n_best` translations of each line, best first, with scores."""
        return self._translator.translate_n_best(lines)

    def translate_stream(self, lines: Iterable[str]) -> Iterator[list[Candidate]]:
        """As `translate_n_best`, reading `decoding.chunk` lines ahead."""
        return self._translator.translate_stream(lines)
