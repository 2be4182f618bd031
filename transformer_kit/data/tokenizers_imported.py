"""Tokenizers that came with an imported model, with their own ids.

- `tokenizers`: a `tokenizer.json`, read by the library of that name. `spiece`: a SentencePiece model as it is.
  `marian`: a SentencePiece model that cuts and a `vocab.json` that numbers.
- Whatever they are, text never produces an id of `specials`: a literal `[SEP]` is what its characters are.
- The files that describe them are kept beside the model, so that an export writes them as they came.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Self

import sentencepiece

from transformer_kit.data.text_rules import TextRule
from transformer_kit.data.tokenizer import Tokenizer
from transformer_kit.errors import DataError
from transformer_kit.specials import Specials

AS_IT_IS = TextRule(language="en", normalize=False, tokenize=False, lowercase=False)
LANGUAGE = re.compile(r">>[^<>]*<<")  # what a Marian model of several languages reads first
UNWRITABLE = "\ufdd0"  # a noncharacter: in front of the names of ids that text must not produce


def description(
    kind: str, specials: Specials, *, head: Sequence[int] = (), files: Mapping[str, str] | None = None, **more: Any
) -> dict[str, Any]:
    """What `restore` needs beside the model.

    Args:
        kind: the tokenizer's kind.
        specials: the ids with a meaning of their own.
        head: ids in front of every row.
        files: name -> text of files that describe the tokenizer to other programs.
        more: options of the kind.
    """
    about = {
        "kind": kind,
        "rule": asdict(AS_IT_IS),
        "specials": asdict(specials) | {"sentinels": [*specials.sentinels]},
    }
    return about | {"head": [*head], "files": dict(files or {}), **more}


class ImportedTokenizer(Tokenizer):
    """A tokenizer whose ids were numbered elsewhere.

    Args:
        model: what it came from, serialized.
        about: see `description`.
        tag, prefix: see `Tokenizer`.
    """

    def __init__(self, model: bytes, about: Mapping[str, Any], tag: str | None = None, prefix: str = "") -> None:
        self._about = dict(about)
        given = dict(about["specials"])
        specials = Specials(**given | {"sentinels": tuple(given["sentinels"])})
        rule = TextRule(**about["rule"])
        super().__init__(model, rule, specials, controls={}, head=about["head"], tag=tag, prefix=prefix)

    @classmethod
    def restore(cls, model: bytes, about: Mapping[str, Any], tag: str | None = None, prefix: str = "") -> Self:
        return cls(model, about, tag, prefix)

    @property
    def about(self) -> dict[str, Any]:
        return self._about

    def files(self) -> dict[str, bytes]:
        """The files that it came from, by name."""
        return {name: text.encode() for name, text in self._about["files"].items()}

    def _real(self, rows: Sequence[Sequence[int]], size: int) -> list[list[int]]:
        """The rows without control ids and without ids that stand for no piece."""
        hidden = self.specials.all
        return [[int(one) for one in row if int(one) not in hidden and int(one) < size] for row in rows]


class JsonTokenizer(ImportedTokenizer):
    """A `tokenizer.json`.

    Its template is not applied, nor are its padding and truncation; and control ids go by names that no text holds, in
    its vocabulary as among its added tokens, so that neither can find them.
    """

    kind = "tokenizers"

    def __init__(self, model: bytes, about: Mapping[str, Any], tag: str | None = None, prefix: str = "") -> None:
        super().__init__(model, about, tag, prefix)
        import tokenizers

        data = parsed_json(model)
        self._names = json_names(data)
        hidden = {number: name for number, name in self._names.items() if number in self.specials.all}
        try:
            self._core = tokenizers.Tokenizer.from_str(json.dumps(_without(data, hidden)))
        except Exception as error:  # the library raises nothing more special
            raise DataError(f"tokenizer.json cannot be used: {str(error).splitlines()[0]}") from None
        self._core.encode_special_tokens = True

    def files(self) -> dict[str, bytes]:
        return {**super().files(), "tokenizer.json": self.model}

    def cut(self, lines: list[str]) -> list[list[int]]:
        # One by one: the library's threads would not survive a fork.
        return [self._core.encode(_clean(line), add_special_tokens=False).ids for line in lines]

    def _join(self, rows: Sequence[Sequence[int]]) -> list[str]:
        return [self._core.decode(row, skip_special_tokens=False) for row in self._real(rows, self.vocab_size)]

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [self._names.get(int(one), f"<{int(one)}>") for one in ids]


def parsed_json(model: bytes) -> dict[str, Any]:
    """The content of a `tokenizer.json`.

    Raises:
        DataError: it is none.
    """
    try:
        data = json.loads(model)
        if not isinstance(data["model"], dict):
            raise ValueError("its model is no mapping")
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"tokenizer.json is damaged or of another kind ({error})") from None
    found: dict[str, Any] = data
    return found


def json_names(data: Mapping[str, Any]) -> dict[int, str]:
    """The piece of every id of a `tokenizer.json`.

    Raises:
        DataError: its vocabulary is none.
    """
    try:
        return _json_names(data)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"tokenizer.json is damaged: no vocabulary of pieces and ids ({error!r})") from None


def _json_names(data: Mapping[str, Any]) -> dict[int, str]:
    vocab = data["model"].get("vocab", {})
    pairs = vocab.items() if isinstance(vocab, dict) else ((entry[0], number) for number, entry in enumerate(vocab))
    names = {int(number): str(name) for name, number in pairs}
    return names | {int(token["id"]): str(token["content"]) for token in data.get("added_tokens") or []}


def _without(data: dict[str, Any], hidden: Mapping[int, str]) -> dict[str, Any]:
    """A `tokenizer.json` that cuts text and nothing more, and whose control ids have names that no text holds."""
    new = {name: f"{UNWRITABLE}{number}{UNWRITABLE}" for number, name in hidden.items()}
    model = dict(data["model"])
    vocab = model.get("vocab", {})
    if isinstance(vocab, dict):
        model["vocab"] = {new.get(name, name): number for name, number in vocab.items()}
    else:
        model["vocab"] = [[new.get(entry[0], entry[0]), *entry[1:]] for entry in vocab]
    if model.get("unk_token") in new:
        model["unk_token"] = new[model["unk_token"]]
    added = [
        token | ({"content": new[token["content"]], "special": True} if token["content"] in new else {})
        for token in data.get("added_tokens") or []
    ]
    return data | {"model": model, "added_tokens": added, "post_processor": None, "padding": None, "truncation": None}


class PieceTokenizer(ImportedTokenizer):
    """A SentencePiece model with its own ids; ids behind its last (T5's sentinels) are control ids.

    `about` says `name`, the file that the model came from.
    """

    kind = "spiece"

    def __init__(self, model: bytes, about: Mapping[str, Any], tag: str | None = None, prefix: str = "") -> None:
        super().__init__(model, about, tag, prefix)
        self._pieces = piece_model(model, about["name"])
        size = len(self._pieces)
        for number in sorted(self.specials.all):
            if number < size and not self._silent(number):
                piece = self._pieces.id_to_piece(number)
                raise DataError(f"{about['name']}: text can produce {piece!r}, which is a control id of the model")

    def files(self) -> dict[str, bytes]:
        return {**super().files(), self._about["name"]: self.model}

    def cut(self, lines: list[str]) -> list[list[int]]:
        ids: list[list[int]] = self._pieces.encode([_clean(line) for line in lines], out_type=int, num_threads=1)
        return ids

    def _join(self, rows: Sequence[Sequence[int]]) -> list[str]:
        return [self._pieces.decode(row) if row else "" for row in self._real(rows, len(self._pieces))]

    def pieces(self, ids: Sequence[int]) -> list[str]:
        size = len(self._pieces)
        return [self._pieces.id_to_piece(int(one)) if int(one) < size else f"<{int(one)}>" for one in ids]

    def _silent(self, number: int) -> bool:
        """Whether text cannot produce an id."""
        pieces = self._pieces
        return bool(pieces.is_control(number) or pieces.is_unknown(number) or pieces.is_unused(number))


class MarianTokenizer(ImportedTokenizer):
    """One side of a Marian model: a SentencePiece model cuts, a vocabulary numbers what it gives.

    A line may begin with the language that is asked for, as `>>deu<<`. The model is JSON: `spm` (base64) and `vocab`.
    """

    kind = "marian"

    def __init__(self, model: bytes, about: Mapping[str, Any], tag: str | None = None, prefix: str = "") -> None:
        super().__init__(model, about, tag, prefix)
        data = json.loads(model)
        self._spm = base64.b64decode(data["spm"])
        self._pieces = piece_model(self._spm, "the .spm file")
        self._vocab: dict[str, int] = data["vocab"]
        hidden, unknown = self.specials.all, self.specials.unk
        assert unknown is not None, "a Marian vocabulary has an unknown piece"
        self._unknown = unknown
        self._ids = {piece: number for piece, number in self._vocab.items() if number not in hidden}
        self._names = {number: piece for piece, number in self._vocab.items()}

    def files(self) -> dict[str, bytes]:
        """The pieces' model under the name of its side, and the vocabulary."""
        vocab = json.dumps(self._vocab, ensure_ascii=False, indent=2).encode()
        return {**super().files(), self._about["name"]: self._spm, self._about["vocab_name"]: vocab}

    def cut(self, lines: list[str]) -> list[list[int]]:
        return [self._cut(_clean(line)) for line in lines]

    def _cut(self, line: str) -> list[int]:
        row: list[int] = []
        if (language := LANGUAGE.match(line)) and language[0] in self._ids:
            row, line = [self._ids[language[0]]], line[language.end() :]
        pieces: list[str] = self._pieces.encode(line, out_type=str)
        return row + [self._ids.get(piece, self._unknown) for piece in pieces]

    def _join(self, rows: Sequence[Sequence[int]]) -> list[str]:
        named = [[self._names[one] for one in row if one in self._names] for row in self._real(rows, self.vocab_size)]
        return [self._pieces.decode_pieces(row).replace("▁", " ").strip() if row else "" for row in named]

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [self._names.get(int(one), f"<{int(one)}>") for one in ids]


def marian_model(spm: bytes, vocab: Mapping[str, int]) -> bytes:
    """The model of a `MarianTokenizer`."""
    return json.dumps({"spm": base64.b64encode(spm).decode(), "vocab": dict(vocab)}, ensure_ascii=False).encode()


def piece_model(model: bytes, name: str) -> sentencepiece.SentencePieceProcessor:
    """A SentencePiece model.

    Raises:
        DataError: it is none.
    """
    try:
        return sentencepiece.SentencePieceProcessor(model_proto=model)
    except RuntimeError as error:
        raise DataError(f"{name} is no SentencePiece model ({str(error).splitlines()[0]})") from None


def _clean(line: str) -> str:
    """A lone surrogate, which no file can hold, is read as `?`."""
    return line if line.isascii() else line.encode("utf-8", "replace").decode("utf-8")
