"""Models and objectives from their options, in plain Python: who gets which part and which fact.

A leaf is built once per use: each layer has its own attention, norms and feed-forward; a stack has one position object.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from transformer_kit.batch import Specials
from transformer_kit.config.convert import Reader
from transformer_kit.config.parts import Part, part
from transformer_kit.config.schema import LAYER_SLOTS, SLOTS, ModelOptions, StackName
from transformer_kit.errors import ConfigError
from transformer_kit.models.base import Model
from transformer_kit.models.decoder_only import DecoderOnly
from transformer_kit.models.empty import NoDraws
from transformer_kit.models.encoder_decoder import EncoderDecoder
from transformer_kit.models.encoder_only import EncoderOnly
from transformer_kit.models.heads import Head
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

BASES: dict[str, type[nn.Module]] = {
    "position": Position,
    "norm": Norm,
    "residual": Residual,
    "attention": Attention,
    "feedforward": FeedForward,
    "head": Head,
}
FACTS: dict[str, frozenset[str]] = {
    "position": frozenset({"dim", "num_heads", "head_dim", "causal", "max_length"}),
    "norm": frozenset({"dim"}),
    "residual": frozenset({"make_norm", "dropout", "layer"}),
    "attention": frozenset({"dim", "num_heads", "head_dim", "v_head_dim", "dropout", "layer", "make_head_norm"}),
    "feedforward": frozenset({"dim", "d_ff", "dropout", "layer"}),
    "head": frozenset({"dim", "vocab_size", "tied", "make_norm"}),
}
"""What the builder offers to each slot."""
OBJECTIVE_FACTS = frozenset({"specials"})


def build_model(
    model: ModelOptions | Mapping[str, Any],
    source_vocab: int,
    target_vocab: int | None = None,
    *,
    device: torch.device | str | None = None,
) -> Model:
    """The model that the options describe, with its parameters drawn from torch's generator.

    Args:
        model: typed options, or the plain data of a configuration's `model`.
        source_vocab: rows of the (source) embedding.
        target_vocab: rows of the target embedding and of the head; None: as many.
        device: where the parameters are made; `meta` makes none and costs no memory.

    Raises:
        ConfigError: with one line per problem.
    """
    options = model if isinstance(model, ModelOptions) else read_model(model)
    problems: list[str] = []
    parts = model_parts(options, problems)
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))
    target_vocab = source_vocab if target_vocab is None else target_vocab
    place = torch.get_default_device() if device is None else torch.device(device)
    with place, NoDraws() if place.type == "meta" else nullcontext():
        built = _FAMILIES[options.family](options, parts, source_vocab, target_vocab)
        initialise(built, options.init)
    return built


def _encoder_decoder(options: ModelOptions, parts: Parts, source_vocab: int, target_vocab: int) -> Model:
    if options.one_table and source_vocab != target_vocab:
        raise ConfigError(
            f"model.tie: {options.tie} needs one vocabulary for both languages; these have {source_vocab} and "
            f"{target_vocab} pieces: set tokenizer.joint=true, or model.tie=output"
        )
    encoder, decoder = build_stack(options, parts, "encoder"), build_stack(options, parts, "decoder")
    target = _embedding(options, target_vocab)
    source = target if options.one_table else _embedding(options, source_vocab)
    return EncoderDecoder(encoder, decoder, source, target, _head(options, parts, "decoder", target))


def _decoder_only(options: ModelOptions, parts: Parts, vocab: int, target_vocab: int) -> Model:
    decoder, embedding = build_stack(options, parts, "decoder"), _embedding(options, _one(vocab, target_vocab))
    return DecoderOnly(decoder, embedding, _head(options, parts, "decoder", embedding))


def _encoder_only(options: ModelOptions, parts: Parts, vocab: int, target_vocab: int) -> Model:
    encoder, embedding = build_stack(options, parts, "encoder"), _embedding(options, _one(vocab, target_vocab))
    pooler = nn.Linear(options.d_model, options.d_model) if options.pooler else None
    return EncoderOnly(encoder, embedding, _head(options, parts, "encoder", embedding), pooler)


_FAMILIES = {"encoder_decoder": _encoder_decoder, "decoder_only": _decoder_only, "encoder_only": _encoder_only}


def _one(vocab: int, target_vocab: int) -> int:
    if vocab != target_vocab:
        raise ConfigError(
            f"model: a model of one stack has one vocabulary; these have {vocab} and {target_vocab} pieces: "
            "set tokenizer.joint=true"
        )
    return vocab


def _embedding(options: ModelOptions, vocab: int) -> TokenEmbedding:
    return TokenEmbedding(vocab, options.d_model, options.embedding.scale, options.embedding.types)


def _head(options: ModelOptions, parts: Parts, stack: StackName, embedding: TokenEmbedding) -> Any:
    tied = None if options.tie in ("inputs", "none") else embedding
    return build_slot(options, parts, stack, "head", vocab_size=embedding.weight.shape[0], tied=tied)


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


Parts = dict[tuple[StackName, str, int], Part]
"""The part of a slot in a stack and a layer of the pattern."""


def model_parts(options: ModelOptions, problems: list[str]) -> Parts:
    """The checked part of every slot of every stack; a slot with a problem is left out, and the problem noted."""
    found: Parts = {}

    def take(stack: StackName, slot: str, layer: int, at: str, given: Mapping[str, Any], base: str) -> None:
        made = part(at, given, BASES[base], FACTS[base], problems)
        if made is not None:
            found[stack, slot, layer] = made

    for stack in options.stacks:
        if getattr(options, stack) is None:
            continue  # told by `ModelOptions.problems`
        for slot in SLOTS:
            for layer in range(len(options.pattern) or 1 if slot in LAYER_SLOTS else 1):
                own = getattr(getattr(options, stack), slot) is not None
                at = f"model.{stack}.{slot}" if own else f"model.{slot}"
                changed = options.pattern and slot in options.pattern[layer]
                take(stack, slot, layer, f"model.pattern.{layer}.{slot}" if changed else at,
                     options.slot(slot, stack, layer if slot in LAYER_SLOTS else 0), slot)  # fmt: skip
        cross = getattr(options, stack).cross_attention
        if cross is not None:
            take(stack, "cross_attention", 0, f"model.{stack}.cross_attention", cross, "attention")
        take(stack, "head", 0, "model.head", options.head, "head")
    return found


def build_slot(
    options: ModelOptions,
    parts: Parts,
    stack: StackName,
    slot: str,
    layer: int = 0,
    *,
    vocab_size: int = 0,
    tied: TokenEmbedding | None = None,
    dim: int | None = None,
) -> Any:
    """A new object of a slot, with the facts that the builder knows.

    Args:
        options: the model's sizes and rates.
        parts: from `model_parts`.
        stack: which stack it is for.
        slot: a name in `SLOTS`, `head`, or `cross_attention` where the decoder has its own.
        layer: the number of its layer, from 0.
        vocab_size, tied: facts of a head.
        dim: another width than the model's.

    Raises:
        ConfigError: the constructor refuses a value.
    """
    base = "attention" if slot == "cross_attention" else slot
    repeats = len(options.pattern) if options.pattern and slot in LAYER_SLOTS else 1
    facts = {
        "dim": options.d_model if dim is None else dim,
        "d_ff": options.d_ff,
        "num_heads": options.num_heads,
        "head_dim": options.key_width,
        "v_head_dim": options.value_width,
        "max_length": options.max_length,
        "causal": stack == "decoder",
        "layer": layer,
        "dropout": getattr(options.dropout, base, None),
        "make_norm": lambda: build_slot(options, parts, stack, "norm"),
        "make_head_norm": lambda width: build_slot(options, parts, stack, "norm", dim=width),
        "vocab_size": vocab_size,
        "tied": tied,
    }
    return parts[stack, slot, layer % repeats].build(**{name: facts[name] for name in FACTS[base]})


def build_stack(options: ModelOptions, parts: Parts, name: StackName) -> Stack:
    """One stack: its position object, its layers, and a last norm where the residual form asks for one."""
    reads = name == "decoder" and "encoder" in options.stacks

    def block(layer: int) -> Block:
        def make(slot: str) -> Any:
            return build_slot(options, parts, name, slot, layer)

        own = (name, "cross_attention", 0) in parts
        cross = build_slot(options, parts, name, "cross_attention") if own else make("attention") if reads else None
        return Block(make("attention"), cross, make("feedforward"), lambda: make("residual"))

    blocks = [block(layer) for layer in range(getattr(options, name).layers)]
    residual: type[Residual] = parts[name, "residual", 0].kind
    return Stack(
        position=build_slot(options, parts, name, "position"),
        blocks=blocks,
        final_norm=build_slot(options, parts, name, "norm") if residual.final_norm else None,
        dropout=options.dropout.embedding,
        causal=name == "decoder",
        input_norm=build_slot(options, parts, name, "norm") if options.embedding.norm else None,
    )


def build_objective(options: Mapping[str, Any], *, specials: Specials) -> Objective:
    """The objective that `objective` describes.

    Args:
        options: `_target_` and the options.
        specials: fact: the special ids of the vocabulary that is predicted.

    Raises:
        ConfigError: with one line per problem.
    """
    problems: list[str] = []
    made = part("objective", options, Objective, OBJECTIVE_FACTS, problems)
    if made is None:
        raise ConfigError(problems)
    return made.build(specials=specials)


def count_parameters(model: nn.Module) -> int:
    """The number of parameters, shared ones counted once."""
    return sum(parameter.numel() for parameter in model.parameters())
