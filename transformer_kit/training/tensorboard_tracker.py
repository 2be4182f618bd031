"""TensorBoard: event files of a run's numbers and its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_kit.training.tracker import Row, numbers

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

FLUSH_SECONDS = 30


class Tensorboard:
    """Scalars `train/loss`, `validation/bleu`, …; each session adds a file that hides what it will write again.

    Args:
        folder: where the files go.
        text: the configuration.
    """

    def __init__(self, folder: Path, text: str) -> None:
        self._folder, self._text = folder, text
        self._writer: SummaryWriter | None = None

    def rewind(self, step: int, validated: int) -> None:
        from torch.utils.tensorboard import SummaryWriter  # only here: it takes a second to load

        self._writer = SummaryWriter(str(self._folder), purge_step=step + 1, flush_secs=FLUSH_SECONDS)
        if step == 0:
            indented = "".join(f"    {line}\n" for line in self._text.splitlines())  # Markdown: as it is
            self._writer.add_text("configuration", indented, 0)

    def add(self, row: Row) -> None:
        assert self._writer is not None, "rewound before the first row"
        for name, value in numbers(row).items():
            self._writer.add_scalar(name, value, row["step"])

    def finish(self, result: Mapping[str, Any] | None) -> None:
        if self._writer is None:
            return
        if result is not None:
            for name, value in result["scores"].items():
                self._writer.add_scalar(f"final/{name}", value, result["step"])
        self._writer.close()
