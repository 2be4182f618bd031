"""Several ranks give what one process gives, whichever way they share a model: replicas, FSDP2, hybrid sharding.

Each way has one world of processes, which computes everything beside one process alone; the tests look at the result.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from optimizer_toys import shipped, small
from ranks_toys import apart, gradient, run_ranks, update
from torch import Tensor, nn

from transformer_kit.batch import Batch, Specials, pad, translation_batch
from transformer_kit.config.compose import compose
from transformer_kit.errors import ConfigError
from transformer_kit.models.base import Model
from transformer_kit.models.stack import checkpoint_activations
from transformer_kit.objectives.base import Objective
from transformer_kit.objectives.causal_lm import CausalLM
from transformer_kit.objectives.classification import Classification
from transformer_kit.objectives.masked_lm import MaskedLM
from transformer_kit.objectives.translation import Translation
from transformer_kit.training.compiling import Compiler
from transformer_kit.training.ema import Ema
from transformer_kit.training.optimizer import build_optimizer, load_optimizer_state, set_lr
from transformer_kit.training.options import OPTIMIZERS
from transformer_kit.training.parallel import Parallel, make_parallel
from transformer_kit.training.ranks_options import RanksOptions
from transformer_kit.training.sharded import full_state
from transformer_kit.training.shards import is_sharded, local, whole
from transformer_kit.training.step import Step
from transformer_kit.training.watch import Watch
from transformer_kit.training.weights import fill, unique_tensors
from transformer_kit.training.world import ALONE, World

VOCAB = 17
CPU = torch.device("cpu")
SPECIALS = Specials(pad=0, bos=2, eos=3, unk=1, mask=4, sentinels=(), vocab_size=VOCAB, start=2)
ROWS = {10: (7, 3), 90: (36, 31, 23), 41: (19, 13, 9)}  # labels -> those of each row
WINDOW = (10, 90, 41)
WAYS = {"first": (2, "fsdp", 2), "ddp": (2, "ddp", None), "fsdp": (2, "fsdp", None), "hybrid": (4, "fsdp", 2)}
"""Name -> ranks, `trainer.ranks.parallel` and `shard`. Two ranks do not halve the 17 rows of a table."""
FIRST = "tied three ways"  # all that is tried where a number is given for `shard`
LEARNT = (FIRST, "decoder_only", "encoder_only")  # what learns for 20 updates


def smoothing(spread: str = "all", rate: float = 0.1) -> dict[str, Any]:
    return {"specials": SPECIALS, "label_smoothing": rate, "smoothing_over": spread, "chunk": 7}


def masked() -> Objective:
    return MaskedLM(rate=0.15, masked=0.8, replaced=0.1, **smoothing("others"))


def classification() -> Objective:
    return Classification(specials=SPECIALS, pooling="mean", pooler=True, dropout=0.0, label_smoothing=0.1)


CASES: dict[str, tuple[str, dict[str, Any], Callable[[], Objective]]] = {
    FIRST: (
        "encoder_decoder",
        {"tie": "three_way", "pooler": False},
        lambda: Translation(**smoothing("others_but_pad"), rdrop=0.0),
    ),
    "untied": ("encoder_decoder", {}, lambda: Translation(**smoothing(), rdrop=2.0)),
    "decoder_only": ("decoder_only", {"tie": "output"}, lambda: CausalLM(**smoothing(rate=0.0))),
    "encoder_only": ("encoder_only", {"tie": "output", "pooler": False}, masked),
    "idle pooler": ("encoder_only", {"tie": "output"}, masked),
    "classifier": ("encoder_decoder", {"tie": "three_way", "pooler": False}, classification),
}


def make_step(case: str, kind: torch.dtype, compiler: Compiler | None = None) -> Step:
    family, changes, objective = CASES[case]
    made = objective()
    return Step(made.adapt(small(family, **changes), 3).to(kind), made, compiler).train()


def make_batch(case: str, labels: int) -> Batch:
    draw = torch.Generator().manual_seed(labels)
    rows = [torch.randint(5, VOCAB, (n,), generator=draw) for n in ROWS[labels]]
    if case in (FIRST, "untied"):
        return translation_batch(
            [row.flip(0)[:-2] for row in rows],
            [row[1:] for row in rows],
            range(len(rows)),
            pad_id=0,
            bos_id=2,
            eos_id=3,
        )
    tokens = pad(rows, 0)
    ids = torch.arange(len(rows))
    if case == "classifier":
        return Batch(None, tokens, tokens.ids[:, :1] % 3, torch.ones(len(rows), 1, dtype=torch.bool), len(rows), ids)
    if case == "decoder_only":
        return Batch(None, tokens, tokens.ids.roll(-1, 1), tokens.valid, labels, ids)
    counted = tokens.valid & (tokens.ids % 3 == 0)
    return Batch(None, tokens, tokens.ids + counted.long() - 1, counted, int(counted.sum()), ids)


def window(case: str, *labels: int) -> list[Batch]:
    return [make_batch(case, each) for each in labels or WINDOW]


def grads(model: nn.Module) -> dict[str, Tensor]:
    return {name: whole(p.grad).clone() for name, p in model.named_parameters() if p.grad is not None}


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: whole(p.detach()).clone() for name, p in model.named_parameters()}


# -- what the ranks compute: differences from one process, by name ----------------------------------------------------


def everything(world: World, parallel: str, shard: int | None) -> dict[str, Any]:
    options = RanksOptions(parallel=parallel, shard=shard, timeout=60.0, restarts=0)
    found: dict[str, Any] = {}

    def both(case: str, kind: torch.dtype = torch.float64) -> tuple[Parallel, Parallel]:
        return make_parallel(make_step(case, kind), world, options, CPU), Parallel(make_step(case, kind), ALONE)

    ranks, alone = both(FIRST)
    found |= _shares(ranks, alone) | _whole(ranks, world)
    for case in CASES if shard is None else [FIRST]:
        ranks, alone = both(case)
        for name, labels in {"gradient": WINDOW, "zero weight": (90,), "unequal": (10, 90)}.items():
            found[f"{case}: {name}"] = _gradients_apart(ranks, alone, window(case, *labels))
        found[f"{case}: sgd"] = _sgd(ranks, alone, case)
        if case in LEARNT:
            found[f"{case}: adam"] = _adam(*both(case, torch.float32), case)
    if shard is not None:
        return found
    for name in OPTIMIZERS:
        if parallel == "fsdp" and name == "adafactor":
            continue  # refused with the configuration
        found[f"optimizer {name}"] = _optimizer(*both(FIRST), name)
    ranks, alone = both(FIRST)
    found |= _ema(ranks, alone) | _watch(*both("untied")) | _state(ranks, world, lambda: both(FIRST)[0])
    found["checkpointing"] = _checkpointing(*both("untied"))
    return found


def _gradients_apart(ranks: Parallel, alone: Parallel, batches: list[Batch]) -> tuple[float, float, float]:
    """The largest difference of gradients; those of norm and loss."""
    got = []
    for each in (ranks, alone):
        each.step.zero_grad()
        loss = gradient(each, batches)
        held = [p.grad for p in each.step.parameters() if p.grad is not None]
        got.append((grads(each.step.model), float(each.norm(held)), loss))
    (one, norm, loss), (other, expected, alone_loss) = got
    return apart(one, other), abs(norm - expected) / expected, abs(loss - alone_loss)


def _sgd(ranks: Parallel, alone: Parallel, case: str) -> float:
    for each in (ranks, alone):
        optimizer = torch.optim.SGD([p for p in each.step.parameters() if p.requires_grad], lr=0.3)
        for _ in range(5):
            update(each, window(case), optimizer, clip=1.0)
    return apart(weights(ranks.step.model), weights(alone.step.model))


def _adam(ranks: Parallel, alone: Parallel, case: str) -> list[float]:
    """The difference of each of 20 losses, and how far the loss fell."""
    losses = []
    for each in (ranks, alone):
        optimizer = build_optimizer(shipped("adam"), each.step.model)
        set_lr(optimizer, 0.01)
        losses.append([update(each, window(case), optimizer, clip=1.0)[0] for _ in range(20)])
    one, other = losses
    return [*(abs(a - b) for a, b in zip(one, other, strict=True)), other[0] - other[-1]]


def _optimizer(ranks: Parallel, alone: Parallel, name: str) -> tuple[float, float]:
    """The difference of weights after some updates, and how far they went."""
    before = weights(alone.step.model)
    for each in (ranks, alone):
        optimizer = build_optimizer(shipped(name), each.step.model)
        set_lr(optimizer, 0.01)
        for _ in range(4):
            update(each, window(FIRST), optimizer, clip=0.5)
    return apart(weights(ranks.step.model), weights(alone.step.model)), apart(before, weights(alone.step.model))


def _shares(ranks: Parallel, alone: Parallel) -> dict[str, Any]:
    """Whether parameters are spread as they should be, and ties still are."""
    model: Any = ranks.step.model
    return {
        "kind": type(ranks).__name__,
        "names": list(dict(model.named_parameters())) == list(dict(alone.step.model.named_parameters())),
        "tied": model.head.output()[0] is model.target_embedding.weight is model.source_embedding.weight,
        "sharded": {is_sharded(p) for p in model.parameters()},
        "rows": local(model.target_embedding.weight).shape[0],
        "held": sum(local(p).numel() for p in model.parameters()),
        "all": sum(p.numel() for p in model.parameters()),
    }


def _whole(ranks: Parallel, world: World) -> dict[str, Any]:
    """A rank runs the whole model by itself, and again after an update; nothing of it stays."""
    found, batch = [], make_batch(FIRST, 90)
    optimizer = torch.optim.SGD(ranks.step.parameters(), lr=0.3)
    for _ in range(2):
        ranks.step.eval()
        with ranks.whole() as model, torch.no_grad():
            assert isinstance(model, Model)
            assert not model.training
            assert not any(is_sharded(p) for p in model.parameters())
            if world.rank == world.size - 1:
                twin: Any = make_step(FIRST, torch.float64).model.eval()
                fill(twin, unique_tensors(model), "the replica")
                found.append(float((model(batch).hidden - twin(batch).hidden).abs().max()))
                state: Any = model
                begun = state.begin(batch.source, 2, 5)
                assert state.extend(batch.target.ids[:, :1].repeat_interleave(2, 0), begun).shape == (6, 1, 12)
            held = weights(model)
        found.append(apart(held, weights(ranks.step.model)))
        ranks.step.train()
        update(ranks, window(FIRST), optimizer, clip=1.0)
        assert apart(held, weights(ranks.step.model)) > 1e-3
    return {"whole": max(found)}


def _ema(ranks: Parallel, alone: Parallel) -> dict[str, float]:
    averages = []
    for each in (ranks, alone):
        fill(each.step.model, unique_tensors(make_step(FIRST, torch.float64).model), "afresh")
        ema, optimizer = Ema(each.step.model, 0.9), torch.optim.SGD(each.step.parameters(), lr=0.3)
        for step in range(1, 4):
            update(each, window(FIRST), optimizer, clip=1.0)
            ema.update(step)
        before = weights(each.step.model)
        with ema.applied(), each.whole() as model:
            averages.append(weights(model))
        assert apart(before, weights(each.step.model)) == 0
        assert apart(before, averages[-1]) > 1e-3
        again = Ema(each.step.model, 0.9)
        again.load({name: whole(tensor) for name, tensor in ema.tensors().items()}, "the other")
        with again.applied():
            averages.append(weights(each.step.model))
    return {"ema": max(apart(one, averages[2]) for one in averages)}


def _watch(ranks: Parallel, alone: Parallel) -> dict[str, Any]:
    rows = []
    for each in (ranks, alone):
        optimizer = torch.optim.SGD(each.step.parameters(), lr=0.3)
        record = Watch(each.step.model, 1, each.step, each.world).record()
        with record.listening():
            optimizer.zero_grad()
            gradient(each, window("untied"))
        record.before()
        optimizer.step()
        rows.append(record.after())
    assert rows[0].keys() == rows[1].keys()
    return {"watch": max(abs(value / rows[1][name] - 1) for name, value in rows[0].items())}


def _state(ranks: Parallel, world: World, fresh: Callable[[], Parallel]) -> dict[str, Any]:
    """Weights and moments, gathered on rank 0, put others into the same state, and so on the same way."""
    model = ranks.step.model
    optimizer = build_optimizer(shipped("adamw"), model)
    set_lr(optimizer, 0.01)
    update(ranks, window(FIRST), optimizer, clip=1.0)
    found = full_state(model)
    assert list(found) == (list(unique_tensors(model)) if world.leads else [])
    tensors = world.share(found)
    moments = {
        name: {key: whole(value).clone() for key, value in optimizer.state[p].items()}
        for name, p in model.named_parameters()
    }
    other = fresh()
    fill(other.step.model, tensors, "gathered")
    again = build_optimizer(shipped("adamw"), other.step.model)
    set_lr(again, 0.01)
    load_optimizer_state(again, other.step.model, moments, "gathered")
    for each, its in ((ranks, optimizer), (other, again)):
        update(each, window(FIRST), its, clip=1.0)
    return {"state": apart(weights(other.step.model), weights(model))}


def _checkpointing(ranks: Parallel, alone: Parallel) -> tuple[float, float, float]:
    checkpoint_activations(ranks.step.model, True)
    return _gradients_apart(ranks, alone, window("untied"))


def compiled(world: World, parallel: str) -> list[Any]:
    """Gradients of compiled layers that are run twice, for windows of several shapes, and the graphs after each."""
    compiler, found = Compiler("aot_eager"), []
    step = make_step(FIRST, torch.float64, compiler)
    checkpoint_activations(step.model, True)
    options = RanksOptions(parallel=parallel, shard=None, timeout=60.0, restarts=0)
    ranks = make_parallel(step, world, options, CPU)
    alone = Parallel(make_step(FIRST, torch.float64), ALONE)
    for labels in (WINDOW, (10,), (41, 90)):
        found.append((*_gradients_apart(ranks, alone, window(FIRST, *labels)), compiler.graphs))
    return found


# -- the tests --------------------------------------------------------------------------------------------------------


Ways = tuple[str, list[dict[str, Any]]]


@pytest.fixture(
    scope="module", params=["first", *(pytest.param(way, marks=pytest.mark.slow) for way in ("ddp", "fsdp", "hybrid"))]
)
def ways(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ways:
    ranks, parallel, shard = WAYS[request.param]
    return request.param, run_ranks(everything, ranks, tmp_path_factory.mktemp("ranks"), parallel, shard)


def of(ways: Ways, name: str) -> list[Any]:
    """What each rank found under a name; skipped where it was not looked for."""
    if ways[0] in ("first", "hybrid") and name not in ways[1][0]:
        pytest.skip("tried with the other ways")
    return [found[name] for found in ways[1]]


@pytest.mark.parametrize("what", ["gradient", "zero weight", "unequal"])
@pytest.mark.parametrize("case", CASES)
def test_gradients_norm_and_loss(ways: Ways, case: str, what: str) -> None:
    for gradients, norm, loss in of(ways, f"{case}: {what}"):
        assert gradients < 1e-9
        assert norm < 1e-9
        assert loss < 1e-9


@pytest.mark.parametrize("case", CASES)
def test_training(ways: Ways, case: str) -> None:
    assert max(of(ways, f"{case}: sgd")) < 1e-9, "parameters after 5 updates"
    for *losses, fell in of(ways, f"{case}: adam") if case in LEARNT else []:
        assert len(losses) == 20
        assert max(losses) < 1e-4
        assert fell > 0.05


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(ways: Ways, name: str) -> None:
    if name == "adafactor" and ways[0] != "ddp":
        changes = ["data=demo", "model/size=tiny", "trainer.devices=2", "trainer.ranks.parallel=fsdp"]
        with pytest.raises(ConfigError, match=r"^trainer\.ranks\.parallel: adafactor's sums"):
            compose("train", [*changes, "optimizer=adafactor"])
        return
    for difference, moved in of(ways, f"optimizer {name}"):
        # Adafactor makes steps of one size of whatever gradient, even of what rounding leaves of 0; Muon's products are
        # in float32 or bfloat16
        assert difference < {"adafactor": 1e-6, "muon": 1e-4}.get(name, 1e-9)
        assert moved > 1e-3


def test_what_each_rank_holds(ways: Ways) -> None:
    name, every = ways
    ranks, parallel, shard = WAYS[name]
    assert {found["kind"] for found in every} == {"Replicated" if parallel == "ddp" else "Sharded"}
    assert all(found["tied"] and found["names"] for found in every)
    if parallel == "ddp":
        return
    together = shard or ranks
    assert {frozenset(found["sharded"]) for found in every} == {frozenset({True})}
    rows = [-(-VOCAB // together)] * (together - 1)
    assert [found["rows"] for found in every] == [*rows, VOCAB - sum(rows)] * (ranks // together)
    assert sum(found["held"] for found in every) == every[0]["all"] * (ranks // together)


@pytest.mark.parametrize("what", ["whole", "ema", "state", "watch"])
def test_equal(ways: Ways, what: str) -> None:
    assert max(of(ways, what)) < (1e-6 if what == "watch" else 1e-9)


def test_layers_that_are_run_twice(ways: Ways) -> None:
    assert max(max(found) for found in of(ways, "checkpointing")) < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_compiled_layers(parallel: str, tmp_path: Path) -> None:
    """What is compiled for the first window serves the others."""
    for found in run_ranks(compiled, 2, tmp_path, parallel):
        assert max(max(differences) for *differences, _ in found) < 1e-9
        assert len({graphs for *_, graphs in found}) == 1
        assert found[0][-1] >= 2  # two kinds of layers
