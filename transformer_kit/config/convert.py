"""Plain data to typed options, with every problem found at once.

- Types are read from the annotations of plain dataclasses; nothing here knows a particular option.
- A problem is one line `key: what is wrong`, and the walk goes on behind it.
- A dataclass's own `problems()` is asked for ranges as soon as its fields have the right types.
- A relative path is resolved against the folder that the user stands in; which fields are paths is said by
  `field(metadata={"path": True})` or the annotation `pathlib.Path`.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import os
import types
import typing
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Union

from transformer_kit.config.spelling import nearest

MISSING = "???"
INTERNAL = {"internal": True}  # metadata of a field that no YAML sets
Slot = Annotated[dict[str, Any], "slot"]
"""The options of one slot: `_target_`, the class, and its options; `config/build.py` checks them."""

_BAD: Any = object()


class Reader:
    """Converts data, gathering problems and the keys that hold paths.

    Args:
        base: the folder that relative paths are resolved against.

    Attributes:
        problems: one line each.
        paths: the keys of every path that was read, as tuples of names and list indices.
    """

    def __init__(self, base: Path) -> None:
        self.base = base
        self.problems: list[str] = []
        self.paths: list[tuple[str | int, ...]] = []

    def read(self, kind: Any, data: Any, at: tuple[str | int, ...] = (), *, path: bool = False) -> Any:
        """The value of type `kind` that `data` describes; anything at all once a problem was noted."""
        if data == MISSING and kind is not Any:
            return self._bad(at, f"needs a value: give {dotted(at)}=VALUE or put it into the recipe")
        if dataclasses.is_dataclass(kind):
            return self._dataclass(kind, data, at)
        if isinstance(kind, type) and issubclass(kind, enum.Enum):
            return self._enum(kind, data, at)
        origin, args = typing.get_origin(kind), typing.get_args(kind)
        if origin is Annotated:
            return self._slot(data, at)
        if origin is Literal:
            return data if data in args else self._bad(at, _one_of(data, [str(arg) for arg in args]))
        if origin in (Union, types.UnionType):
            return self._union(args, data, at, path)
        if kind is list or origin is list:
            return self._list(args[0] if args else Any, data, at, path)
        if kind is dict or origin is dict:
            return self._dict(args[1] if args else Any, data, at)
        if kind is Any:
            return data
        return self._scalar(kind, data, at, path or kind is Path)

    def _bad(self, at: tuple[str | int, ...], message: str) -> Any:
        self.problems.append(f"{dotted(at)}: {message}")
        return _BAD

    def _dataclass(self, kind: Any, data: Any, at: tuple[str | int, ...]) -> Any:
        if not isinstance(data, Mapping):
            group = "/".join(str(part) for part in at)
            return self._bad(at, f"expected options, got {data!r}; to choose an option of a group write {group}=NAME")
        fields = {_key(field): field for field in dataclasses.fields(kind) if not field.metadata.get("internal")}
        hints = _hints(kind)
        for key in data:
            if key not in fields:
                self._bad((*at, key), f"unknown key{nearest(str(key), fields)}")
        values: dict[str, Any] = {}
        for key, field in fields.items():
            if key in data:
                is_path = bool(field.metadata.get("path"))
                values[field.name] = self.read(hints[field.name], data[key], (*at, key), path=is_path)
            elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
                values[field.name] = self._bad((*at, key), "is missing from the configuration")
        if any(value is _BAD for value in values.values()):
            return _BAD
        made = kind(**values)
        if hasattr(made, "problems"):
            for key, message in made.problems():
                whole = (*at, *key.split(".")) if key else at
                line = f"{dotted(whole)}: {message}"
                if line not in self.problems:
                    self.problems.append(line)
        return made

    def _slot(self, data: Any, at: tuple[str | int, ...]) -> Any:
        if not isinstance(data, Mapping):
            group = "/".join(str(part) for part in at)
            return self._bad(at, f"expected a class with options, got {data!r}; write {group}=NAME to choose one")
        if not isinstance(data.get("_target_"), str):
            return self._bad(at, "names no class: _target_ is missing")
        return dict(data)

    def _enum(self, kind: type[enum.Enum], data: Any, at: tuple[str | int, ...]) -> Any:
        if isinstance(data, kind):
            return data
        for member in kind:
            if data in (member.value, member.name):
                return member
        return self._bad(at, _one_of(data, [str(member.value) for member in kind]))

    def _union(self, args: Sequence[Any], data: Any, at: tuple[str | int, ...], path: bool) -> Any:
        if data is None and type(None) in args:
            return None
        choices = [arg for arg in args if arg is not type(None)]
        if len(choices) == 1:
            return self.read(choices[0], data, at, path=path)
        if all(dataclasses.is_dataclass(choice) for choice in choices):
            return self._tagged(choices, data, at)
        for choice in choices:  # the first that fits, as in `str | list[str]`
            trial = Reader(self.base)
            value = trial.read(choice, data, at, path=path)
            if not trial.problems:
                self.paths += trial.paths
                return value
        return self._bad(at, f"expected {' or '.join(_name(choice) for choice in choices)}, got {data!r}")

    def _tagged(self, choices: Sequence[Any], data: Any, at: tuple[str | int, ...]) -> Any:
        """One of several dataclasses, told apart by the `Literal` that each has for its `kind`."""
        kinds = {typing.get_args(_hints(choice)["kind"])[0]: choice for choice in choices}
        if not isinstance(data, Mapping):
            return self._dataclass(choices[0], data, at)
        if "kind" not in data:
            return self._bad((*at, "kind"), f"is missing from the configuration (one of {', '.join(kinds)})")
        if data["kind"] not in kinds:
            return self._bad((*at, "kind"), _one_of(data["kind"], list(kinds)))
        return self._dataclass(kinds[data["kind"]], data, at)

    def _list(self, item: Any, data: Any, at: tuple[str | int, ...], path: bool) -> Any:
        if isinstance(data, str) or not isinstance(data, Sequence):
            return self._bad(at, f"expected a list such as [a, b], got {data!r}")
        values = [self.read(item, value, (*at, index), path=path) for index, value in enumerate(data)]
        return _BAD if any(value is _BAD for value in values) else values

    def _dict(self, item: Any, data: Any, at: tuple[str | int, ...]) -> Any:
        if not isinstance(data, Mapping):
            return self._bad(at, f"expected key: value pairs, got {data!r}")
        values = {str(key): self.read(item, value, (*at, str(key))) for key, value in data.items()}
        return _BAD if any(value is _BAD for value in values.values()) else values

    def _scalar(self, kind: type, data: Any, at: tuple[str | int, ...], path: bool) -> Any:
        value = _SCALARS[kind](data)
        if value is _BAD:
            return self._bad(at, f"expected {_name(kind)}, got {data!r}")
        if not path:
            return value
        if "\0" in str(value):
            return self._bad(at, "a path cannot hold a NUL byte")
        self.paths.append(at)
        return kind(absolute(str(value), self.base))


def _key(field: dataclasses.Field[Any]) -> str:
    """How a field is called in YAML: its name, unless that is a word of Python's (`from`)."""
    return str(field.metadata.get("key", field.name))


def absolute(path: str, base: Path) -> str:
    """`path` with `~` expanded, resolved against `base`; symbolic links stay as they are."""
    return os.path.normpath(os.path.join(base, os.path.expanduser(path))) if path else path


def dotted(at: Sequence[str | int]) -> str:
    return ".".join(str(part) for part in at) or "config"


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind, include_extras=True)


def _one_of(data: Any, valid: list[str]) -> str:
    return f"{data!r} is not one of {', '.join(valid)}{nearest(str(data), valid)}"


def _name(kind: Any) -> str:
    names = {int: "an integer", float: "a number", bool: "true or false", str: "text", Path: "a path"}
    origin = typing.get_origin(kind)
    if origin is Literal:
        return " or ".join(str(arg) for arg in typing.get_args(kind))
    return names.get(kind, "a list" if origin is list else getattr(kind, "__name__", str(kind)))


def _int(data: Any) -> Any:
    if isinstance(data, str):  # an environment variable, or 1e4 read by a YAML 1.1 parser
        try:
            data = float(data) if not data.strip().lstrip("+-").isdigit() else int(data)
        except ValueError:
            return _BAD
    if isinstance(data, float) and math.isfinite(data) and data == int(data):
        return int(data)  # 1e5 is a number of steps
    return data if isinstance(data, int) and not isinstance(data, bool) else _BAD


def _float(data: Any) -> Any:
    if isinstance(data, bool) or not isinstance(data, int | float | str):
        return _BAD
    try:
        value = float(data)
    except ValueError:
        return _BAD
    return _BAD if math.isnan(value) else value


def _bool(data: Any) -> Any:
    return data if isinstance(data, bool) else {"true": True, "false": False}.get(str(data).lower(), _BAD)


def _str(data: Any) -> Any:
    return str(data) if isinstance(data, str | int | float | Path) and not isinstance(data, bool) else _BAD


_SCALARS: dict[Any, Any] = {int: _int, float: _float, bool: _bool, str: _str, Path: _str}
