"""What a user chooses about corpora, tokenizers and batches. The defaults stand in conf/data and conf/tokenizer.

`CorpusOptions` alone carries defaults: its objects are items of a list, for which a YAML file cannot hold any.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum

Problems = list[tuple[str, str]]
TAG = re.compile(r"<(?!0x[0-9A-F]{2}>)[^\s<>]+>")  # <0x0A> is how a byte is spelt
RESERVED = ("<pad>", "<unk>", "<s>", "</s>")
NO_CORPUS = "data.train: no corpus is given; for example data.train=[{source: train.en, target: train.de}]"
PATH = {"path": True}  # relative ones resolve against the current folder


@dataclass
class CorpusOptions:
    """One line-parallel corpus: two files, or one file of `source TAB target` lines; plain or gzip.

    Attributes:
        name: how reports call it; its file name when absent.
        source, target: the two files (relative paths resolve against the current folder).
        tsv: the one file, instead of `source` and `target`.
        weight: how often it is drawn, relative to the other corpora of the mixture (> 0).
        tag: a marker such as `<2de>` that becomes one control piece in front of each source; text never produces it.
        prefix: plain text put in front of each source line.
    """

    name: str | None = None
    source: str | None = field(default=None, metadata=PATH)
    target: str | None = field(default=None, metadata=PATH)
    tsv: str | None = field(default=None, metadata=PATH)
    weight: float = 1.0
    tag: str | None = None
    prefix: str | None = None

    def problems(self) -> Problems:
        found: Problems = []
        if self.tsv is not None:
            if self.source is not None or self.target is not None:
                found.append(("tsv", "give either `tsv`, or `source` and `target`, not both"))
        else:
            for side in ("source", "target"):
                if getattr(self, side) is None:
                    found.append((side, "no file is given; set it (or set `tsv`)"))
        if not 0 < self.weight < float("inf"):
            found.append(("weight", f"must be greater than 0, not {self.weight}"))
        if self.tag is not None and (not TAG.fullmatch(self.tag) or self.tag in RESERVED):
            found.append(("tag", f"must look like <2de> and be none of {', '.join(RESERVED)}; it is {self.tag!r}"))
        return found


@dataclass
class FilterOptions:
    """Which training pairs stay. Lengths count pieces, without BOS and EOS. Validation pairs are never filtered.

    Attributes:
        min_length: the fewest pieces of either side; pairs with an empty side always go.
        max_length: the most pieces of either side, or null.
        max_ratio: the longer side may be at most this many times the shorter one, or null.
    """

    min_length: int
    max_length: int | None
    max_ratio: float | None

    def problems(self) -> Problems:
        found: Problems = []
        if self.min_length < 1:
            found.append(("min_length", f"must be at least 1, not {self.min_length}"))
        if self.max_length is not None and self.max_length < max(1, self.min_length):
            found.append(("max_length", f"must be at least min_length ({self.min_length}), not {self.max_length}"))
        if self.max_ratio is not None and not self.max_ratio >= 1:
            found.append(("max_ratio", f"must be at least 1, not {self.max_ratio}"))
        return found


@dataclass
class BatchOptions:
    """How pairs become batches.

    Attributes:
        tokens: rows × the longest side of the batch (with BOS or EOS, padding counted) is at most this.
        pool: how many shuffled pairs are sorted by length together; more means less padding and coarser shuffling.
    """

    tokens: int
    pool: int

    def problems(self) -> Problems:
        found: Problems = []
        if self.tokens < 2:
            found.append(("tokens", f"must be at least 2, not {self.tokens}"))
        if self.pool < 1:
            found.append(("pool", f"must be at least 1, not {self.pool}"))
        return found


@dataclass
class GenerateOptions:
    """A corpus that is written by a program instead of read from files.

    Attributes:
        name: which corpus; `demo_phrases` is the one there is.
        seed: another seed writes other lines.
    """

    name: str
    seed: int

    def problems(self) -> Problems:
        found: Problems = []
        if self.name != "demo_phrases":
            found.append(("name", f"must be demo_phrases, not {self.name}"))
        if self.seed < 0:
            found.append(("seed", f"must be at least 0, not {self.seed}"))
        return found


@dataclass
class DataOptions:
    """The corpora of an experiment.

    Attributes:
        source_language, target_language: ISO 639-1 codes; they choose the Moses rules and name the sides.
        train, valid, test: the corpora of each split. Several training corpora form a mixture.
        temperature: a corpus of n pairs and weight w is drawn with probability proportional to w · n^(1/temperature).
        generate: corpora written by a program, in place of the three lists.
        cache: the folder of prepared data.
        workers: processes that encode text (1 = none but this one).
    """

    source_language: str
    target_language: str
    train: list[CorpusOptions]
    valid: list[CorpusOptions]
    test: list[CorpusOptions]
    temperature: float
    generate: GenerateOptions | None
    cache: str = field(metadata=PATH)
    filter: FilterOptions
    batch: BatchOptions
    workers: int

    def problems(self) -> Problems:
        found: Problems = []
        if self.generate is not None:
            found += _under("generate", self.generate.problems())
            if {self.source_language, self.target_language} != {"en", "de"}:
                found.append(("generate", "the languages of demo_phrases are en and de, in either direction"))
            if self.train or self.valid or self.test:
                found.append(("generate", "generated data leave no room for `train`, `valid` and `test`: drop one"))
        for split in ("train", "valid", "test"):
            for number, corpus in enumerate(getattr(self, split)):
                found += _under(f"{split}.{number}", corpus.problems())
        for key in ("source_language", "target_language"):
            if not getattr(self, key).isalpha():
                found.append((key, f"must be a language code such as en, not {getattr(self, key)!r}"))
        if not 0 < self.temperature < float("inf"):
            found.append(("temperature", f"must be greater than 0, not {self.temperature}"))
        if self.workers < 1:
            found.append(("workers", f"must be at least 1, not {self.workers}"))
        return found + _under("filter", self.filter.problems()) + _under("batch", self.batch.problems())


class Kind(Enum):
    """How SentencePiece finds its pieces."""

    unigram = "unigram"
    bpe = "bpe"


class Unicode(Enum):
    """SentencePiece's normalisation; `identity` also keeps every space, the others join runs of spaces."""

    identity = "identity"
    nfkc = "nfkc"
    nmt_nfkc = "nmt_nfkc"


@dataclass
class TextOptions:
    """What happens to a line before it is cut into pieces. Stored with the tokenizer and applied at translation too.

    Attributes:
        normalize: Moses punctuation normalisation.
        tokenize: Moses tokenisation (undone after decoding).
        lowercase: lower-case the line.
        unicode: SentencePiece's own rule, applied last.
    """

    normalize: bool
    tokenize: bool
    lowercase: bool
    unicode: Unicode


@dataclass
class SamplingOptions:
    """Subword regularisation, in training only.

    Attributes:
        alpha: 0 is off. BPE: the probability of dropping a merge. Unigram: the smoothing exponent of the sampled
            segmentations (smaller is more varied).
    """

    alpha: float

    def problems(self) -> Problems:
        found: Problems = []
        if not 0 <= self.alpha <= 1:
            found.append(("alpha", f"must be from 0 (off) to 1, not {self.alpha}"))
        return found


@dataclass
class TokenizerOptions:
    """A SentencePiece vocabulary to train, or the folder of a trained one.

    Attributes:
        path: an existing tokenizer folder; all but `sampling` is then taken from there.
        kind: unigram or bpe.
        vocab_size: pieces, with the four control pieces, the tags and (with byte fallback) the 256 bytes.
        joint: one vocabulary for both languages.
        byte_fallback: write unknown characters as bytes; then nothing is unknown.
        character_coverage: the share of the text's characters that the alphabet must cover, from 0.98 to 1
            (SentencePiece takes no less).
        max_lines: train on at most this many lines a side, evenly spaced over the corpora; null takes all.
    """

    path: str | None = field(metadata=PATH)
    kind: Kind
    vocab_size: int
    joint: bool
    byte_fallback: bool
    character_coverage: float
    max_lines: int | None
    text: TextOptions
    sampling: SamplingOptions

    def problems(self) -> Problems:
        found: Problems = []
        if self.vocab_size < 5:
            found.append(("vocab_size", f"must be at least 5, not {self.vocab_size}"))
        if not 0.98 <= self.character_coverage <= 1:
            found.append(("character_coverage", f"must be from 0.98 to 1, not {self.character_coverage}"))
        if self.max_lines is not None and self.max_lines < 1:
            found.append(("max_lines", f"must be at least 1 or null, not {self.max_lines}"))
        return found + _under("sampling", self.sampling.problems())


def _under(key: str, found: Problems) -> Problems:
    return [(f"{key}.{name}", message) for name, message in found]
