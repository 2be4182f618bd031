"""Models and objectives from their options, in plain Python: who gets which part and which fact.

A leaf is built once per use: each layer has its own attention, norms and feed-forward; a stack has one position object.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from transformer_kit.config.convert import Reader
from transformer_kit.config.parts import Part, part
from transformer_kit.config.schema import SLOTS, ModelOptions
from transformer_kit.errors import ConfigError
from transformer_kit.models.encoder_decoder import EncoderDecoder
from transformer_kit.models.init import initialise
from transformer_kit.models.stack import Stack
from transformer_kit.nn.attention import Attention
from transformer_kit.nn.block import Block
from transformer_kit.nn.embedding import TokenEmbedding
from transformer_kit.nn.feedforward.base import FeedForward
from transformer_kit.nn.norm.base import Norm
from transformer_kit.nn.position.base import Position
from transformer_kit.nn.residual.base import Residual
from transformer_kit.objectives.base import Objective

StackName = Literal["encoder", "decoder"]
STACKS: tuple[StackName, StackName] = ("encoder", "decoder")

BASES: dict[str, type[nn.Module]] = {
    "position": Position,
    "norm": Norm,
    "residual": Residual,
    "attention": Attention,
    "feedforward": FeedForward,
}
FACTS: dict[str, frozenset[str]] = {
    "position": frozenset({"dim", "num_heads", "head_dim", "causal", "max_length"}),
    "norm": frozenset({"dim"}),
    "residual": frozenset({"make_norm", "dropout", "layer"}),
    "attention": frozenset({"dim", "num_heads", "head_dim", "v_head_dim", "dropout", "layer"}),
    "feedforward": frozenset({"dim", "d_ff", "dropout", "layer"}),
}
"""What the builder offers to each slot."""


def build_model(
    model: ModelOptions | Mapping[str, Any],
    source_vocab: int,
    target_vocab: int,
    *,
    device: torch.device | str | None = None,
) -> EncoderDecoder:
    """The model that the options describe, with its parameters drawn from torch's generator.

    Args:
        model: typed options, or the plain data of a configuration's `model`.
        source_vocab: rows of the source embedding.
        target_vocab: rows of the target embedding and of the output projection.
        device: where the parameters are made; `meta` makes none and costs no memory.

    Raises:
        ConfigError: with one line per problem.
    """
    options = model if isinstance(model, ModelOptions) else read_model(model)
    problems: list[str] = []
    parts = model_parts(options, problems)
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))
    if options.tie == "three_way" and source_vocab != target_vocab:
        raise ConfigError(
            f"model.tie: three_way needs one vocabulary for both languages; these have {source_vocab} and "
            f"{target_vocab} pieces: set tokenizer.joint=true, or model.tie=output"
        )
    place = torch.get_default_device() if device is None else torch.device(device)
    with place, NoDraws() if place.type == "meta" else nullcontext():
        encoder, decoder = build_stack(options, parts, "encoder"), build_stack(options, parts, "decoder")
        target = TokenEmbedding(target_vocab, options.d_model, options.embedding.scale)
        source = target
        if options.tie != "three_way":
            source = TokenEmbedding(source_vocab, options.d_model, options.embedding.scale)
        output = nn.Linear(options.d_model, target_vocab, bias=False) if options.tie == "none" else None
        built = EncoderDecoder(encoder, decoder, source, target, output)
        initialise(built, options.init)
    return built


def read_model(data: Mapping[str, Any]) -> ModelOptions:
    """Typed options of plain data.

    Raises:
        ConfigError: with one line per problem.
    """
    reader = Reader(Path.cwd())
    options = reader.read(ModelOptions, data, ("model",))
    if reader.problems:
        raise ConfigError(reader.problems)
    return options


class NoDraws(TorchFunctionMode):
    """Leaves out the drawing of values, of which the meta device has none: its first draw costs a second of imports."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init" or func in (
            torch.Tensor.uniform_,
            torch.Tensor.normal_,
        ):
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


Parts = dict[tuple[StackName, str], Part]


def model_parts(options: ModelOptions, problems: list[str]) -> Parts:
    """The checked part of every slot of both stacks; a slot with a problem is left out, and the problem noted."""
    found: Parts = {}
    for stack in STACKS:
        for slot in SLOTS:
            own = getattr(getattr(options, stack), slot) is not None
            at = f"model.{stack}.{slot}" if own else f"model.{slot}"
            made = part(at, options.slot(slot, stack), BASES[slot], FACTS[slot], problems)
            if made is not None:
                found[stack, slot] = made
    return found


def build_slot(options: ModelOptions, parts: Parts, stack: StackName, slot: str, layer: int = 0) -> Any:
    """A new object of a slot, with the facts that the builder knows.

    Args:
        options: the model's sizes and rates.
        parts: from `model_parts`.
        stack: which stack it is for.
        slot: a name in `SLOTS`.
        layer: the number of its layer, from 0.

    Raises:
        ConfigError: the constructor refuses a value.
    """
    facts = {
        "dim": options.d_model,
        "d_ff": options.d_ff,
        "num_heads": options.num_heads,
        "head_dim": options.key_width,
        "v_head_dim": options.value_width,
        "max_length": options.max_length,
        "causal": stack == "decoder",
        "layer": layer,
        "dropout": getattr(options.dropout, slot, None),
        "make_norm": lambda: build_slot(options, parts, stack, "norm"),
    }
    return parts[stack, slot].build(**{name: facts[name] for name in FACTS[slot]})


def build_stack(options: ModelOptions, parts: Parts, name: StackName) -> Stack:
    """One stack: its position object, its layers, and a last norm where the residual form asks for one."""

    def block(layer: int) -> Block:
        def make(slot: str) -> Any:
            return build_slot(options, parts, name, slot, layer)

        cross = make("attention") if name == "decoder" else None
        return Block(make("attention"), cross, make("feedforward"), lambda: make("residual"))

    blocks = [block(layer) for layer in range(getattr(options, name).layers)]
    residual: type[Residual] = parts[name, "residual"].kind
    return Stack(
        position=build_slot(options, parts, name, "position"),
        blocks=blocks,
        final_norm=build_slot(options, parts, name, "norm") if residual.final_norm else None,
        dropout=options.dropout.embedding,
        causal=name == "decoder",
    )


def build_objective(options: Mapping[str, Any], *, pad_id: int) -> Objective:
    """The objective that `objective` describes.

    Args:
        options: `_target_` and the options.
        pad_id: fact: the id of padding, which a smoothed target distribution may leave out.

    Raises:
        ConfigError: with one line per problem.
    """
    problems: list[str] = []
    made = part("objective", options, Objective, frozenset({"pad_id"}), problems)
    if made is None:
        raise ConfigError(problems)
    return made.build(pad_id=pad_id)


def count_parameters(model: nn.Module) -> int:
    """The number of parameters, shared ones counted once."""
    return sum(parameter.numel() for parameter in model.parameters())
