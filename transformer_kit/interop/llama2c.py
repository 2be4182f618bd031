"""The binary files of llama2.c: seven sizes, then every array of a LLaMA-shaped model, layer-major."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from transformer_kit.errors import CheckpointError
from transformer_kit.interop import options as make
from transformer_kit.interop.options import NN, Plain, Sizes

HEADER = struct.Struct("<7i")
FIELDS = ("dim", "hidden_dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "seq_len")


def read_file(path: Path) -> tuple[Plain, dict[str, Tensor]]:
    """Model options and state dict of a legacy file (version 0).

    Raises:
        CheckpointError: it is damaged, or of another version.

    Source: Karpathy 2023, llama2.c, `run.c`, `read_checkpoint`; pairs of a head adjoin.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None
    if len(data) < HEADER.size:
        raise CheckpointError(f"{path}: ends within its header; no llama2.c file")
    header = dict(zip(FIELDS, HEADER.unpack_from(data), strict=True))
    tied, vocab = header["vocab_size"] > 0, abs(header["vocab_size"])
    wrong = [f"{name}={value}" for name, value in header.items() if name != "vocab_size" and not 0 < value < 1 << 24]
    if wrong or not vocab or header["dim"] % header["n_heads"] or header["n_heads"] % header["n_kv_heads"]:
        told = ", ".join(wrong) or ", ".join(f"{name}={value}" for name, value in header.items())
        raise CheckpointError(f"{path}: not a llama2.c file of version 0: its header says {told}")
    options = _options(header, tied)
    arrays = dict(_arrays(path, data, header, tied, vocab))
    return options, _state(arrays, header, tied)


def _options(header: dict[str, int], tied: bool) -> Plain:
    return make.model(
        "decoder_only",
        d_model=header["dim"],
        d_ff=header["hidden_dim"],
        num_heads=header["n_heads"],
        head_dim=None,
        encoder=None,
        decoder=header["n_layers"],
        tie="output" if tied else "none",
        max_length=header["seq_len"],
        rates=make.dropout(0.0, 0.0, 0.0, 0.0),
        position={"_target_": f"{NN}.position.rotary.Rotary", "theta": 10000.0, "layout": "interleaved"},
        norm=make.rmsnorm(1e-5),
        residual=make.pre(),
        attention=make.attention(False, False, num_kv_heads=header["n_kv_heads"]),
        feedforward=make.gated("silu", False),
        head=make.linear_head(bias=False),
    )


def _arrays(path: Path, data: bytes, header: dict[str, int], tied: bool, vocab: int) -> Iterator[tuple[str, Tensor]]:
    """The arrays in the order of the file."""
    found, layers = _sizes(header), header["n_layers"]
    q, k, v = found.qkv
    waves = header["seq_len"] * found.key // 2
    shapes: list[tuple[str, tuple[int, ...]]] = [
        ("embedding", (vocab, found.dim)),
        ("attention_norm", (layers, found.dim)),
        ("q", (layers, q, found.dim)),
        ("k", (layers, k, found.dim)),
        ("v", (layers, v, found.dim)),
        ("o", (layers, found.dim, q)),
        ("ffn_norm", (layers, found.dim)),
        ("gate", (layers, found.ff, found.dim)),
        ("down", (layers, found.dim, found.ff)),
        ("value", (layers, found.ff, found.dim)),
        ("final_norm", (found.dim,)),
        ("waves", (2, waves)),  # cosines and sines, which we compute
        *([] if tied else [("output", (vocab, found.dim))]),
    ]
    numbers = sum(int(np.prod(shape)) for _, shape in shapes)
    if len(data) != HEADER.size + 4 * numbers:
        raise CheckpointError(
            f"{path}: {len(data):,} bytes, but its header asks for {HEADER.size + 4 * numbers:,}: damaged, or not a "
            "llama2.c file of version 0"
        )
    flat = np.frombuffer(data, "<f4", offset=HEADER.size)
    at = 0
    for name, shape in shapes:
        count = int(np.prod(shape))
        yield name, torch.tensor(flat[at : at + count].reshape(shape))
        at += count


def _sizes(header: dict[str, int]) -> Sizes:
    width = header["dim"] // header["n_heads"]
    heads, groups = header["n_heads"], header["n_kv_heads"]
    return Sizes(header["dim"], header["hidden_dim"], heads, groups, width, width, header["n_layers"])


def _state(arrays: dict[str, Tensor], header: dict[str, int], tied: bool) -> dict[str, Tensor]:
    state: dict[str, Any] = {"embedding.weight": arrays["embedding"]}
    if not tied:
        state["head.weight"] = arrays["output"]
    for layer in range(header["n_layers"]):
        at = f"decoder.blocks.{layer}"
        state[f"{at}.self_residual.norm.weight"] = arrays["attention_norm"][layer]
        state[f"{at}.self_attention.qkv_weight"] = torch.cat([arrays[name][layer] for name in "qkv"])
        state[f"{at}.self_attention.out.weight"] = arrays["o"][layer]
        state[f"{at}.feedforward_residual.norm.weight"] = arrays["ffn_norm"][layer]
        state[f"{at}.feedforward.up_weight"] = torch.cat((arrays["gate"][layer], arrays["value"][layer]))
        state[f"{at}.feedforward.down.weight"] = arrays["down"][layer]
    state["decoder.final_norm.weight"] = arrays["final_norm"]
    return {name: tensor.contiguous() for name, tensor in state.items()}
