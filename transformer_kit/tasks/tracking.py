"""Trackers beside `metrics.jsonl`, as configured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from transformer_kit.config.run_folder import read_result
from transformer_kit.config.saved import dump
from transformer_kit.config.schema import Config
from transformer_kit.logs import get_logger
from transformer_kit.training.tensorboard_tracker import Tensorboard
from transformer_kit.training.tracker import Outside
from transformer_kit.training.wandb_tracker import Wandb

log = get_logger(__name__)


@contextmanager
def outside_trackers(config: Config, folder: Path, *, on: bool) -> Iterator[list[Outside]]:
    """The trackers of one session, which begin with its first `rewind` and are finished at the end.

    Args:
        config: its plain form, with environment values unresolved, is what trackers show.
        folder: the run's; where it holds a result at the end, trackers show it.
        on: whether this process has trackers: of several ranks one has.
    """
    trackers: list[Outside] = []
    options = config.tracker
    if on and options.wandb is not None:
        trackers.append(Wandb(options.wandb, config.plain(), folder))
    if on and options.tensorboard is not None:
        place = options.tensorboard.folder
        where = folder / "tensorboard" if place is None else Path(place) / folder.name
        trackers.append(Tensorboard(where, dump(config.plain())))
    result = None
    try:
        yield trackers
        result = read_result(folder)
    finally:
        for tracker in trackers:
            try:
                tracker.finish(result)
            except Exception as error:  # whatever a tracker does, the run has ended as it has
                log.warning("%s could not be finished: %s", type(tracker).__name__, error)
