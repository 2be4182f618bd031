"""Checkpoints written beside the training are those written in between; failures come out, nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading

import pytest
import torch
from torch import nn

from transformer_kit.errors import CheckpointError, Interrupted, RunError
from transformer_kit.training import checkpoint as checkpoint_module
from transformer_kit.training import saver as saver_module
from transformer_kit.training.checkpoint import CheckpointStore
from transformer_kit.training.saver import Saver


def full_disk(*args):
    raise OSError(28, "No space left on device")


def told(caplog):
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def running():
    return [thread for thread in threading.enumerate() if thread.name == "checkpoint"]


@pytest.fixture
def gate(monkeypatch):
    """Writing begins when the gate is opened; it holds the writing thread's priority."""
    gate = threading.Event()
    real = checkpoint_module.write_tensors
    gate.nice, gate.cores = [], []

    def write(path, tensors):
        if threading.current_thread() is not threading.main_thread():
            assert gate.wait(10)
            gate.nice.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
            gate.cores.append(saver_module._cores())
        return real(path, tensors)

    monkeypatch.setattr(checkpoint_module, "write_tensors", write)
    return gate


def parts(step):
    model = nn.Linear(3, 5)
    nn.init.constant_(model.weight, step)
    return model, {"weight": {"step": torch.tensor(float(step))}}, {"step": step, "regular": True}, None


@pytest.fixture
def store(tmp_path):
    return CheckpointStore(tmp_path / "c", keep_last=9, keep_best=1, metric="loss", higher_is_better=False)


# -- what is written -------------------------------------------------------------------------------------------------


def content(folder):
    """The bytes of a checkpoint's files but for the times in its state."""
    state = json.loads((folder / "state.json").read_text())
    state["run"].pop("seconds")
    state["run"]["interval"].pop("seconds")
    return state, {p.name: p.read_bytes() for p in folder.iterdir() if p.name not in ("state.json", "manifest.json")}


@pytest.mark.parametrize("ema", [None, 0.9])
def test_the_files_are_those_of_a_synchronous_save(make, gate, ema):
    """Although the weights have moved on for two updates when they are written."""
    whole = make(folder="between", steps=8, save_every=3, ema=ema, save_async=False)
    whole.trainer.fit()
    beside = make(folder="beside", steps=8, save_every=3, ema=ema)
    update = beside.trainer._update

    def open_after_five():
        update()
        if beside.trainer.state.step == 5:
            assert len(running()) == 1
            assert not beside.store.all(), "what is on the way is not there yet"
            gate.set()

    beside.trainer._update = open_after_five
    beside.trainer.fit()
    assert [c.step for c in beside.store.all()] == [c.step for c in whole.store.all()] == [3, 6, 8]
    for mine, other in zip(beside.store.all(), whole.store.all(), strict=True):
        assert content(mine.path) == content(other.path)
    assert beside.store.latest_good().step == 8
    assert not running()


def test_one_save_at_a_time(store, gate):
    with Saver(store, True) as saver:
        assert saver.save(1, *parts(1))
        assert saver.save(1, *parts(1)), "it is on the way already"
        assert len(running()) == 1
        threading.Timer(0.05, gate.set).start()
        assert saver.save(2, *parts(2)), "waits for the one before"
        assert store.all()[0].step == 1
        assert saver.saved == 2
        assert [c.step for c in store.all()] == [1, 2]
        assert saver.save(2, *parts(7)), "there already"
    assert [c.trainer_state()["weight"]["step"].item() for c in store.all()] == [1.0, 2.0]


def test_the_last_one_is_written_at_once(store, gate):
    with Saver(store, True) as saver:
        saver.save(1, *parts(1))
        gate.set()
        assert saver.save(2, *parts(2), last=True)
        assert [c.step for c in store.all()] == [1, 2]
        assert len(gate.nice) == 1, "the second had no thread"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a priority for each thread")
def test_the_thread_steps_back_until_it_is_waited_for(store, gate, monkeypatch):
    own, cores, here = os.getpriority(os.PRIO_PROCESS, 0), os.sched_getaffinity(0), min(os.sched_getaffinity(0))
    monkeypatch.setattr(saver_module, "_core", lambda: here)
    with Saver(store, True) as saver:
        saver.save(1, *parts(1))
        gate.set()
        for thread in running():
            thread.join()
        saver.save(2, *parts(2))
    assert gate.nice[0] == 19
    assert gate.cores[0] == (cores - {here} or cores)
    assert os.sched_getaffinity(0) == cores
    assert os.getpriority(os.PRIO_PROCESS, 0) == own, "the thread that trains stays as it is"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the core")
def test_the_core_of_this_thread():
    before = os.sched_getaffinity(0)
    try:
        for core in before:
            os.sched_setaffinity(0, {core})
            assert saver_module._core() == core
    finally:
        os.sched_setaffinity(0, before)


# -- what goes wrong -------------------------------------------------------------------------------------------------


def test_a_failure_on_the_way_is_one_warning_and_training_goes_on(make, monkeypatch, caplog):
    setup = make(steps=8, save_every=2)
    real = checkpoint_module.write_manifest
    monkeypatch.setattr(
        checkpoint_module, "write_manifest", lambda p, *a: full_disk() if p.name == "step_000004.tmp" else real(p, *a)
    )
    assert setup.trainer.fit().step == 8
    assert [c.step for c in setup.store.all()] == [2, 6, 8]
    assert len(told(caplog)) == 1
    assert "step_000004: [Errno 28] No space left on device; training goes on" in told(caplog)[0]
    assert not list(setup.store.folder.glob("*.tmp"))


def test_a_failure_on_the_way_is_tried_again_at_the_end(make, monkeypatch):
    """The save of the last step fails on the way; the end waits for it, sees that, and writes it itself."""
    setup = make(steps=4, save_every=4)
    real = checkpoint_module.write_manifest
    by_thread = lambda *a: full_disk() if running() else real(*a)  # noqa: E731  (a stand-in of one line)
    monkeypatch.setattr(checkpoint_module, "write_manifest", by_thread)
    assert setup.trainer.fit().step == 4
    assert [c.step for c in setup.store.all()] == [4]
    monkeypatch.setattr(checkpoint_module, "write_manifest", full_disk)
    with pytest.raises(CheckpointError, match="its last state could not be saved"):
        make(steps=5, save_every=5).trainer.fit()
    assert [c.step for c in setup.store.all()] == [4]


def test_an_error_waits_for_the_save_and_names_it(make, gate):
    objective_type = type(make().trainer._parallel.step.objective)
    setup = make(save_every=2, max_skips=1, objective=objective_type(lambda call: call > 3))
    threading.Timer(0.1, gate.set).start()
    with pytest.raises(RunError, match="the last checkpoint is of step 2"):
        setup.trainer.fit()
    assert [c.step for c in setup.store.all()] == [2]
    assert not running()


def test_another_error_of_the_thread_is_raised_where_it_is_waited_for(store, monkeypatch):
    monkeypatch.setattr(checkpoint_module, "write_tensors", lambda *a: {}["broken"])
    saver = Saver(store, True)
    saver.save(1, *parts(1))
    with pytest.raises(KeyError, match="broken"):
        saver.wait()
    saver.wait()
    assert saver.saved is None


def test_without_memory_for_the_copies_it_is_written_in_between(store, monkeypatch, caplog):
    def none_left(self, tree):
        raise RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 7 bytes.\nmore")

    monkeypatch.setattr(saver_module.Snapshot, "take", none_left)
    with Saver(store, True) as saver:
        for step in (1, 2):
            assert saver.save(step, *parts(step))
            assert [c.step for c in store.all()][-1] == step
    assert len(told(caplog)) == 1
    assert "hold the training up from now on: DefaultCPUAllocator: not enough memory" in told(caplog)[0]


def test_is_among_best_sees_the_checkpoint_on_the_way(make, gate):
    """Losses 2, 3 with keep-best 1: the second is not among the best, though the first is still being written."""
    scores = iter([2.0, 3.0])
    setup = make(steps=6, validate_every=2, keep_last=1, validate=lambda model: {"loss": next(scores, 9.0)})
    threading.Timer(0.1, gate.set).start()
    setup.trainer.fit()
    assert [c.step for c in setup.store.all()] == [2, 6]
    assert len(gate.nice) == 1


def test_a_signal_while_a_save_is_on_the_way_waits_for_it(make, gate):
    setup = make(save_every=2)
    update = setup.trainer._update

    def stop_at_three():
        update()
        if setup.trainer.state.step == 3:
            assert len(running()) == 1
            signal.raise_signal(signal.SIGTERM)
            threading.Timer(0.05, gate.set).start()

    setup.trainer._update = stop_at_three
    with pytest.raises(Interrupted, match="after step 3; the state is saved"):
        setup.trainer.fit()
    assert [c.step for c in setup.store.all()] == [2, 3]
    assert not running()
    assert not list(setup.store.folder.glob("*.tmp"))


PROGRAM = """
import os, sys, time, torch
from pathlib import Path
from transformer_kit.training.checkpoint import CheckpointStore
from transformer_kit.training.saver import Saver
real = os.fsync
os.fsync = lambda handle: (time.sleep(0.05), real(handle))
store = CheckpointStore(Path(sys.argv[1]), keep_last=1, keep_best=0, metric="loss", higher_is_better=False)
Saver(store, True).save(1, torch.nn.Linear(3, 5), {}, {"step": 1, "regular": True}, None)
assert not store.all()
raise SystemExit("the end")
"""


def test_a_program_does_not_end_with_a_save_in_flight(store):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(store.folder)], capture_output=True, text=True, timeout=60
    )
    assert done.stderr.strip() == "the end"
    assert store.recover().step == 1
