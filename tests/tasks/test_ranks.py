"""Training on several ranks as a command: equal to one process, stopped, killed, hanging, started anew."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from transformer_kit.console import NoProgress
from transformer_kit.tasks.train import train

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

FAULTS = Path(__file__).parent / "faults"
TIMED = ("seconds", "tokens_per_second", "elapsed")
STOCHASTIC = [
    "model.dropout={embedding: 0.1, residual: 0.2, attention: 0.1, feedforward: 0.1}",
    "trainer.accumulate_tokens=300",
    "data.batch.pool=100",
]
Command = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(overrides: list[str], tmp_path: Path) -> Command:
    """`start(*more)`: `tkit train` below the test's folder, in a process, or at the head of a group of them."""

    def begin(
        *more: str, fault: str | None = None, launcher: tuple[str, ...] = (), group: bool = False
    ) -> subprocess.Popen[str]:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "FAULT": fault or "none:0:0"}
        given = [*overrides, f"run.root='{tmp_path}'", "trainer.validation.bleu=null", *more]
        if fault is not None:
            paths = [str(FAULTS), *filter(None, [environment.get("PYTHONPATH")])]
            environment |= {"PYTHONPATH": os.pathsep.join(paths), "TKIT_TRUST": "tkit_faults"}
            given.append("objective._target_=tkit_faults.Faulty")
        module = ("-m", "transformer_kit.cli") if not launcher else ("-m", *launcher, "-m", "transformer_kit.cli")
        command = [sys.executable, *module, "train", *given]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=environment, stderr=pipe, text=True, cwd=tmp_path, start_new_session=group)

    return begin


def ended(process: subprocess.Popen[str], seconds: float = 120) -> tuple[int, str]:
    """Exit code and stderr; a command that hangs is killed, and fails the test."""
    try:
        said = process.communicate(timeout=seconds)[1]
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return process.returncode, said


def rows(folder: Path, kind: str) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [{k: v for k, v in row.items() if k not in TIMED} for row in map(json.loads, lines) if row["kind"] == kind]


def assert_alike(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> None:
    """The same batches in the same order, and nearly the same numbers."""
    assert len(one) == len(other) > 0
    for left, right in zip(one, other, strict=True):
        exact = [key for key, value in left.items() if not isinstance(value, float)]
        assert {key: left[key] for key in exact} == {key: right[key] for key in exact}
        for key in left.keys() - set(exact):
            assert left[key] == pytest.approx(right[key], rel=1e-4), (left["step"], key)


def still_running(folder: Path) -> list[str]:
    found = subprocess.run(["pgrep", "-af", str(folder)], capture_output=True, text=True, check=False).stdout
    return [line for line in found.splitlines() if "pgrep" not in line]


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_ranks_equal_one_process(start: Command, run_config: Any, tmp_path: Path, parallel: str) -> None:
    """20 updates of Adam in fp32 with dropout: losses, samples, validation, BLEU and hypotheses."""
    more = ["trainer.steps=20", *STOCHASTIC, "trainer.validation.bleu=bleu"]
    code, said = ended(start("run.name=two", *more, "trainer.devices=2", f"trainer.ranks.parallel={parallel}"))
    assert code == 0, said
    one = train(run_config(tmp_path, "run.name=one", *more), NoProgress()).folder
    two = tmp_path / "two"
    assert_alike(rows(one, "train"), rows(two, "train"))
    assert_alike(rows(one, "validation"), rows(two, "validation"))
    assert (one / "validation.hypotheses").read_text() == (two / "validation.hypotheses").read_text()
    assert json.loads((two / "environment.json").read_text())["ranks"] == 2
    assert f"2 ranks ({parallel})" in (two / "train.log").read_text()
    assert said.count("validation  ") == 2, "one log, of rank 0"


def test_a_run_goes_on_with_another_number_of_ranks(start: Command, run_config: Any, tmp_path: Path) -> None:
    """1, 2, 4, then 1 again, in the midst of epochs: each sample once, in the order of the unbroken run.

    The 11 sentences of the validation, which 4 ranks share at step 10, are scored as by one process.
    """
    more = [*STOCHASTIC, "trainer.validation.bleu=bleu"]
    one = train(run_config(tmp_path, "run.name=one", "trainer.steps=14", *more), NoProgress()).folder
    for devices, steps in ((1, 3), (2, 7), (4, 11), (1, 14)):
        code, said = ended(start("run.name=chain", *more, f"trainer.steps={steps}", f"trainer.devices={devices}"))
        assert code == 0, said
    chain = tmp_path / "chain"
    assert_alike(rows(one, "train"), rows(chain, "train"))
    assert_alike(rows(one, "validation"), [row for row in rows(chain, "validation") if row["step"] in (10, 14)])


def test_a_sharded_run_goes_on_in_any_form(start: Command, run_config: Any, tmp_path: Path) -> None:
    """2 ranks that share one copy, 1 process, 4 ranks that share two copies, 2 ranks with whole copies."""
    more = [*STOCHASTIC, "trainer.ema=0.9", "trainer.final=last", "trainer.validation.bleu=null"]
    one = train(run_config(tmp_path, "run.name=one", "trainer.steps=12", *more), NoProgress()).folder
    sharded = "trainer.ranks.parallel=fsdp"
    for devices, steps, form in (
        (2, 3, [sharded]),
        (1, 6, []),
        (4, 9, [sharded, "trainer.ranks.shard=2"]),
        (2, 12, []),
    ):
        given = [*more, f"trainer.steps={steps}", f"trainer.devices={devices}", *form]
        code, said = ended(start("run.name=chain", *given))
        assert code == 0, said
    chain = tmp_path / "chain"
    assert_alike(rows(one, "train"), rows(chain, "train"))
    last = rows(chain, "validation")[-1]
    assert_alike(rows(one, "validation")[-1:], [last])


def test_a_sharded_run_begins_with_weights_that_rank_0_reads(start: Command, run_config: Any, tmp_path: Path) -> None:
    """Those of another run, with a stack frozen; its own, under changed options; ones that do not fit, told once."""
    base = train(run_config(tmp_path, "run.name=base", "trainer.steps=3"), NoProgress()).folder
    sharded = ["trainer.devices=2", "trainer.ranks.parallel=fsdp"]
    begin = [*STOCHASTIC, f"init.from='{base}'", "init.freeze=[encoder]", "trainer.final=last"]
    changed = [*begin, "trainer.steps=8", "schedule.lr=1e-3", "run.resume=changed"]
    for more in ([*begin, "trainer.steps=4"], changed):
        one = train(run_config(tmp_path, "run.name=one", *more), NoProgress()).folder
        code, said = ended(start("run.name=two", *more, *sharded))
        assert code == 0, said
        assert_alike(rows(one, "train"), rows(tmp_path / "two", "train"))
    alone, spread = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    frozen = [name for name in alone if name.startswith("encoder.")]
    assert frozen
    assert all(alone[name].equal(spread[name]) for name in frozen)
    code, said = ended(start("run.name=other", *begin, *sharded, "model.d_ff=24"))
    assert code == 1
    assert said.count("its weights do not fit the model") == 1, said


def test_a_sharded_run_fits_its_batches(start: Command, tmp_path: Path) -> None:
    """Rank 0 measures the whole model before it is spread."""
    more = ["trainer.steps=2", "trainer.devices=2", "trainer.ranks.parallel=fsdp", "data.batch.tokens=auto"]
    code, said = ended(start("run.name=x", *more))
    assert code == 0, said
    assert json.loads((tmp_path / "x" / "environment.json").read_text())["batch_tokens"] > 0


def test_an_update_stays_as_large_as_when_the_run_began(start: Command, tmp_path: Path) -> None:
    """Without accumulate_tokens it is one batch of each rank: two ranks, then one."""
    for steps, devices in ((3, 2), (6, 1)):
        code, said = ended(start("run.name=less", f"trainer.steps={steps}", f"trainer.devices={devices}"))
        assert code == 0, said
    code, said = ended(start("run.name=whole", "trainer.steps=6", "trainer.devices=2"))
    assert code == 0, said
    assert_alike(rows(tmp_path / "whole", "train"), rows(tmp_path / "less", "train"))


def test_torchrun_needs_a_name_and_trains(start: Command, tmp_path: Path) -> None:
    launcher = ("torch.distributed.run", "--standalone", "--nproc-per-node=2")
    code, said = ended(start("trainer.steps=2", launcher=launcher))
    assert code == 1
    assert "run.name: must be given under torchrun" in said
    code, said = ended(start("trainer.steps=2", "run.name=x", launcher=launcher))
    assert code == 0, said
    assert json.loads((tmp_path / "x" / "result.json").read_text())["step"] == 2
    code, said = ended(start("trainer.steps=2", "run.name=x", launcher=launcher))
    assert code == 0, said
    assert said.count("already complete") == 1


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("raise:1:3", "rank 1: ZeroDivisionError: a fault of this rank"),
        ("kill:1:3", "rank 1: was killed"),
        ("freeze:1:3", "rank 1 made no progress in step 3"),
        ("freeze:0:3", "rank 0 made no progress in step 3"),
        ("sleep:0:3", "rank 0 made no progress in step 3 (tkit_faults.py"),
    ],
)
def test_a_rank_that_fails_or_hangs_ends_the_job(start: Command, tmp_path: Path, fault: str, said: str) -> None:
    more = ["run.name=x", "trainer.steps=50", "trainer.devices=2", "trainer.ranks.timeout=6", "trainer.save_every=1"]
    began = time.monotonic()
    code, text = ended(start(*more, fault=fault))
    assert code == 1
    assert said.split(" (")[0] in text, text
    assert time.monotonic() - began < 90
    assert "Traceback" not in text
    assert not still_running(tmp_path)
    result = json.loads((tmp_path / "x" / "result.json").read_text())
    assert result["status"] == "failed"
    assert list((tmp_path / "x" / "checkpoints").glob("step_00000[12]/model.safetensors"))  # 2 may be on its way


def test_a_slow_rank_is_no_hanging_rank(start: Command, tmp_path: Path) -> None:
    """Validation on one rank takes longer than the others may be without progress, batch by batch."""
    more = ["run.name=x", "trainer.steps=10", "trainer.devices=2", "trainer.ranks.timeout=3", "data.batch.tokens=40"]
    code, said = ended(start(*more, fault="slow-validation:1:0.7"))
    assert code == 0, said


def children(parent: int) -> list[str]:
    found = subprocess.run(["pgrep", "-P", str(parent), "-f", "spawn"], capture_output=True, text=True, check=False)
    return found.stdout.split()


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_not_a_number_on_one_rank_is_skipped_on_all(start: Command, tmp_path: Path, parallel: str) -> None:
    more = ["run.name=x", "trainer.steps=6", "trainer.devices=2", f"trainer.ranks.parallel={parallel}"]
    code, said = ended(start(*more, fault="nan:1:3"))
    assert code == 0, said
    assert said.count("is not finite") == 1
    assert "step 3: the loss is not finite, first in the loss (rank 1); skipped (1 so far)" in said
    assert [row["skipped"] for row in rows(tmp_path / "x", "train")] == [0, 0, 1, 1, 1, 1]


def test_a_killed_rank_starts_anew(start: Command, tmp_path: Path) -> None:
    """torch's agent starts all ranks again; they go on from the last checkpoint and end as if nothing had been."""
    more = ["trainer.steps=8", "trainer.devices=2", "trainer.save_every=2", *STOCHASTIC]
    code, said = ended(start("run.name=x", *more, "trainer.ranks.restarts=1", fault="kill:1:12"))
    assert code == 0, said
    assert "restart 1 of 1: rank 1: was killed" in said
    assert "going on from step" in said
    code, _ = ended(start("run.name=whole", *more))
    assert code == 0
    assert_alike(rows(tmp_path / "whole", "train"), rows(tmp_path / "x", "train"))


@pytest.mark.parametrize(
    ("fault", "step"),
    [
        ("SIGTERM:1:5", 5),
        ("SIGUSR2+SIGUSR2:1:5", 5),
        ("SIGTERM+SIGUSR2@validation:1:1", 10),
        ("SIGUSR2@validation:0:2", 10),
    ],
)
def test_a_signal_to_one_rank_stops_all_at_a_step(start: Command, tmp_path: Path, fault: str, step: int) -> None:
    """In the midst of a step, and during validation, which is finished; once and twice."""
    code, said = ended(
        start("run.name=x", "trainer.steps=60", "trainer.devices=2", "data.batch.tokens=60", fault=fault)
    )
    assert code == 130, said
    assert f"stopped by {fault[:7]} after step {step};" in said
    assert (tmp_path / "x" / "metrics.jsonl").read_text().count('"validation"') == (step == 10)
    assert not still_running(tmp_path)
    assert json.loads((tmp_path / "x" / "result.json").read_text())["status"] == "interrupted"
    (left,) = (tmp_path / "x" / "checkpoints").iterdir()
    assert load_file(left / "model.safetensors")


@pytest.mark.parametrize(("number", "times"), [(signal.SIGTERM, 1), (signal.SIGUSR2, 2)])
def test_a_signal_to_the_command_stops_all_at_a_step(
    start: Command, tmp_path: Path, number: signal.Signals, times: int
) -> None:
    process = start("run.name=x", "trainer.steps=100000", "trainer.devices=2")
    log = tmp_path / "x" / "metrics.jsonl"
    began = time.monotonic()
    while not log.exists() and time.monotonic() - began < 60:
        time.sleep(0.1)
    for _ in range(times):
        process.send_signal(number)
        time.sleep(0.05)
    code, said = ended(process, 60)
    assert code == 130, said
    assert f"stopped by {number.name} after step" in said
    assert not still_running(tmp_path)
    assert len(list((tmp_path / "x" / "checkpoints").iterdir())) >= 1


def test_a_signal_in_the_last_validation_comes_too_late(start: Command, tmp_path: Path) -> None:
    """All is done then but the validation, which is finished; the launcher does not wait for its ranks for ever."""
    more = ["run.name=x", "trainer.steps=4", "trainer.validate_every=null", "trainer.devices=2", "data.batch.tokens=40"]
    process = start(*more, fault="slow-validation:1:0.6")
    log, began = tmp_path / "x" / "metrics.jsonl", time.monotonic()
    while not (log.exists() and '"step": 4' in log.read_text()) and time.monotonic() - began < 60:
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    code, said = ended(process, 60)
    assert code == 0, said
    assert json.loads((tmp_path / "x" / "result.json").read_text())["status"] == "complete"
    assert not still_running(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("seconds", [0.0, 0.7, 1.5, 3.0])
def test_a_signal_to_the_whole_group_while_ranks_start(
    start: Command, tmp_path: Path, number: signal.Signals, seconds: float
) -> None:
    """Ctrl-C reaches every process by itself, wherever it is in its imports: no traceback, nothing is left."""
    process = start("run.name=x", "trainer.steps=100000", "trainer.devices=2", group=True)
    began = time.monotonic()
    while len(children(process.pid)) < 2 and time.monotonic() - began < 60:
        time.sleep(0.02)
    time.sleep(seconds)
    os.killpg(process.pid, number)
    code, said = ended(process, 60)
    assert code == 130, said
    assert "Traceback" not in said
    assert "stopped by" in said
    assert not still_running(tmp_path)
    result = tmp_path / "x" / "result.json"
    assert not result.exists() or json.loads(result.read_text())["status"] == "interrupted"


@pytest.mark.parametrize("seconds", [0.5, 6.0])
def test_ranks_leave_after_a_launcher_that_was_killed(start: Command, tmp_path: Path, seconds: float) -> None:
    """They save what there is; the same command goes on."""
    process = start("run.name=x", "trainer.steps=100000", "trainer.devices=2")
    began = time.monotonic()
    while len(ranks := children(process.pid)) < 2 and time.monotonic() - began < 60:
        time.sleep(0.02)
    time.sleep(seconds)
    process.kill()
    process.communicate()
    began = time.monotonic()
    while any(Path(f"/proc/{each}").exists() for each in ranks) and time.monotonic() - began < 60:
        time.sleep(0.1)
    assert not [each for each in ranks if Path(f"/proc/{each}").exists()]


def test_a_signal_before_the_first_update_has_nothing_to_save(start: Command, tmp_path: Path) -> None:
    """While the folder is open and data are prepared: 130, and the same command starts."""
    process = start("run.name=x", "trainer.steps=2", "data.cache=fresh")
    log, began = tmp_path / "x" / "train.log", time.monotonic()
    while not log.exists() and time.monotonic() - began < 60:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    code, said = ended(process)
    assert code == 130, said
    assert "stopped by SIGTERM" in said
    assert "Traceback" not in said
    assert json.loads((tmp_path / "x" / "result.json").read_text())["status"] == "interrupted"
    code, said = ended(start("run.name=x", "trainer.steps=2", "data.cache=fresh"))
    assert code == 0, said
