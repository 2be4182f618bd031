"""Weights in safetensors files. Tied parameters are stored once and stay tied."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from transformer_kit.errors import CheckpointError
from transformer_kit.training.files import Entry, HashedFile, flush
from transformer_kit.training.shards import put

_FORMATS = {  # in the order in which they stand in a file
    torch.int64: "I64",
    torch.float64: "F64",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def unique_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers by name, each once, under the first of its names."""
    named: dict[int, tuple[str, Tensor]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        named.setdefault(id(tensor), (name, tensor.detach()))
    return dict(named.values())


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors to a safetensors file by way of a temporary one: `path` is either the old file or the new."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, temporary, {"format": "pt"})
        temporary.chmod(0o644)  # the library makes it private, and a run is read by others too
        flush(temporary)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> Entry:
    """Write tensors to a new safetensors file in large pieces, hashed on the way, and flush it to disk.

    The same bytes as the library's; Python's lock is free while a piece is hashed or written.
    """
    order = list(_FORMATS)
    ordered = sorted(tensors.items(), key=lambda item: (order.index(item[1].dtype), item[0]))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in ordered:
        begin, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": _FORMATS[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    with HashedFile(path) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, tensor in ordered:
            plain = tensor.detach().cpu().contiguous().reshape(-1)
            file.write(plain.view(torch.uint8).numpy().data)
    return file.entry()


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file.

    Raises:
        CheckpointError: no such file, or not a whole safetensors file.
    """
    try:
        return dict(load_file(path))
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{path}: not a whole safetensors file ({str(error).splitlines()[0]})") from None


def save_model(path: Path, model: nn.Module) -> None:
    """Write a model's weights; `load_model` reads them into a model of the same shape."""
    save_tensors(path, unique_tensors(model))


def load_model(path: Path, model: nn.Module) -> None:
    """Read weights that `save_model` wrote into `model`, in place, so that ties stay ties.

    Raises:
        CheckpointError: the file is damaged, or is of a model with other parameters.
    """
    fill(model, load_tensors(path), str(path))


@torch.no_grad()
def fill(model: nn.Module, tensors: Mapping[str, Tensor], origin: str) -> None:
    """Copy whole tensors into a model's own, which may be spread over ranks; `origin` names them in errors."""
    own = unique_tensors(model)
    wrong = [f"{name} is missing" for name in own if name not in tensors]
    wrong += [f"{name} is not part of the model" for name in tensors if name not in own]
    for name in own.keys() & tensors.keys():
        if own[name].shape != tensors[name].shape:
            wrong.append(f"{name} is {tuple(tensors[name].shape)}, the model's {tuple(own[name].shape)}")
    if wrong:
        more = f", and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise CheckpointError(f"{origin} does not fit the model: {'; '.join(sorted(wrong)[:3])}{more}")
    for name, tensor in own.items():
        put(tensor, tensors[name])
