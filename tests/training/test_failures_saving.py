"""What clusters do to checkpoints, for real where a test can: kills, full and read-only disks, damage, bad intent."""

from __future__ import annotations

import json
import logging
import os
import pickle
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from damage import flip, truncate
from torch import nn

from transformer_kit.config.run_folder import locked
from transformer_kit.errors import CheckpointError, RunError
from transformer_kit.training.checkpoint import CheckpointStore
from transformer_kit.training.files import Entry, sha256
from transformer_kit.training.saver import Saver
from transformer_kit.training.sharded_state import save_together
from transformer_kit.training.weights import load_model, unique_tensors

FILES = ("model.safetensors", "trainer.pt", "state.json", "ema.safetensors", "manifest.json")


@pytest.fixture
def warnings():
    """The texts of the warnings so far."""
    records = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = records.append
    logger = logging.getLogger("transformer_kit")
    logger.addHandler(handler)
    yield lambda: [record.getMessage() for record in records]
    logger.removeHandler(handler)


def store_in(folder, keep_last=2):
    return CheckpointStore(folder, keep_last=keep_last, keep_best=1, metric="loss", higher_is_better=False)


def steps(store):
    return [found.step for found in store.all()]


def only_whole(folder):
    return all(path.name.startswith("step_") and not path.suffix for path in folder.iterdir())


# -- kill -9 -----------------------------------------------------------------------------------------------------------


def in_child(work):
    """Run `work` in a forked process; its id."""
    pid = os.fork()
    if pid:
        return pid
    try:
        work()
    except BaseException:  # a child must never run the rest of the test session
        os._exit(1)
    os._exit(0)


def save_for_ever(store, begin, asynchronous, pipe):
    """Save step after step, every third twice, which replaces a folder; tell through a pipe what is on disk.

    The weights are the step's number when it is saved, and change at once.
    """
    model, step = nn.Linear(3, 5), begin
    with Saver(store, asynchronous) as saver:
        while True:
            step += 1
            for time_ in range(1 + (step % 3 == 0)):
                moments = {"weight": {"step": torch.tensor(float(step))}}
                state = {"step": step, "regular": True, "scores": {"loss": float(step % 5)}}
                for parameter in model.parameters():
                    nn.init.constant_(parameter, step)
                saver.save((step, time_), model, moments, state, {"weight": model.weight.detach()})
                model.weight.data += 0.5
                moments["weight"]["step"] += 0.5
            if saver.saved[0] == step:
                os.write(pipe, f"{step}\n".encode())


def save_parts_for_ever(store, begin, pipe):
    """The same in parts, as ranks write them; by this process alone."""
    step = begin
    while True:
        step += 1
        model = nn.Linear(3, 5)
        for parameter in model.parameters():
            nn.init.constant_(parameter, step)
        moments = {"weight": {"step": torch.tensor(float(step))}}
        if save_together(store, unique_tensors(model), moments, {"step": step, "regular": True}, None, None):
            os.write(pipe, f"{step}\n".encode())


def kill_in_a_save_loop(folder, times, seed, way):
    store, draw = store_in(folder), random.Random(seed)
    newest, halfway, one_save = 0, 0, 0.02
    for _ in range(times):
        ours, theirs = os.pipe()
        if way == "in parts":
            pid = in_child(partial(save_parts_for_ever, store, newest, theirs))
        else:
            pid = in_child(partial(save_for_ever, store, newest, way == "beside", theirs))
        os.close(theirs)
        try:
            began = time.monotonic()
            told = os.read(ours, 1 << 16)
            one_save = min(one_save, time.monotonic() - began)
            time.sleep(draw.uniform(0, 3 * one_save))
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        while more := os.read(ours, 1 << 16):
            told += more
        os.close(ours)
        halfway += any(path.suffix == ".tmp" for path in folder.iterdir())
        good = store.recover()
        assert good is not None
        assert good.step >= int(told.split()[-1]) > newest, "older than what was on disk"
        newest = good.step
        assert good.trainer_state() == {"weight": {"step": torch.tensor(float(newest))}}
        assert good.state()["step"] == newest
        model = nn.Linear(3, 5)
        load_model(good.path / "model.safetensors", model)
        assert all((parameter == newest).all() for parameter in model.parameters())
        assert only_whole(folder)
    assert halfway, "no kill came while a checkpoint was being written: this run tested nothing"


WAYS = ("beside", "between", "in parts")


@pytest.mark.parametrize("way", WAYS)
def test_kill_at_random_moments(tmp_path, warnings, way):
    kill_in_a_save_loop(tmp_path, 8, 1, way)
    assert warnings() == [], "a kill damages nothing"


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_kill_at_fifty_random_moments(tmp_path, warnings, way):
    kill_in_a_save_loop(tmp_path, 50, 2, way)
    assert warnings() == []


# -- disks -------------------------------------------------------------------------------------------------------------


def mount(*arguments: str | Path) -> None:
    done = subprocess.run(["mount", *map(str, arguments)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"mount needs rights: {done.stderr.strip()}")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 96 KiB."""
    if shutil.which("mount") is None:
        pytest.skip("there is no mount command")
    path = tmp_path / "disk"
    path.mkdir()
    mount("-t", "tmpfs", "-o", "size=96k", "tmpfs", path)
    yield path
    subprocess.run(["umount", "--lazy", path], check=True)


@pytest.mark.parametrize("asynchronous", [True, False], ids=["beside", "between"])
def test_a_full_disk(make, small_disk, warnings, asynchronous):
    """Training goes to its end, the checkpoints before stay, and with more room the same command goes on."""
    whole = make(folder="whole", steps=14)
    whole.trainer.fit()
    options = {"folder": str(small_disk / "c"), "save_every": 2, "save_async": asynchronous, "keep_last": 20}
    setup = make(steps=12, **options)
    with pytest.raises(CheckpointError, match="training ended, but its last state could not be saved"):
        setup.trainer.fit()
    assert setup.trainer.state.step == 12
    kept = steps(setup.store)
    assert kept[:2] == [2, 4], "some fit"
    assert kept[-1] < 10, "some did not"
    assert all("could not save" in text and "No space left on device" in text for text in warnings())
    assert len(warnings()) == 6 - len(kept) + 1, "each once; the end tries the last one again"
    assert only_whole(setup.store.folder)
    assert setup.store.recover().step == kept[-1]
    mount("-o", "remount,size=4m", small_disk)
    again = make(steps=14, **options)
    again.trainer.fit()
    assert again.store.recover().step == 14
    assert again.tracker.of("train", "step")[0] == (kept[-1] + 1,)
    ours, theirs = again.model.state_dict(), whole.model.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_full_disk_for_parts(small_disk, warnings):
    store, model = store_in(small_disk / "c", keep_last=9), nn.Linear(31, 37)
    moments = {"weight": {"exp_avg": torch.zeros(31, 37)}}

    def save(step):
        state = {"step": step, "regular": True}
        return save_together(store, unique_tensors(model), moments, state, None, None)

    found = [save(step) for step in range(1, 6)]
    kept = found.count(True)
    assert 1 <= kept <= 4, "some fit, some did not"
    assert found == [True] * kept + [False] * (5 - kept)
    assert len(warnings()) == 5 - kept
    assert all("No space left on device; training goes on" in text for text in warnings())
    assert only_whole(store.folder)
    assert store.recover().step == kept


@pytest.mark.parametrize("asynchronous", [True, False], ids=["beside", "between"])
def test_a_folder_that_becomes_read_only(make, tmp_path, warnings, asynchronous):
    """Made so by a mount, which binds the superuser too."""
    folder = tmp_path / "c"
    first = make(folder="c", steps=4, save_every=4, save_async=asynchronous)
    first.trainer.fit()
    before = {path.name: path.read_bytes() for path in (folder / "step_000004").iterdir()}
    mount("--bind", folder, folder)
    try:
        mount("-o", "remount,ro,bind", folder)
        second = make(folder="c", steps=8, save_every=2, save_async=asynchronous)
        with pytest.raises(CheckpointError, match="its last state could not be saved"):
            second.trainer.fit()
    finally:
        subprocess.run(["umount", folder], check=True)
    assert len(warnings()) == 3, "6 and 8; the end tries 8 again"
    assert all("Read-only file system" in text and "training goes on" in text for text in warnings())
    assert {path.name: path.read_bytes() for path in (folder / "step_000004").iterdir()} == before
    third = make(folder="c", steps=8, save_every=2, save_async=asynchronous)
    third.trainer.fit()
    assert third.tracker.of("train", "step")[0] == (5,)


# -- damage ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("harm", [truncate, flip, os.remove])
def test_training_goes_on_from_the_checkpoint_before_a_damaged_one(make, warnings, name, harm):
    whole = make(folder="whole", steps=10, ema=0.9, save_every=2)
    whole.trainer.fit()
    make(steps=6, ema=0.9, save_every=2).trainer.fit()
    setup = make(steps=10, ema=0.9, save_every=2)
    harm(setup.store.all()[-1].path / name)
    setup.trainer.fit()
    assert setup.tracker.of("train", "step")[0] == (5,)
    assert len(warnings()) == 1, "said once"
    assert "damaged checkpoint" in warnings()[0]
    assert "taking step_000004" in warnings()[0]
    assert sorted(path.name for path in setup.store.folder.glob("*.damaged")) == ["step_000006.damaged"]
    ours, theirs = setup.model.state_dict(), whole.model.state_dict()
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


# -- trust -------------------------------------------------------------------------------------------------------------


class Canary:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (str(self.path),))


def with_manifest(folder, name):
    """Write a file's new hash into the manifest, as somebody with bad intentions would."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["files"][name] = vars(Entry((folder / name).stat().st_size, sha256(folder / name)))
    path.write_text(json.dumps(manifest))


def test_a_checkpoint_with_code_in_it_ends_the_command_in_one_line(make, tmp_path):
    canary = tmp_path / "canary"
    first = make(steps=4)
    first.trainer.fit()
    folder = first.store.all()[-1].path
    (folder / "trainer.pt").write_bytes(pickle.dumps(Canary(canary), protocol=2))
    with_manifest(folder, "trainer.pt")
    with pytest.raises(CheckpointError, match=r"trainer\.pt: cannot be read: it holds more than tensors") as caught:
        make(steps=8).trainer.fit()
    assert "\n" not in str(caught.value)
    assert not canary.exists()


# -- two processes -----------------------------------------------------------------------------------------------------


def test_two_processes_on_one_run(tmp_path):
    """The second is refused, also when the first was killed meanwhile and a third has taken its place."""

    def hold(pipe):
        with locked(tmp_path):
            os.write(pipe, b"!")
            time.sleep(60)

    for _ in range(2):
        ours, theirs = os.pipe()
        pid = in_child(partial(hold, theirs))
        os.read(ours, 1)
        try:
            with pytest.raises(RunError, match="is in use by another process"), locked(tmp_path):
                pass
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    with locked(tmp_path):
        pass
