"""`tkit diff`: in what two runs differ: configuration, data, code and results."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transformer_kit.config.run_folder import ENVIRONMENT, LABELS, RESULT, is_free
from transformer_kit.config.saved import load_plain
from transformer_kit.errors import RunError

CONFIG, FREE, DATA, CODE, RESULTS = "config", "may change between sessions", "data", "code", "results"
SECTIONS = (CONFIG, FREE, DATA, CODE, RESULTS)
DATA_FACTS = ("tokenizer", "vocabulary", "data", "labels")  # of the environment; the rest tells of the code
MACHINE = ("device", "threads", "platform")  # these are chosen where a run is computed, and are no part of what it is
REPEATED = ("precision", "last_scores")  # of a result: told by the environment, and by `scores`
ABSENT = None


@dataclass(frozen=True)
class Difference:
    """One thing that differs.

    Attributes:
        section: one of `SECTIONS`.
        key: dotted.
        left, right: as recorded; None where it is absent.
    """

    section: str
    key: str
    left: Any
    right: Any


@dataclass(frozen=True)
class Compared:
    """Two runs.

    Attributes:
        differences: in the order of `SECTIONS`, then of the keys.
        unknown: facts that one of the two runs, which is older, did not record, so that they were not compared.
    """

    differences: list[Difference]
    unknown: list[str]


def diff(left: Path, right: Path) -> Compared:
    """Compare two run folders, which may be unfinished. Where they lie and what they are called is no difference.

    Raises:
        RunError: one of them is no run, or a file of it is damaged.
    """
    found = _config(left, right)
    one, other = _facts(left), _facts(right)
    shared = [key for key in [*one, *(key for key in other if key not in one)] if key in one and key in other]
    unknown = sorted(set(one) ^ set(other)) if one and other else []
    for key in shared:
        section = DATA if key in DATA_FACTS else FREE if key in MACHINE else CODE
        found += _compare(section, {key: one[key]}, {key: other[key]})
    found += _compare(RESULTS, _result(left), _result(right))
    return Compared(sorted(found, key=lambda each: SECTIONS.index(each.section)), unknown)


def _config(left: Path, right: Path) -> list[Difference]:
    found = _compare(CONFIG, _options(left), _options(right))
    return [replace(each, section=FREE) if is_free(each.key) else each for each in found]


def _options(run: Path) -> dict[str, Any]:
    """All but where the run lies and how its file is written."""
    return {key: value for key, value in load_plain(run).items() if key not in ("run", "format")}


def _facts(folder: Path) -> dict[str, Any]:
    """What the run recorded of its data and of what it was computed with; nothing before it began."""
    found = _read(folder / ENVIRONMENT)
    if not isinstance(found, dict):
        return {}
    return found | {"labels": _read(folder / LABELS)}  # None where the data have no classes


def _result(folder: Path) -> dict[str, Any]:
    found = _read(folder / RESULT)
    result = found if isinstance(found, dict) else {"status": "unfinished"}
    return {key: value for key, value in result.items() if key not in REPEATED}


def _read(path: Path) -> Any:
    """Plain data of a JSON file, or None where there is none.

    Raises:
        RunError: it is damaged.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise RunError(f"{path} is damaged ({error}): restore the file") from None


def _compare(section: str, left: Mapping[str, Any], right: Mapping[str, Any]) -> list[Difference]:
    one, other = dict(_leaves(left)), dict(_leaves(right))
    keys = [*one, *(key for key in other if key not in one)]
    pairs = [(key, one.get(key, ABSENT), other.get(key, ABSENT)) for key in keys]
    return [Difference(section, key, a, b) for key, a, b in pairs if a != b or type(a) is not type(b)]


def _leaves(data: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    """Values with their dotted keys; lists of mappings, such as corpora, count from 0."""
    if isinstance(data, list) and data and all(isinstance(item, dict) for item in data):
        data = dict(enumerate(data))
    if isinstance(data, dict) and data:
        for key, value in data.items():
            yield from _leaves(value, f"{at}.{key}" if at else str(key))
    else:
        yield at, data
