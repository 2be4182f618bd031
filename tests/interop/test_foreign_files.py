"""Folders of foreign models: shards, half precision, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from transformer_kit.errors import CheckpointError
from transformer_kit.interop.files import CONFIG, INDEX, WEIGHTS, read_config, read_tensors, write_folder


def test_written_and_read_again(tmp_path: Path) -> None:
    tensors = {"a": torch.randn(3, 5), "b": torch.randn(7, 2).T}
    write_folder(tmp_path, {"model_type": "gpt2"}, tensors)
    assert read_config(tmp_path) == {"model_type": "gpt2"}
    again = read_tensors(tmp_path)
    assert all(torch.equal(again[name], tensors[name]) for name in tensors)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_widened(tmp_path: Path, dtype: torch.dtype) -> None:
    tensor = torch.randn(3, 5).to(dtype)
    save_file({"a": tensor, "n": torch.arange(3)}, tmp_path / WEIGHTS)
    found = read_tensors(tmp_path)
    assert found["a"].dtype == torch.float32
    assert torch.equal(found["a"], tensor.float())
    assert found["n"].dtype == torch.int64


def shards(folder: Path, placed: dict[str, str]) -> None:
    save_file({"a": torch.ones(3)}, folder / "one.safetensors")
    save_file({"b": torch.ones(5)}, folder / "two.safetensors")
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": placed}))


def test_shards(tmp_path: Path) -> None:
    shards(tmp_path, {"a": "one.safetensors", "b": "two.safetensors"})
    assert {name: tuple(tensor.shape) for name, tensor in read_tensors(tmp_path).items()} == {"a": (3,), "b": (5,)}


@pytest.mark.parametrize("name", ["../two.safetensors", "/etc/passwd", "sub/two.safetensors", "..", "", "a\\b"])
def test_shards_outside_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    inside = tmp_path / "model"
    inside.mkdir()
    save_file({"b": torch.ones(5)}, tmp_path / "two.safetensors")
    shards(inside, {"a": "one.safetensors", "b": name})
    with pytest.raises(CheckpointError, match="no plain file name"):
        read_tensors(inside)


def test_an_index_that_lies_is_told(tmp_path: Path) -> None:
    shards(tmp_path, {"a": "one.safetensors", "c": "two.safetensors"})
    with pytest.raises(CheckpointError, match="c is in none of the shards"):
        read_tensors(tmp_path)
    shards(tmp_path, {"a": "three.safetensors"})
    with pytest.raises(CheckpointError, match="three"):
        read_tensors(tmp_path)


def test_pickles_are_never_read(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch /tmp/owned'\ntR.")
    with pytest.raises(CheckpointError, match=r"convert it to model\.safetensors"):
        read_tensors(tmp_path)


def test_missing_and_damaged_files_are_told(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="neither"):
        read_tensors(tmp_path)
    with pytest.raises(CheckpointError, match="no such file"):
        read_config(tmp_path)
    for text in ("{", "[" * 100_000):
        (tmp_path / CONFIG).write_text(text)
        with pytest.raises(CheckpointError, match="damaged"):
            read_config(tmp_path)
    (tmp_path / WEIGHTS).write_bytes(b"\x08\x00\x00\x00")
    with pytest.raises(CheckpointError, match="not a whole safetensors file"):
        read_tensors(tmp_path)
