"""A running Slurm, as `make test-cluster` starts it, and small trainings for it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from cluster_runs import Tkit

CONF = "SLURM_CONF"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if CONF not in os.environ:
        for item in items:
            if item.get_closest_marker("cluster"):
                item.add_marker(pytest.mark.skip(reason="no Slurm is running here: make test-cluster"))


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shared")
    done = Tkit(folder, folder / "prepared")("tokenize")
    assert done.returncode == 0, done.stderr
    return folder / "prepared"


@pytest.fixture
def tkit(tmp_path: Path, cache: Path) -> Tkit:
    return Tkit(tmp_path, cache)
