"""The tokenizer in a foreign folder: which files hold it, and which of its ids have a meaning of their own."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformer_kit.data.tokenizer import Tokenizers
from transformer_kit.data.tokenizers_imported import (
    JsonTokenizer,
    MarianTokenizer,
    PieceTokenizer,
    description,
    json_names,
    marian_model,
    parsed_json,
    piece_model,
)
from transformer_kit.errors import DataError
from transformer_kit.specials import Specials

ABOUT_FILES = ("tokenizer_config.json", "special_tokens_map.json")
PIECE_FILES = ("spiece.model", "tokenizer.model")
SENTINEL = re.compile(r"<extra_id_(\d+)>")
EXTRA_IDS = 100  # sentinels of T5 where nothing says how many

Find = Callable[[str], int | None]
"""The id of a piece, or None where there is none such."""


@dataclass(frozen=True)
class Model:
    """What the folder's model says about ids.

    Attributes:
        layout: its layout.
        config: its parsed `config.json`.
        source, target: rows of its embeddings: ids without a piece count too.
    """

    layout: str
    config: Mapping[str, Any]
    source: int
    target: int


def read_tokenizers(folder: Path, model: Model) -> Tokenizers:
    """The tokenizers of both sides.

    Raises:
        DataError: none there that can be read, or one that does not fit the model.
    """
    if (folder / "source.spm").is_file() and (folder / "target.spm").is_file():
        return _marian(folder, model)
    if (folder / "tokenizer.json").is_file():
        return Tokenizers.one(_json(folder, model))
    for name in PIECE_FILES:
        if (folder / name).is_file():
            return Tokenizers.one(_pieces(folder, name, model))
    raise DataError(
        f"{folder}: no tokenizer that can be read: tokenizer.json, {', '.join(PIECE_FILES)}, or source.spm and "
        "target.spm with vocab.json; the program that made the folder may save tokenizer.json"
    )


def _json(folder: Path, model: Model) -> JsonTokenizer:
    data = (folder / "tokenizer.json").read_bytes()
    names = json_names(parsed_json(data))
    ids = {name: number for number, name in names.items()}
    sentinels = {int(found[1]): ids[name] for name in ids if (found := SENTINEL.fullmatch(name))}
    specials = _specials(folder, model, ids.get, sentinels, max(names, default=-1) + 1, model.source)
    about = description("tokenizers", specials, head=_head(model, specials), files=_about_files(folder))
    return JsonTokenizer(data, about)


def _pieces(folder: Path, name: str, model: Model) -> PieceTokenizer:
    data = (folder / name).read_bytes()
    pieces, sentinels = piece_model(data, name), dict[int, int]()
    size = len(pieces)
    if model.layout == "t5":
        count = _about(folder).get("extra_ids", EXTRA_IDS)
        if not isinstance(count, int) or count < 0:
            raise DataError(f"{folder}: extra_ids={count!r} in tokenizer_config.json: must be a whole number")
        sentinels = {number: size + count - 1 - number for number in range(count)}
        size += count

    def find(piece: str) -> int | None:
        number = int(pieces.piece_to_id(piece))
        return number if pieces.id_to_piece(number) == piece else None

    specials = _specials(folder, model, find, sentinels, size, model.source)
    about = description("spiece", specials, head=_head(model, specials), files=_about_files(folder), name=name)
    return PieceTokenizer(data, about)


def _marian(folder: Path, model: Model) -> Tokenizers:
    made = []
    separate = (folder / "target_vocab.json").is_file()
    for side, rows in (("source", model.source), ("target", model.target)):
        vocab_name = "target_vocab.json" if separate and side == "target" else "vocab.json"
        vocab = _vocab(folder / vocab_name)
        specials = _specials(folder, model, vocab.get, {}, max(vocab.values(), default=-1) + 1, rows)
        spm = (folder / f"{side}.spm").read_bytes()
        piece_model(spm, f"{side}.spm")
        about = description("marian", specials, files=_about_files(folder), name=f"{side}.spm", vocab_name=vocab_name)
        made.append(MarianTokenizer(marian_model(spm, vocab), about))
    return Tokenizers(made[0], made[1], joint=not separate)


def _vocab(path: Path) -> dict[str, int]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        vocab = {str(piece): int(number) for piece, number in found.items()}
    except FileNotFoundError:
        raise DataError(f"{path}: is missing; a Marian tokenizer has one") from None
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise DataError(f"{path}: is damaged ({error})") from None
    if "<unk>" not in vocab:
        raise DataError(f"{path}: has no piece <unk>")
    return vocab


def _specials(folder: Path, model: Model, find: Find, sentinels: Mapping[int, int], size: int, rows: int) -> Specials:
    """The special ids, from the tokenizer's own files, then from the model's configuration."""
    if size > rows:
        raise DataError(f"{folder}: its tokenizer has {size} ids, its model's table {rows} rows; they do not fit")
    said = _about(folder)

    def role(*keys: str) -> int | None:
        for key in keys:
            name = said.get(key)
            name = name.get("content") if isinstance(name, dict) else name
            number = find(name) if isinstance(name, str) else None
            if number is not None:
                return number
        for key in keys:
            number = model.config.get(f"{key}_id")
            number = number[0] if isinstance(number, list) and number else number
            if isinstance(number, int) and not isinstance(number, bool) and 0 <= number < rows:
                return number
        return None

    marked = model.layout in ("bert", "roberta")  # rows stand between marks
    unk = role("unk_token")
    eos = role(*(("sep_token", "eos_token") if marked else ("eos_token", "sep_token")))
    if eos is None:
        eos = find("[SEP]") if marked else find("</s>")
    bos = role(*(("cls_token", "bos_token") if marked else ("bos_token", "cls_token")))
    if bos is None and marked:
        bos = find("[CLS]")
    if eos is None:
        raise DataError(f"{folder}: nothing says which id ends a row (eos_token in tokenizer_config.json)")
    pad = role("pad_token")
    if pad is None:
        pad = unk if unk is not None else eos
    start = _start(model, pad, bos, eos)
    bos = start if bos is None else bos
    mask = role("mask_token")
    if mask is None and marked:
        mask = find("[MASK]")
    ordered = tuple(sentinels[number] for number in sorted(sentinels))
    unk = None if unk in (pad, bos, eos, start) else unk  # one id cannot be both written and hidden
    return Specials(pad, bos, eos, unk, mask, ordered, rows, start)


def _start(model: Model, pad: int, bos: int | None, eos: int) -> int:
    """What a decoder reads first."""
    number = model.config.get("decoder_start_token_id")
    if isinstance(number, int) and not isinstance(number, bool) and 0 <= number < model.target:
        return number
    return {"t5": pad, "marian": pad, "bart": eos}.get(model.layout, eos if bos is None else bos)


def _head(model: Model, specials: Specials) -> list[int]:
    """Ids in front of every row: BART's texts begin with its BOS, on both sides."""
    return [specials.bos] if model.layout == "bart" else []


def _about(folder: Path) -> dict[str, Any]:
    """What the folder's files say of the tokenizer; the first to say a thing counts."""
    found: dict[str, Any] = {}
    for text in _about_files(folder).values():
        said = json.loads(text)
        found = (said if isinstance(said, dict) else {}) | found
    return found


def _about_files(folder: Path) -> dict[str, str]:
    files = {}
    for name in ABOUT_FILES:
        try:
            files[name] = (folder / name).read_text(encoding="utf-8")
            json.loads(files[name])
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise DataError(f"{folder / name}: is damaged ({error})") from None
    return files
