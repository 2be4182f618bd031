"""Devices and number formats."""

from __future__ import annotations

import os

import pytest
import torch

from transformer_kit.errors import ConfigError
from transformer_kit.training.precision import CUBLAS, determinism, resolve_device, resolve_precision

CPU = torch.device("cpu")


def test_auto_device_is_one_that_exists():
    torch.zeros(1, device=resolve_device("auto"))
    assert resolve_device("cpu") == CPU


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_device_that_is_not_there():
    with pytest.raises(ConfigError, match=r"trainer\.device=cuda:1: this machine offers 0 CUDA devices"):
        resolve_device("cuda:1")


@pytest.mark.parametrize(
    ("able", "name", "reason"),
    [
        ({"avx512_bf16": True}, "bf16", "AVX512-BF16"),
        ({"amx_bf16": True, "avx512_bf16": True}, "bf16", "AMX"),
        ({"avx512_f": True, "avx512_bf16": False}, "fp32", "neither AMX nor AVX512-BF16"),
    ],
)
def test_auto_takes_bf16_where_the_cpu_multiplies_it(monkeypatch, able, name, reason):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: able)
    found = resolve_precision("auto", CPU)
    assert found.name == name
    assert reason in found.reason
    assert resolve_precision("fp32", CPU).name == "fp32"
    assert resolve_precision("bf16", CPU).name == "bf16"


@pytest.mark.parametrize(("name", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_autocast(name, dtype):
    with resolve_precision(name, CPU).autocast():
        assert (torch.ones(3, 5) @ torch.ones(5, 7)).dtype == dtype
    assert (torch.ones(3, 5) @ torch.ones(5, 7)).dtype == torch.float32


def modes():
    cudnn = torch.backends.cudnn
    enabled, warns = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    fill = torch.utils.deterministic.fill_uninitialized_memory
    return enabled, warns, fill, cudnn.deterministic, cudnn.benchmark, os.environ.get(CUBLAS)


def test_the_deterministic_mode_is_left_as_it_was_found(monkeypatch):
    monkeypatch.delenv(CUBLAS, raising=False)
    before = modes()
    with determinism(False):
        assert modes() == before
    with determinism(True):
        assert modes() == (True, False, False, True, False, ":4096:8")
    assert modes() == before
    monkeypatch.setenv(CUBLAS, ":16:8")
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    with pytest.raises(RuntimeError, match="does not have a deterministic implementation"), determinism(True):
        torch.empty(4).put_(torch.tensor([0]), torch.ones(1), accumulate=False)
    assert modes() == (*before[:4], True, ":16:8")


@pytest.mark.parametrize("on", [True, False])
def test_two_runs_are_equal_to_the_bit(make, on):
    """On a CPU, with the same number of threads, in either mode."""
    with determinism(on):
        runs = [make(steps=12, folder=name) for name in ("one", "two")]
        for run in runs:
            run.trainer.fit()
    one, two = runs
    assert all(torch.equal(a, b) for a, b in zip(one.model.parameters(), two.model.parameters(), strict=True))
    assert one.tracker.of("train", "loss", "grad_norm") == two.tracker.of("train", "loss", "grad_norm")
