"""Checkpoints: whole or absent, kept by the rules, found again when the newest is damaged."""

from __future__ import annotations

import errno
import json
import logging
import os
import pickle
import shutil
import signal

import pytest
import torch
from damage import flip, truncate
from torch import nn

from transformer_kit.errors import CheckpointError
from transformer_kit.training import checkpoint as module
from transformer_kit.training.checkpoint import CheckpointStore


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


def store_in(folder, keep_last=2, keep_best=1, metric="loss", higher_is_better=False):
    return CheckpointStore(
        folder, keep_last=keep_last, keep_best=keep_best, metric=metric, higher_is_better=higher_is_better
    )


def model_of(step):
    model = nn.Linear(3, 5)
    nn.init.constant_(model.weight, step)
    nn.init.constant_(model.bias, step)
    return model


def save(store, step, regular=True, **scores):
    state = {"step": step, "regular": regular, "scores": scores}
    return store.save(model_of(step), {"weight": {"step": torch.tensor(float(step))}}, state)


def steps(store):
    return [found.step for found in store.all()]


# -- keeping ---------------------------------------------------------------------------------------------------------


def test_keep_last(tmp_path):
    store = store_in(tmp_path, keep_last=2)
    for step in (1, 2, 3, 4):
        save(store, step)
    assert steps(store) == [3, 4]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step_000003", "step_000004"]


@pytest.mark.parametrize(
    ("metric", "higher", "scores", "best"),
    [
        ("bleu", True, [2.0, 6.0, 4.0, 1.0], [2, 3]),
        ("loss", False, [2.0, 6.0, 4.0, 7.0], [1, 3]),
        ("bleu", True, [2.0, None, 4.0, 1.0], [3, 1]),
        ("bleu", True, [6.0, 6.0, 6.0, 1.0], [1, 2]),
        ("loss", False, [0.0, -1.0, 4.0, 5.0], [2, 1]),
    ],
)
def test_keep_best_beside_keep_last(tmp_path, metric, higher, scores, best):
    """Scores 2, 6, 4 with keep-best 2 keep 6 and 4; a missing score (NaN is saved as null) never wins."""
    store = store_in(tmp_path, keep_last=1, keep_best=2, metric=metric, higher_is_better=higher)
    for step, score in enumerate(scores, 1):
        save(store, step, **{metric: score})
    assert [c.step for c in store.best(2)] == best
    assert steps(store) == sorted({*best, 4})


@pytest.mark.parametrize(("higher", "winners"), [(True, [9.0]), (False, [1.0])])
def test_is_among_best(tmp_path, higher, winners):
    store = store_in(tmp_path, keep_best=2, metric="m", higher_is_better=higher)
    assert store.is_among_best({"m": 5.0})
    save(store, 1, m=5.0)
    save(store, 2, m=6.0)
    assert [m for m in (1.0, 9.0) if store.is_among_best({"m": m})] == winners
    assert not any(store.is_among_best({"m": value}) for value in (float("nan"), float("inf"), -float("inf")))
    assert not store.is_among_best({})
    assert not store_in(tmp_path / "none", keep_best=0, metric="m").is_among_best({"m": 1.0})


def test_a_stop_in_between_does_not_count_among_the_last(tmp_path):
    """Otherwise a run that was interrupted would average other checkpoints than the unbroken one."""
    store = store_in(tmp_path, keep_last=2, keep_best=0)
    save(store, 10)
    save(store, 17, regular=False)
    assert [c.step for c in store.last(2)] == [10, 17]
    save(store, 20)
    assert [c.step for c in store.last(2)] == steps(store) == [10, 20]


# -- damage ----------------------------------------------------------------------------------------------------------

FILES = ("model.safetensors", "trainer.pt", "state.json", "manifest.json")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("harm", [truncate, flip, os.remove])
def test_a_damaged_checkpoint_gives_way_to_the_one_before_once(tmp_path, warnings, name, harm):
    store = store_in(tmp_path)
    save(store, 1)
    harm(save(store, 2) / name)
    good = store.recover()
    assert good is not None
    assert good.step == 1
    assert good.trainer_state() == {"weight": {"step": torch.tensor(1.0)}}
    assert len(warnings()) == 1
    assert "step_000002" in warnings()[0]
    assert "taking step_000001" in warnings()[0]
    assert store.recover() == good
    assert len(warnings()) == 1, "said once"
    save(store, 2)
    assert store.recover().step == 2


def test_several_damaged_are_one_warning(tmp_path, warnings):
    store = store_in(tmp_path, keep_last=3)
    for step in (1, 2, 3):
        save(store, step)
    flip(tmp_path / "step_000003" / "model.safetensors")
    shutil.rmtree(tmp_path / "step_000002")
    (tmp_path / "step_000002").mkdir()
    assert store.latest_good().step == 1
    assert len(warnings()) == 1
    assert steps(store) == [1, 3], "looking changes nothing"


def test_nothing_good_is_none(tmp_path, warnings):
    assert store_in(tmp_path / "absent").recover() is None
    store = store_in(tmp_path)
    flip(save(store, 1) / "trainer.pt")
    assert store.recover() is None
    assert "no good checkpoint is left" in warnings()[0]


def test_recover_clears_what_a_kill_leaves(tmp_path):
    store = store_in(tmp_path)
    save(store, 1)
    for name in ("step_000002.tmp", "step_000003.gone"):
        shutil.copytree(tmp_path / "step_000001", tmp_path / name)
    (tmp_path / "notes").mkdir()
    (tmp_path / "step_000001").rename(tmp_path / "step_000001.old")  # killed while it was replaced
    assert store.recover().step == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["notes", "step_000001"]


def test_what_is_deleted_is_no_checkpoint_from_the_first_moment_on(tmp_path, monkeypatch):
    """A kill between the files of a checkpoint must not leave the others as a damaged one."""
    store = store_in(tmp_path, keep_last=1, keep_best=0)
    save(store, 1)
    monkeypatch.setattr(shutil, "rmtree", lambda *args, **kwargs: None)  # killed before the first file
    save(store, 2)
    assert steps(store) == [2]


def test_the_same_step_again_replaces(tmp_path):
    store = store_in(tmp_path)
    save(store, 5, loss=2.0)
    save(store, 5, loss=1.0)
    assert [(c.step, c.scores) for c in store.all()] == [(5, {"loss": 1.0})]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step_000005"]


def test_bytes_and_names_are_on_disk_before_the_rename(tmp_path, monkeypatch):
    """A power cut after the rename must not find empty files: all is flushed first, the folder above it last."""
    real, done = os.fsync, []
    monkeypatch.setattr(os, "fsync", lambda handle: (done.append(os.readlink(f"/proc/self/fd/{handle}")), real(handle)))
    save(store_in(tmp_path), 1)
    folder = str(tmp_path / "step_000001.tmp")
    assert {f"{folder}/{name}" for name in FILES} <= set(done)
    assert done[-2:] == [folder, str(tmp_path)]


# -- full disk -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["write_tensors", "write_manifest", "torch"])
def test_a_full_disk_keeps_the_checkpoint_before(tmp_path, monkeypatch, warnings, what):
    store = store_in(tmp_path)
    save(store, 1)

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        if what == "torch":  # torch's writer raises an error of its own
            patch.setattr(torch, "save", lambda *a: (_ for _ in ()).throw(RuntimeError("inline_container.cc: failed")))
        else:
            patch.setattr(module, what, full)
        assert save(store, 2) is None
    assert len(warnings()) == 1
    assert "step_000002" in warnings()[0]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step_000001"]
    assert save(store, 2) is not None
    assert store.recover().step == 2


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


def test_a_limit_on_file_size_is_survived(tmp_path):
    """The real thing: every write beyond 1,000 bytes fails, as on a full disk."""
    import resource

    store = store_in(tmp_path)
    save(store, 1)
    large = nn.Linear(31, 37)

    def work():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        os._exit(7 if store.save(large, {}, {"step": 2}) is None else 8)

    _, status = os.waitpid(in_child(work), 0)
    assert os.waitstatus_to_exitcode(status) == 7
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step_000001"]
    assert store.recover().step == 1


# -- trust -----------------------------------------------------------------------------------------------------------


class Canary:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (str(self.path),))


def test_a_pickle_with_code_is_refused(tmp_path):
    store = store_in(tmp_path)
    folder = save(store, 1)
    canary = tmp_path / "canary"
    for write in (
        lambda p: torch.save(Canary(canary), p),
        lambda p: p.write_bytes(pickle.dumps(Canary(canary), protocol=2)),
    ):
        write(folder / "trainer.pt")
        with pytest.raises(CheckpointError, match=r"trainer\.pt: cannot be read: it holds more than tensors"):
            store.all()[0].trainer_state()
    assert not canary.exists()


@pytest.mark.parametrize("state", ["[]", "{}", '{"step": "1"}', "null", "{"])
def test_a_state_that_is_none_is_refused(tmp_path, state):
    store = store_in(tmp_path)
    folder = save(store, 1)
    found = store.all()[0]
    (folder / "state.json").write_text(state)
    with pytest.raises(CheckpointError, match=r"state\.json"):
        found.state()
    assert store.all() == []


@pytest.mark.parametrize(
    "name", ["../x", "/etc/passwd", "..", "a/b/c", "a/..", "../step_000001/x", "a//b", ".", "", "a\nb"]
)
def test_a_manifest_that_names_other_places_is_refused(tmp_path, warnings, name):
    store = store_in(tmp_path)
    save(store, 1)
    folder = save(store, 2)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"][name] = {"bytes": 1, "sha256": "0"}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert store.recover().step == 1
    assert "no plain name inside its folder" in warnings()[0]


def test_a_link_out_of_a_checkpoint_is_refused(tmp_path, warnings):
    """Its bytes may be right now and others when they are loaded."""
    store = store_in(tmp_path / "run")
    save(store, 1)
    folder = save(store, 2)
    (folder / "trainer.pt").rename(tmp_path / "elsewhere")
    (folder / "trainer.pt").symlink_to(tmp_path / "elsewhere")
    assert store.recover().step == 1
    assert "trainer.pt is a link" in warnings()[0]
