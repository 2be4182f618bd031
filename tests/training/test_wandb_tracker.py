"""Weights & Biases beside a training: what reaches it, and that nothing comes back but a line in the log."""

from __future__ import annotations

import http.server
import importlib.util
import json
import logging
import os
import re
import struct
import subprocess
import sys
import threading
import time

import pytest

from transformer_kit.training import wandb_process, wandb_tracker
from transformer_kit.training.tracker_options import WandbOptions, missing_packages
from transformer_kit.training.wandb_tracker import SCRIPT, Wandb

FAKE = """
import json, os, time
what = os.environ.get("FAKE", "")
def note(**facts):
    with open(os.environ["FAKE_LOG"], "a") as file:
        file.write(json.dumps(facts) + "\\n")
def act(place):
    if what == f"hang in {place}":
        time.sleep(600)
    if what == f"raise in {place}":
        raise RuntimeError(f"no {place}\\n  today")
act("import")
class Settings:
    def __init__(self, **given):
        self.given = given
class Run:
    id, dir = "x", "/somewhere/files"
    def __init__(self):
        self.summary = self
    def define_metric(self, name, step_metric=None):
        note(metric=name, axis=step_metric)
    def log(self, row):
        act("log")
        note(row=row)
    def update(self, values):
        note(summary=values)
    def finish(self, exit_code):
        act("finish")
        note(finish=exit_code)
def init(settings, **given):
    print("wandb: a banner on stdout")
    act("init")
    if what == "offline alone" and given["mode"] == "online":
        raise ConnectionError("401: who are you?")
    note(init=given, settings=settings.given)
    return Run()
"""


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """A package `wandb` that writes down what it is asked for; returns a function that reads it."""
    (tmp_path / "packages/wandb").mkdir(parents=True)
    (tmp_path / "packages/wandb/__init__.py").write_text(FAKE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "packages"))
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "calls"))
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL", "WANDB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    (tmp_path / "run").mkdir()

    def calls(name):
        path = tmp_path / "calls"
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [line[name] for line in lines if name in line]

    return calls


def session(folder, mode="auto", rows=(), result=None):
    options = WandbOptions("project", None, "group", None, ["a", "b"], mode)
    tracker = Wandb(options, {"seed": 1, "data": {"key": "${oc.env:SECRET}"}}, folder)
    tracker.rewind(0, 0)
    for row in rows:
        tracker.add(row)
    tracker.finish(result)
    return tracker


RESULT = {"status": "complete", "step": 7, "scores": {"bleu": 30.5}}
ROWS = [
    {"kind": "train", "step": 5, "loss": 2.5, "samples": "00ff"},
    {"kind": "validation", "step": 5, "bleu": 30.5},
    {"kind": "norms", "step": 6, "gradient/encoder.blocks.0": 0.5},
]


def test_what_reaches_it(fake, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("SECRET", "0123456789")
    with caplog.at_level(logging.INFO):
        session(tmp_path / "run", rows=ROWS, result=RESULT)
    (given,) = fake("init")
    assert given == {
        "project": "project",
        "entity": None,
        "group": "group",
        "name": "run",
        "tags": ["a", "b"],
        "mode": "offline",
        "id": (tmp_path / "run/wandb/run_id").read_text().strip(),
        "dir": str(tmp_path / "run"),
        "config": {"seed": 1, "data": {"key": "${oc.env:SECRET}"}},
        "resume": "allow",
    }
    assert fake("row") == [
        {"step": 5, "train/loss": 2.5},
        {"step": 5, "validation/bleu": 30.5},
        {"step": 6, "norms/gradient/encoder.blocks.0": 0.5},
    ]
    assert dict(zip(fake("metric"), fake("axis"), strict=True)) == {"step": None, "*": "step"}
    assert fake("summary") == [{"final/status": "complete", "final/step": 7, "final/scores/bleu": 30.5}]
    assert fake("finish") == [0]
    assert caplog.messages == ["wandb: run x, offline (there is no key); `wandb sync /somewhere` uploads it"]


def test_every_session_has_the_same_id(fake, tmp_path):
    session(tmp_path / "run")
    session(tmp_path / "run", result=RESULT)
    (tmp_path / "other").mkdir()
    session(tmp_path / "other")
    first, second, other = (given["id"] for given in fake("init"))
    assert first == second != other
    assert fake("finish") == [1, 0, 1], "a session without a result has failed"


class Server(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_error(404)

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    with http.server.HTTPServer(("127.0.0.1", 0), Server) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{made.server_port}"
        made.shutdown()


def test_online_where_there_are_a_key_and_a_server(fake, tmp_path, monkeypatch, server):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("WANDB_BASE_URL", server)
    session(tmp_path / "run")
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    session(tmp_path / "run")
    monkeypatch.delenv("WANDB_API_KEY")
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login user password " + "k" * 40 + "\n")
    (tmp_path / "netrc").chmod(0o600)
    session(tmp_path / "run")
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    session(tmp_path / "run")
    monkeypatch.setenv("WANDB_MODE", "disabled")
    session(tmp_path / "run")
    session(tmp_path / "run", mode="offline")
    assert [given["mode"] for given in fake("init")] == [
        "offline",
        "online",
        "online",
        "offline",
        "disabled",
        "offline",
    ]


def test_offline_where_online_fails(fake, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("FAKE", "offline alone")
    with caplog.at_level(logging.INFO):
        session(tmp_path / "run", mode="online", rows=ROWS[:1])
    assert [given["mode"] for given in fake("init")] == ["offline"]
    assert len(fake("row")) == 1
    assert "offline (online it failed: 401: who are you?)" in caplog.messages[0]


def test_online_without_a_network_is_offline_before_a_short_run_has_ended(fake, tmp_path, monkeypatch):
    """It is tried as asked, for a shorter time than is waited for at the end."""
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("FAKE", "offline alone")
    session(tmp_path / "run", mode="online", rows=ROWS[:1])
    assert [given["mode"] for given in fake("init")] == ["offline"]
    (settings,) = fake("settings")
    assert settings["init_timeout"] + wandb_process.PROBE_SECONDS < wandb_tracker.PATIENCE


@pytest.mark.parametrize("place", ["import", "init", "log", "finish"])
@pytest.mark.parametrize("how", ["raise", "hang"])
def test_whatever_it_does_there_is_one_warning(fake, tmp_path, monkeypatch, caplog, how, place):
    monkeypatch.setenv("FAKE", f"{how} in {place}")
    monkeypatch.setattr(wandb_tracker, "PATIENCE", 1.0)
    monkeypatch.setattr(wandb_tracker, "SHORT_PATIENCE", 0.5)
    began = time.monotonic()
    tracker = session(tmp_path / "run", rows=ROWS, result=RESULT)
    assert time.monotonic() - began < 5
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    why = f"RuntimeError: no {place} today" if how == "raise" else "it did not (end|start)"
    assert len(said) == 1
    assert re.fullmatch(f"wandb is off for the rest of this session: {why}", said[0])
    assert tracker._process is not None
    assert tracker._process.poll() is not None, "nothing is left running"


def test_rows_take_no_time_and_no_memory_while_it_hangs(fake, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("FAKE", "hang in init")
    monkeypatch.setattr(wandb_tracker, "MOST_ROWS", 1000)
    monkeypatch.setattr(wandb_tracker, "SHORT_PATIENCE", 0.1)
    options = WandbOptions("project", None, None, "name", [], "offline")
    tracker = Wandb(options, {}, tmp_path / "run")
    tracker.rewind(0, 0)
    began = time.monotonic()
    row = {"kind": "train", "step": 1, **{f"value{number}": 1.0 for number in range(100)}}
    for _ in range(20_000):
        tracker.add(row)
    assert time.monotonic() - began < 5
    assert tracker._queue.qsize() <= 1000
    tracker.finish(None)
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert said == ["wandb is off for the rest of this session: it has not taken the last 1,000 rows"]


def test_a_folder_that_cannot_be_written_is_said_by_the_caller(fake, tmp_path):
    (tmp_path / "run/wandb").write_text("a file")
    with pytest.raises(OSError, match="wandb"):
        session(tmp_path / "run")


def test_a_killed_training_is_finished_as_failed(fake, tmp_path):
    given = {"mode": "offline", "id": "abc"}
    text = "".join(json.dumps(line) + "\n" for line in (given, {"row": {"step": 1}}))
    ended = subprocess.run([sys.executable, "-P", str(SCRIPT)], input=text, capture_output=True, text=True, check=True)
    assert json.loads(ended.stdout.splitlines()[-1]) == {"done": True}
    assert "banner" not in ended.stdout
    assert fake("finish") == [1]


def test_a_folder_named_like_the_package_is_none(tmp_path, monkeypatch):
    (tmp_path / "tensorboard_or_wandb").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(
        "transformer_kit.training.tracker_options.find_spec",
        lambda name: importlib.util.find_spec("tensorboard_or_wandb"),
    )
    both = {"wandb": {"project": "p"}, "tensorboard": {"folder": None}}
    assert missing_packages(both) == [
        (name, f"the package {name} is not installed: pip install 'transformer-kit[{name}]', or {name} itself")
        for name in ("wandb", "tensorboard")
    ]
    for none in (None, {}, {"wandb": None, "tensorboard": None}, 5):
        assert missing_packages(none) == []
    monkeypatch.setattr(
        "transformer_kit.training.tracker_options.find_spec", lambda name: importlib.util.find_spec("json")
    )
    assert missing_packages(both) == []


def written(path):
    """The records of wandb's own file, each with its kind; blocks of 32 KiB hold chunks, of which records have some."""
    from wandb.proto import wandb_internal_pb2

    data, at, whole = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        left = 2**15 - at % 2**15
        if left < 7:
            at += left
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + 7])
        whole, at = whole + data[at + 7 : at + 7 + size], at + 7 + size
        if kind in (1, 4):  # the whole of a record, or its end
            record = wandb_internal_pb2.Record.FromString(whole)
            yield record.WhichOneof("record_type"), record
            whole = b""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="needs wandb")
def test_the_real_one_offline(tmp_path, monkeypatch):
    """No key, no network, no terminal: two sessions leave two files of one run, read back here."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SECRET", "0123456789")
    folder = tmp_path / "run"
    folder.mkdir()
    session(folder, rows=ROWS)
    session(folder, rows=[{**ROWS[0], "step": 4}, *ROWS], result=RESULT)
    run_id = (folder / "wandb/run_id").read_text().strip()
    files = sorted(folder.glob(f"wandb/offline-run-*-{run_id}/run-{run_id}.wandb"))
    assert len(files) == 2
    for path, steps in zip(files, ([5, 5, 6], [4, 5, 5, 6]), strict=True):
        assert b"0123456789" not in path.read_bytes()
        found = list(written(path))
        (run,) = (record.run for kind, record in found if kind == "run")
        assert (run.run_id, run.project, run.run_group, run.display_name) == (run_id, "project", "group", "run")
        assert json.loads({item.key: item.value_json for item in run.config.update}["data"]) == {
            "key": "${oc.env:SECRET}"
        }
        rows = [
            {".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            for kind, record in found
            if kind == "history"
        ]
        assert [row["step"] for row in rows] == steps
        assert rows[-2]["validation/bleu"] == 30.5
        assert [record.metric.step_metric for kind, record in found if kind == "metric"] == ["", "step"]
    ended = [record.exit.exit_code for path in files for kind, record in written(path) if kind == "exit"]
    assert ended == [1, 0]
    last = {item.key: item.value_json for kind, record in found if kind == "summary" for item in record.summary.update}
    assert last["final/scores/bleu"] == "30.5"
