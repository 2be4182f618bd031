"""Completion of overrides, in words and in a real bash."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pexpect
import pytest

from transformer_kit.cli.completion import SCRIPTS, Shell, candidates, complete
from transformer_kit.config import compose


@pytest.fixture
def _one_survey(monkeypatch: pytest.MonkeyPatch) -> None:
    """Composes once for all lines with the same overrides."""
    monkeypatch.setattr(compose, "survey", lambda *given: SURVEY(*(given[0], *map(tuple, given[1:]))))


SURVEY = functools.cache(compose.survey)


@pytest.mark.usefixtures("_one_survey")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("tkit tr", ["train ", "translate "]),
        ("tkit train model/", ["model/attention=", "model/decoder/", "model/feedforward=", "model/head="]),
        ("tkit train model/pos", ["model/position="]),
        ("tkit train model/position=ro", ["model/position=rope "]),
        ("tkit train model/decoder/position=ro", ["model/decoder/position=rope "]),
        ("tkit train trainer.st", ["trainer.steps="]),
        ("tkit train trainer.average.", ["trainer.average.count=", "trainer.average.kind="]),
        ("tkit train trainer.patience=", ["trainer.patience=null "]),
        ("tkit train tokenizer.joint=", ["tokenizer.joint=false ", "tokenizer.joint=true "]),
        ("tkit train tokenizer.kind=", ["tokenizer.kind=bpe ", "tokenizer.kind=byte "]),
        ("tkit train model.tie=", ["model.tie=inputs ", "model.tie=none ", "model.tie=output "]),
        ("tkit train model/position=rope model.position.t", ["model.position.theta="]),
        ("tkit train nonsense=1 seed=x trainer.st", ["trainer.steps="]),
        ("tkit ablate model/position=rope,al", ["model/position=rope,alibi"]),
        ("tkit translate dec", ["decoding.", "decoding="]),
        ("tkit translate -m ", []),
        ("tkit generate generation.top", ["generation.top_k=", "generation.top_p="]),
        ("tkit fill", ["fill-mask "]),
        ("tkit plot --x ", ["hours ", "steps ", "tokens "]),
        ("tkit plot --nor", ["--norms "]),
        ("tkit diff --js", ["--json "]),
        ("tkit plot -o ", []),
        ("tkit train --cf", ["--cfg "]),
        ("tkit completion f", ["fish "]),
        ("tkit nowhere x", []),
    ],
)
def test_candidates(line: str, expected: list[str]) -> None:
    found = candidates(line)
    assert found[: len(expected)] == expected
    assert bool(found) == bool(expected)


def test_recipes_of_the_users_folder(tmp_path: Path) -> None:
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "zebra.yaml").write_text("seed: 3\n")
    assert candidates(f"tkit train --config-dir {tmp_path} +rec") == ["+recipe="]
    assert candidates(f"tkit train --config-dir {tmp_path} +recipe=ze") == ["+recipe=zebra "]


def test_an_error_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    assert complete(["tkit train --config-dir /nowhere seed"]) == 1
    assert capsys.readouterr() == ("", "")


@pytest.fixture(scope="module")
def bash(tmp_path_factory: pytest.TempPathFactory) -> pexpect.spawn[str]:
    """An interactive bash that knows `tkit`."""
    tmp_path = tmp_path_factory.mktemp("bash")
    program = tmp_path / "bin" / "tkit"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -c "from transformer_kit.cli.app import main; main()" "$@"\n')
    program.chmod(0o755)
    (tmp_path / "file.txt").write_text("")
    env = os.environ | {"PATH": f"{program.parent}:{os.environ['PATH']}", "PS1": "> ", "TERM": "dumb"}
    shell = pexpect.spawn(
        "bash", ["--norc", "--noprofile", "-i"], env=env, cwd=str(tmp_path), encoding="utf-8", timeout=60, echo=False
    )
    shell.sendline(
        'bind "set enable-bracketed-paste off" "set bell-style none"; eval "$(tkit completion bash)"; PS1="$ "'
    )
    shell.sendline("echo rea''dy")
    shell.expect("ready")
    return shell


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("typed", "whole"),
    [
        ("trai", "train "),
        ("train trainer.st", "train trainer.steps="),
        ("train model/norm=layernorm model/position=sin", "train model/norm=layernorm model/position=sinusoidal"),
        ("ablate model/position=rope,al", "ablate model/position=rope,alibi"),
        ("translate -m fil", "translate -m file.txt "),
    ],
)
def test_a_real_bash_completes(bash: pexpect.spawn[str], typed: str, whole: str) -> None:
    bash.send(f"tkit {typed}\t")
    bash.send("\x01echo '[\x05]'\r")  # to the start of the line: echo '[ ; to its end: ]'
    bash.expect_exact(f"[tkit {whole}]\r\n")


def test_scripts_are_valid_where_their_shell_is_there(tmp_path: Path) -> None:
    for shell in Shell:
        assert " __complete " in SCRIPTS[shell]
        assert SCRIPTS[shell].startswith(("# tkit", "#compdef tkit"))
        if shutil.which(shell.value):
            path = tmp_path / shell.value
            path.write_text(SCRIPTS[shell])
            subprocess.run([shell.value, "-n", str(path)], check=True)
