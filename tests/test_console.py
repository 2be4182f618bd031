"""Tables and progress, on a terminal and elsewhere."""

from __future__ import annotations

import csv
import io
import logging
import os
import pty
import select
import subprocess
import sys

import pytest

from transformer_kit import console, logs

COLUMNS = ["variant", "BLEU", "note"]
ROWS = [["rope|pre", "41.25", "a b"], ["日本", "9.5", 'x, "y"'], ["none", "-", ""]]


def test_plain_table():
    assert console.plain_table(COLUMNS, ROWS) == "\n".join(
        [
            "variant    BLEU  note",
            "--------  -----  ------",
            "rope|pre  41.25  a b",
            '日本        9.5  x, "y"',
            "none          -",
        ]
    )


def test_markdown_table():
    assert console.markdown_table(COLUMNS, ROWS).splitlines() == [
        "| variant | BLEU | note |",
        "| --- | ---: | --- |",
        r"| rope\|pre | 41.25 | a b |",
        '| 日本 | 9.5 | x, "y" |',
        "| none | - |  |",
    ]


def test_csv_table_reads_back():
    text = console.csv_table(COLUMNS, [*ROWS, ["two\nlines", "1", ""]])
    assert list(csv.reader(io.StringIO(text))) == [COLUMNS, *ROWS, ["two\nlines", "1", ""]]
    assert "\r" not in text


def test_a_table_without_rows():
    assert console.plain_table(["a", "bc"], []) == "a  bc\n-  --"


def test_print_table_off_a_terminal_is_plain():
    out = io.StringIO()
    console.print_table(COLUMNS, ROWS, title="Results", stream=out)
    assert out.getvalue() == "Results\n" + console.plain_table(COLUMNS, ROWS) + "\n"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (3599, "59:59"), (3723, "1:02:03"), (-1, "0:00")]
)
def test_duration(seconds, text):
    assert console.duration(seconds) == text


def test_plain_progress_is_a_line_per_report(monkeypatch):
    now = iter([100.0, 130.0, 160.0])
    monkeypatch.setattr(console.time, "monotonic", lambda: next(now))
    out = io.StringIO()
    shown = console.progress(out)
    shown.start("training", 0.25)
    shown.update(0.4)
    shown.update(0.5, {"loss": "3.21"})
    shown.update(1.0, {"loss": "3.1"})
    shown.stop()
    # a quarter took 30 s: the half that is left takes 60
    assert out.getvalue() == "training  50%  loss 3.21  1:00 left\ntraining 100%  loss 3.1\n"


class Terminal:
    """A pseudo-terminal: what is written to `stream` comes out of `read`."""

    def __enter__(self):
        self.main, side = pty.openpty()
        self.stream = os.fdopen(side, "w", encoding="utf-8")
        return self

    def __exit__(self, *_):
        self.stream.close()
        os.close(self.main)

    def read(self):
        """All that was written; a terminal hands it over in portions."""
        self.stream.flush()
        data = b""
        while select.select([self.main], [], [], 0.2)[0]:
            data += os.read(self.main, 1 << 16)
        return data.decode()


def test_bar_on_a_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with Terminal() as terminal:
        monkeypatch.setattr(sys, "stderr", terminal.stream)
        handler = logging.StreamHandler(terminal.stream)
        logger = logging.getLogger(logs.ROOT)
        logger.addHandler(handler)
        try:
            shown = console.progress(terminal.stream)
            assert isinstance(shown, console.BarProgress)
            shown.start("training [1]", 0.25)
            shown.update(0.5, {"loss": "3.21", "tokens/s": "5,100"})
            shown.update(0.75)
            assert handler.stream is not terminal.stream, "a record goes above the bar"
            logger.warning("a record")
            shown.stop()
            assert handler.stream is terminal.stream
        finally:
            logger.removeHandler(handler)
        text = terminal.read()
    assert "training [1]" in text
    assert "75%" in text
    assert "loss 3.21  tokens/s 5,100" in text
    assert "a record" in text
    assert text.endswith("\x1b[?25h"), "the cursor is shown again"


def test_table_on_a_terminal():
    with Terminal() as terminal:
        console.print_table(COLUMNS, [["[bold]x", "1.0", ""]], title="Results", stream=terminal.stream)
        text = terminal.read()
    assert "[bold]x" in text, "cells are text, not markup"
    assert "━" in text


def test_stopping_what_was_not_started():
    console.BarProgress(io.StringIO()).stop()
    quiet = console.NoProgress()
    quiet.start("x")
    quiet.update(1.0, {"a": "b"})
    quiet.stop()


def test_importing_it_brings_neither_torch_nor_rich():
    code = "import sys, transformer_kit.console; sys.exit(bool({'torch', 'rich'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
