"""Plain data to a typed `Config`: environment values, absolute paths, and every remaining problem."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from transformer_kit.config.convert import Reader, absolute, dotted
from transformer_kit.config.schema import Config, Source
from transformer_kit.data.options import NO_CORPUS
from transformer_kit.errors import ConfigError

ENV = re.compile(r"\$\{oc\.env:([A-Za-z_][A-Za-z0-9_]*)(?:,([^{}]*))?\}")


def typed(kind: type[Config], data: dict[str, Any], given: list[str], problems: list[str], *, check: bool) -> Config:
    """The typed configuration of plain data, which is kept as its `plain()`.

    Args:
        kind: the class to read into.
        data: complete plain data; its paths are made absolute in place.
        given: the overrides that led here.
        problems: what is known to be wrong already.
        check: see `compose`.

    Raises:
        ConfigError: with every problem, those known already first.
    """
    found: list[str] = []
    reader = Reader(Path.cwd())
    config = reader.read(kind, with_env(data, found if check else None))
    found += reader.problems
    for at in reader.paths:
        _make_absolute(data, at, reader.base)
    named = {key_of(line) for line in problems}
    if check:
        from transformer_kit.config.check import FITTED, model_problems  # imports torch

        found += model_problems(config if isinstance(config, Config) else data, fit=not named & FITTED)
        corpora = data.get("data")  # looked at as it is, so that a problem elsewhere does not hide this one
        lost = "+recipe" in named  # whose corpora are not known
        if not lost and isinstance(corpora, Mapping) and not corpora.get("train") and corpora.get("generate") is None:
            found.append(NO_CORPUS)
    problems += [line for line in dict.fromkeys(found) if key_of(line) not in named]
    if problems:
        raise ConfigError(problems)
    config.source = Source({field.name: data[field.name] for field in fields(kind) if field.name in data}, given)
    return config


def key_of(line: str) -> str:
    """The key that a problem's line starts with."""
    return re.split("[:=]", line, maxsplit=1)[0]


def with_env(data: Any, problems: list[str] | None) -> Any:
    """`data` with environment values put in; a variable that is not set is a problem, or stays when None is given."""
    missing: dict[str, list[str]] = {}
    filled = _with_env(data, missing, ())
    if problems is not None:
        for name, keys in missing.items():
            others = f" (also for {', '.join(keys[1:])})" if len(keys) > 1 else ""
            problems.append(f"{keys[0]}: the environment variable {name} is not set{others}")
    return filled


def _with_env(data: Any, missing: dict[str, list[str]], at: tuple[str | int, ...]) -> Any:

    def put(match: re.Match[str]) -> str:
        name, default = match.group(1), match.group(2)
        if name in os.environ:
            return os.environ[name]
        if default is not None:
            return default.strip().strip("'\"")
        missing.setdefault(name, []).append(dotted(at))
        return match.group(0)

    if isinstance(data, Mapping):
        return {key: _with_env(value, missing, (*at, key)) for key, value in data.items()}
    if isinstance(data, list):
        return [_with_env(value, missing, (*at, index)) for index, value in enumerate(data)]
    if not isinstance(data, str) or "${oc.env:" not in data:
        return data
    value = ENV.sub(put, data)
    return None if value == "null" else value


def _make_absolute(data: Any, at: tuple[str | int, ...], base: Path) -> None:
    *parents, last = at
    for key in parents:
        data = data[key]
    if not str(data[last]).startswith("${oc.env:"):  # the variable says where, and stays unresolved
        data[last] = absolute(str(data[last]), base)


def keep_env(name: str, *default: str | None) -> str:
    """Stands in for the resolver `oc.env`: a mark that `unmark` turns back, as `${` would be resolved once more."""
    return "\0" + ",".join([name, *("null" if value is None else str(value) for value in default)]) + "\1"


def unmark(data: Any) -> Any:
    """Plain data with the marks of `keep_env` as `${oc.env:…}` again."""
    if isinstance(data, dict):
        return {key: unmark(value) for key, value in data.items()}
    if isinstance(data, list):
        return [unmark(value) for value in data]
    return data.replace("\0", "${oc.env:").replace("\1", "}") if isinstance(data, str) else data
