"""Tokenizers that came with models: their own ids, no control ids from text, files that are kept."""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import tokenizers as library
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from transformer_kit.data.tokenizer import Tokenizers
from transformer_kit.data.tokenizers_folder import Model, read_tokenizers
from transformer_kit.errors import DataError

CORPUS = [
    "the quick brown fox jumps over the lazy dog",
    "a fox is quick and a dog is lazy",
    "how much wood would a woodchuck chuck",
    "pack my box with five dozen liquor jugs",
    "ein Satz mit Wörtern und Zahlen 12345 67890",
    "[SEP] </s> <s> <pad> <mask> [MASK] <extra_id_0>",
] * 4
HARD = [
    "[CLS] the fox [SEP]",
    "</s> the </s>",
    "<s>fox</s><pad><mask>",
    "[MASK]",
    "<extra_id_0> quick <extra_id_1>",
    "<|endoftext|>",
    "é ☃ 😀\u2028x",
    "",
    " ",
]


def wordpiece(folder: Path) -> None:
    """As BERT has it, padding and truncation switched on, as some files have them."""
    tokenizer = library.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    marks = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=120, special_tokens=marks))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.enable_truncation(5)
    tokenizer.enable_padding(length=16)
    tokenizer.save(str(folder / "tokenizer.json"))
    about = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "unk_token": "[UNK]"}
    about |= {"mask_token": "[MASK]"}
    (folder / "tokenizer_config.json").write_text(json.dumps(about))


def byte_level(folder: Path, marks: list[str], about: dict[str, str]) -> None:
    tokenizer = library.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=marks, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "special_tokens_map.json").write_text(json.dumps(about))


def gpt2(folder: Path) -> None:
    byte_level(folder, ["<|endoftext|>"], {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"})


def bart(folder: Path) -> None:
    marks = ["<s>", "<pad>", "</s>", "<unk>"]
    about: dict[str, Any] = {"bos_token": "<s>", "eos_token": "</s>", "cls_token": "<s>", "sep_token": "</s>"}
    about |= {"pad_token": "<pad>", "unk_token": "<unk>", "mask_token": {"content": "<mask>", "lstrip": True}}
    byte_level(folder, marks, about)
    data = json.loads((folder / "tokenizer.json").read_text())
    flags = {"single_word": False, "lstrip": True, "rstrip": False, "normalized": False, "special": True}
    data["added_tokens"].append({"id": len(data["model"]["vocab"]), "content": "<mask>", **flags})
    (folder / "tokenizer.json").write_text(json.dumps(data))


def unigram(folder: Path) -> None:
    """As T5 has it: control pieces with a score of zero in the vocabulary, which text would be glad to use."""
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0)]
    letters = sorted({letter for line in CORPUS for letter in line if letter != " "} | set("<>/_[]|"))
    pieces += [(letter, -8.0) for letter in letters]
    pieces += [(f"▁{word}", -4.0) for word in sorted({word for line in CORPUS[:4] for word in line.split()})]
    pieces += [("<extra_id_1>", 0.0), ("<extra_id_0>", 0.0)]
    tokenizer = library.Tokenizer(models.Unigram(pieces, unk_id=2, byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(["<pad>", "</s>", "<unk>", "<extra_id_0>", "<extra_id_1>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"})
    )


KINDS: dict[str, tuple[Callable[[Path], None], str, dict[str, Any]]] = {
    "bert": (wordpiece, "bert", {}),
    "gpt2": (gpt2, "gpt2", {}),
    "bart": (bart, "bart", {"decoder_start_token_id": 2}),
    "t5": (unigram, "t5", {"decoder_start_token_id": 0}),
}


def read(name: str, folder: Path, rows: int = 400) -> Tokenizers:
    write, layout, config = KINDS[name]
    write(folder)
    return read_tokenizers(folder, Model(layout, config, rows, rows))


@pytest.mark.parametrize("name", list(KINDS))
def test_text_never_gives_control_ids(name: str, tmp_path: Path) -> None:
    tokenizer = read(name, tmp_path).source
    head = len(tokenizer.head_ids)
    for line, row in zip(HARD + CORPUS, tokenizer.encode(HARD + CORPUS), strict=True):
        assert not tokenizer.specials.all & set(row[head:]), line
    assert tokenizer.vocab_size == 400


@pytest.mark.parametrize("name", list(KINDS))
def test_ids_are_those_of_the_library(name: str, tmp_path: Path) -> None:
    tokenizer = read(name, tmp_path).source
    plain = library.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    plain.no_truncation()
    plain.no_padding()
    for line in CORPUS[:5]:
        ids = plain.encode(line, add_special_tokens=False).ids
        assert tokenizer.encode([line]) == [tokenizer.head_ids + ids]
        assert tokenizer.decode([[tokenizer.bos_id, *ids, tokenizer.eos_id, tokenizer.pad_id, 399]])[0] == plain.decode(
            ids
        )
        assert tokenizer.pieces(ids) == [plain.id_to_token(one) for one in ids]


def test_special_ids(tmp_path: Path) -> None:
    found = {}
    for name in KINDS:
        folder = tmp_path / name
        folder.mkdir()
        found[name] = read(name, folder).source
    bert, gpt, bart_, t5 = (found[name].specials for name in KINDS)
    assert (bert.pad, bert.unk, bert.bos, bert.eos, bert.mask) == (0, 1, 2, 3, 4)
    assert (gpt.pad, gpt.bos, gpt.eos, gpt.unk, gpt.mask) == (0, 0, 0, None, None)
    assert (bart_.bos, bart_.pad, bart_.eos, bart_.unk, bart_.start, bart_.mask) == (0, 1, 2, 3, 2, 300)
    assert found["bart"].head_ids == [0]
    assert (t5.pad, t5.eos, t5.unk, t5.bos, t5.start) == (0, 1, 2, 0, 0)
    assert [found["t5"].pieces([one])[0] for one in t5.sentinels] == ["<extra_id_0>", "<extra_id_1>"]


@pytest.mark.parametrize("name", list(KINDS))
def test_saved_pickled_and_exported(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "foreign"
    folder.mkdir()
    made = read(name, folder)
    made.save(tmp_path / "run")
    for again in (Tokenizers.load(tmp_path / "run", made.fingerprint).source, pickle.loads(pickle.dumps(made.source))):
        assert again.encode(CORPUS) == made.source.encode(CORPUS)
        assert again.specials == made.source.specials
    files = Tokenizers.load(tmp_path / "run").source.files()  # type: ignore[attr-defined]  # an imported kind
    assert files == {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_tokenizer_larger_than_its_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="its model's table 50 rows"):
        read("gpt2", tmp_path, rows=50)


def test_damaged_and_missing_files_are_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no tokenizer that can be read"):
        read_tokenizers(tmp_path, Model("gpt2", {}, 9, 9))
    for text in (
        "{",
        "[]",
        '{"model": 3}',
        '{"model": {"vocab": [[]]}}',
        '{"model": {}, "added_tokens": [3]}',
        '{"model": {"type": "BPE", "vocab": {"a": 0}}}',
    ):
        (tmp_path / "tokenizer.json").write_text(text)
        with pytest.raises(DataError, match=r"tokenizer\.json|nothing says"):
            read_tokenizers(tmp_path, Model("gpt2", {}, 9, 9))
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "spiece.model").write_bytes(b"nonsense")
    with pytest.raises(DataError, match=r"spiece\.model is no SentencePiece model"):
        read_tokenizers(tmp_path, Model("t5", {}, 9, 9))


def pieces(**options: Any) -> bytes:
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_writer=out,
        **{"vocab_size": 90, "hard_vocab_limit": False, "minloglevel": 2} | options,
    )
    return out.getvalue()


def test_sentencepiece_of_t5(tmp_path: Path) -> None:
    model = pieces(pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    (tmp_path / "spiece.model").write_bytes(model)
    size = len(sentencepiece.SentencePieceProcessor(model_proto=model))
    config = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
    tokenizer = read_tokenizers(tmp_path, Model("t5", config, size + 128, size + 128)).source
    assert tokenizer.specials.sentinels[0] == size + 99
    assert tokenizer.specials.sentinels[99] == size
    assert (tokenizer.pad_id, tokenizer.eos_id, tokenizer.unk_id, tokenizer.specials.start) == (0, 1, None, 0) or (
        tokenizer.unk_id == 2
    )
    rows = tokenizer.encode(CORPUS + HARD)
    assert not tokenizer.specials.all & {one for row in rows for one in row}
    assert tokenizer.decode(rows[:4]) == CORPUS[:4]
    assert tokenizer.decode([[*rows[0], 1, size + 3, size + 120]]) == CORPUS[:1]


def test_sentencepiece_of_llama(tmp_path: Path) -> None:
    model = pieces(model_type="bpe", unk_id=0, bos_id=1, eos_id=2, pad_id=-1, vocab_size=400, byte_fallback=True)
    (tmp_path / "tokenizer.model").write_bytes(model)
    size = len(sentencepiece.SentencePieceProcessor(model_proto=model))
    config = {"bos_token_id": 1, "eos_token_id": [2, 3]}
    tokenizer = read_tokenizers(tmp_path, Model("llama", config, size, size)).source
    assert (tokenizer.bos_id, tokenizer.eos_id) == (1, 2)
    rows = tokenizer.encode([*CORPUS, *HARD])
    assert not {1, 2} & {one for row in rows for one in row}
    assert tokenizer.decode(rows[:6]) == CORPUS[:6]
    saved = Tokenizers.one(tokenizer)
    saved.save(tmp_path / "run")
    assert Tokenizers.load(tmp_path / "run").source.files()["tokenizer.model"] == model  # type: ignore[attr-defined]  # an imported kind


def marian(folder: Path, separate: bool) -> None:
    for side in ("source", "target"):
        (folder / f"{side}.spm").write_bytes(pieces(model_type="unigram"))
    names = [
        sentencepiece.SentencePieceProcessor(model_file=str(folder / "source.spm")).id_to_piece(i) for i in range(60)
    ]
    ordered = ["</s>", "<unk>", *reversed(names[3:]), ">>deu<<", "<pad>"]
    vocab = {piece: number for number, piece in enumerate(ordered)}
    (folder / "vocab.json").write_text(json.dumps(vocab))
    if separate:
        (folder / "target_vocab.json").write_text(json.dumps(vocab))
    about = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(about))


@pytest.mark.parametrize("separate", [False, True])
def test_marian(tmp_path: Path, separate: bool) -> None:
    folder = tmp_path / "foreign"
    folder.mkdir()
    marian(folder, separate)
    made = read_tokenizers(folder, Model("marian", {"decoder_start_token_id": 60}, 61, 61))
    vocab = json.loads((folder / "vocab.json").read_text())
    source = made.source
    assert made.joint is not separate
    assert (source.eos_id, source.unk_id, source.pad_id, source.specials.start) == (0, 1, vocab["<pad>"], 60)
    (row,) = source.encode([">>deu<< the quick fox"])
    assert row[0] == vocab[">>deu<<"]
    assert source.decode([row[1:]])[0].replace(" ⁇", "").strip()
    assert not source.specials.all & {one for line in source.encode(HARD) for one in line}
    made.save(tmp_path / "run")
    again = Tokenizers.load(tmp_path / "run", made.fingerprint)
    assert again.source.encode(CORPUS) == source.encode(CORPUS)
    files = again.source.files() | again.target.files()  # type: ignore[attr-defined]  # an imported kind
    assert set(files) == {path.name for path in folder.iterdir()}
    assert files["target.spm"] == (folder / "target.spm").read_bytes()
    assert json.loads(files["vocab.json"]) == vocab


def test_a_damaged_marian_vocabulary_is_told(tmp_path: Path) -> None:
    marian(tmp_path, separate=False)
    for text, told in (("{", "damaged"), ('{"a": 1}', "no piece <unk>"), ("[]", "damaged")):
        (tmp_path / "vocab.json").write_text(text)
        with pytest.raises(DataError, match=told):
            read_tokenizers(tmp_path, Model("marian", {}, 61, 61))
    (tmp_path / "vocab.json").unlink()
    with pytest.raises(DataError, match="is missing"):
        read_tokenizers(tmp_path, Model("marian", {}, 61, 61))
