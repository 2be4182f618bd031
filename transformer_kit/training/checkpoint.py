"""Checkpoints that survive kills, full disks and bad blocks.

- A checkpoint is a folder `step_000500` with `model.safetensors`, `trainer.pt` (optimizer), `state.json` and
  `manifest.json`, which holds the SHA-256 of the others; with an average of the weights also `ema.safetensors`. Where
  ranks hold parts of the model, a folder `shards` stands for `trainer.pt` (`training/sharded_state.py`).
- It is written as `step_000500.tmp`, flushed to disk, then renamed: a folder without a suffix is whole.
- `.tmp`, `.gone` and `.old` are leftovers of a kill; `recover` clears them. `.damaged` failed its manifest.
- Nothing is unpickled: weights are safetensors, the rest loads with `weights_only=True`.
"""

from __future__ import annotations

import json
import pickle
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.serialization import get_crc32_options, set_crc32_options

from transformer_kit.errors import CheckpointError
from transformer_kit.logs import get_logger
from transformer_kit.training.files import Entry, HashedFile, flush, why_damaged, write_manifest, write_text
from transformer_kit.training.weights import unique_tensors, write_tensors

log = get_logger(__name__)

MODEL, TRAINER, STATE, EMA = "model.safetensors", "trainer.pt", "state.json", "ema.safetensors"
SHARDS, METADATA = "shards", ".metadata"
_NAME = re.compile(r"step_(\d{6,})")


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint on disk.

    Attributes:
        step: the update after which it was written.
        scores: validation's results at this step; empty if there was no validation.
        regular: written by `save_every`, not because of an interruption, a good score or the end.
    """

    path: Path
    step: int
    scores: Mapping[str, float | None]
    regular: bool

    @property
    def averaged(self) -> Path | None:
        """The file with the moving average of the weights, where the run keeps one."""
        path = self.path / EMA
        return path if path.is_file() else None

    @property
    def weights(self) -> Path:
        """The file with the weights that were validated: the moving average where there is one."""
        return self.averaged or self.path / MODEL

    def state(self) -> dict[str, Any]:
        """What `save` got as `state`."""
        return _read_state(self.path)

    def trainer_state(self, model: nn.Module | None = None) -> Any:
        """What `save` got as `trainer_state`, its tensors on the CPU.

        Args:
            model: whose optimizer's state it is; where ranks hold parts of it, each reads its parts of a state that was
                written in parts.
        """
        path = self.path / TRAINER
        if (self.path / SHARDS).is_dir():
            from transformer_kit.training.sharded_state import load_shards  # torch's part for ranks takes a second

            return load_shards(self.path / SHARDS, model or nn.Module())
        try:
            return torch.load(path, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError:  # torch's own message advises to run whatever is in there
            raise CheckpointError(f"{path}: cannot be read: it holds more than tensors and plain values") from None
        except (RuntimeError, OSError, EOFError, ValueError) as error:
            raise CheckpointError(f"{path}: cannot be read ({str(error).splitlines()[0]})") from None


def _read_state(path: Path) -> dict[str, Any]:
    try:
        state = json.loads((path / STATE).read_text(encoding="utf-8"))
        assert isinstance(state["step"], int)
    except (OSError, ValueError, KeyError, TypeError, AssertionError):
        raise CheckpointError(f"{path / STATE}: not the state of a training run") from None
    return dict(state)


class CheckpointStore:
    """The checkpoints of one run: written atomically, pruned, found again.

    Args:
        folder: where the checkpoints stand; made when the first one is saved.
        keep_last: how many regular checkpoints stay; the newest of all always does.
        keep_best: how many of the best stay, by `metric`.
        metric: a key of `scores`.
        higher_is_better: the direction of `metric`.
    """

    def __init__(self, folder: Path, *, keep_last: int, keep_best: int, metric: str, higher_is_better: bool) -> None:
        self.folder = folder
        self._keep_last = keep_last
        self._keep_best = keep_best
        self._metric = metric
        self._sign = 1.0 if higher_is_better else -1.0

    # -- reading -------------------------------------------------------------------------------------------------

    def all(self) -> list[Checkpoint]:
        """Every checkpoint with a readable state, oldest first; files are not verified."""
        found = []
        for path in self.folder.iterdir() if self.folder.is_dir() else ():
            if not (_NAME.fullmatch(path.name) and path.is_dir()):
                continue
            try:
                state = _read_state(path)
            except CheckpointError:
                continue  # `latest_good` and `recover` say so
            found.append(Checkpoint(path, state["step"], state.get("scores") or {}, bool(state.get("regular"))))
        return sorted(found, key=lambda checkpoint: checkpoint.step)

    def latest_good(self) -> Checkpoint | None:
        """The newest checkpoint whose files equal its manifest; one warning names those passed over."""
        good, damaged = self._search()
        self._warn(good, damaged)
        return good

    def last(self, count: int) -> list[Checkpoint]:
        """The newest regular checkpoints, oldest first; the newest of all counts as regular."""
        found = self.all()
        return [c for c in found if c.regular or c is found[-1]][-count:]

    def best(self, count: int) -> list[Checkpoint]:
        """The best by the metric, best first; of equal scores the earlier; one without a finite score is none."""
        return self._ranked(self.all())[:count]

    def is_among_best(self, scores: Mapping[str, float | None]) -> bool:
        """Would a checkpoint with these scores be kept for them?"""
        merit = self._merit(scores)
        kept = self.best(self._keep_best)
        return merit is not None and (
            len(kept) < self._keep_best or any(merit > self._sign * float(c.scores[self._metric] or 0) for c in kept)
        )

    def verified(self, found: Sequence[Checkpoint]) -> list[Checkpoint]:
        """Those whose files equal their manifest; a warning names the others."""
        wrong = {c.path: why for c in found if (why := _why_damaged(c.path)) is not None}
        for path, why in wrong.items():
            log.warning("damaged checkpoint %s passed over: %s", path, why)
        return [c for c in found if c.path not in wrong]

    # -- writing -------------------------------------------------------------------------------------------------

    def save(
        self,
        model: nn.Module | Mapping[str, Tensor],
        trainer_state: Any,
        state: Mapping[str, Any],
        averaged: Mapping[str, Tensor] | None = None,
        shards: Callable[[Path], Mapping[str, Entry]] | None = None,
    ) -> Path | None:
        """Write a checkpoint, then delete those that need not stay.

        Args:
            model: the model, or its tensors as `unique_tensors` gives them.
            trainer_state: tensors, numbers, strings, lists and dicts.
            state: JSON-able; `step` names the folder, `scores` and `regular` decide how long it stays.
            averaged: the model's tensors in a moving average, where there is one.
            shards: writes the trainer's state into a folder in many files, and tells their names and hashes.

        Returns:
            The folder, or None when it could not be written (a full disk): a warning says so and nothing is left of it.
        """
        final = self.folder / f"step_{state['step']:06d}"
        temporary = final.with_suffix(".tmp")
        weights = unique_tensors(model) if isinstance(model, nn.Module) else model
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            _write(temporary, weights, trainer_state, state, averaged, shards)
            _put_in_place(temporary, final)
        except (OSError, RuntimeError, SafetensorError) as error:  # torch and safetensors wrap OSError in their own
            shutil.rmtree(temporary, ignore_errors=True)
            log.warning("could not save %s: %s; training goes on", final, why_not_written(error))
            return None
        self._prune()
        return final

    def recover(self) -> Checkpoint | None:
        """Clear what a kill left behind, set damaged checkpoints aside, and return the newest good one.

        Only for the process that holds the run.
        """
        if not self.folder.is_dir():
            return None
        for path in self.folder.iterdir():
            whole = path.with_suffix("")
            if not _NAME.fullmatch(whole.name):
                continue
            if path.suffix == ".old" and not whole.exists():
                path.rename(whole)  # killed between the two renames of a replacement
            elif path.suffix in (".tmp", ".gone", ".old"):
                shutil.rmtree(path, ignore_errors=True)
        good, damaged = self._search()
        for path in damaged:
            aside = path.with_suffix(".damaged")
            shutil.rmtree(aside, ignore_errors=True)
            path.rename(aside)
        self._warn(good, damaged)
        return good

    def _search(self) -> tuple[Checkpoint | None, dict[Path, str]]:
        """The newest good checkpoint, and the damaged ones after it with what is wrong."""
        names = [p for p in self.folder.iterdir() if _NAME.fullmatch(p.name)] if self.folder.is_dir() else []
        damaged: dict[Path, str] = {}
        for path in sorted(names, key=lambda p: int(p.name.removeprefix("step_")), reverse=True):
            wrong = _why_damaged(path)
            if wrong is None:
                state = _read_state(path)
                return Checkpoint(path, state["step"], state.get("scores") or {}, bool(state.get("regular"))), damaged
            damaged[path] = wrong
        return None, damaged

    def _warn(self, good: Checkpoint | None, damaged: Mapping[Path, str]) -> None:
        if damaged:
            what = "; ".join(f"{path.name}: {wrong}" for path, wrong in damaged.items())
            then = f"taking {good.path.name}" if good else "no good checkpoint is left"
            log.warning("damaged checkpoint in %s (%s): %s", self.folder, what, then)

    def _prune(self) -> None:
        found = self.all()
        stays = {c.path for c in self.last(self._keep_last)} | {c.path for c in self._ranked(found)[: self._keep_best]}
        for checkpoint in found[:-1]:
            if checkpoint.path not in stays:
                _remove(checkpoint.path)

    def _ranked(self, found: list[Checkpoint]) -> list[Checkpoint]:
        scored = [(self._merit(c.scores), c) for c in found]
        return [c for _, c in sorted(((m, c) for m, c in scored if m is not None), key=lambda pair: -pair[0])]

    def _merit(self, scores: Mapping[str, float | None]) -> float | None:
        """The score with its sign turned so that more is better; None where it is missing or not finite."""
        value = scores.get(self._metric)
        merit = None if value is None else self._sign * float(value)
        return merit if merit is not None and abs(merit) < float("inf") else None


def _write(
    folder: Path,
    weights: Mapping[str, Tensor],
    trainer_state: Any,
    state: Mapping[str, Any],
    averaged: Mapping[str, Tensor] | None,
    shards: Callable[[Path], Mapping[str, Entry]] | None,
) -> None:
    """Write the files of a checkpoint into a new folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    entries: dict[str, Entry] = {MODEL: write_tensors(folder / MODEL, weights)}
    if shards is None:
        with HashedFile(folder / TRAINER) as file, without_crc():
            torch.save(trainer_state, file)  # type: ignore[arg-type]  # it asks for write and flush alone
        entries[TRAINER] = file.entry()
    else:
        (folder / SHARDS).mkdir()
        entries |= {f"{SHARDS}/{name}": entry for name, entry in shards(folder / SHARDS).items()}
    entries[STATE] = write_text(folder / STATE, json.dumps(state, indent=1) + "\n")
    if averaged is not None:
        entries[EMA] = write_tensors(folder / EMA, averaged)
    write_manifest(folder, entries)


@contextmanager
def without_crc() -> Iterator[None]:
    """torch's files carry a CRC-32 of each tensor, which `torch.load` does not look at, and a manifest has SHA-256."""
    before = get_crc32_options()
    set_crc32_options(False)
    try:
        yield
    finally:
        set_crc32_options(before)


def _why_damaged(path: Path) -> str | None:
    """What is wrong with a checkpoint's files, or None."""
    if (path / SHARDS).is_dir():
        return why_damaged(path, (MODEL, STATE, f"{SHARDS}/{METADATA}"), (EMA,), SHARDS)
    return why_damaged(path, (MODEL, TRAINER, STATE), (EMA,), SHARDS)


def why_not_written(error: Exception) -> str:
    """What an error of writing says to a user: torch names its own source where the disk was full."""
    said = (str(error) or type(error).__name__).splitlines()[0]
    return "a file could not be written whole; the disk may be full" if "inline_container" in said else said


def _put_in_place(temporary: Path, final: Path) -> None:
    """Rename a finished folder; an older one of the same step gives way without a moment in which neither is whole."""
    flush(temporary)
    old = final.with_suffix(".old")
    if final.exists():
        shutil.rmtree(old, ignore_errors=True)
        final.rename(old)
    temporary.rename(final)
    flush(final.parent)
    shutil.rmtree(old, ignore_errors=True)


def _remove(path: Path) -> None:
    """Delete a checkpoint; a kill in between leaves `.gone`, never a checkpoint without some of its files."""
    gone = path.with_suffix(".gone")
    try:
        path.rename(gone)
    except OSError as error:
        log.warning("could not delete %s: %s", path, error)
        return
    shutil.rmtree(gone, ignore_errors=True)
