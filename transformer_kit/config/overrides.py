"""Override lines and what can be wrong with them, in words; nothing here knows Hydra."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transformer_kit.config.spelling import nearest, nearest_key

HYDRA = "hydra"
SWEEP = "ablation"


@dataclass(frozen=True)
class Line:
    """One override, parsed.

    Attributes:
        text: as Hydra reads it, quoted where that was needed.
        key: the dotted key or the group, without `+`, `~` and `@package`.
        value: the parsed value; a list of names for `+recipe=[a,b]`.
        canonical: `key=value` in one spelling (`trainer.lr=0.0001` for `1e-4`), `+` kept.
        added: whether it starts with `+` or `++`.
    """

    text: str
    key: str
    value: Any
    canonical: str
    added: bool = False

    def is_group(self, groups: Collection[str]) -> bool:
        return "/" in self.key or self.key in groups


@dataclass(frozen=True)
class Axis:
    """What may be chosen for one key of a search.

    Attributes:
        key: as it is written, with `+` where it is added.
        choices: the values, as written; empty for an interval.
        low, high: the ends of an interval.
        log: whether it is drawn evenly in its logarithm.
        whole: whole numbers only.
    """

    key: str
    choices: tuple[str, ...] = ()
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    whole: bool = False

    @property
    def example(self) -> str:
        """A value that can be chosen."""
        return self.choices[0] if self.choices else self.written(self.low)

    def written(self, value: float) -> str:
        """A value of an interval as an override says it: four digits, inside the interval."""
        if self.whole:
            return str(round(value))
        return repr(min(max(float(f"{value:.4g}"), self.low), self.high))


def of_training(overrides: Sequence[str]) -> list[str]:
    """The overrides of a point that `tkit train` takes: without those of the sweep and of Hydra."""
    return [text for text in overrides if not text.lstrip("+~").startswith((f"{SWEEP}.", HYDRA))]


def quoted(text: str) -> str:
    """`key=value` with the value in quotation marks, for values with characters that mean something to Hydra.

    A list, a mapping and text with quotation marks stay as they are: there the user has to say what is meant.
    """
    key, equals, value = text.partition("=")
    if not equals or value.startswith(("[", "{", '"', "'")) or '"' in value or value.endswith("\\"):
        return text
    return f'{key}="{value}"'


def how_to_quote(text: str) -> str:
    key, _, _ = text.partition("=")
    return f"a value with special characters is quoted twice, for the shell and for Hydra: '{key}=\"…\"'"


def group_problem(item: Line, groups: Mapping[str, Sequence[str]]) -> str | None:
    """What is wrong with a choice of group options: no such group, or no such option (with the valid ones).

    Args:
        item: an override that names a group.
        groups: the options of each group.
    """
    if item.key.startswith(f"{HYDRA}/"):
        return None  # Hydra knows its own groups, and says what is wrong with them
    if item.key not in groups:
        dots = item.key.replace("/", ".")
        return f"{item.text}: there is no group {item.key!r}{nearest(item.key, groups)} (single options: {dots}.…)"
    valid = groups[item.key]
    names = item.value if isinstance(item.value, list) else [item.value]
    for name in names:
        if name is not None and str(name) not in valid:
            return f"{item.text}: {item.key} has no {str(name)!r}{nearest(str(name), valid)} ({', '.join(valid)})"
    return None


def key_problem(item: Line, keys: Collection[str]) -> str | None:
    """What is wrong with a key: misspelt, missing, or there already."""
    if item.key == HYDRA or item.key.startswith(HYDRA + "."):
        return None
    if not item.key:
        return f"{item.text}: no key before '='"
    if item.added:
        there = item.key in keys and not item.text.startswith("++")
        return f"{item.text}: {item.key} is there already; write it without +" if there else None
    if item.key in keys:
        return None
    return f"{item.key}: unknown key{nearest_key(item.key, keys)}"


def known_keys(data: Any, at: str = "") -> Iterator[str]:
    """Every dotted key of plain data, nodes and leaves, items of lists by number."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for name, value in items:
        key = f"{at}.{name}" if at else str(name)
        yield key
        yield from known_keys(value, key)


def one_line(error: BaseException) -> str:
    """The part of a library's error that says what is wrong, without its advice and its list of folders."""
    text = str(error.__cause__ or error) if str(error) in ("", "None") else str(error)
    kept = []
    for line in text.splitlines():
        if line.startswith(("Config search path", "Search path", "See https", "    full_key", "To append", "\t")):
            continue
        if line.strip():
            kept.append(line.strip())
    return " ".join(kept) or type(error).__name__
