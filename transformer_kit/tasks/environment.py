"""What a run is computed with: packages, code, machine and data, recorded when it begins."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import transformer_kit
from transformer_kit.data.prepare import Prepared, fingerprints
from transformer_kit.tasks.load import BATCH_TOKENS, TOKENIZER
from transformer_kit.training.precision import Precision

PACKAGES = (
    "torch",
    "numpy",
    "sentencepiece",
    "sacrebleu",
    "sacremoses",
    "safetensors",
    "hydra-core",
    "transformer-kit",
)
PATIENCE = 5.0  # seconds for one answer of git


def describe(prepared: Prepared, precision: Precision) -> dict[str, Any]:
    """What `environment.json` holds, as plain data."""
    tokenizers = prepared.tokenizers
    return {
        TOKENIZER: tokenizers.fingerprint,
        "vocabulary": {"source": tokenizers.source.vocab_size, "target": tokenizers.target.vocab_size},
        "data": fingerprints(prepared.data),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: metadata.version(name) for name in PACKAGES},
        "code": checkout(),
        "device": str(precision.device),
        "precision": precision.name,
        "threads": torch.get_num_threads(),
        BATCH_TOKENS: prepared.data.batch.budget,
    }


def checkout() -> dict[str, Any] | None:
    """The commit of the source that runs, and whether its files were changed since; None where it is no checkout."""
    return describe_checkout(Path(str(transformer_kit.__file__)).resolve())


def describe_checkout(file: Path) -> dict[str, Any] | None:
    """The commit of the checkout to which a file belongs, and whether tracked files differ from it; else None."""
    if _git(file.parent, "ls-files", "--error-unmatch", file.name) is None:
        return None  # installed, if below some other project's folder
    commit, changes = _git(file.parent, "rev-parse", "HEAD"), _git(file.parent, "status", "--porcelain", "-uno")
    return None if commit is None else {"commit": commit, "dirty": bool(changes)}


def _git(folder: Path, *words: str) -> str | None:
    """What git answers, or None where it fails or there is none."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "-C", str(folder), *words]
    try:
        done = subprocess.run(command, env=own, capture_output=True, text=True, timeout=PATIENCE, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
