"""Small models of every family, and rows for the objectives that make their own batches."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import numpy as np
import torch
import yaml
from torch import Tensor, nn

from transformer_kit.batch import Batch, Specials, Tokens
from transformer_kit.config.build import build_model
from transformer_kit.data.ragged import Ragged, from_lists
from transformer_kit.data.rows import LabelRows, TextRows
from transformer_kit.models.base import Model
from transformer_kit.objectives.base import Objective, Sums

UNKNOWN = 1
SPECIALS = Specials(pad=0, bos=2, eos=3, unk=UNKNOWN, mask=4, sentinels=(30, 29, 28, 27), vocab_size=31, start=2)
TEXT = range(5, 27)  # the ids that text is made of
FAMILIES = ("encoder_only", "decoder_only", "encoder_decoder")
SLOTS = {
    "position": "learned",
    "norm": "layernorm",
    "residual": "post",
    "attention": "mha",
    "feedforward": "relu",
    "head": "linear",
}


def toy(family: str, **changes: Any) -> Model:
    """A model of pairwise different sizes in float64 without dropout, its scores of about unit spread."""
    slots = {slot: _slot(slot, changes.pop(slot, name)) for slot, name in SLOTS.items()}
    layers = {"encoder_only": (2, None), "decoder_only": (None, 2), "encoder_decoder": (1, 2)}[family]
    encoder, decoder = (None if count is None else {"layers": count} for count in layers)
    options: Mapping[str, Any] = {
        "family": family,
        "d_model": 13,
        "d_ff": 11,
        "num_heads": 3,
        "head_dim": 5,
        "v_head_dim": 7,
        "encoder": encoder,
        "decoder": decoder,
        "tie": "none",
        "embedding": {"scale": False, "norm": False, "types": 0},
        "pooler": False,
        "pattern": [],
        "max_length": 67,
        "init": "glorot",
        "dropout": {"embedding": 0.0, "residual": 0.0, "attention": 0.0, "feedforward": 0.0},
        **slots,
        **changes,
    }
    torch.manual_seed(1)
    model = build_model(options, SPECIALS.vocab_size).double()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.normal_(std=0.5)
            else:
                parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return model


def _slot(slot: str, name: str) -> dict[str, Any]:
    path = files("transformer_kit.conf").joinpath("model", slot, f"{name}.yaml")
    loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(loaded, dict)
    return loaded


def text(*lengths: int, seed: int = 3) -> Ragged:
    """Rows of ordinary ids; a row's tokens depend on its length alone."""
    return from_lists([np.random.default_rng([seed, n]).choice(TEXT, n).tolist() for n in lengths])


def documents(*lengths: int) -> TextRows:
    """A document a row; its seed depends on its length alone."""
    rows = np.array(lengths, np.int64)
    return TextRows(text(*lengths), None, rows * 7 + 1, np.arange(len(rows)), packed=False)


def packed() -> TextRows:
    """Two blocks of documents of 4, 6, 9, 3 and 5 tokens, each between BOS and EOS; the last token is the next's."""
    own = [[SPECIALS.bos, *row, SPECIALS.eos] for row in lists(text(4, 6, 9, 3, 5))]
    flat = [token for row in own for token in row]
    number = [n for n, row in enumerate(own) for _ in row]
    spans = (0, 21), (20, len(flat))
    blocks, numbers = ([each[a:b] for a, b in spans] for each in (flat, number))
    return TextRows(from_lists(blocks), from_lists(numbers), np.array([5, 6]), np.arange(2), packed=True)


def labelled(*lengths: int, pairs: bool = False) -> LabelRows:
    """Texts of these lengths, or pairs whose second is of length 1 + half; a label is the first token's parity."""
    first = text(*lengths)
    second = text(*(1 + n // 2 for n in lengths), seed=4) if pairs else None
    labels = np.array([row[0] % 2 if row else 0 for row in lists(first)], np.int64)
    return LabelRows(first, second, labels, np.arange(len(lengths)), np.arange(len(lengths)))


def lists(rows: Ragged) -> list[list[int]]:
    return [rows[number].tolist() for number in range(len(rows))]


def real(ids: Tensor, valid: Tensor) -> list[list[int]]:
    """The rows of a block without its padding."""
    return [row[there].tolist() for row, there in zip(ids, valid, strict=True)]


def check_block(tokens: Tokens) -> None:
    """What every padded block holds: padding on the right, `at` 0 there, positions that count from 0 in a document."""
    assert tokens.ids.dtype == tokens.at.dtype == torch.int64
    assert tokens.valid.dtype == torch.bool
    assert tokens.full == bool(tokens.valid.all())
    assert (tokens.ids[~tokens.valid] == SPECIALS.pad).all()
    assert (tokens.at[~tokens.valid] == 0).all()
    assert (tokens.valid.long().diff(dim=1) <= 0).all()
    for row in range(len(tokens.ids)):
        there = tokens.valid[row]
        number = torch.zeros_like(there, dtype=torch.int64) if tokens.document is None else tokens.document[row]
        for document in number[there].unique():
            at = tokens.at[row, there & (number == document)]
            assert at.tolist() == list(range(len(at)))


def check_batch(batch: Batch) -> None:
    """Shapes, counts and types that the training loop counts on."""
    assert batch.labels.dtype == torch.int64
    assert batch.counted.dtype == torch.bool
    assert batch.labels.shape == batch.counted.shape
    assert batch.num_labels == int(batch.counted.sum())
    assert batch.sample_ids.dtype == torch.int64
    for tokens in (batch.source, batch.target):
        if tokens is not None:
            check_block(tokens)


def gradients(model: nn.Module, sums: list[Sums]) -> list[Tensor]:
    """Of the mean over all counted labels, accumulated over batches as the loop does."""
    model.zero_grad()
    total = sum(one.count for one in sums)
    for one in sums:
        (one.loss / total).backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def check_padding_changes_nothing(objective: Objective, model: Model, batches: list[Batch], together: Batch) -> None:
    """The same rows one by one and in one batch: equal sums and gradients."""
    alone = [objective(model, one) for one in batches]
    expected = gradients(model, alone)
    all_at_once = objective(model, together)
    assert all_at_once.count == sum(one.count for one in alone)
    torch.testing.assert_close(all_at_once.loss, sum(one.loss for one in alone), rtol=1e-10, atol=0)
    for name, value in all_at_once.metrics.items():
        torch.testing.assert_close(value, sum(one.metrics[name] for one in alone), rtol=1e-10, atol=0)
    torch.testing.assert_close(gradients(model, [all_at_once]), expected, rtol=1e-9, atol=1e-11)


def check_two_steps(objective: Objective, model: Model, batch: Batch) -> None:
    """The loss falls with each of two updates."""
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=3e-4)
    losses = []
    for _ in range(3):
        sums = objective(model, batch)
        losses.append(sums.loss.item() / sums.count)
        optimizer.zero_grad()
        (sums.loss / sums.count).backward()
        optimizer.step()
    assert losses[0] > losses[1] > losses[2]
