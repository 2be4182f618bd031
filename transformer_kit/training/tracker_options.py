"""What a user may set about trackers; the defaults stand in `conf/tracker`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

MODES = ("auto", "online", "offline")
LONGEST_TAG = 64  # what wandb takes

Problems = list[tuple[str, str]]


@dataclass
class WandbOptions:
    """Weights & Biases.

    Attributes:
        project, entity: where the run is shown; entity null: the user's default.
        group: what runs are shown together; null: none.
        name: how the run is called; null: as its folder.
        tags: each of 1 to 64 characters.
        mode: online; offline, for `wandb sync` later; auto: online where a key and the server are at hand.
    """

    project: str
    entity: str | None
    group: str | None
    name: str | None
    tags: list[str]
    mode: str

    def problems(self) -> Problems:
        found = []
        if not self.project:
            found.append(("project", "must name a project"))
        if self.mode not in MODES:
            found.append(("mode", f"must be one of {', '.join(MODES)}; not '{self.mode}'"))
        for tag in self.tags:
            if not 1 <= len(tag) <= LONGEST_TAG:
                found.append(("tags", f"each must have 1 to {LONGEST_TAG} characters, not {len(tag)}: '{tag}'"))
        return found


@dataclass
class TensorboardOptions:
    """TensorBoard.

    Attributes:
        folder: null: `tensorboard` in the run's folder; else a folder, in which the run has one under its own name.
    """

    folder: str | None = field(metadata={"path": True})


@dataclass
class TrackerOptions:
    """Where a run's numbers go beside `metrics.jsonl`; null: not there."""

    wandb: WandbOptions | None = None
    tensorboard: TensorboardOptions | None = None


def missing_packages(trackers: Any) -> Problems:
    """One problem for each tracker that is switched on in plain data and whose package is not installed."""
    chosen = [name for name in ("wandb", "tensorboard") if isinstance(trackers, Mapping) and trackers.get(name)]
    return [
        (name, f"the package {name} is not installed: pip install 'transformer-kit[{name}]', or {name} itself")
        for name in chosen
        if not _is_installed(name)
    ]


def _is_installed(package: str) -> bool:
    """Whether it can be imported; a folder of that name, such as the one that wandb writes to, is no package."""
    try:
        spec = find_spec(package)
    except ValueError:  # loaded by other means than an import
        return True
    return spec is not None and spec.origin is not None
