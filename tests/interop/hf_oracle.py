"""Models of `transformers` with random weights, and the same weights in models of ours."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from transformer_kit.batch import Batch, Tokens, pad
from transformer_kit.config.build import build_model
from transformer_kit.interop.foreign import Foreign
from transformer_kit.interop.layout import Layout
from transformer_kit.interop.layouts import layout_of
from transformer_kit.models.base import Model
from transformer_kit.training.weights import fill

transformers = pytest.importorskip("transformers", reason="the oracle, transformers, is not installed (extra: dev)")

LENGTHS, SOURCE_LENGTHS = (11, 4, 7), (9, 12, 5)


@dataclass(frozen=True)
class Case:
    """A model of the oracle.

    Attributes:
        name: what a failing test shows.
        model: the class of the oracle.
        config: its configuration.
        exact: the largest difference of logits in float64; above 1e-9 where the oracle itself computes in float32.
        mutations: dotted options of ours and the value that must not go unnoticed.
        positions: whether the oracle takes the positions of a left-padded row.
        left: whether the oracle can read a left-padded row at all.
        alone: in float64 the oracle reads one row at a time: its softmax is float32, where a row of padding that sees
            nothing is not a number.
        prepare: what is done to the oracle before anything.
    """

    name: str
    model: str
    config: Callable[[], Any]
    mutations: Mapping[str, Any]
    exact: float = 1e-9
    positions: bool = True
    left: bool = True
    alone: bool = False
    prepare: Callable[[Any], None] = field(default=lambda model: None)

    def __str__(self) -> str:
        return self.name


def oracle(case: Case, dtype: torch.dtype = torch.float32) -> Any:
    """The oracle's model, its weights drawn so that attention scores have about unit spread."""
    torch.manual_seed(0)
    config = case.config()
    config._attn_implementation = "eager"
    model = getattr(transformers, case.model)(config).eval().to(dtype)
    case.prepare(model)
    scatter(model)
    return model


@torch.no_grad()
def scatter(model: Any) -> None:
    """Draw every parameter: unit rows of tables, matrices that keep the variance, gains about 1, biases."""
    generator = torch.Generator().manual_seed(7)
    tables = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    fixed = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    width = getattr(model.config, "d_kv", None)
    for name, parameter in model.named_parameters():
        if name in fixed:
            continue
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float32).to(parameter.dtype)
        if parameter.ndim == 1:
            parameter.copy_(0.3 * noise + (1.0 if name.endswith("weight") else 0.0))
        elif id(parameter) in tables:
            parameter.copy_(noise)
            if getattr(model.config, "scale_embedding", False):
                parameter.mul_(parameter.shape[1] ** -0.5)
        else:
            transposed = type(model.get_submodule(name.rpartition(".")[0])).__name__ == "Conv1D"
            inputs = parameter.shape[0 if transposed else 1]
            parameter.copy_(noise * inputs**-0.5)
            if width and name.endswith(".q.weight"):  # T5 does not scale its scores
                parameter.mul_(width**-0.5)
    for name, buffer in model.named_buffers():
        if name == "final_logits_bias":
            buffer.copy_(torch.randn(buffer.shape, generator=generator))


def config_of(model: Any) -> dict[str, Any]:
    """`config.json` as the oracle would save it."""
    data: dict[str, Any] = json.loads(model.config.to_json_string(use_diff=False))
    return data | {"architectures": [type(model).__name__]}


def ours(model: Any, change: Mapping[str, Any] | None = None) -> tuple[Layout, Model]:
    """The same weights in a model of ours; `change` sets dotted options."""
    config, tensors = config_of(model), dict(model.state_dict())
    layout = layout_of(config)
    options = layout.model_options(config, tensors.keys())
    for key, value in (change or {}).items():
        *parents, last = key.split(".")
        node = options
        for parent in parents:
            node = node[parent]
        assert last in node, key
        node[last] = value
    extent = layout.extent(Foreign(config, "test"))
    built = build_model(options, extent.source, extent.target).to(next(model.parameters()).dtype).eval()
    fill(built, layout.from_hf(tensors, config), "the oracle")
    return layout, built


@dataclass(frozen=True)
class Inputs:
    """Rows of ids that the models read; `sources` for encoder–decoders alone."""

    rows: list[list[int]]
    sources: list[list[int]] | None
    pad_id: int

    def batch(self, side: Any) -> Batch:
        target = pad(self.rows, self.pad_id, side)
        source = None if self.sources is None else pad(self.sources, self.pad_id, side)
        return Batch(source, target, target.ids, target.valid, int(target.valid.sum()), torch.arange(len(self.rows)))


def inputs(model: Any) -> Inputs:
    """Rows of random ids without the padding id, of several lengths."""
    generator = torch.Generator().manual_seed(3)
    pad_id = model.config.pad_token_id or 0

    def rows(lengths: Sequence[int], size: int) -> list[list[int]]:
        drawn = [torch.randint(size - 1, (length,), generator=generator) for length in lengths]
        return [[one + (one >= pad_id) for one in row.tolist()] for row in drawn]

    size = model.config.vocab_size
    if not model.config.is_encoder_decoder:
        return Inputs(rows(LENGTHS, size), None, pad_id)
    target = getattr(model.config, "decoder_vocab_size", None) or size
    return Inputs(rows(LENGTHS, min(size, target)), rows(SOURCE_LENGTHS, size), pad_id)


def real(values: Tensor, tokens: Tokens) -> Tensor:
    """The rows of real cells, in the order of the text: (B, T, V) -> (N, V)."""
    return torch.cat([values[row][tokens.valid[row]] for row in range(len(values))])


def oracle_logits(case: Case, model: Any, given: Inputs, side: str = "right", **more: Any) -> Tensor:
    """The oracle's logits at real cells."""
    batch = given.batch(side)
    if batch.source is None:
        places = {"position_ids": batch.target.at} if case.positions else {}
        found = model(batch.target.ids, attention_mask=batch.target.valid.long(), **places, **more)
    else:
        found = model(
            batch.source.ids,
            attention_mask=batch.source.valid.long(),
            decoder_input_ids=batch.target.ids,
            decoder_attention_mask=batch.target.valid.long(),
            use_cache=False,
            **more,
        )
    return real(found.logits, batch.target)


def logits_alone(case: Case, model: Any, given: Inputs) -> Tensor:
    """The oracle's logits, one row at a time and so without padding."""
    return torch.cat([oracle_logits(case, model, replace(given, rows=[row])) for row in given.rows])


def our_logits(model: Model, given: Inputs, side: str = "right") -> Tensor:
    """Ours at real cells."""
    batch = given.batch(side)
    return real(model.logits(model(batch).hidden), batch.target)


def spread(case: Case, model: Any, given: Inputs) -> float:
    """The standard deviation of attention scores over the keys of a query, in self-attention, on average."""
    batch = given.batch("right")
    longest = max(range(len(given.rows)), key=lambda row: len(given.rows[row]))
    ids = batch.target.ids[longest : longest + 1]
    if batch.source is None:
        found = model(ids, output_attentions=True).attentions
    else:
        source = batch.source.ids[1:2]  # the longest one
        found = model(source, decoder_input_ids=ids, output_attentions=True).encoder_attentions
    deviations = []
    for weights in found:  # (1, H, T, S)
        scores = weights[0].clamp(min=1e-30).log()
        for query in range(2, scores.shape[1]):
            seen = weights[0, 0, query] > 0
            if int(seen.sum()) > 2:
                deviations.append(scores[:, query][:, seen].std(-1).mean())
    return float(torch.stack(deviations).mean())


def difference(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max())
