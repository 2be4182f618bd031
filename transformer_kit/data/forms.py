"""What preparing needs to know of a kind of data; one subclass each for pairs, documents and labels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from transformer_kit.data.corpus import FileFacts, RawChunk, check_full
from transformer_kit.data.dataset import Dataset
from transformer_kit.data.encoding import Encoder, Reader
from transformer_kit.data.tokenizer import Tokenizers


class Form(ABC):
    """A kind of data. `corpus` is the options of one corpus.

    Attributes:
        noun: what a row is called in messages.
        texts: the names of the texts of a row.
        mixture: whether each training corpus is prepared by itself, to be drawn from by its weight.
        remedy: what to do when no row is left.
        languages: one per text.
        labels: the names of the labels, once known; None where there are none.
    """

    noun: ClassVar[str]
    texts: tuple[str, ...]
    mixture: ClassVar[bool]
    remedy: ClassVar[str]
    languages: list[str]
    labels: list[str] | None = None

    @abstractmethod
    def files(self, corpus: Any) -> list[Path]: ...

    def name(self, corpus: Any) -> str:
        """How reports call a corpus."""
        return corpus.name or self.files(corpus)[0].name

    def check(self, paths: list[Path], facts: list[FileFacts]) -> int:
        """The number of lines.

        Raises:
            DataError: the files cannot be a corpus.
        """
        check_full(paths, facts)
        return facts[0].lines

    @abstractmethod
    def identity(self, corpus: Any) -> list[Any]:
        """What of a corpus's options its rows depend on, beside the files."""

    @abstractmethod
    def settings(self, training: bool) -> list[Any]:
        """What of the common options the rows depend on."""

    def vocabulary(self) -> list[Any]:
        """What of the common options the text that trains a vocabulary depends on."""
        return []

    def learn(self, corpora: list[Any], size: int) -> None:
        """Take from the training text what the rows of every split depend on.

        Args:
            size: lines read at a time.
        """
        return

    @abstractmethod
    def chunks(self, paths: list[Path], size: int) -> Iterator[RawChunk]:
        """The corpus's lines, about `size` at a time."""

    @abstractmethod
    def reader(self, corpus: Any) -> Reader: ...

    def tokenizers_of(self, corpus: Any, tokenizers: Tokenizers) -> Tokenizers:
        """The tokenizers with what a corpus adds to its lines."""
        return tokenizers

    @abstractmethod
    def encoder(self, corpus: Any, tokenizers: Tokenizers, training: bool) -> Encoder:
        """Args: tokenizers: from `tokenizers_of`."""

    @abstractmethod
    def columns(self, ids: str, training: bool) -> dict[str, str]:
        """Column -> type of its values.

        Args:
            ids: the type of token ids.
        """

    @abstractmethod
    def open(self, folder: Path, tokenizer: str) -> Dataset:
        """What was prepared in a folder, with the tokenizer of that fingerprint."""
