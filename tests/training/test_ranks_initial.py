"""Ranks that hold one model together begin with the weights of one process, and rank 0 alone ever has them all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from optimizer_toys import read, small
from ranks_toys import run_ranks
from torch import Tensor, nn

from transformer_kit.batch import Specials
from transformer_kit.errors import CheckpointError, ConfigError, TkitError
from transformer_kit.models.empty import without_weights
from transformer_kit.objectives.classification import Classification
from transformer_kit.tasks.initial import freeze
from transformer_kit.training.memory import peak_of
from transformer_kit.training.parallel import make_parallel
from transformer_kit.training.ranks_options import RanksOptions
from transformer_kit.training.shards import is_sharded, local, whole
from transformer_kit.training.step import Step
from transformer_kit.training.whole_weights import on_rank_0
from transformer_kit.training.world import World

CPU = torch.device("cpu")
SPECIALS = Specials(pad=0, bos=2, eos=3, unk=1, mask=4, sentinels=(), vocab_size=17, start=2)
BIG = {"d_model": 256, "d_ff": 1024, "num_heads": 4, "head_dim": 64, "v_head_dim": 64, "decoder": {"layers": 20}}
"""79 MB of weights, of which a layer is 4 MB."""


class Odd(nn.Module):
    """What a part from elsewhere may do: ties of parameters, drawing and computing, buffers of many kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 5)
        self.output = nn.Linear(5, 7)
        self.output.weight = self.embedding.weight
        both = nn.Parameter(torch.randn(3, 2))
        self.one, self.other = nn.Linear(2, 3), nn.Linear(2, 3)
        self.one.weight = self.other.weight = both
        self.narrow = nn.Parameter(torch.rand(3, dtype=torch.bfloat16))
        self.whole = nn.Parameter(torch.randint(9, (4,)), requires_grad=False)
        self.register_buffer("noise", torch.randn(4))
        self.register_buffer("again", self.noise)
        self.register_buffer("turns", torch.polar(torch.ones(3), torch.arange(3.0)), persistent=False)
        self.register_buffer("on", torch.tensor(True))
        self.register_buffer("none", torch.empty(0))
        self.register_buffer("start", self.embedding.weight.detach().clone())
        self.table = torch.arange(4.0).cos()


def odd() -> nn.Module:
    torch.manual_seed(3)
    return Odd()


def classifier() -> nn.Module:
    made = Classification(specials=SPECIALS, pooling="mean", pooler=True, dropout=0.0, label_smoothing=0.1)
    return made.adapt(small("encoder_decoder", tie="three_way", pooler=False, init="bert"), 3)


def positioned(family: str, position: str, **changes: Any) -> Callable[[], nn.Module]:
    return lambda: small(family, position=read("model", "position", f"{position}.yaml"), head_dim=6, **changes)


CASES: dict[str, Callable[[], nn.Module]] = {
    "tied three ways": lambda: small("encoder_decoder", tie="three_way", pooler=False),
    "rope": positioned("decoder_only", "rope", tie="output", init="gpt2"),
    "alibi": positioned("decoder_only", "alibi"),
    "relative": positioned("encoder_decoder", "relative", pooler=False, init="t5"),
    "learned": lambda: small("encoder_only", tie="output", init="bert"),
    "classifier": classifier,
    "odd": odd,
}
WAYS = {"fsdp": (2, None), "hybrid": (4, 2)}


def tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers under all of their names."""
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    return {name: whole(tensor.detach()) for name, tensor in named}


def differences(got: nn.Module, expected: nn.Module) -> list[str]:
    """The names of the tensors that differ in a bit or in kind, and what else does."""
    one, other = tensors(got), tensors(expected)
    found = [] if list(one) == list(other) else ["names"]
    found += [name for name in other if one[name].dtype != other[name].dtype or not torch.equal(one[name], other[name])]
    trained = [{n: p.requires_grad for n, p in each.named_parameters()} for each in (got, expected)]
    kept = [list(each.state_dict()) for each in (got, expected)]
    found += ["what is trained"] * (trained[0] != trained[1]) + ["what is saved"] * (kept[0] != kept[1])
    if isinstance(got, Odd) and isinstance(expected, Odd):
        ties = (got.output.weight is got.embedding.weight, got.one.weight is got.other.weight, got.noise is got.again)
        found += ["ties"] * (not all(ties)) + ["table"] * (not torch.equal(got.table, expected.table))
    return found


def begun(world: World, shard: int | None) -> dict[str, Any]:
    """What each rank has of each case before and after it is spread."""
    options, found = RanksOptions(parallel="fsdp", shard=shard, timeout=60.0, restarts=0), {}
    for case, build in CASES.items():
        alone = build()
        drawn = torch.rand(3)
        with on_rank_0(world):
            model = build()
        freeze(model, frozen := [next(iter(dict(alone.named_parameters()))).removeprefix("body.")])
        freeze(alone, frozen)
        held = {"empty": {p.is_meta for p in model.parameters()}, "draws": torch.equal(drawn, torch.rand(3))}
        parallel = make_parallel(Step(model, nn.Identity()), world, options, CPU)
        held["spread"] = {is_sharded(p) for p in model.parameters()}
        held["rows"] = sum(local(p).numel() for p in model.parameters())
        held["differences"] = differences(model, alone)
        alone.requires_grad_(False)
        with parallel.whole() as replica:
            held["differences"] += differences(replica, alone)
        found[case] = held
    return found


@pytest.fixture(scope="module", params=WAYS)
def way(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    ranks, shard = WAYS[request.param]
    return run_ranks(begun, ranks, tmp_path_factory.mktemp("ranks"), shard)


@pytest.mark.parametrize("case", CASES)
def test_ranks_begin_with_the_weights_of_one_process(way: list[dict[str, Any]], case: str) -> None:
    for rank, ranks in enumerate(way):
        held = ranks[case]
        assert held["empty"] == {rank > 0}
        assert held["spread"] == {True}
        assert held["draws"], "what is drawn after building"
        assert held["differences"] == []
    assert way[0][case]["rows"] > way[-1][case]["rows"] > 0


def spread(world: World, **sizes: Any) -> Step:
    with on_rank_0(world):
        step = Step(small("decoder_only", tie="output", **sizes), nn.Identity())
    make_parallel(step, world, RanksOptions(parallel="fsdp", shard=None, timeout=60.0, restarts=0), CPU)
    return step


def memory(world: World) -> tuple[int, int, int]:
    """The most bytes held while building and spreading; those of all weights, and of the rank's rows."""
    spread(world)  # what libraries take once
    with peak_of(CPU) as before:
        pass
    with peak_of(CPU) as most:
        step = spread(world, **BIG)
    whole, own = (sum(4 * count(p) for p in step.parameters()) for count in (torch.numel, lambda p: local(p).numel()))
    return most() - before(), whole, own


def test_rank_0_alone_has_memory_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank of the others needs what it keeps and a tensor of 2 MB beside."""
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "65536")  # glibc gives back at once what is freed
    (most, every, _), (others, _, own) = run_ranks(memory, 2, tmp_path)
    assert 0.9 * every < most < 1.2 * every, "the measurement sees what is held; rank 0 gives up what it has sent"
    assert others < own + 0.2 * every
    assert own < 0.6 * every


def failing(world: World) -> list[str]:
    """What each rank is told of errors of rank 0, and what it gets where there is none."""
    told = []
    for error in (CheckpointError("no such file"), ConfigError(["one", "two"])):

        def fail(error: TkitError = error) -> None:
            raise error

        try:
            world.led(fail)
        except TkitError as caught:
            told.append(f"{type(caught).__name__} {caught}")
    return [*told, world.led(lambda: f"of rank {world.rank}")]


def test_what_rank_0_meets_all_are_told(tmp_path: Path) -> None:
    expected = ["CheckpointError no such file", "ConfigError one\ntwo", "of rank 0"]
    assert run_ranks(failing, 2, tmp_path) == [expected] * 2


def failing_build() -> None:
    with without_weights():
        assert nn.Linear(2, 3).weight.is_meta
        raise ConfigError("no")


def test_modules_made_later_have_weights() -> None:
    with pytest.raises(ConfigError):
        failing_build()
    assert not any(p.is_meta for p in nn.Linear(2, 3).parameters())
