"""A run is a folder: its name, its lock, and the configuration that it belongs to.

- The name is the recipe plus the overrides that change the result, so that the same command continues the same run.
- One process at a time: the lock is the operating system's and goes with the process, however it ends.
- A configuration that changes the result of what is there is refused, with the keys that differ.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformer_kit.config.saved import FILE, dump, load_plain
from transformer_kit.config.schema import Config, flatten
from transformer_kit.errors import RunError

LOCK = ".lock"
RESULT = "result.json"
ENVIRONMENT = "environment.json"
LABELS = "labels.json"
BEFORE_WORK = (LOCK, FILE, RESULT, "train.log", "slurm")  # all there is of a run that failed before its first step
LONGEST_NAME = 120
FREE_OF_RESULT = (
    "run",
    "ablation",
    "tracker",
    "cluster",
    "decoding",
    "generation",
    "data.cache",
    "data.workers",
    "trainer.steps",
    "trainer.tokens",
    "trainer.epochs",
    "trainer.minutes",
    "trainer.device",
    "trainer.devices",
    "trainer.ranks",
    "trainer.save_async",
    "trainer.threads",
    "trainer.compile",
    "trainer.activation_checkpointing",
    "trainer.prefetch",
    "trainer.deterministic",
    "trainer.log_every",
    "trainer.keep_last",
    "trainer.keep_best",
    "trainer.max_skips",
    "trainer.watch",
)
"""Keys, and everything below them, that are no part of a run's name and may change when it is resumed."""


def is_free(key: str) -> bool:
    """Whether a key, or group, leaves the result of a run as it is."""
    key = key.lstrip("+~").partition("@")[0].replace("/", ".")
    return any(key == free or key.startswith(f"{free}.") for free in (*FREE_OF_RESULT, "hydra"))


def run_name(overrides: Sequence[str]) -> str:
    """The name of the run that canonical overrides lead to: `demo+model.residual=pre`.

    The recipe comes first, then the overrides that change the result, sorted, `/` as `.`; of one key the last counts.
    Characters that a shell or a file system could stumble over become `_`. A name in which something was lost, and one
    beyond 120 characters, ends in a hash of the whole.
    """
    chosen: dict[str, str] = {}
    recipe = ""
    for text in overrides:
        key, _, value = text.partition("=")
        if key.lstrip("+") == "recipe":
            recipe = value.strip("[]").replace(",", "-").replace(" ", "")
        elif not is_free(key):
            chosen[key.lstrip("+").replace("/", ".")] = value.strip("'\"").replace("/", ".")
    whole = "+".join([recipe or "train", *(f"{key}={chosen[key]}" for key in sorted(chosen))])
    name = re.sub(r"[^\w.,=+~-]", "_", whole)
    if name == whole and len(name) <= LONGEST_NAME:
        return name
    digest = hashlib.sha256(whole.encode()).hexdigest()[:8]
    return f"{name[: LONGEST_NAME - 9]}-{digest}"


def run_path(config: Config) -> Path:
    """The folder of a run: `run.root`/`run.name`, or the default name."""
    return Path(config.run.root) / (config.run.name or run_name(config.source.overrides))


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run, locked by this process.

    Attributes:
        path: absolute.
        config: the configuration, as saved in it.
        resumed: whether the folder held this run already.
        changed: whether `run.resume=changed` let a configuration in that is not the saved one; see `accept`.
    """

    path: Path
    config: Config
    resumed: bool
    changed: bool

    @property
    def pending(self) -> bool:
        """Whether a changed configuration was let in and is not accepted yet."""
        return self.changed and load_plain(self.path) != _saved_form(self.config, self.path)

    def accept(self) -> None:
        """Save a changed configuration, once what is there is known to fit it: until then the old one stays."""
        write_text(self.path / FILE, dump(_saved_form(self.config, self.path)))

    def result(self) -> dict[str, Any] | None:
        """What the finished run left in `result.json`, or None."""
        return read_result(self.path)

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Leave `result.json`, whole or not at all."""
        write_text(self.path / RESULT, json.dumps(result, indent=2, ensure_ascii=False) + "\n")


@contextmanager
def open_run(config: Config) -> Iterator[RunFolder]:
    """The locked folder of the run, with `config.yaml` in it; released at the end.

    `run.resume=changed` lets a configuration in that changes the result; `run.overwrite=true` deletes what is there. A
    run that failed before its work began takes any configuration: a correction needs no new name.

    Raises:
        RunError: another process uses the folder, it belongs to another configuration, or to no run at all.
    """
    path = run_path(config)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{path} cannot be made: {error.strerror}; set run.root or run.name") from None
    with locked(path):
        plain = _saved_form(config, path)
        there, changed = (path / FILE).exists(), False
        if config.run.overwrite:
            _empty(path, there)
            there = False
        elif there:
            lines = changed_keys(load_plain(path), plain) if _has_begun(path) else []
            if lines and config.run.resume == "same":
                raise _changed(path, lines)
            changed = bool(lines)
        elif others := sorted(item.name for item in path.iterdir() if item.name != LOCK):
            raise RunError(f"{path} holds {others[0]} but no {FILE}: it is no run; set another run.name or run.root")
        if not there or (not changed and load_plain(path) != plain):
            write_text(path / FILE, dump(plain))
        yield RunFolder(path, config, resumed=there, changed=changed)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a folder.

    Raises:
        RunError: another process holds it.
    """
    try:
        handle = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror}") from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RunError(f"{path} is in use by another process; wait for it, or set another run.name") from None
        yield
    finally:
        os.close(handle)


def changed_keys(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """One line for each key that changes the result and differs: `key: old -> new`."""
    before, after = dict(flatten(old)), dict(flatten(new))
    lines = []
    for key in sorted(before.keys() | after.keys()):
        if is_free(key) or before.get(key) == after.get(key):
            continue
        lines.append(f"{key}: {before.get(key, '(absent)')} -> {after.get(key, '(absent)')}")
    return lines


def read_result(path: Path) -> dict[str, Any] | None:
    """`result.json` of a run folder, or None where there is none that can be read."""
    try:
        found = json.loads((path / RESULT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all: temporary file, fsync, rename, fsync of the folder."""
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _has_begun(path: Path) -> bool:
    """Whether there is anything that another configuration would not fit."""
    return any(item.name not in BEFORE_WORK and not item.name.startswith(".") for item in path.iterdir())


def _saved_form(config: Config, path: Path) -> dict[str, Any]:
    """The plain data that the folder of a run holds."""
    plain = config.plain()
    plain["run"] |= {"root": str(path.parent), "name": path.name, "resume": "same", "overwrite": False}
    return plain


def _changed(path: Path, lines: Sequence[str]) -> RunError:
    listed = "\n".join(f"  {line}" for line in lines)
    if any(line.startswith("schedule.steps:") for line in lines):
        listed += "\n(schedule.steps is trainer.steps where it is not given)"
    return RunError(
        f"{path} holds a run with another configuration:\n{listed}\n"
        "Give run.name=NAME for a new run, run.resume=changed to go on with the new values, or run.overwrite=true "
        "to start anew."
    )


def _empty(path: Path, is_run: bool) -> None:
    """Delete what a run left, its lock excepted; refuse a folder that is not a run's."""
    items = [item for item in path.iterdir() if item.name != LOCK]
    if items and not is_run:
        raise RunError(f"{path} holds no {FILE}, so run.overwrite=true does not delete it; set another run.name")
    for item in items:
        if item.is_dir() and not item.is_symlink():
            shutil.rmtree(item)
        else:
            item.unlink()
