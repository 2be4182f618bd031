"""Text to ids and back, with everything needed for it stored in one folder.

- What cuts text is a kind (`tokenizer_kinds.py`): SentencePiece, characters, bytes, or imported from another toolkit.
  Which ids have a meaning of their own is said by `specials` alone; no kind promises particular numbers.
- Text never produces padding, BOS, EOS, the mask, a sentinel or a tag: a literal `</s>` is four characters.
- The text rule (Moses, lower-casing) is part of the tokenizer: `encode` applies it and `decode` undoes it.
- The fingerprint is a SHA-256 over the vocabulary and the rule: another tokenizer of equal size is told apart.
"""

from __future__ import annotations

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

from transformer_kit.data.text_rules import TextRule
from transformer_kit.data.tokenizer_kinds import tokenizer_class
from transformer_kit.errors import DataError
from transformer_kit.specials import Specials

FORMAT = 1
FILE = "tokenizer.json"
BOTH_MODELS = ("source.model", "target.model")
MASK = "<mask>"
SENTINEL = re.compile(r"<extra_id_\d+>")


def control_pieces(tags: Iterable[str], mask: bool, sentinels: int) -> list[str]:
    """The names of the ids that an experiment asks for, in the order of the ids."""
    return [*tags, *([MASK] if mask else []), *(f"<extra_id_{number}>" for number in range(sentinels))]


class Tokenizer(ABC):
    """One language's way from text to ids and back.

    Args:
        model: the vocabulary, serialized.
        rule: what happens to a line before.
        specials: the ids with a meaning of their own.
        controls: name -> id of what `control_pieces` named; those that are neither mask nor sentinel are tags.
        head: ids that `encode` puts in front of each row.
        tag: `encode` puts this tag's id behind them.
        prefix: `encode` puts this text in front of each line.

    Attributes:
        kind: its name in the table of kinds.
        vocab_size: number of ids.
        head_ids: what `encode` puts in front of each row.

    Raises:
        DataError: a damaged model, or a tag that it was not trained with.
    """

    kind: ClassVar[str]

    def __init__(
        self,
        model: bytes,
        rule: TextRule,
        specials: Specials,
        *,
        controls: Mapping[str, int],
        head: Sequence[int] = (),
        tag: str | None = None,
        prefix: str = "",
    ) -> None:
        self.model, self.rule, self.specials, self.tag, self.prefix = model, rule, specials, tag, prefix
        self.vocab_size = specials.vocab_size
        self._tags = {name: number for name, number in controls.items() if name != MASK and not SENTINEL.match(name)}
        self.head_ids = [*head, *([] if tag is None else [self.tag_id(tag)])]

    @classmethod
    def restore(cls, model: bytes, about: Mapping[str, Any], tag: str | None = None, prefix: str = "") -> Self:
        """The tokenizer of a serialized model and what its `about` said."""
        return cls(model, TextRule(**about["rule"]), tag=tag, prefix=prefix)  # type: ignore[call-arg]  # kinds read these

    @property
    def about(self) -> dict[str, Any]:
        """What `restore` needs beside the model, as plain data."""
        return {"kind": self.kind, "rule": asdict(self.rule)}

    def __reduce__(self) -> tuple[Callable[..., Tokenizer], tuple[Any, ...]]:
        # By value: compiled Moses tables and what C++ holds do not travel.
        return type(self).restore, (self.model, self.about, self.tag, self.prefix)

    def marked(self, tag: str | None, prefix: str) -> Self:
        """The same tokenizer with a tag and a prefix."""
        return type(self).restore(self.model, self.about, tag, prefix)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of vocabulary and rule, in hexadecimal; tag and prefix are no part of it."""
        return hashlib.sha256(self.model + json.dumps(self.about, sort_keys=True).encode()).hexdigest()

    @property
    def pad_id(self) -> int:
        return self.specials.pad

    @property
    def unk_id(self) -> int | None:
        return self.specials.unk

    @property
    def bos_id(self) -> int:
        return self.specials.bos

    @property
    def eos_id(self) -> int:
        return self.specials.eos

    def normalize(self, lines: list[str]) -> list[str]:
        """The lines after prefix and text rule, as `cut` expects them."""
        return self.rule.apply([self.prefix + line for line in lines] if self.prefix else lines)

    def encode(self, lines: list[str]) -> list[list[int]]:
        """Ids of each line behind `head_ids` (a tag, if there is one), without BOS and EOS."""
        rows = self.cut(self.normalize(lines))
        return [self.head_ids + row for row in rows] if self.head_ids else rows

    @abstractmethod
    def cut(self, lines: list[str]) -> list[list[int]]:
        """Ids of lines that the text rule was applied to. A lone surrogate, which no file can hold, is read as `?`."""

    def sample(self, lines: list[str], seeds: Sequence[int], alpha: float) -> list[list[int]]:
        """Ids of a random segmentation of lines that the text rule was applied to.

        Args:
            seeds: one non-negative seed a line; a line's result depends on nothing else, in any process.
            alpha: as in `SamplingOptions`.

        Raises:
            DataError: this kind has one segmentation only.
        """
        raise DataError(f"a {self.kind} tokenizer knows no random segmentation; set tokenizer.sampling.alpha=0")

    def decode(self, rows: Sequence[Sequence[int]], *, detokenize: bool = True) -> list[str]:
        """The text of each row of ids; control ids give nothing.

        Args:
            detokenize: join Moses tokens to running text, if the rule has them.
        """
        lines = self._join(rows)
        return self.rule.undo(lines) if detokenize else lines

    @abstractmethod
    def _join(self, rows: Sequence[Sequence[int]]) -> list[str]:
        # The text of each row, as `cut` took it.
        ...

    @abstractmethod
    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The piece of each id, for people to read."""

    def tag_id(self, tag: str) -> int:
        """The id of a tag that the tokenizer was trained with.

        Raises:
            DataError: it was not.
        """
        if tag not in self._tags:
            raise DataError(f"the tokenizer knows no tag {tag!r}; train one on corpora that carry this tag")
        return self._tags[tag]


@dataclass(frozen=True)
class Tokenizers:
    """The tokenizers of both sides; of data with one side, such as documents, both are the same object.

    Attributes:
        joint: both sides share one vocabulary. Their rules may still differ, since Moses has rules per language; they
            are the same object when the rules are equal.
    """

    source: Tokenizer
    target: Tokenizer
    joint: bool

    @classmethod
    def of(cls, kind: str, models: Sequence[bytes], source: TextRule, target: TextRule) -> Tokenizers:
        """From one model for both sides or one each, of a kind that needs nothing but its model."""
        made = tokenizer_class(kind)
        first = made.restore(models[0], {"rule": asdict(source)})
        if len(models) == 1 and _same_rule(source, target):
            return cls(first, first, joint=True)
        return cls(first, made.restore(models[-1], {"rule": asdict(target)}), joint=len(models) == 1)

    @classmethod
    def one(cls, tokenizer: Tokenizer) -> Tokenizers:
        """The same tokenizer for both sides."""
        return cls(tokenizer, tokenizer, joint=True)

    @property
    def fingerprint(self) -> str:
        """SHA-256 over both sides and `joint`."""
        whole = f"{self.source.fingerprint} {self.target.fingerprint} {self.joint}"
        return hashlib.sha256(whole.encode()).hexdigest()

    def marked(self, tag: str | None, prefix: str | None) -> Tokenizers:
        """The same tokenizers, with the tag and prefix of a corpus (or of text to translate) on the source side."""
        if tag is None and not prefix:
            return self
        return replace(self, source=self.source.marked(tag, prefix or ""))

    def save(self, folder: Path | str) -> None:
        """Write the models and `tokenizer.json` into a folder that is made if needed."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        files = ["joint.model"] if self.source.model == self.target.model else ["source.model", "target.model"]
        for name, tokenizer in ((files[0], self.source), (files[-1], self.target)):
            (folder / name).write_bytes(tokenizer.model)
        about = {
            "format": FORMAT,
            "fingerprint": self.fingerprint,
            "joint": self.joint,
            "files": len(files),
            "source": {"model": files[0], **self.source.about},
            "target": {"model": files[-1], **self.target.about},
        }
        (folder / FILE).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path | str, expect: str | None = None) -> Tokenizers:
        """Read what `save` wrote, or an earlier version of it.

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
            # Names are fixed, never taken from the file; a version without kinds had SentencePiece alone.
            single = about.get("files", 1 if about["joint"] else 2) == 1
            models = [(folder / name).read_bytes() for name in (("joint.model",) if single else BOTH_MODELS)]
            source, target = ({"kind": "sentencepiece", **about[side]} for side in ("source", "target"))
            for side in (source, target):
                side.pop("model", None)
            first = tokenizer_class(source["kind"]).restore(models[0], source)
            if single and source == target:
                made = cls(first, first, bool(about["joint"]))
            else:
                made = cls(first, tokenizer_class(target["kind"]).restore(models[-1], target), bool(about["joint"]))
            written = about["fingerprint"]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{folder}: the tokenizer is damaged ({error}); train it again") from None
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
