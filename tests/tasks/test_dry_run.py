"""What a configuration comes to on ranks that are not there."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from typer.testing import CliRunner

from transformer_kit.cli import app as cli
from transformer_kit.config.build import build_model, count_parameters
from transformer_kit.config.compose import compose
from transformer_kit.data.symbol_tokenizers import ByteTokenizer, byte_model
from transformer_kit.data.text_rules import TextRule
from transformer_kit.data.tokenizer import Tokenizers, control_pieces
from transformer_kit.errors import ConfigError
from transformer_kit.tasks.dry_run import BYTES, dry_run, fake_ranks, part_rows
from transformer_kit.training.groups import members
from transformer_kit.training.optimizer import build_optimizer, kept_numbers, set_lr
from transformer_kit.training.options import OPTIMIZERS
from transformer_kit.training.sharded import grid, shard_step
from transformer_kit.training.shards import local
from transformer_kit.training.step import Step

SMALL = ["data=demo", "model/size=tiny", "tokenizer=bpe", "tokenizer.vocab_size=1009", "model.max_length=61"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TKIT_DATA", str(tmp_path / "none"))


def plan(*overrides: str) -> Any:
    return dry_run(compose("train", [*SMALL, *overrides]))


def say(*words: str) -> tuple[int, str, str]:
    ran = CliRunner().invoke(cli.make_app(), ["train", *words, "--dry-run"])
    return ran.exit_code, ran.stdout, ran.stderr


@pytest.mark.parametrize(("ranks", "shard"), [(64, None), (256, 8), (256, 64), (1024, None), (1024, 64)])
def test_the_parts_are_those_of_every_rank(ranks: int, shard: int | None) -> None:
    found = plan(f"trainer.devices={ranks}", "trainer.ranks.parallel=fsdp", f"trainer.ranks.shard={shard or 'null'}")
    together = shard or ranks
    assert (found.ranks, found.together) == (ranks, together)
    model = build_model(compose("train", SMALL).model, 1009, 1009, device="meta")
    assert found.parameters == count_parameters(model)
    held = [
        sum(part_rows(p.shape[0], together, rank) * p.shape[1:].numel() for p in model.parameters())
        for rank in range(together)
    ]
    assert sum(held) == found.parameters
    assert (found.most.parameters, found.least.parameters) == (max(held), min(held))
    assert found.most.weights == found.most.gradients == found.least.weights >= BYTES * max(held)
    assert found.most.moments == 2 * BYTES * max(held)
    assert found.least.moments == 2 * BYTES * min(held)
    assert not dist.is_initialized()


@pytest.mark.parametrize("rank", [0, 1, 5])
def test_torch_gives_each_rank_that_part(rank: int) -> None:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    model = build_model(compose("train", SMALL).model, 1009, 1009, device="meta")
    expected = sum(part_rows(p.shape[0], 6, rank) * p.shape[1:].numel() for p in model.parameters())
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=6)
    try:
        shard_step(Step(model, torch.nn.Identity()), grid("cpu", 6, None))
        assert sum(local(parameter).numel() for parameter in model.parameters()) == expected
    finally:
        dist.destroy_process_group()


def test_ranks_of_all_nodes() -> None:
    found = plan(
        "+cluster=slurm", "cluster.nodes=3", "trainer.devices=4", "trainer.ranks.parallel=fsdp", "trainer.ranks.shard=6"
    )
    assert (found.ranks, found.together) == (12, 6)
    assert plan("+cluster=slurm", "cluster.nodes=3", "cluster.gpus=2", "trainer.devices=null").ranks == 6
    with pytest.raises(ConfigError, match="must be a divisor of the 12 ranks, not 5"):
        plan(
            "+cluster=slurm",
            "cluster.nodes=3",
            "trainer.devices=4",
            "trainer.ranks.parallel=fsdp",
            "trainer.ranks.shard=5",
        )


def test_replicas_hold_everything() -> None:
    found = plan("trainer.devices=64", "trainer.ema=0.99")
    assert (found.together, found.gathered) == (1, 0)
    assert found.most == found.least
    assert found.most.parameters == found.parameters
    assert found.most.weights == found.most.gradients == found.most.average == BYTES * found.parameters
    assert found.most.moments == 2 * found.most.weights


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_moments_are_those_that_an_optimizer_keeps(name: str) -> None:
    config = compose("train", [*SMALL, f"optimizer={name}"])
    model = build_model(config.model, 1009, 1009)
    optimizer = build_optimizer(config.optimizer, model)
    set_lr(optimizer, 1e-3)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    for member in members(model):
        kept = [value for key, value in optimizer.state[member.parameter].items() if key != "step"]
        assert kept_numbers(config.optimizer, member.role, member.parameter.shape) == sum(v.numel() for v in kept)


def test_frozen_parameters_have_neither_gradients_nor_moments() -> None:
    found = plan("trainer.devices=64", "trainer.ranks.parallel=fsdp", "init.freeze=[encoder]")
    whole = plan("trainer.devices=64", "trainer.ranks.parallel=fsdp")
    assert found.trained < found.parameters == whole.parameters
    assert found.most.gradients < whole.most.gradients == whole.most.weights == found.most.weights


@pytest.mark.parametrize("ranks", [64, 256, 1024])
def test_big_ende_in_seconds(ranks: int) -> None:
    began = time.monotonic()
    code, out, _ = say("+recipe=big_ende", f"trainer.devices={ranks}", "trainer.ranks.parallel=fsdp")
    assert code == 0
    assert time.monotonic() - began < 20
    assert f"on {ranks:,} ranks" in out
    assert "37,000 pieces" in out
    assert "whole weights, 817.00 MiB, come on top for a while" in out
    assert "warning:" in out, "25,000 tokens an update are few for so many ranks"


def test_says_what_is_wrong_and_writes_nothing(tmp_path: Path) -> None:
    code, out, err = say(*SMALL, "trainer.devices=64", "trainer.ranks.parallel=fsdp", "trainer.ranks.shard=7")
    assert (code, out) == (2, "")
    assert err.strip() == "error: trainer.ranks.shard: must be a divisor of the 64 ranks, not 7"
    words = [*SMALL, "trainer.devices=4", "trainer.ranks.parallel=fsdp", "trainer.ranks.shard=3"]
    ran = CliRunner().invoke(cli.make_app(), ["train", *words])
    assert (ran.exit_code, ran.stdout) == (2, "")
    assert ran.stderr.strip() == "error: trainer.ranks.shard: must be a divisor of the 4 ranks, not 3", "as without it"
    code, out, err = say("data=demo", "tokenizer=char", "tokenizer.vocab_size=null", "trainer.devices=64")
    assert (code, out) == (2, "")
    assert err.startswith("error: tokenizer.vocab_size: the alphabet is not known")
    assert not list(tmp_path.iterdir())


def test_the_vocabulary(tmp_path: Path) -> None:
    """That of a trained tokenizer; else what the configuration says, or what follows from it."""
    found = plan("trainer.devices=3")
    assert (found.vocabulary, found.trained_tokenizer) == ((1009, 1009), False)
    found = plan("tokenizer=byte", "tokenizer.vocab_size=null", "tokenizer.mask=true", "trainer.devices=3")
    made = ByteTokenizer(byte_model(control_pieces([], True, 0)), TextRule("en", False, False, False))
    assert (found.vocabulary, found.trained_tokenizer) == ((made.vocab_size, made.vocab_size), False)
    Tokenizers.one(ByteTokenizer(byte_model(["<a>", "<b>"]), made.rule)).save(tmp_path / "trained")
    found = plan(f"tokenizer.path={tmp_path / 'trained'}", "trainer.devices=3")
    assert (found.vocabulary, found.trained_tokenizer) == ((261, 261), True)


def test_classes_are_assumed_where_they_are_not_known() -> None:
    labels = ["data=labels", "data.train=[{tsv: x}]", "data.valid=[{tsv: x}]", "model=encoder_only", "model/size=tiny"]
    found = dry_run(compose("train", [*labels, "objective=classification", "trainer.devices=3"]))
    assert found.classes == 2


def test_the_fake_ranks_are_gone_after_an_error() -> None:
    with pytest.raises(ConfigError), fake_ranks(5):
        raise ConfigError("no")
    assert not dist.is_initialized()
