"""Text to piece ids and back, with everything needed for it stored in one folder.

- The pieces are SentencePiece's. Ids: 0 padding, 1 unknown, 2 BOS, 3 EOS, then tags; text never produces 0, 2, 3 or a
  tag, so a literal `</s>` is four characters.
- The text rule (Moses, lower-casing) is part of the tokenizer: `encode` applies it and `decode` undoes it.
- With byte fallback U+2581, which SentencePiece uses for the space, is escaped first, so that no character is lost.
- The fingerprint is a SHA-256 over the vocabulary and the rule: another tokenizer of equal size is told apart.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import sentencepiece

from transformer_kit.data.subword_sampling import SubwordSampler, make_sampler
from transformer_kit.data.text_rules import TextRule
from transformer_kit.errors import DataError

PAD_ID, UNK_ID, BOS_ID, EOS_ID = 0, 1, 2, 3
SPACE = "▁"  # U+2581
ESCAPE = "\ue581"  # private use; `ESCAPE u` stands for U+2581 and `ESCAPE e` for itself
FORMAT = 1
FILE = "tokenizer.json"


class Tokenizer:
    """One language's way from text to ids and back.

    Args:
        model: a serialized SentencePiece model.
        rule: what happens to a line before.
        tag: `encode` puts this tag's id in front of each row.
        prefix: `encode` puts this text in front of each line.

    Attributes:
        vocab_size: number of ids.
        fingerprint: SHA-256 of model and rule, in hexadecimal; tag and prefix are no part of it.

    Raises:
        DataError: a damaged model, or a tag that it was not trained with.
    """

    pad_id, unk_id, bos_id, eos_id = PAD_ID, UNK_ID, BOS_ID, EOS_ID

    def __init__(self, model: bytes, rule: TextRule, tag: str | None = None, prefix: str = "") -> None:
        self.model, self.rule, self.tag, self.prefix = model, rule, tag, prefix
        try:
            self._pieces = sentencepiece.SentencePieceProcessor(model_proto=model)
        except RuntimeError as error:
            raise DataError(f"the tokenizer's SentencePiece model is damaged ({error}); train it again") from None
        special = tuple(getattr(self._pieces, name)() for name in ("pad_id", "unk_id", "bos_id", "eos_id"))
        if special != (PAD_ID, UNK_ID, BOS_ID, EOS_ID):
            raise DataError(f"the SentencePiece model numbers pad, unk, BOS, EOS {special}; they must be (0, 1, 2, 3)")
        self.vocab_size: int = len(self._pieces)
        self._byte_fallback = self._pieces.piece_to_id("<0x00>") != UNK_ID
        self.tag_ids = [] if tag is None else [self.tag_id(tag)]
        self._sampler: SubwordSampler | None = None

    def __reduce__(self) -> tuple[type[Tokenizer], tuple[Any, ...]]:
        # A fresh rule: compiled Moses tables do not travel, nor does the sampler's memory.
        return Tokenizer, (self.model, replace(self.rule), self.tag, self.prefix)

    @cached_property
    def fingerprint(self) -> str:
        return hashlib.sha256(self.model + json.dumps(asdict(self.rule), sort_keys=True).encode()).hexdigest()

    def normalize(self, lines: list[str]) -> list[str]:
        """The lines after prefix and text rule, as `cut` expects them."""
        return self.rule.apply([self.prefix + line for line in lines] if self.prefix else lines)

    def encode(self, lines: list[str]) -> list[list[int]]:
        """Ids of each line, with the tag if there is one, without BOS and EOS."""
        rows = self.cut(self.normalize(lines))
        return [self.tag_ids + row for row in rows] if self.tag_ids else rows

    def cut(self, lines: list[str]) -> list[list[int]]:
        """Ids of lines that the text rule was applied to."""
        try:
            ids: list[list[int]] = self._pieces.encode(self._escape(lines), out_type=int, num_threads=1)
        except (UnicodeEncodeError, TypeError):  # a lone surrogate, which only a Python caller can pass
            clean = [line.encode("utf-8", "replace").decode("utf-8") for line in lines]
            ids = self._pieces.encode(self._escape(clean), out_type=int, num_threads=1)
        return ids

    def sample(self, lines: list[str], seeds: Sequence[int], alpha: float) -> list[list[int]]:
        """Ids of a random segmentation of lines that the text rule was applied to.

        Args:
            seeds: one non-negative seed a line; a line's result depends on nothing else, in any process.
            alpha: as in `SamplingOptions`.
        """
        if self._sampler is None or self._sampler.alpha != alpha:
            self._sampler = make_sampler(self.model, alpha)
        return self._sampler.sample(self._pieces.normalize(self._escape(lines)), seeds)

    def decode(self, rows: Sequence[Sequence[int]], *, detokenize: bool = True) -> list[str]:
        """The text of each row of ids; control ids give nothing.

        Args:
            detokenize: join Moses tokens to running text, if the rule has them.
        """
        lines: list[str] = (
            self._pieces.decode([list(map(int, row)) for row in rows], num_threads=1) if len(rows) else []
        )
        if self._byte_fallback:
            lines = [_unescape(line) if ESCAPE in line else line for line in lines]
        return self.rule.undo(lines) if detokenize else lines

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The piece of each id, for people to read."""
        return [self._pieces.id_to_piece(int(one)) for one in ids]

    def tag_id(self, tag: str) -> int:
        """The id of a tag that the tokenizer was trained with.

        Raises:
            DataError: it was not.
        """
        found: int = self._pieces.piece_to_id(tag)
        if found <= EOS_ID or not self._pieces.is_control(found):
            raise DataError(f"the tokenizer knows no tag {tag!r}; train one on corpora that carry this tag")
        return found

    def _escape(self, lines: list[str]) -> list[str]:
        if not self._byte_fallback:
            return lines
        return [
            line.replace(ESCAPE, ESCAPE + "e").replace(SPACE, ESCAPE + "u") if SPACE in line or ESCAPE in line else line
            for line in lines
        ]


def _unescape(line: str) -> str:
    return line.replace(ESCAPE + "u", SPACE).replace(ESCAPE + "e", ESCAPE)


@dataclass(frozen=True)
class Tokenizers:
    """The tokenizers of both sides.

    Attributes:
        joint: both sides share one vocabulary. Their rules may still differ, since Moses has rules per language; they
            are the same object when the rules are equal.
    """

    source: Tokenizer
    target: Tokenizer
    joint: bool

    @classmethod
    def of(cls, models: Sequence[bytes], source: TextRule, target: TextRule) -> Tokenizers:
        """From one model for both sides or one each."""
        first = Tokenizer(models[0], source)
        if len(models) == 1 and _same_rule(source, target):
            return cls(first, first, joint=True)
        return cls(first, Tokenizer(models[-1], target), joint=len(models) == 1)

    @property
    def fingerprint(self) -> str:
        """SHA-256 over both sides and `joint`."""
        whole = f"{self.source.fingerprint} {self.target.fingerprint} {self.joint}"
        return hashlib.sha256(whole.encode()).hexdigest()

    def marked(self, tag: str | None, prefix: str | None) -> Tokenizers:
        """The same tokenizers, with the tag and prefix of a corpus (or of text to translate) on the source side."""
        if tag is None and not prefix:
            return self
        return replace(self, source=Tokenizer(self.source.model, self.source.rule, tag, prefix or ""))

    def save(self, folder: Path | str) -> None:
        """Write the models and `tokenizer.json` into a folder that is made if needed."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        sides: dict[str, Any] = {}
        for side, name in (
            ("source", "joint" if self.joint else "source"),
            ("target", "joint" if self.joint else "target"),
        ):
            tokenizer: Tokenizer = getattr(self, side)
            (folder / f"{name}.model").write_bytes(tokenizer.model)
            sides[side] = {"model": f"{name}.model", "rule": asdict(tokenizer.rule)}
        about = {"format": FORMAT, "fingerprint": self.fingerprint, "joint": self.joint, **sides}
        (folder / FILE).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path | str, expect: str | None = None) -> Tokenizers:
        """Read what `save` wrote.

        Args:
            expect: the fingerprint that the caller was made with; None accepts any tokenizer.

        Raises:
            DataError: no tokenizer there, a damaged one, or not the expected one.
        """
        folder = Path(folder)
        if not (folder / FILE).is_file():
            raise DataError(f"{folder}: no tokenizer there ({FILE} is missing)")
        try:
            about = json.loads((folder / FILE).read_text(encoding="utf-8"))
            names = ["joint.model"] if about["joint"] else ["source.model", "target.model"]
            rules = [TextRule(**about[side]["rule"]) for side in ("source", "target")]
            models = [(folder / name).read_bytes() for name in names]
            written = about["fingerprint"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{folder}: the tokenizer is damaged ({error}); train it again") from None
        made = cls.of(models, *rules)
        if made.fingerprint != written:
            raise DataError(
                f"{folder}: the tokenizer's files are not those that were written; restore them, or train it again"
            )
        check_fingerprint(written, expect, str(folder))
        return made


def check_fingerprint(found: str, expect: str | None, where: str) -> None:
    """Raise `DataError` unless the tokenizer at `where` is the expected one (None expects nothing)."""
    if expect is not None and found != expect:
        raise DataError(
            f"{where}: this tokenizer ({found[:12]}) is not the one that the model or data were made with "
            f"({expect[:12]}); restore that one, or start a new run"
        )


def _same_rule(first: TextRule, second: TextRule) -> bool:
    # The language matters to Moses only.
    moses = first.normalize or first.tokenize
    return first == second if moses else asdict(first) | {"language": ""} == asdict(second) | {"language": ""}
