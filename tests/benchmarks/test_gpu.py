"""The script for GPUs, small on a CPU: a stage that fails loses no other, and all of them run."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch


@pytest.fixture(scope="module")
def gpu() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks/gpu.py"
    spec = importlib.util.spec_from_file_location("gpu_benchmark", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_a_failing_stage_is_a_row(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def fails(scale, clock):
        yield {"half": 1}
        raise ValueError("no kernel\nand more")

    def works(scale, clock):
        yield {"tflops": 2.0}

    listed = {"peak": (0.5, works), "wrong": (0.2, fails), "speed": (0.2, works)}
    monkeypatch.setattr(gpu, "stages", lambda scale: listed)
    assert gpu.main(["--device", "cpu", "--small"]) == 1
    said = capsys.readouterr()
    assert [json.loads(line) for line in said.out.splitlines()] == [
        {"stage": "peak", "tflops": 2.0},
        {"stage": "wrong", "half": 1},
        {"stage": "wrong", "error": "ValueError: no kernel"},
        {"stage": "speed", "tflops": 2.0, "utilisation": 1.0},
    ]
    assert "| wrong | error ValueError: no kernel |" in said.err


def test_batches_keep_the_budget_and_differ_in_length(gpu: ModuleType):
    made = gpu.buckets(gpu.replace(gpu.SMALL, tokens=400), 7, 1)
    assert len(made) == 7
    assert all(batch.target.ids.numel() <= 400 for batch in made)
    assert len({batch.target.shape for batch in made}) > 2


@pytest.mark.slow
def test_all_stages_run_small_on_a_cpu(gpu: ModuleType, capsys: pytest.CaptureFixture[str]):
    torch._dynamo.reset()
    code = gpu.main(["--device", "cpu", "--small", "--seconds", "3000"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row for row in rows if "error" in row or row.get("ok") is False] == []
    assert code == 0
    equal = [row for row in rows if row["stage"] == "equal"]
    assert {row["model"] for row in equal} == set(gpu.FAMILIES)
    assert all(row["gradients"] == 0 for row in equal if row["precision"] == "fp32")
    assert {row["mode"] for row in rows if "mode" in row} == {"eager", "compiled", "checkpointed"}
    assert rows[-1]["stage"] == "lengths"
    assert rows[-1]["recompilations"] <= 2  # a batch of one row takes graphs of its own
