"""Options: what is out of range is named, with its key, together; the shipped defaults are in range."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from pathlib import Path

import pytest
import yaml
from optimizer_toys import shipped

from transformer_kit.training.options import OPTIMIZERS, AverageOptions, TrainerOptions, ValidationOptions
from transformer_kit.training.ranks_options import RanksOptions

DEFAULT = yaml.safe_load((Path(__file__).parents[2] / "conf/trainer/default.yaml").read_text())


@pytest.fixture
def options():
    kinds = {"average": AverageOptions, "validation": ValidationOptions, "ranks": RanksOptions}
    nested = {key: kind(**DEFAULT[key]) for key, kind in kinds.items()}
    return TrainerOptions(**{**DEFAULT, **nested})


def test_shipped_defaults(options):
    assert options.problems() == []


@pytest.mark.parametrize(
    ("change", "key", "says"),
    [
        ({"steps": None}, "steps", "no budget: set steps, tokens, epochs or minutes"),
        ({"steps": 0}, "steps", "at least 1, not 0"),
        ({"tokens": -5}, "tokens", "at least 1"),
        ({"minutes": 0.0}, "minutes", "above 0"),
        ({"minutes": math.nan}, "minutes", "above 0"),
        ({"epochs": 0}, "epochs", "at least 1"),
        ({"threads": 0}, "threads", "at least 1"),
        ({"precision": "fp8"}, "precision", "one of auto, fp32, bf16; not 'fp8'"),
        ({"precision": "fp16"}, "precision", "fp16 is not offered: there is no loss scaling"),
        ({"device": "gpu"}, "device", "auto, cpu, cuda, cuda:N or mps"),
        ({"device": "cuda:x"}, "device", "cuda:N"),
        ({"clip_norm": 0.0}, "clip_norm", "above 0"),
        ({"accumulate_tokens": 0}, "accumulate_tokens", "at least 1"),
        ({"log_every": 0}, "log_every", "at least 1"),
        ({"keep_last": 0}, "keep_last", "at least 1"),
        ({"keep_best": -1, "final": "last"}, "keep_best", "at least 0"),
        ({"keep_best": 0}, "keep_best", "for final=best"),
        ({"best_metric": "blue"}, "best_metric", "one of loss, perplexity, accuracy, bleu"),
        ({"patience": 0}, "patience", "at least 1"),
        ({"max_skips": 0}, "max_skips", "at least 1"),
        ({"spike": 0.0}, "spike", "above 0"),
        ({"final": "average"}, "final", "needs average.kind"),
        ({"final": "newest"}, "final", "one of best, average, last"),
        ({"average": AverageOptions("median", 1)}, "average.kind", "one of none, last, best"),
        ({"average": AverageOptions("none", 0)}, "average.count", "at least 1"),
        ({"average": AverageOptions("last", 6)}, "keep_last", "at least average.count (6), not 5"),
        ({"average": AverageOptions("best", 2)}, "keep_best", "at least average.count (2), not 1"),
        ({"average": AverageOptions("last", 3), "save_every": None}, "save_every", "to average the last 3"),
        ({"validation": ValidationOptions("bleu", -1)}, "validation.samples", "at least 0"),
        ({"validation": ValidationOptions(None, 0), "best_metric": "bleu"}, "validation.bleu", "best_metric=bleu"),
    ],
)
def test_each_problem_is_named(options, change, key, says):
    found = replace(options, **change).problems()
    assert [k for k, _ in found] == [key]
    assert says in found[0][1]


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "cuda:1", "mps"])
def test_devices(options, device):
    assert replace(options, device=device).problems() == []


def test_problems_come_together(options):
    found = replace(options, steps=0, precision="x", keep_last=0, clip_norm=-1.0).problems()
    assert {key for key, _ in found} == {"steps", "precision", "keep_last", "clip_norm"}


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"name": "sgd"}, "name"),
        ({"betas": [0.9]}, "betas"),
        ({"betas": [0.9, 1.0]}, "betas"),
        ({"eps": 0.0}, "eps"),
        ({"name": "adamw", "weight_decay": -0.1}, "weight_decay"),
        ({"weight_decay": 0.1}, "weight_decay"),
        ({"decay_tables": True}, "decay_tables"),
        ({"momentum": 0.9}, "momentum"),
        ({"layer_decay": 0.0}, "layer_decay"),
        ({"layer_decay": 1.5}, "layer_decay"),
        ({"betas": None}, "betas"),
    ],
)
def test_optimizer_problems(change, key):
    assert [k for k, _ in replace(shipped("adam"), **change).problems()] == [key]


@pytest.mark.parametrize(
    ("name", "change", "key"),
    [
        ("muon", {"momentum": 1.0}, "momentum"),
        ("muon", {"matrix_lr": None}, "matrix_lr"),
        ("muon", {"matrix_lr": 0.0}, "matrix_lr"),
        ("muon", {"update_scale": "adam"}, "update_scale"),
        ("muon", {"iterations": 0}, "iterations"),
        ("adafactor", {"betas": [0.9, 0.98]}, "betas"),
        ("adafactor", {"clip_update": 0.5}, "clip_update"),
        ("adafactor", {"decay_rate": -0.8}, "decay_rate"),
        ("adafactor", {"least_scale": 0.0}, "least_scale"),
    ],
)
def test_problems_of_other_optimizers(name, change, key):
    assert [k for k, _ in replace(shipped(name), **change).problems()] == [key]


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_no_number_of_an_optimizer_is_infinite(name):
    options = shipped(name)
    numbers = [field.name for field in fields(options) if isinstance(getattr(options, field.name), int | float)]
    for key in {*numbers, "layer_decay"} - {"decay_tables"}:
        assert {k for k, _ in replace(options, **{key: math.inf}).problems()} == {key}
