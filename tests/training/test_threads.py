"""CPU threads: counting cores, what others use of them, the choice, and the warning."""

from __future__ import annotations

import os

import pytest
import torch

from transformer_kit.training import threads as module
from transformer_kit.training.threads import Cores, Crowding, Mark, cgroup_quota, choose, lent_threads

FOUR = Cores(frozenset({0, 1, 2, 3}), 4, 4)


@pytest.fixture
def groups(tmp_path, monkeypatch):
    """`groups({"cpu/a/cpu.cfs_quota_us": "150000"}, "4:cpu:/a/b")`: a made-up system of control groups."""

    def make(files, own):
        for name, text in files.items():
            path = tmp_path / "cgroup" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        (tmp_path / "own").write_text(own)
        monkeypatch.setattr(module, "_CGROUPS", tmp_path / "cgroup")
        monkeypatch.setattr(module, "_OWN_CGROUP", tmp_path / "own")

    return make


@pytest.mark.parametrize(
    ("files", "own", "quota"),
    [
        ({"job/cpu.max": "150000 100000\n"}, "0::/job\n", 1.5),
        ({"job/cpu.max": "max 100000\n"}, "0::/job\n", None),
        ({"cpu.max": "300000 100000", "job/step/cpu.max": "max 100000"}, "0::/job/step\n", 3.0),
        ({"job/cpu.max": "200000 100000", "job/step/cpu.max": "500000 100000"}, "0::/job/step\n", 2.0),
        ({"cpu/a/cpu.cfs_quota_us": "250000", "cpu/a/cpu.cfs_period_us": "100000"}, "4:cpu,cpuacct:/a/b\n0::/\n", 2.5),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, "4:cpu:/\n3:memory:/\n", None),
        ({}, "", None),
    ],
)
def test_quota_of_a_control_group(groups, files, own, quota):
    groups(files, own)
    assert cgroup_quota() == quota


def test_cores_of_this_process(groups):
    groups({"cpu.max": "100000 100000"}, "0::/")
    here = Cores.here()
    assert here.allowed == 1
    if hasattr(os, "sched_getaffinity"):
        assert here.numbers == os.sched_getaffinity(0)
        assert here.count == len(here.numbers)


def test_marks_count_the_cores_of_the_process_alone(tmp_path, monkeypatch):
    stat = tmp_path / "stat"
    monkeypatch.setattr(module, "_STAT", stat)
    hertz = os.sysconf("SC_CLK_TCK")
    stat.write_text(
        "cpu  9 9 9 9 9 9 9 9 0 0\n"
        f"cpu0 {hertz} 0 {hertz} 77 88 0 0 0 0 0\n"
        f"cpu1 {5 * hertz} 0 0 0 0 0 0 0 0 0\n"
        f"cpu12 {hertz} {hertz} {hertz} 7 7 {hertz} {hertz} {hertz} 4 4\n"
        "intr 3 4\n"
    )
    assert Cores(frozenset({0, 12}), 2, 2).mark().all == pytest.approx(8)
    assert Cores(frozenset(), 3, 3).mark().all == pytest.approx(13)
    stat.unlink()
    assert FOUR.mark() is None
    assert FOUR.held(None, None) == 0.0


@pytest.mark.parametrize(
    ("end", "held"),
    [
        (Mark(12.0, 3.0, 9.0), 1.0),  # 4 seconds of work on the cores, 2 of them our own, in 2 seconds
        (Mark(12.0, 6.0, 9.0), 0.0),  # ticks are coarse: never below 0
        (Mark(10.0, 1.0, 5.0), 0.0),
        (Mark(11.0, 1.0, 99.0), 4.0),
    ],
)
def test_what_others_hold(end, held):
    assert FOUR.held(Mark(10.0, 1.0, 5.0), end) == pytest.approx(held)


@pytest.fixture
def machine(monkeypatch):
    """`machine(held=1.2, own=4)`: others hold so many of four cores; torch takes `own` threads by itself."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)

    def make(held, own=4, allowed=4):
        monkeypatch.setattr(Cores, "here", classmethod(lambda cls: Cores(FOUR.numbers, 4, allowed)))
        monkeypatch.setattr(Cores, "held", lambda self, since, until: held)
        monkeypatch.setattr(module, "MOMENT", 0.0)
        monkeypatch.setattr(torch, "get_num_threads", lambda: own)

    return make


@pytest.mark.parametrize(
    ("held", "own", "allowed", "chosen"),
    [(0.0, 4, 4, 4), (0.3, 4, 4, 4), (0.9, 4, 4, 3), (4.0, 4, 4, 1), (0.0, 2, 4, 2), (0.0, 4, 3, 3), (2.0, 4, 3, 2)],
)
def test_the_choice(machine, held, own, allowed, chosen):
    machine(held, own, allowed)
    assert choose(None) == (chosen, f"other processes use {held:.1f} of 4 cores")


def test_what_comes_before_the_choice(machine, monkeypatch):
    machine(held=2.0)
    assert choose(3) == (3, "as asked")
    assert choose(3, recorded=2)[0] == 3
    assert choose(None, recorded=3)[0] == 3, "the bits of a run do not depend on who else is there when it goes on"
    assert choose(None, recorded=7)[0] == 4
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert choose(None) == (4, "as OMP_NUM_THREADS says")
    assert choose(2)[0] == 2


def test_threads_are_lent(caplog):
    before = torch.get_num_threads()
    with caplog.at_level("INFO"), lent_threads(before + 1, None) as count:
        assert torch.get_num_threads() == count == before + 1
    assert torch.get_num_threads() == before
    assert f"{count} CPU threads: as asked" in caplog.text


class Clock(Cores):
    """Four cores on which others hold what the test says, for five seconds a look."""

    def mark(self):
        return Mark(0.0, 0.0, 0.0) if not hasattr(self, "marks") else next(self.marks)


def crowding(monkeypatch, shares, threads, seconds=5.0):
    marks, wall, total = [Mark(0.0, 0.0, 0.0)], 0.0, 0.0
    for share in shares:
        wall, total = wall + seconds, total + share * seconds
        marks.append(Mark(wall, 0.0, total))
    cores = Clock(FOUR.numbers, 4, 4)
    object.__setattr__(cores, "marks", iter(marks))
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    watch = Crowding(cores)
    for _ in shares:
        watch.look()


@pytest.mark.parametrize(
    ("shares", "threads", "said"),
    [
        ([1.0] * 9, 4, "other processes use 1.0 of the 4 cores on which 4 threads train here"),
        ([0.0, 2.0, 2.0, 2.0], 3, "go on with trainer.threads=2"),
        ([1.0] * 9, 3, None),
        ([0.2] * 9, 4, None),
        ([1.0, 1.0, 0.0] * 9, 4, None),
        ([4.0] * 3, 1, "other processes use 4.0"),
    ],
)
def test_the_warning(monkeypatch, caplog, shares, threads, said):
    crowding(monkeypatch, shares, threads)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == (said is not None), "once at most"
    assert said is None or said in told[0]


def test_short_rows_are_no_reason_to_warn(monkeypatch, caplog):
    crowding(monkeypatch, [3.0] * 9, 4, seconds=0.1)
    assert not caplog.records


def test_a_real_look_is_cheap():
    watch = Crowding(Cores.here())
    for _ in range(3):
        watch.look()
