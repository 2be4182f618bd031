"""Devices and number formats."""

from __future__ import annotations

import pytest
import torch

from transformer_kit.errors import RunError
from transformer_kit.training.precision import resolve_device, resolve_precision

CPU = torch.device("cpu")


def test_auto_device_is_one_that_exists():
    torch.zeros(1, device=resolve_device("auto"))
    assert resolve_device("cpu") == CPU


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_device_that_is_not_there():
    with pytest.raises(RunError, match=r"trainer\.device=cuda:1: this machine offers 0 CUDA devices"):
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
