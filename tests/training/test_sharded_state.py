"""The state of a model that is spread over ranks: saved by all, read by any number of ranks, damaged, and foreign."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from damage import flip, truncate
from ranks_toys import run_ranks
from torch import Tensor, nn
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from transformer_kit.errors import CheckpointError
from transformer_kit.training.checkpoint import CheckpointStore
from transformer_kit.training.files import sha256
from transformer_kit.training.optimizer import load_optimizer_state, optimizer_state
from transformer_kit.training.saver import Saver
from transformer_kit.training.sharded_state import load_shards, save_together
from transformer_kit.training.shards import whole
from transformer_kit.training.weights import load_model, load_tensors, unique_tensors
from transformer_kit.training.world import ALONE, World


class Net(nn.Module):
    """Rows that no number of ranks divides; embedding and output are tied."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(13, 5)
        self.layers = nn.ModuleList([nn.Linear(5, 7), nn.Linear(7, 5)])
        self.output = nn.Linear(5, 13)
        self.output.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.embedding(ids)
        for layer in self.layers:
            hidden = torch.tanh(layer(hidden))
        logits: Tensor = self.output(hidden)
        return logits


def build(world: World) -> tuple[Net, torch.optim.Optimizer]:
    torch.manual_seed(5)
    net = Net()
    if world.size > 1:
        mesh = init_device_mesh("cpu", (world.size,))
        for module in (*net.layers, net):
            fully_shard(module, mesh=mesh)
    return net, torch.optim.Adam(net.parameters(), lr=0.01)


def step(net: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> float:
    """An update on the same batch on all ranks."""
    ids = torch.arange(11 * number, 11 * number + 11) % 13
    loss = nn.functional.cross_entropy(net(ids), (ids * 3 + 1) % 13)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def store_in(folder: str | Path) -> CheckpointStore:
    return CheckpointStore(Path(folder), keep_last=9, keep_best=0, metric="loss", higher_is_better=False)


def save(saver: Saver, net: nn.Module, optimizer: torch.optim.Optimizer, number: int, last: bool = False) -> bool:
    averaged = {name: tensor * 2 for name, tensor in unique_tensors(net).items()}
    state = {"step": number, "regular": True}
    return saver.save(number, net, optimizer_state(optimizer, net), state, averaged, last)


def resume(net: nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> None:
    found = {c.step: c for c in store_in(folder).all()}[3]
    load_model(found.path / "model.safetensors", net)
    load_optimizer_state(optimizer, net, found.trainer_state(net), str(found.path))


def plain(moments: Any) -> dict[str, Tensor]:
    flat = {f"{name}/{key}": value for name, values in moments.items() for key, value in values.items()}
    return {key: whole(value).clone() for key, value in flat.items()}


# -- on ranks ----------------------------------------------------------------------------------------------------------


def train(world: World, folder: str) -> Any:
    """Three updates, a save beside the fourth and fifth, then saves that rank 1 cannot write, then one that it can."""
    net, optimizer = build(world)
    for number in range(3):
        step(net, optimizer, number)
    moments = plain(optimizer_state(optimizer, net))
    weights = {name: tensor.full_tensor() for name, tensor in unique_tensors(net).items()}
    told = []
    with Saver(store_in(folder), True, world) as saver:
        assert save(saver, net, optimizer, 3)
        losses = [step(net, optimizer, number) for number in (3, 4)]
        told.append(saver.saved)
        write = dcp.FileSystemWriter.write_data
        if world.rank == 1:
            dcp.FileSystemWriter.write_data = full_disk
        assert save(saver, net, optimizer, 4), "on the way"
        told.append(saver.saved)
        told.append(save(saver, net, optimizer, 5, last=True))
        dcp.FileSystemWriter.write_data = write
        told.append(save(saver, net, optimizer, 5, last=True))
        found = saver.recover()
        told.append(found.step)
    return moments, weights, losses, told


def full_disk(*arguments: Any) -> Any:
    raise OSError(28, "No space left on device")


def go_on(world: World, *folders: str) -> list[list[float]]:
    """The losses of the fourth and fifth update, from each of some checkpoints."""
    losses = []
    for folder in folders:
        net, optimizer = build(world)
        resume(net, optimizer, Path(folder))
        losses.append([step(net, optimizer, number) for number in (3, 4)])
    return losses


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("trained")
    (folder / "ranks").mkdir()
    return folder / "c", run_ranks(train, 2, folder / "ranks", str(folder / "c"))


def test_all_ranks_save_together_or_none_does(trained: Any) -> None:
    folder, results = trained
    for _, _, _, told in results:
        assert told == [3, 3, False, True, 5], "rank 1 had no room for 4, and at first for 5"
    assert sorted(path.name for path in folder.iterdir()) == ["step_000003", "step_000005"]
    names = sorted(path.relative_to(folder / "step_000003").as_posix() for path in (folder / "step_000003").rglob("*"))
    shards = ["shards", "shards/.metadata", "shards/__0_0.distcp", "shards/__1_0.distcp"]
    assert names == ["ema.safetensors", "manifest.json", "model.safetensors", *shards, "state.json"]
    manifest = json.loads((folder / "step_000003" / "manifest.json").read_text())["files"]
    assert manifest.keys() == set(names) - {"shards", "manifest.json"}
    for name, entry in manifest.items():
        path = folder / "step_000003" / name
        assert (entry["bytes"], entry["sha256"]) == (path.stat().st_size, sha256(path))


def test_whole_weights_and_moments_are_those_when_it_was_saved(trained: Any) -> None:
    """One process without a process group reads them, though the ranks had gone on when they were written."""
    folder, [(moments, weights, losses, _), *_] = trained
    written = load_tensors(folder / "step_000003" / "model.safetensors")
    averaged = load_tensors(folder / "step_000003" / "ema.safetensors")
    assert written.keys() == averaged.keys() == weights.keys()
    assert all(torch.equal(written[name], weights[name]) for name in weights)
    assert all(torch.equal(averaged[name], weights[name] * 2) for name in weights)
    net, _ = build(ALONE)
    read = plain(load_shards(folder / "step_000003" / "shards", net))
    assert read.keys() == moments.keys()
    assert all(torch.equal(read[key], moments[key]) for key in moments)
    assert go_on(ALONE, str(folder))[0] == pytest.approx(losses, rel=1e-6)


@pytest.mark.slow
def test_three_ranks_go_on_from_two_and_from_one_process(trained: Any, tmp_path: Path) -> None:
    folder, [(_, _, losses, _), *_] = trained
    net, optimizer = build(ALONE)
    for number in range(3):
        step(net, optimizer, number)
    assert save(Saver(store_in(tmp_path / "c"), False), net, optimizer, 3)
    assert (tmp_path / "c" / "step_000003" / "trainer.pt").exists()
    for from_two, from_one in run_ranks(go_on, 3, tmp_path, str(folder), str(tmp_path / "c")):
        assert from_two == pytest.approx(losses, rel=1e-6)
        assert from_one == pytest.approx(losses, rel=1e-6)


# -- damage and trust --------------------------------------------------------------------------------------------------


def saved_alone(folder: Path, number: int) -> Path:
    """A checkpoint in parts, written by one process without a process group."""
    net, optimizer = build(ALONE)
    step(net, optimizer, number)
    state = {"step": number, "regular": True}
    assert save_together(store_in(folder), unique_tensors(net), optimizer_state(optimizer, net), state, None, None)
    return folder / f"step_{number:06d}"


def add(path: Path) -> None:
    (path.parent / "more").write_bytes(b"x")


def link(path: Path) -> None:
    path.rename(path.parents[2] / "elsewhere")
    path.symlink_to(path.parents[2] / "elsewhere")


@pytest.mark.parametrize("name", [".metadata", "__0_0.distcp"])
@pytest.mark.parametrize("harm", [truncate, flip, os.remove, add, link])
def test_a_damaged_part_gives_way_to_the_checkpoint_before(tmp_path: Path, name: str, harm: Any) -> None:
    saved_alone(tmp_path, 1)
    harm(saved_alone(tmp_path, 2) / "shards" / name)
    good = store_in(tmp_path).recover()
    assert good is not None
    assert good.step == 1
    assert set(good.trainer_state(build(ALONE)[0])) == set(dict(Net().named_parameters()))
    assert (tmp_path / "step_000002.damaged").is_dir()


def test_the_folder_of_the_parts_may_not_be_missing_or_a_link(tmp_path: Path) -> None:
    saved_alone(tmp_path, 1)
    for number, then in ((2, None), (3, tmp_path / "elsewhere")):
        folder = saved_alone(tmp_path, number) / "shards"
        folder.rename(tmp_path / "elsewhere")
        if then is not None:
            folder.symlink_to(then)
        good = store_in(tmp_path).recover()
        assert good is not None
        assert good.step == 1
        if then is None:
            (tmp_path / "elsewhere").rename(tmp_path / "gone")


class Canary:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (os.mkdir, (str(self.path),))


def description(folder: Path) -> Metadata:
    found: Metadata = pickle.loads((folder / ".metadata").read_bytes())
    return found


def foreign(folder: Path, canary: Path) -> list[tuple[bytes, str]]:
    """Descriptions of bad intent, each with what is said of it."""
    within, bytes_, up, absolute, extended = (description(folder) for _ in range(5))
    within.planner_data = Canary(canary)
    key = next(iter(bytes_.state_dict_metadata))
    bytes_.state_dict_metadata[key] = dcp.metadata.BytesStorageMetadata()
    for data, path in ((up, "../model.safetensors"), (absolute, "/etc/passwd")):
        for place in data.storage_data.values():
            place.relative_path = path
    for place in extended.storage_data.values():
        place.transform_descriptors = ["stream.zstd"]
    more, name = "it holds more than a description of tensors", "no plain name inside its folder"
    found = [(Canary(canary), more), (within, more), (bytes_, more), ({}, more), (up, name), (absolute, name)]
    return [(pickle.dumps(each), says) for each, says in [*found, (extended, more)]] + [(b"", more), (b"\x80", more)]


def test_a_description_with_code_in_it_is_refused(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    folder = saved_alone(tmp_path, 1)
    for data, says in foreign(folder / "shards", canary):
        (folder / "shards" / ".metadata").write_bytes(data)
        with pytest.raises(CheckpointError, match=says) as caught:
            load_shards(folder / "shards", build(ALONE)[0])
        assert "\n" not in str(caught.value)
    assert not canary.exists()


def test_a_part_with_code_in_it_is_refused(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    folder = saved_alone(tmp_path, 1) / "shards"
    torch.save(Canary(canary), folder / "bad")
    data = (folder / "bad").read_bytes()
    (folder / "bad").unlink()
    whole = description(folder)
    for place in whole.storage_data.values():
        place.offset, place.length = 0, len(data)
    (folder / ".metadata").write_bytes(pickle.dumps(whole))
    (folder / "__0_0.distcp").write_bytes(data)
    with pytest.raises(CheckpointError, match="cannot be read") as caught:
        load_shards(folder, build(ALONE)[0])
    assert "\n" not in str(caught.value)
    assert not canary.exists()
