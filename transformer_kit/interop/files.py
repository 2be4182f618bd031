"""Folders of foreign models: `config.json` and safetensors, whole or in shards. Nothing is ever unpickled or run."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from transformer_kit.errors import CheckpointError

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "tf_model.h5", "flax_model.msgpack")
WIDENED = (torch.float16, torch.bfloat16)
READ = (torch.float32, torch.float64, *WIDENED)


def read_config(folder: Path) -> dict[str, Any]:
    """The parsed `config.json`.

    Raises:
        CheckpointError: none there, or it is damaged.
    """
    return _json(folder / CONFIG, "the configuration of the model")


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """The tensors of a folder by name; half precision is widened to float32.

    Raises:
        CheckpointError: no safetensors there, or a file that is damaged, missing or outside the folder.
    """
    if (folder / WEIGHTS).is_file():
        return _tensors(folder / WEIGHTS)
    if (folder / INDEX).is_file():
        return _shards(folder)
    pickled = next((name for name in PICKLES if (folder / name).is_file()), None)
    if pickled is not None:
        raise CheckpointError(
            f"{folder}: {pickled} is not read, since loading such a file can run anything; convert it to {WEIGHTS} "
            "where you trust it (transformers: save_pretrained)"
        )
    raise CheckpointError(f"{folder}: neither {WEIGHTS} nor {INDEX} is there")


def write_folder(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """`config.json` and `model.safetensors` in a folder that is there."""
    text = json.dumps(dict(config), indent=2, ensure_ascii=False) + "\n"
    (folder / CONFIG).write_text(text, encoding="utf-8")
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / WEIGHTS, {"format": "pt"})
    (folder / WEIGHTS).chmod(0o644)  # the library makes it private


def _shards(folder: Path) -> dict[str, Tensor]:
    placed = _json(folder / INDEX, "the index of the shards").get("weight_map")
    if not isinstance(placed, dict) or not all(isinstance(name, str) for name in placed.values()):
        raise CheckpointError(f"{folder / INDEX}: says no weight_map of names")
    found: dict[str, Tensor] = {}
    for shard in sorted(set(placed.values())):
        if not _plain_name(shard):
            raise CheckpointError(f"{folder / INDEX}: {shard!r} is no plain file name; shards lie beside the index")
        found.update(_tensors(folder / shard))
    missing = sorted(placed.keys() - found.keys())
    if missing:
        raise CheckpointError(f"{folder}: {missing[0]} is in none of the shards, though the index says so")
    return found


def _plain_name(name: str) -> bool:
    """Whether a name is that of a file in the folder itself."""
    return bool(name) and name not in (".", "..") and not any(sign in name for sign in "/\\:\0")


def _tensors(path: Path) -> dict[str, Tensor]:
    found = {}
    try:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  # not a mapping
                tensor = file.get_tensor(name)
                if tensor.is_floating_point() and tensor.dtype not in READ:
                    raise CheckpointError(f"{path}: {name} is {tensor.dtype}, which is not read; take wider weights")
                found[name] = tensor.float() if tensor.dtype in WIDENED else tensor
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file, though the index names it") from None
    except (SafetensorError, OSError, ValueError, struct.error) as error:
        raise CheckpointError(f"{path}: not a whole safetensors file ({str(error).splitlines()[0]})") from None
    return found


def _json(path: Path, what: str) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file; it holds {what}") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: is damaged ({error})") from None
    except RecursionError:
        raise CheckpointError(f"{path}: is damaged (nested too deeply)") from None
    if not isinstance(data, dict):
        raise CheckpointError(f"{path}: is damaged (no JSON object)")
    return data
