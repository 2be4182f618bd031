"""The configuration of a run folder: plain YAML, read with `safe_load` alone, so that nothing in it is ever called."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from transformer_kit.config.convert import absolute
from transformer_kit.config.overrides import key_problem, known_keys, one_line
from transformer_kit.config.plain import typed
from transformer_kit.config.schema import FORMAT, FREE_OF_WEIGHTS, Config
from transformer_kit.config.sources import package_folder
from transformer_kit.errors import RunError

FILE = "config.yaml"
GROUPS = ("decoding", "generation")
RENAMED: dict[str, str] = {}
"""Classes of saved configurations that have moved: old `_target_` -> new `_target_`."""
ADDED: dict[int, dict[str, Any]] = {
    1: {
        "model.embedding.norm": False,
        "model.embedding.types": 0,
        "model.pooler": False,
        "model.pattern": [],
        "model.head": {"_target_": "transformer_kit.models.heads.LinearHead", "bias": False, "scale": False},
        "model.attention.window": None,
        "model.encoder.attention.window": None,
        "model.decoder.attention.window": None,
        "data.kind": "pairs",
        "tokenizer.mask": False,
        "tokenizer.sentinels": 0,
        "init": {"from": None, "freeze": []},
    },
    2: {
        "trainer.compile": False,
        "trainer.activation_checkpointing": False,
        "trainer.prefetch": None,
        "trainer.watch": None,
        "trainer.overfit_batch": False,
        "trainer.ema": None,
        "optimizer.decay_tables": False,
        "optimizer.layer_decay": None,
        "optimizer.momentum": None,
        "optimizer.matrix_lr": None,
        "optimizer.update_scale": None,
        "optimizer.iterations": None,
        "optimizer.decay_rate": None,
        "optimizer.clip_update": None,
        "optimizer.least_scale": None,
        "trainer.deterministic": False,
    },
    3: {
        "trainer.devices": 1,
        "trainer.ranks": {"parallel": "ddp", "shard": None, "timeout": 600, "restarts": 0},
        "trainer.save_async": True,
        "trainer.spike": None,
        "tracker": {"wandb": None, "tensorboard": None},
    },
}
"""Options that came after a format: the values with which nothing changes. Set only where the options around exist."""
ADDED_WHERE: dict[int, list[tuple[str, Any, dict[str, Any]]]] = {
    2: [
        ("optimizer.name", "adamw", {"optimizer.decay_tables": True}),
        ("objective._target_", "transformer_kit.objectives.translation.Translation", {"objective.rdrop": 0.0}),
    ],
}
"""The same for configurations in which an option has a certain value: key, value, what is added; before `ADDED`."""
COMPLETED = {"generation": "default"}
"""Groups on which no weights depend: what a saved configuration lacks of them is taken from this option."""


def load_run(folder: str | Path, overrides: Sequence[str] = (), *, check: bool = True) -> Config:
    """The configuration of a run, `runs/<name>`, which may have been moved since it was written.

    Args:
        folder: the run folder.
        overrides: of options that the weights do not depend on: `decoding.beam=8`, `trainer.device=cpu`;
            `decoding=NAME` and `generation=NAME` take a whole group option.
        check: see `compose`.

    Raises:
        RunError: no configuration there, or one that cannot be read.
        ConfigError: with one line per problem.
    """
    data, problems = load_plain(folder), list[str]()
    if overrides:
        _override(data, overrides, problems)
    place = Path(absolute(str(folder), Path.cwd()))
    if isinstance(data.get("run"), dict):
        data["run"] |= {"root": str(place.parent), "name": place.name}
    return typed(Config, data, [], problems, check=check)


def _override(data: dict[str, Any], overrides: Sequence[str], problems: list[str]) -> None:
    """Put overrides of `FREE_OF_WEIGHTS`, and whole options of `GROUPS`, into plain data."""
    from transformer_kit.config.compose import group_node, parse  # Hydra, which a plain load does without

    given = parse(overrides, problems)
    chosen = [item for item in given if item.key in GROUPS]
    for item in chosen:
        data[item.key] = group_node(item, problems) or data[item.key]
    keys = list(known_keys(data))
    for item in given:
        if item in chosen:
            continue
        problem = key_problem(item, keys)
        if problem is None and not item.key.startswith(FREE_OF_WEIGHTS):
            free = ", ".join(f"{key}…" for key in FREE_OF_WEIGHTS)
            problem = f"{item.key}: cannot change after training; {free} can"
        if problem is not None:
            problems.append(problem)
            continue
        node: Any = data
        *parents, last = item.key.split(".")
        for key in parents:
            node = node[key]
        node[last] = item.value


def load_plain(folder: str | Path) -> dict[str, Any]:
    """The plain data of `<folder>/config.yaml`, with classes that have moved since put right.

    Raises:
        RunError: no configuration there, one that cannot be read, or one of another format.
    """
    path = Path(folder) / FILE
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise RunError(f"{folder} is not a run folder: it holds no {FILE}") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise RunError(f"{path} cannot be read: {one_line(error)}") from None
    if not isinstance(data, dict) or "format" not in data:
        raise RunError(f"{path} is not a saved configuration: it says no format")
    if data["format"] not in (*ADDED, FORMAT):
        raise RunError(f"{path} has format {data['format']!r}; this version reads formats up to {FORMAT}")
    return _upgraded(_renamed(data))


def dump(data: dict[str, Any]) -> str:
    """Plain data as YAML in the order given, which `load_plain` reads back to equal values."""
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=120)


def _upgraded(data: dict[str, Any]) -> dict[str, Any]:
    for older in range(data["format"], FORMAT):
        for key, value, added in ADDED_WHERE.get(older, []):
            *parents, last = key.split(".")
            if (_node(data, parents) or {}).get(last) == value:
                _add(data, added)
        _add(data, ADDED[older])
        data["format"] = older + 1
    for group, name in COMPLETED.items():
        shipped = yaml.safe_load(package_folder("conf").joinpath(group, f"{name}.yaml").read_text(encoding="utf-8"))
        if isinstance(data.setdefault(group, shipped), dict):
            data[group] = shipped | data[group]
    return data


def _node(data: Any, parents: Sequence[str]) -> dict[str, Any] | None:
    """The mapping at some keys, where there is one."""
    for name in parents:
        data = data.get(name) if isinstance(data, dict) else None
    return data if isinstance(data, dict) else None


def _add(data: dict[str, Any], options: Mapping[str, Any]) -> None:
    """Set options by their dotted keys where they are not set and the mapping around them exists."""
    for key, value in options.items():
        *parents, last = key.split(".")
        node = _node(data, parents)
        if node is not None:
            node.setdefault(last, copy.deepcopy(value))


def _renamed(data: Any) -> Any:
    if isinstance(data, dict):
        kept = {key: _renamed(value) for key, value in data.items()}
        if isinstance(kept.get("_target_"), str):
            kept["_target_"] = RENAMED.get(kept["_target_"], kept["_target_"])
        return kept
    return [_renamed(value) for value in data] if isinstance(data, list) else data
