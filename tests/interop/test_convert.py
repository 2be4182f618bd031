"""`tkit convert`: a foreign folder becomes a run, a run a foreign folder, whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from test_imported_tokenizers import CORPUS, bart, gpt2, marian, pieces, unigram, wordpiece
from test_tables import config as foreign_config

from transformer_kit.batch import Batch, pad
from transformer_kit.cli.app import main
from transformer_kit.config.build import build_model
from transformer_kit.data.sentencepiece_tokenizer import SentencePieceTokenizer
from transformer_kit.data.tokenizer import Tokenizers
from transformer_kit.data.tokenizers_imported import AS_IT_IS
from transformer_kit.errors import CheckpointError, ConfigError, RunError
from transformer_kit.interop.files import read_config, read_tensors, write_folder
from transformer_kit.interop.foreign import Foreign
from transformer_kit.interop.layouts import LAYOUTS, layout_of
from transformer_kit.tasks import convert
from transformer_kit.tasks.foreign_tokenizer import tokenizer_files
from transformer_kit.tasks.load import load
from transformer_kit.training.weights import unique_tensors

WORDS = 400
WRITERS: dict[str, Callable[[Path], None]] = {
    "gpt2": gpt2,
    "bert": wordpiece,
    "bart": bart,
    "t5": unigram,
    "marian": lambda folder: marian(folder, separate=False),
}


def foreign(name: str, folder: Path, **changes: Any) -> Path:
    """A folder with random weights and a tokenizer."""
    folder.mkdir()
    sizes = {"vocab_size": WORDS} | ({"decoder_vocab_size": WORDS} if name == "marian" else {})
    start = {"bart": {"decoder_start_token_id": 2}, "marian": {"decoder_start_token_id": 60}}.get(name, {})
    config = foreign_config(name, **(sizes | start | changes))
    layout = layout_of(config)
    options = layout.model_options(config)
    extent = layout.extent(Foreign(config, name))
    state = unique_tensors(build_model(options, extent.source, extent.target))
    written, tensors = layout.to_hf(state, options)
    write_folder(folder, written | start, tensors)
    WRITERS[name](folder)
    return folder


@pytest.mark.parametrize(
    "name", [name if name == "marian" else pytest.param(name, marks=pytest.mark.slow) for name in WRITERS]
)
def test_there_and_back(name: str, tmp_path: Path) -> None:
    folder = foreign(name, tmp_path / "foreign")
    run = convert.import_model(f"hf:{folder}", tmp_path / "runs" / "one")
    loaded = load(run, ["trainer.device=cpu"])
    assert loaded.model.family == LAYOUTS[name].family
    assert loaded.config.run.name == "one"
    result = json.loads((run / "result.json").read_text())
    assert result["status"] == "imported"
    assert result["model"]["layout"] == name
    assert result["parameters"] == sum(tensor.numel() for tensor in unique_tensors(loaded.model).values())
    out = convert.export_model(run, tmp_path / "out")
    assert {path.name for path in out.iterdir()} == {path.name for path in folder.iterdir()}
    config = read_config(out)
    assert layout_of(config).model_options(config) == layout_of(config).model_options(read_config(folder))
    tensors, again = read_tensors(folder), read_tensors(out)
    assert tensors.keys() == again.keys()
    assert all(torch.equal(again[key], tensors[key]) for key in tensors)
    for path in folder.iterdir():
        if path.suffix != ".safetensors" and path.name not in ("config.json", "vocab.json"):
            assert (out / path.name).read_bytes() == path.read_bytes()


def test_a_classifier_keeps_its_labels(tmp_path: Path) -> None:
    folder = foreign("bert", tmp_path / "foreign")
    config, tensors = read_config(folder), read_tensors(folder)
    config |= {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "no", "1": "yes", "2": "maybe"}}
    tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith("cls.")}
    tensors |= {"bert.pooler.dense.weight": torch.randn(21, 21), "bert.pooler.dense.bias": torch.randn(21)}
    tensors |= {"classifier.weight": torch.randn(3, 21), "classifier.bias": torch.randn(3)}
    write_folder(folder, config, tensors)
    loaded = load(convert.import_model(f"hf:{folder}", tmp_path / "run"), ["trainer.device=cpu"])
    assert loaded.labels == ["no", "yes", "maybe"]
    target = pad([[2, 7, 9, 3], [2, 11, 3]], 0)
    batch = Batch(None, target, target.ids, target.valid, 2, torch.arange(2))
    assert loaded.model(batch).hidden.shape == (2, 1, 3)
    out = convert.export_model(tmp_path / "run", tmp_path / "out")
    assert read_config(out)["id2label"] == config["id2label"]
    again = read_tensors(out)
    assert all(torch.equal(again[name], tensors[name]) for name in tensors)


def test_what_is_there_is_left_alone(tmp_path: Path) -> None:
    folder = foreign("gpt2", tmp_path / "foreign")
    (tmp_path / "run").mkdir()
    with pytest.raises(RunError, match="is there already"):
        convert.import_model(f"hf:{folder}", tmp_path / "run")
    assert not list((tmp_path / "run").iterdir())


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    folder = foreign("gpt2", tmp_path / "foreign")
    tensors = read_tensors(folder)
    tensors["transformer.h.0.mlp.c_fc.weight"] = torch.zeros(5, 3)
    write_folder(folder, read_config(folder), tensors)
    with pytest.raises(CheckpointError, match=r"c_fc\.weight is \(5, 3\), the configuration makes it \(21, 84\)"):
        convert.import_model(f"hf:{folder}", tmp_path / "run")
    assert [path.name for path in tmp_path.iterdir()] == ["foreign"]


def own_run(tmp_path: Path, options: dict[str, Any], kind: str = "bpe") -> Path:
    """A run as training leaves it, as far as an export looks."""
    tokenizers = Tokenizers.one(sentencepiece(kind))
    rows = tokenizers.source.vocab_size
    state = unique_tensors(build_model(options, rows, rows))
    found = convert.Foreigner("none", options, state, tokenizers)
    config = convert._config(found, tmp_path / "run")
    (tmp_path / "run").mkdir()
    convert._write_run(tmp_path / "run", found, config, convert._check(found, config))
    return tmp_path / "run"


def sentencepiece(kind: str) -> SentencePieceTokenizer:
    """A tokenizer of ours."""
    model = pieces(pad_id=0, unk_id=1, bos_id=2, eos_id=3, pad_piece="<pad>", model_type=kind)
    return SentencePieceTokenizer(model, AS_IT_IS)


def test_a_model_of_ours_goes_out_in_the_first_layout_that_holds_it(tmp_path: Path) -> None:
    options = LAYOUTS["llama"].model_options(foreign_config("llama"))
    options["position"] |= {"layout": "interleaved"}
    run = own_run(tmp_path, options)
    out = convert.export_model(run, tmp_path / "out")
    config = read_config(out)
    assert config["model_type"] == "llama"
    assert (config["pad_token_id"], config["bos_token_id"], config["eos_token_id"]) == (0, 2, 3)
    assert (out / "tokenizer.model").is_file()
    with pytest.raises(ConfigError, match="the gpt2 layout cannot hold it"):
        convert.export_model(run, tmp_path / "other", "gpt2")
    again = convert.import_model(f"hf:{out}", tmp_path / "again")
    one, other = (load(folder, ["trainer.device=cpu"]) for folder in (run, again))
    target = pad([[2, 7, 9, 11, 13], [2, 11, 17]], 0)
    batch = Batch(None, target, target.ids, target.valid, 8, torch.arange(2))
    with torch.no_grad():
        logits = [each.model.logits(each.model(batch).hidden)[target.valid] for each in (one, other)]
    torch.testing.assert_close(*logits)
    assert one.tokenizers.source.encode(["the fox"]) == other.tokenizers.source.encode(["the fox"])


def test_what_no_layout_holds_is_told_for_each(tmp_path: Path) -> None:
    options = LAYOUTS["llama"].model_options(foreign_config("llama"))
    options["position"] = {"_target_": "transformer_kit.nn.position.alibi.Alibi"}
    run = own_run(tmp_path, options)
    with pytest.raises(ConfigError) as told:
        convert.export_model(run, tmp_path / "out")
    for name in ("gpt2", "llama", "mistral"):
        assert any("Alibi" in line and name in line for line in told.value.problems)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["runs/one", "-o", "x"], "add --to hf"),
        (["hf:there", "-o", "x", "--to", "hf"], "--to: is for exporting"),
        (["hf:there", "-o", "x", "--tokenizer", "t.bin"], "--tokenizer: is for importing llama2c"),
        (["llama2c:f.bin", "-o", "x"], "give --tokenizer"),
        (["hf:nowhere", "-o", "x"], "no such folder"),
    ],
)
def test_wrong_command_lines_are_told(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as left:
        main(["convert", *words])
    assert left.value.code in (1, 2)
    assert told in capsys.readouterr().err


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = foreign("gpt2", tmp_path / "foreign")
    for words in (
        [f"hf:{folder}", "-o", str(tmp_path / "run")],
        [str(tmp_path / "run"), "--to", "hf", "-o", str(tmp_path / "out")],
    ):
        with pytest.raises(SystemExit) as left:
            main(["convert", *words])
        assert left.value.code == 0
    assert capsys.readouterr().out == ""
    assert (tmp_path / "out" / "model.safetensors").is_file()


FITS = [("llama", "bpe"), ("mistral", "bpe"), ("t5", "unigram"), ("marian", "bpe"), ("marian", "unigram")]


@pytest.mark.slow
@pytest.mark.parametrize(("layout", "kind"), FITS)
def test_other_programs_read_our_pieces(layout: str, kind: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="the oracle, transformers, is not installed (extra: dev)")
    own = sentencepiece(kind)
    files, why = tokenizer_files(Tokenizers.one(own), layout)
    assert not why
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": layout, "vocab_size": own.vocab_size}))
    read = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert (read.pad_token_id, read.eos_token_id, read.unk_token_id) == (0, 3, 1)
    assert own.encode(CORPUS[:5]) == [read(line, add_special_tokens=False)["input_ids"] for line in CORPUS[:5]]


def test_pieces_that_others_would_read_otherwise_stay_here() -> None:
    for layout, kind in (("llama", "unigram"), ("t5", "bpe"), ("bert", "bpe"), ("gpt2", "unigram")):
        files, why = tokenizer_files(Tokenizers.one(sentencepiece(kind)), layout)
        assert not files
        assert layout in why
