"""`tkit train --dry-run`: whether a configuration builds on many ranks, and what each of them would hold.

No rank is started and no data are read: torch's fake process group stands for the others, and the model has shapes but
no memory. Sizes are counted from the parts that rank 0 gets, and for other ranks from the same rule.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from transformer_kit.config.build import build_model, build_objective
from transformer_kit.config.check import ANY_SPECIALS
from transformer_kit.config.run_folder import run_path
from transformer_kit.config.schema import Config
from transformer_kit.data.tokenizer import Tokenizers, control_pieces
from transformer_kit.data.tokenizer_options import Kind
from transformer_kit.errors import ConfigError
from transformer_kit.models.base import Model
from transformer_kit.nn.block import Block
from transformer_kit.tasks.initial import freeze
from transformer_kit.tasks.load import run_labels, run_tokenizers
from transformer_kit.training.groups import members
from transformer_kit.training.optimizer import build_optimizer, kept_numbers
from transformer_kit.training.shards import local
from transformer_kit.training.step import Step

BYTES = 4  # of a number: weights, gradients and moments are in fp32, whatever the precision of the products
UNKNOWN_CLASSES = 2
SPECIALS = 3  # padding, BOS and EOS, which a vocabulary of bytes has beside them


@dataclass(frozen=True)
class Held:
    """What one rank holds from one update to the next: numbers of parameters, bytes of the rest.

    Attributes:
        parameters: that are its part.
        weights: with what fills its part up to the size of the others'.
        gradients, moments: of what is trained.
        average: of `trainer.ema`.
    """

    parameters: int
    weights: int
    gradients: int
    moments: int
    average: int


@dataclass(frozen=True)
class Plan:
    """What a configuration comes to.

    Attributes:
        config: what was asked for.
        ranks, together: all of them, and those that hold one copy of the model together.
        vocabulary: sizes of source and target, and whether they are those of a trained tokenizer.
        classes: where the data have labels: how many are assumed; None elsewhere.
        parameters, trained: of the whole model; how many of them take gradients.
        most, least: the rank that holds most, which is rank 0, and the one that holds least.
        buffers: bytes that each rank holds.
        gathered: bytes of whole weights that a rank holds at a time beside its parts, at most; 0 where it has them all.
    """

    config: Config
    ranks: int
    together: int
    vocabulary: tuple[int, int]
    trained_tokenizer: bool
    classes: int | None
    parameters: int
    trained: int
    most: Held
    least: Held
    buffers: int
    gathered: int


def dry_run(config: Config) -> Plan:
    """Build everything without memory on rank 0 of all ranks, and count.

    Raises:
        ConfigError: it does not build, or not on so many ranks, or the size of the vocabulary is not known.
    """
    ranks = count_all_ranks(config)
    config.trainer.ranks.check(ranks)
    source, target, trained = _vocabulary(config)
    labels = run_labels(run_path(config)) if config.data.kind == "labels" else None
    classes = None if config.data.kind != "labels" else UNKNOWN_CLASSES if labels is None else len(labels)

    objective = build_objective(config.objective, specials=ANY_SPECIALS)
    with torch.device("meta"):
        model = objective.adapt(build_model(config.model, source, target, device="meta"), classes)
    freeze(model, config.init.freeze)
    sharded = config.trainer.ranks.parallel == "fsdp" and ranks > 1
    together = (config.trainer.ranks.shard or ranks) if sharded else 1
    most, least = (_held(model, config, together, rank) for rank in (0, together - 1))
    plan = Plan(
        config=config,
        ranks=ranks,
        together=together,
        vocabulary=(source, target),
        trained_tokenizer=trained,
        classes=classes,
        parameters=sum(p.numel() for p in model.parameters()),
        trained=sum(p.numel() for p in model.parameters() if p.requires_grad),
        most=most,
        least=least,
        buffers=sum(buffer.nbytes for buffer in model.buffers()),
        gathered=_gathered(model) if together > 1 else 0,
    )
    if sharded:
        _spread(Step(model, objective), config, plan)
    build_optimizer(config.optimizer, model)
    return plan


def count_all_ranks(config: Config) -> int:
    """`trainer.devices`, those of all nodes where `+cluster=…` names some; null: the GPUs of a node."""
    cluster, devices = config.cluster, config.trainer.devices
    if cluster is None:
        return devices or max(1, torch.cuda.device_count())
    return cluster.nodes * (devices or max(1, cluster.gpus))


@contextmanager
def fake_ranks(count: int) -> Iterator[None]:
    """As rank 0 of so many, of which the others are not there: nothing is sent."""
    from torch.testing._internal.distributed.fake_pg import FakeStore  # torch's own tool for the purpose

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=count)
    try:
        yield
    finally:
        dist.destroy_process_group()


def _spread(step: Step, config: Config, plan: Plan) -> None:
    """Spread a step over the ranks as training does; rank 0 must get the parts that were counted."""
    from transformer_kit.training.sharded import grid, shard_step

    with fake_ranks(plan.ranks):
        shard_step(step, grid("cpu", plan.ranks, config.trainer.ranks.shard))
        held = sum(local(parameter).numel() for parameter in step.parameters())
    assert held == plan.most.parameters, f"rank 0 holds {held:,} parameters, not {plan.most.parameters:,}"


def _held(model: Model, config: Config, together: int, rank: int) -> Held:
    """What rank `rank` of those that hold a copy together holds."""
    trained = {member.parameter: member for member in members(model)}
    counts = dict.fromkeys(("parameters", "weights", "gradients", "moments", "average"), 0)
    for parameter in model.parameters():
        rows = part_rows(parameter.shape[0], together, rank)
        own, full = (count * parameter.shape[1:].numel() for count in (rows, -(-parameter.shape[0] // together)))
        counts["parameters"] += own
        counts["weights"] += BYTES * full
        if parameter in trained:
            shape = (rows, *parameter.shape[1:])
            counts["gradients"] += BYTES * full
            counts["moments"] += BYTES * kept_numbers(config.optimizer, trained[parameter].role, shape)
            counts["average"] += 0 if config.trainer.ema is None else BYTES * own
    return Held(**counts)


def part_rows(rows: int, together: int, rank: int) -> int:
    """How many of a parameter's rows a rank holds (`training/shards.py`)."""
    share = -(-rows // together)
    return max(0, min(share, rows - rank * share))


def _gathered(model: nn.Module) -> int:
    """Bytes of the group of the whole step, and of two layers: one is fetched while another is computed."""
    layers = [sum(p.numel() for p in block.parameters()) for block in model.modules() if isinstance(block, Block)]
    rest = sum(p.numel() for p in model.parameters()) - sum(layers)
    return BYTES * (rest + sum(sorted(layers)[-2:]))


def batches_of_an_update(config: Config) -> int | None:
    """How many full batches give the labels of an update; None where an update is one batch, or sizes are open."""
    labels, tokens = config.trainer.accumulate_tokens, config.data.batch.tokens
    return None if labels is None or not isinstance(tokens, int) else math.ceil(labels / tokens)


def _vocabulary(config: Config) -> tuple[int, int, bool]:
    """Sizes of source and target, and whether a trained tokenizer told them.

    Raises:
        ConfigError: the tokenizer is not trained, and its size follows from its text.
    """
    options = config.tokenizer
    found = run_tokenizers(run_path(config))
    if found is None and options.path is not None:
        found = Tokenizers.load(options.path)
    if found is not None:
        return found.source.vocab_size, found.target.vocab_size, True
    size = options.vocab_size
    if options.kind is Kind.byte:
        tags = {tag for corpus in config.data.train if (tag := getattr(corpus, "tag", None)) is not None}
        size = SPECIALS + len(control_pieces(tags, options.mask, options.sentinels)) + 256
    if size is None:
        raise ConfigError(
            "tokenizer.vocab_size: the alphabet is not known before the tokenizer is trained: give a number here, or "
            "tokenizer.path, the folder of a trained one"
        )
    return size, size, False
