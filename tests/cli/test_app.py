"""The command line: help without heavy imports, exit codes, messages."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from transformer_kit.cli.app import COMMANDS, guarded, main, make_app
from transformer_kit.errors import ConfigError, DataError, Interrupted

LAUNCH = (
    "import sys; from transformer_kit.cli.app import main\n"
    "try: main({words!r})\nfinally: print(*sys.modules, file=sys.stderr)"
)


def tkit(*words: str, folder: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from transformer_kit.cli.app import main; main()", *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=os.environ | env, timeout=120)


@pytest.mark.parametrize(
    ("words", "banned"),
    [
        (["--help"], {"torch", "numpy", "hydra", "omegaconf", "yaml", "sentencepiece", "sacrebleu"}),
        (["train", "--help"], {"torch", "numpy", "hydra", "omegaconf", "yaml"}),
        (["diff", "--help"], {"torch", "numpy", "yaml"}),
        (["plot", "--help"], {"torch", "numpy", "matplotlib", "yaml"}),
        (["train", "--cfg", "job", "data=demo"], {"torch", "numpy", "sentencepiece", "sacrebleu"}),
    ],
)
def test_nothing_heavy_is_imported(words: list[str], banned: set[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LAUNCH.format(words=words)], capture_output=True, text=True, timeout=120, check=True
    )
    loaded = {name.partition(".")[0] for name in done.stderr.split()}
    assert "typer" in loaded
    assert not loaded & banned


def test_help_is_quick() -> None:
    """0.3 s on a quiet machine; here the processor's time counts, twice as much allowed."""
    before = os.times()
    start = time.perf_counter()
    assert tkit("--help").returncode == 0
    after = os.times()
    used = after.children_user - before.children_user + after.children_system - before.children_system
    assert min(used, time.perf_counter() - start) < 0.6


def test_every_command_has_help() -> None:
    runner, app = CliRunner(), make_app()
    listed = runner.invoke(app, ["--help"])
    for name, summary in COMMANDS.items():
        assert any(line.split() == [name, *summary.split()] for line in listed.stdout.splitlines())  # whole, not cut
        assert runner.invoke(app, [name, "--help"]).exit_code == 0


def test_configuration_is_printed_as_yaml(tmp_path: Path) -> None:
    done = tkit("train", "--cfg", "job", "data=demo", "model/position=rope", folder=tmp_path)
    assert done.returncode == 0
    assert done.stdout.startswith("format: 4\n")
    assert f"root: {tmp_path / 'runs'}\n" in done.stdout
    assert "theta: 10000.0\n" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_cfg_of_a_sweep_prints_its_first_point(tmp_path: Path) -> None:
    done = tkit("ablate", "--cfg", "job", "data=demo", "model/residual=sandwich,pre", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "SandwichNorm" in done.stdout
    assert "PreNorm" not in done.stdout


def test_configuration_errors_are_listed_without_a_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(make_app(), ["train", "trainer.stps=3", "trainer.steps=-3", "seed=1,2"])
    assert done.exit_code == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error:\n")
    for line in (
        "seed=1,2: several values are a sweep: use `tkit ablate`",
        "did you mean 'trainer.steps'?",
        "data.train",
    ):
        assert line in done.stderr
    assert "trainer.steps: must be at least 1, not -3\n" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_misspelt_options_and_commands() -> None:
    runner, app = CliRunner(), make_app()
    option = runner.invoke(app, ["train", "--cgf", "job"])
    assert option.exit_code == 2
    assert "--cgf" in option.stderr
    assert "--cfg" in option.stderr
    assert runner.invoke(app, ["trian"]).exit_code == 2


@pytest.fixture
def _handlers() -> Iterator[None]:
    """Signals are handled afterwards as before."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ConfigError(["a: wrong", "b: wrong"]), 2, "error:\na: wrong\nb: wrong\n"),
        (DataError("x.en: line 3 is empty"), 1, "error: x.en: line 3 is empty\n"),
        (Interrupted("saved at step 3"), 130, "saved at step 3\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (typer.Exit(7), 7, ""),
    ],
)
@pytest.mark.usefixtures("_handlers")
def test_exit_codes(error: BaseException, code: int, said: str) -> None:
    app = typer.Typer(pretty_exceptions_enable=False)

    def command() -> None:
        raise error

    app.command()(guarded(command))
    done = CliRunner().invoke(app)
    assert (done.exit_code, done.stderr) == (code, said)


def test_a_signal_that_is_repeated_while_the_program_ends_changes_nothing() -> None:
    """A cluster's warning and its SIGTERM may both come; the second finds the program on its way out."""
    script = (
        "import atexit, os, signal\nfrom transformer_kit.cli.app import guarded\n"
        "from transformer_kit.errors import Interrupted\n"
        "for name in ('SIGTERM', 'SIGUSR2', 'SIGHUP', 'SIGINT'):\n"
        "    atexit.register(os.kill, os.getpid(), getattr(signal, name))\n"
        "def command() -> None:\n    raise Interrupted('the state is saved')\n"
        "guarded(command)()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "the state is saved\n")


def test_unexpected_errors_are_short_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    app = typer.Typer(pretty_exceptions_enable=False)

    def command() -> None:
        raise ZeroDivisionError("by zero")

    app.command()(guarded(command))
    short = CliRunner().invoke(app)
    assert short.exit_code == 1
    assert "error: ZeroDivisionError: by zero\n(set TKIT_DEBUG=1 for the whole traceback)\n" in short.stderr
    assert "test_app.py" in short.stderr
    assert "Traceback" not in short.stderr
    monkeypatch.setenv("TKIT_DEBUG", "1")
    assert "Traceback" in CliRunner().invoke(app).stderr


def test_a_reader_that_leaves_is_no_error() -> None:
    script = (
        "import typer\nfrom transformer_kit.cli.app import guarded\n"
        "def command() -> None:\n    for _ in range(100_000): print('line')\n"
        "app = typer.Typer()\napp.command()(guarded(command))\napp()\n"
    )
    writer = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert writer.stdout is not None
    assert writer.stderr is not None
    assert writer.stdout.readline() == b"line\n"
    writer.stdout.close()
    assert writer.stderr.read() == b""
    assert writer.wait() == 141


def test_version() -> None:
    with pytest.raises(SystemExit) as left:
        main(["--version"])
    assert left.value.code == 0
