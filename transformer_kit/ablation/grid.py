"""The points of a sweep, and what became of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from transformer_kit.config.compose import parse
from transformer_kit.config.overrides import Line
from transformer_kit.config.points import expand
from transformer_kit.config.run_folder import run_name
from transformer_kit.errors import ConfigError


@dataclass(frozen=True)
class Point:
    """One run of a sweep.

    Attributes:
        order: 0, 1, …; the first point is what the others are compared with.
        name: of its run folder, which a single run with the same overrides shares.
        overrides: as `tkit train` takes them.
        values: what it sets of the axes: key -> value, in the order of the command line.
    """

    order: int
    name: str
    overrides: tuple[str, ...]
    values: dict[str, str]

    @property
    def label(self) -> str:
        """What tells this point from the others; its name when it is the only one."""
        return " ".join(f"{key}={value}" for key, value in self.values.items()) or self.name


@dataclass(frozen=True)
class Outcome:
    """What became of a point; what is not known is None.

    Attributes:
        status: done or failed.
        parameters: number of them, shared ones counted once.
        perplexity, bleu, accuracy: of the model that the run offers, on the validation data.
        seconds: of training.
        signature: how the BLEU score was computed.
        hypotheses: the translations behind the BLEU score, one a sentence.
        error: why it failed, in one line.
    """

    status: str
    parameters: int | None = None
    perplexity: float | None = None
    bleu: float | None = None
    seconds: float | None = None
    signature: str | None = None
    hypotheses: tuple[str, ...] | None = None
    error: str | None = None
    accuracy: float | None = None


def points(overrides: Sequence[str]) -> list[Point]:
    """The points of `a=1,2 b=x,y`, the last axis fastest.

    Raises:
        ConfigError: an override that cannot be parsed, or two points that would share a run folder.
    """
    parsed = [parse(combination, []) for combination in expand(overrides)]
    seen: dict[str, set[str]] = {}
    for lines in parsed:
        for line in lines:
            seen.setdefault(_key(line), set()).add(line.canonical)
    found: list[Point] = []
    for order, lines in enumerate(parsed):
        values = {_key(line): _value(line) for line in lines if len(seen[_key(line)]) > 1}
        name = run_name([line.canonical for line in lines])
        found.append(Point(order, name, tuple(line.text for line in lines), values))
    _refuse_shared_folders(found, "run.name" in seen)
    return found


def _key(line: Line) -> str:
    return line.canonical.partition("=")[0].lstrip("+")


def _value(line: Line) -> str:
    return line.canonical.partition("=")[2]


def _refuse_shared_folders(found: Sequence[Point], named: bool) -> None:
    first: dict[str, Point] = {}
    for point in found:
        other = first.setdefault(point.name, point)
        if other is not point:
            raise ConfigError(
                f"{point.label}: this point would share the run folder {point.name} with {other.label}, as the two "
                "differ in nothing that changes a trained model; sweep other keys"
            )
    if named and len(found) > 1:
        raise ConfigError(f"run.name names one run, but this sweep has {len(found)}; set ablation.name instead")
