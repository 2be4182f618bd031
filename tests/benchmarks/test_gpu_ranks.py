"""The script that tries ranks on a GPU, small on a CPU: all of its stages run, and what they compare is equal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks/gpu_ranks.py"


@pytest.mark.slow
def test_all_stages_run_small_on_a_cpu():
    ran = subprocess.run(
        [sys.executable, str(SCRIPT), "--device", "cpu", "--small"],
        capture_output=True,
        text=True,
        timeout=240,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    rows = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [row for row in rows if "error" in row or row.get("ok") is False] == [], ran.stderr
    assert ran.returncode == 0
    stages = {row["stage"] for row in rows}
    assert stages == {"world", "equal", "speed plain", "speed ddp", "speed fsdp", "save"}
    assert [row["backend"] for row in rows if row["stage"] == "world"] == ["gloo"]
