"""A real model of llama2.c: the golden text, token by token, and its tokenizer."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from transformer_kit.batch import Batch, pad
from transformer_kit.config.build import build_model
from transformer_kit.data.llama2c_tokenizer import Llama2cTokenizer, specials_of
from transformer_kit.data.tokenizer import Tokenizers
from transformer_kit.data.tokenizers_imported import description
from transformer_kit.errors import CheckpointError, DataError
from transformer_kit.interop.layouts import LAYOUTS
from transformer_kit.interop.llama2c import read_file
from transformer_kit.models.decoder_only import DecoderOnly
from transformer_kit.training.weights import fill

FOLDER = Path(os.environ.get("TKIT_DATA", "")) / "stories260k"
needs_data = pytest.mark.skipif(
    not os.environ.get("TKIT_DATA") or not FOLDER.is_dir(), reason="TKIT_DATA names no folder with stories260k"
)
STEPS = 200


def tokenizer() -> Llama2cTokenizer:
    return Llama2cTokenizer((FOLDER / "tok512.bin").read_bytes(), description("llama2c", specials_of(512)))


def stories() -> DecoderOnly:
    options, state = read_file(FOLDER / "stories260K.bin")
    model = build_model(options, 512).eval()
    fill(model, state, "stories260K.bin")
    assert isinstance(model, DecoderOnly)
    return model


@needs_data
def test_greedy_text_is_the_golden_one() -> None:
    model, pieces = stories(), tokenizer()
    state = model.start(1, 1, STEPS)
    row = [pieces.specials.bos]
    for _ in range(STEPS):
        logits = model.logits(model.extend(torch.tensor([row[-1:]]), state))
        row.append(int(logits[0, -1].argmax()))
    golden = (FOLDER / "golden.txt").read_text(encoding="utf-8")
    assert pieces.decode([row[1:]]) == [golden.rstrip("\n")]


@needs_data
@torch.no_grad()
def test_as_a_llama_folder_it_computes_the_same() -> None:
    options, state = read_file(FOLDER / "stories260K.bin")
    layout = LAYOUTS["llama"]
    config, tensors = layout.to_hf(state, options)
    again = layout.model_options(config, tensors.keys())
    assert again["position"]["layout"] == "half"
    model = build_model(again, 512).eval()
    fill(model, layout.from_hf(tensors, config), "the folder")
    target = pad([[1, 403, 407, 261, 378], [1, 80, 90]], 0)
    batch = Batch(None, target, target.ids, target.valid, 8, torch.arange(2))
    found, expected = (one.logits(one(batch).hidden)[target.valid] for one in (model, stories()))
    assert float((found - expected).abs().max()) < 1e-4


@needs_data
def test_pieces_and_back() -> None:
    pieces = tokenizer()
    golden = (FOLDER / "golden.txt").read_text(encoding="utf-8").rstrip("\n")
    texts = [golden, "", " ", "  two", "é ☃ 😀 \t\u2028", "<s></s><unk>", "<0x0A>", "\n<s>\n", "a" * 300]
    rows = pieces.encode(texts)
    assert pieces.decode(rows) == texts
    assert rows[1] == []
    assert not {0, 1, 2} & {one for row in rows for one in row}
    assert max(map(len, rows[:1])) < len(golden)
    assert pieces.decode([[1, *rows[0], 2]]) == [golden]


@needs_data
def test_it_is_saved_and_found_again(tmp_path: Path) -> None:
    saved = Tokenizers.one(tokenizer())
    saved.save(tmp_path)
    loaded = Tokenizers.load(tmp_path, saved.fingerprint)
    assert loaded.source.encode(["One day"]) == saved.source.encode(["One day"])


@needs_data
def test_damaged_files_are_told(tmp_path: Path) -> None:
    data = (FOLDER / "stories260K.bin").read_bytes()
    for name, content in {"cut": data[:-4], "short": data[:20], "other": b"ak42" + data[4:], "zero": bytes(40)}.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(CheckpointError, match=name):
            read_file(tmp_path / name)
    with pytest.raises(DataError, match="ends within"):
        Llama2cTokenizer((FOLDER / "tok512.bin").read_bytes()[:-1], description("llama2c", specials_of(512)))


def merged_naively(pieces: Llama2cTokenizer, line: str) -> list[int]:
    """The published loop: look at every pair, make the best merge, start again."""
    ids = {piece: number for number, (piece, _) in reversed([*enumerate(pieces.table)]) if number > 2}
    row = [ids[b" "]] if line else []
    for character in line:
        encoded = character.encode()
        row += [ids[encoded]] if encoded in ids else [byte + 3 for byte in encoded]
    while True:
        best: tuple[float, int, int] | None = None
        for place in range(len(row) - 1):
            found = ids.get(pieces.table[row[place]][0] + pieces.table[row[place + 1]][0])
            if found is not None and (best is None or pieces.table[found][1] > best[0]):
                best = (pieces.table[found][1], place, found)
        if best is None:
            return row
        row[best[1] : best[1] + 2] = [best[2]]


@needs_data
def test_merges_are_those_of_the_published_loop() -> None:
    pieces = tokenizer()
    golden = (FOLDER / "golden.txt").read_text(encoding="utf-8")
    lines = [golden[start : start + 60] for start in range(0, 400, 37)] + ["aaaaaaaaa", "é\n\n\nthe thethe  the", "x"]
    assert pieces.encode(lines) == [merged_naively(pieces, line) for line in lines]
