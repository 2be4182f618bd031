"""The table of a sweep: rows, significance, and its three forms."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from transformer_kit.ablation import report
from transformer_kit.ablation.grid import Outcome, Point
from transformer_kit.ablation.table import Row, make_rows
from transformer_kit.evaluation.bleu import Metric

REFERENCE = [f"the {a} dog sees the {b} cat in the {c} garden" for a in "abcd" for b in "efg" for c in "hijkl"]
SIGNATURE = "nrefs:1|case:mixed"


def point(order: int, **values: str) -> Point:
    return Point(order, f"demo+{order}", (), values)


def outcome(wrong: int, offset: int = 0) -> Outcome:
    """Translations of which every `wrong`-th lacks its last two words."""
    lines = tuple(line.rsplit(" ", 2)[0] if (i + offset) % wrong == 0 else line for i, line in enumerate(REFERENCE))
    bleu = Metric("bleu", lowercase=False, language="en").score(lines, [REFERENCE]).value
    return Outcome("done", 1234567, 3.14159, bleu, 125.0, SIGNATURE, lines)


@pytest.fixture
def rows() -> list[Row]:
    points = [
        point(i, size=size, lr=lr) for i, (size, lr) in enumerate([("s", "1"), ("s", "2"), ("m", "1"), ("m", "2")])
    ]
    outcomes = [outcome(2), outcome(2, offset=1), outcome(29), Outcome("failed", error="RunError: no | room")]
    return make_rows(points, outcomes, [REFERENCE], Metric("bleu", lowercase=False, language="en"))


def test_significance_against_the_first_row(rows: list[Row]) -> None:
    assert (rows[0].difference, rows[0].p_value, rows[0].mark) == (None, None, "")
    assert rows[1].p_value is not None
    assert rows[1].p_value > 0.3
    assert rows[1].mark == ""
    assert rows[2].mark == "**"
    gain = (rows[2].outcome.bleu or 0) - (rows[0].outcome.bleu or 0)
    assert rows[2].difference == pytest.approx(gain, abs=1e-9)
    assert (rows[3].difference, rows[3].mark) == (None, "")


def test_no_significance_without_the_first_rows_hypotheses() -> None:
    metric = Metric("bleu", lowercase=False, language="en")
    rows = make_rows([point(0), point(1)], [Outcome("failed"), outcome(2)], [REFERENCE], metric)
    assert [row.p_value for row in rows] == [None, None]
    assert report.notes(rows) == [f"BLEU: {SIGNATURE}"]


def test_the_table_for_people(rows: list[Row]) -> None:
    columns, cells = report.for_people(rows)
    assert columns == ["size", "lr", "parameters", "perplexity", "BLEU", "time", "status"]
    bleu = f"{rows[2].outcome.bleu:.2f} **"
    assert cells[2] == ["m", "1", "1,234,567", "3.142", bleu, "2:05", "done"]
    assert cells[3] == ["m", "2", "", "", "", "", "failed: RunError: no | room"]
    out = io.StringIO()
    report.show(rows, out, title="ablation demo")
    lines = out.getvalue().splitlines()
    assert lines[0] == "ablation demo"
    assert len(lines) == 1 + 2 + 4 + 2
    assert lines[-2] == f"BLEU: {SIGNATURE}"
    assert "paired bootstrap" in lines[-1]


def test_one_run_is_called_by_its_name() -> None:
    columns, cells = report.for_people([Row(Point(0, "demo", (), {}), Outcome("done", bleu=12.0))])
    assert (columns[0], cells[0][0], cells[0][3]) == ("run", "demo", "12.00")


def test_files(rows: list[Row], tmp_path: Path) -> None:
    paths = report.write(rows, tmp_path / "ablations" / "demo")
    assert [path.name for path in paths] == ["table.csv", "table.md"]
    assert sorted(path.name for path in paths[0].parent.iterdir()) == ["table.csv", "table.md"]
    with paths[0].open(newline="", encoding="utf-8") as file:
        read = list(csv.DictReader(file))
    assert [row["size"] + row["lr"] for row in read] == ["s1", "s2", "m1", "m2"]
    assert [row["run"] for row in read] == ["demo+0", "demo+1", "demo+2", "demo+3"]
    assert float(read[2]["bleu"]) == rows[2].outcome.bleu
    assert float(read[2]["difference"]) == rows[2].difference
    assert (read[3]["bleu"], read[3]["error"]) == ("", "RunError: no | room")
    markdown = paths[1].read_text("utf-8").splitlines()
    assert markdown[0] == "| size | lr | parameters | perplexity | BLEU | time | status |"
    assert r"no \| room" in markdown[5]


def test_without_translations_accuracy_is_shown_and_perplexity_where_it_is_known() -> None:
    classifiers = [Outcome("done", 7, seconds=5.0, accuracy=share) for share in (0.5, 0.875)]
    columns, cells = report.for_people(make_rows([point(0), point(1)], classifiers, [], None))
    assert columns[-4:] == ["parameters", "accuracy", "time", "status"]
    assert [row[-3] for row in cells] == ["50.00%", "87.50%"]
    models = [Outcome("done", 7, perplexity=4.5, accuracy=0.25), Outcome("failed", error="no room")]
    columns, cells = report.for_people(make_rows([point(0), point(1)], models, [], None))
    assert columns[-5:-2] == ["parameters", "perplexity", "accuracy"]
    assert cells[0][-4:-2] == ["4.500", "25.00%"]
    assert "accuracy" in report.for_programs(make_rows([point(0)], models[:1], [], None)).splitlines()[0]
