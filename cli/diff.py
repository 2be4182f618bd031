"""`tkit diff`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from transformer_kit.tasks.diff import Compared

LONGEST = 60  # of a value in the table


def diff(
    left: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.", show_default=False)],
    right: Annotated[Path, typer.Argument(metavar="RUN", help="Another one.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="Print every difference, uncut, as JSON.")] = False,
) -> None:
    """List in what two runs differ: configuration, data, code and results.

    Options that may change between the sessions of a run, and the machine, stand apart. Runs that are equal in
    everything exit with 0 as well.
    """
    from transformer_kit.tasks.diff import diff as task

    found = task(left, right)
    if as_json:
        plain = {"left": str(left), "right": str(right), **asdict(found)}
        print(json.dumps(plain, indent=2, ensure_ascii=False))
        return
    _show(found, left, right)


def _show(found: Compared, left: Path, right: Path) -> None:
    from transformer_kit.console import print_table
    from transformer_kit.tasks.plot import names_of

    names = names_of([left, right])
    if not found.differences:
        print(f"{left} and {right} differ in nothing that they recorded")
    else:
        rows, before = [], ""
        for each in found.differences:
            rows.append(["" if each.section == before else each.section, each.key, _cell(each.left), _cell(each.right)])
            before = each.section
        print_table(["", "", *names], rows, stream=sys.stdout)
    if found.unknown:
        print(f"only one of them recorded, and not compared: {', '.join(found.unknown)}")


def _cell(value: Any) -> str:
    """A value in few words; long ones, such as fingerprints, keep their beginning."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if len(text) in (40, 64) and all(letter in "0123456789abcdef" for letter in text):
        return text[:12]
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]}…{text[-LONGEST // 2 + 1 :]}"
