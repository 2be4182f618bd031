"""Weights survive files and means; ties stay ties."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from transformer_kit.errors import CheckpointError
from transformer_kit.training.average import average, final_weights
from transformer_kit.training.files import Entry, sha256
from transformer_kit.training.options import AverageOptions
from transformer_kit.training.weights import (
    fill,
    load_model,
    load_tensors,
    save_model,
    save_tensors,
    unique_tensors,
    write_tensors,
)


class Tied(nn.Module):
    def __init__(self, width: int = 5) -> None:
        super().__init__()
        self.source = nn.Embedding(7, width)
        self.target = self.source
        self.head = nn.Linear(width, 7, bias=True)
        self.head.weight = self.source.weight
        self.register_buffer("counts", torch.arange(3))


def test_tied_weights_are_stored_once_and_stay_tied(tmp_path):
    model = Tied()
    save_model(tmp_path / "m", model)
    assert sorted(load_file(tmp_path / "m")) == ["counts", "head.bias", "source.weight"]
    for other in (Tied(), copy.deepcopy(Tied())):
        load_model(tmp_path / "m", other)
        assert other.head.weight is other.source.weight is other.target.weight
        assert all(
            torch.equal(a, b) for a, b in zip(model.state_dict().values(), other.state_dict().values(), strict=True)
        )
    assert [p.name for p in tmp_path.iterdir()] == ["m"]


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (Tied(3), r"source\.weight is \(7, 5\), the model's \(7, 3\)"),
        (nn.Linear(5, 7), r"bias is missing.*and \d more|bias is missing"),
    ],
)
def test_weights_of_another_model_are_refused(tmp_path, other, says):
    save_model(tmp_path / "m", Tied())
    before = copy.deepcopy(other.state_dict())
    with pytest.raises(CheckpointError, match=says):
        load_model(tmp_path / "m", other)
    assert all(torch.equal(before[name], value) for name, value in other.state_dict().items()), "nothing half loaded"


def test_large_pieces_give_the_bytes_of_the_library(tmp_path, monkeypatch):
    monkeypatch.setattr("transformer_kit.training.files.PIECE", 7)
    kinds = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int16)
    tensors = {f'{i}.é"': torch.arange(15).view(3, 5).to(kind) for i, kind in enumerate(kinds)}
    tensors |= {"i8": torch.arange(3, dtype=torch.int8), "u8": torch.arange(5, dtype=torch.uint8)}
    tensors |= {"none": torch.zeros(0, 3), "one": torch.tensor(2.5), "yes": torch.tensor([True, False])}
    save_file(tensors, tmp_path / "library", {"format": "pt"})
    entry = write_tensors(tmp_path / "own", tensors | {'0.é"': tensors['0.é"'].t().contiguous().t()})
    assert (tmp_path / "own").read_bytes() == (tmp_path / "library").read_bytes()
    assert entry == Entry((tmp_path / "own").stat().st_size, sha256(tmp_path / "own"))


def test_a_file_that_is_none(tmp_path):
    with pytest.raises(CheckpointError, match="no such file"):
        load_tensors(tmp_path / "absent")
    (tmp_path / "bad").write_bytes(b"\x80\x04K\x01.")
    with pytest.raises(CheckpointError, match="not a whole safetensors file"):
        load_tensors(tmp_path / "bad")


def test_a_failed_write_keeps_the_old_file(tmp_path, monkeypatch):
    save_tensors(tmp_path / "m", {"x": torch.ones(3)})
    monkeypatch.setattr("transformer_kit.training.weights.flush", lambda path: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        save_tensors(tmp_path / "m", {"x": torch.zeros(3)})
    assert torch.equal(load_tensors(tmp_path / "m")["x"], torch.ones(3))
    assert [p.name for p in tmp_path.iterdir()] == ["m"]


def files(tmp_path, models):
    for index, model in enumerate(models):
        save_model(tmp_path / str(index), model)
    return [tmp_path / str(index) for index in range(len(models))]


def test_average_is_the_fp64_mean(tmp_path):
    models = [Tied() for _ in range(3)]
    mean = average(files(tmp_path, models))
    for name in ("source.weight", "head.bias"):
        stacked = torch.stack([dict(model.state_dict())[name].double() for model in models])
        assert torch.equal(mean[name], stacked.mean(0).float())
    # summed in fp32 these would lose the 1
    big, one = {"x": torch.tensor([2.0**24])}, {"x": torch.tensor([1.0])}
    minus = {"x": torch.tensor([-(2.0**24)])}
    for index, tensors in enumerate((big, one, minus)):
        save_tensors(tmp_path / str(index), tensors)
    assert average([tmp_path / "0", tmp_path / "1", tmp_path / "2"])["x"].item() == pytest.approx(1 / 3)


def test_one_file_averaged_is_that_file(tmp_path):
    model = Tied()
    with torch.no_grad():
        model.head.bias[:4] = torch.tensor([-0.0, math.inf, 1e-45, 3.4e38])
    path = files(tmp_path, [model])[0]
    save_tensors(tmp_path / "mean", average([path]))
    assert (tmp_path / "mean").read_bytes() == path.read_bytes()


def test_averaged_weights_keep_ties(tmp_path):
    model = Tied()
    fill(model, average(files(tmp_path, [Tied(), Tied()])), "the average")
    assert model.head.weight is model.source.weight
    assert len(unique_tensors(model)) == 3


def test_average_of_unlike_models_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="other tensors"):
        average(files(tmp_path, [Tied(5), Tied(3)]))


@pytest.mark.parametrize(
    ("final", "kind", "count", "expected"),
    [
        ("last", "none", 1, ("last", [20])),
        ("best", "none", 1, ("best", [10])),
        ("average", "last", 2, ("average", [15, 20])),
        ("average", "best", 2, ("average", [10, 15])),
        ("average", "last", 9, ("average", [5, 10, 15, 20])),
    ],
)
def test_final_weights(make, final, kind, count, expected):
    values = {5: 3.0, 10: 1.0, 15: 2.0, 20: 4.0}
    options = {"final": final, "average": AverageOptions(kind=kind, count=count)}
    setup = make(
        steps=20,
        save_every=5,
        validate_every=5,
        keep_last=9,
        keep_best=2,
        validate=lambda model: {"loss": values[setup.trainer.state.step]},
        **options,
    )
    setup.trainer.fit()
    tensors, name, steps = final_weights(setup.store, setup.options)
    assert (name, steps if final != "average" else sorted(steps)) == expected
    if steps == [20]:
        assert all(torch.equal(tensors[n], t) for n, t in unique_tensors(setup.model).items())


@pytest.mark.parametrize(
    ("final", "harmed", "expected"),
    [("last", 6, ("last", [4])), ("best", 2, ("last", [6])), ("average", 4, ("average", [2, 6]))],
)
def test_a_damaged_checkpoint_is_no_part_of_the_final_model(make, final, harmed, expected):
    """One flipped bit loads without an error; only the manifest tells."""
    average = AverageOptions(kind="last", count=3)
    setup = make(steps=6, save_every=2, validate_every=2, final=final, average=average)
    setup.trainer.fit()
    path = setup.store.folder / f"step_{harmed:06d}" / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    load_tensors(path)
    assert final_weights(setup.store, setup.options)[1:] == expected


def test_final_best_without_scores_is_the_last(make):
    setup = make(steps=4, validate=lambda model: {"loss": math.nan})
    setup.trainer.fit()
    assert final_weights(setup.store, replace(setup.options, final="best"))[1:] == ("last", [4])
    with pytest.raises(CheckpointError, match="no checkpoint"):
        final_weights(make(folder="empty").store, setup.options)


def test_weights_can_be_read_by_others(tmp_path: Path) -> None:
    save_tensors(tmp_path / "model.safetensors", {"a": torch.ones(3)})
    assert (tmp_path / "model.safetensors").stat().st_mode & 0o777 == 0o644
