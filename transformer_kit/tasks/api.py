"""The Python face of a run: `from transformer_kit import load, Translator, …`; each class mirrors a command."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from transformer_kit.decoding.filling import Fill
from transformer_kit.decoding.generator import Generation
from transformer_kit.decoding.reading import Verdict
from transformer_kit.decoding.translator import Candidate
from transformer_kit.models.classifier import Pooling
from transformer_kit.tasks.classify import make_classifier
from transformer_kit.tasks.embed import make_embedder
from transformer_kit.tasks.fill_mask import MASK, make_filler
from transformer_kit.tasks.generate import make_generator
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
        return self._translator.translate(_lines(lines, "translate"))

    def translate_n_best(self, lines: Sequence[str]) -> list[list[Candidate]]:
        """The `decoding.n_best` translations of each line, best first, with scores."""
        return self._translator.translate_n_best(lines)

    def translate_stream(self, lines: Iterable[str]) -> Iterator[list[Candidate]]:
        """As `translate_n_best`, reading `decoding.chunk` lines ahead."""
        return self._translator.translate_stream(lines)


class Generator:
    """Continues text with a trained run: a decoder-only model of documents, or an encoder–decoder.

        Generator("runs/tales", "generation.temperature=0").generate(["Once upon a time"])

    Args:
        run: the run folder.
        overrides: as on the command line: `"generation.top_p=0.9"`, `"generation.seed=3"`, `"trainer.device=cpu"`.
        checkpoint: `best`, `last` or a step, instead of the run's final model.
        stop: strings that end a continuation.

    Raises:
        TkitError: the run cannot be used; the message says why.
    """

    def __init__(
        self, run: str | Path, *overrides: str, checkpoint: str | None = None, stop: Sequence[str] = ()
    ) -> None:
        self._generator = make_generator(run, overrides, checkpoint, stop)

    def generate(self, prompts: Sequence[str]) -> list[str]:
        """The text behind each prompt, in order; the first of several samples."""
        return [found[0].text for found in self.samples(prompts)]

    def samples(self, prompts: Sequence[str]) -> list[list[Generation]]:
        """The `generation.num_samples` continuations of each prompt: text, tokens, and why it ended."""
        return self._generator.generate(_lines(prompts, "generate"))

    def stream(self, prompt: str) -> Iterator[str]:
        """The text behind one prompt, piece by piece as it is made."""
        return self._generator.stream(prompt)


class Classifier:
    """Tells the label of each line with a run that was trained to classify.

        Classifier("runs/sst2").classify(["a fine film"])

    Args:
        run: the run folder.
        overrides: as on the command line: `"decoding.batch_tokens=8192"`, `"trainer.device=cpu"`.
        checkpoint: `best`, `last` or a step, instead of the run's final model.

    Raises:
        TkitError: the run cannot be used; the message says why.
    """

    def __init__(self, run: str | Path, *overrides: str, checkpoint: str | None = None) -> None:
        self._classifier = make_classifier(run, overrides, checkpoint)

    @property
    def labels(self) -> list[str]:
        """The names of the labels."""
        return list(self._classifier.labels)

    def classify(self, lines: Sequence[str]) -> list[Verdict | None]:
        """Label, its probability and those of all labels for each line, in order; None for a line without content.

        A pair of texts is one line with a tab between them.
        """
        return self._classifier.classify(_lines(lines, "classify"))


class MaskFiller:
    """Fills masks with an encoder that was trained with them.

        MaskFiller("runs/encoder").fill(["the old <mask> sleeps"])

    Args:
        run: the run folder.
        overrides: as on the command line.
        checkpoint: `best`, `last` or a step, instead of the run's final model.
        fills: how many of each line.
        mask: how a mask is written in a line.

    Raises:
        TkitError: the run cannot be used; the message says why.
    """

    def __init__(
        self, run: str | Path, *overrides: str, checkpoint: str | None = None, fills: int = 5, mask: str = MASK
    ) -> None:
        self._filler = make_filler(run, overrides, checkpoint, fills=fills, mask=mask)

    def fill(self, lines: Sequence[str]) -> list[list[Fill]]:
        """The most probable fills of each line, best first: text, probability, filled line."""
        return self._filler.fill(_lines(lines, "fill"))


class Embedder:
    """Turns lines into vectors with a run of any family.

        Embedder("runs/encoder", normalize=True).embed(["one line", "another"])

    Args:
        run: the run folder.
        overrides: as on the command line.
        checkpoint: `best`, `last` or a step, instead of the run's final model.
        pooling: `mean` of the states of all tokens, BOS and EOS too; or the `first` or `last` one's.
        normalize: make the vectors of length 1.

    Raises:
        TkitError: the run cannot be used; the message says why.
    """

    def __init__(
        self,
        run: str | Path,
        *overrides: str,
        checkpoint: str | None = None,
        pooling: Pooling = "mean",
        normalize: bool = False,
    ) -> None:
        self._embedder = make_embedder(run, overrides, checkpoint, pooling=pooling, normalize=normalize)

    def embed(self, lines: Sequence[str]) -> NDArray[np.float32]:
        """(lines, D) float32, in order."""
        return self._embedder.embed(_lines(lines, "embed"))


def _lines(lines: Sequence[str], method: str) -> Sequence[str]:
    if isinstance(lines, str):  # would be taken for lines of one character
        raise TypeError(f"{method} takes a list of lines: write {method}([line])")
    return lines
