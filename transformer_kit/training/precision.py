"""Which device computes, in which number format, and whether it may choose operations that differ from run to run."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from transformer_kit.errors import ConfigError


def resolve_device(name: str) -> torch.device:
    """The device named, or for `auto` the best one there is: CUDA, MPS, CPU.

    Raises:
        ConfigError: a device that this machine lacks.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    device = torch.device(name)
    count = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= count:
        raise ConfigError(f"trainer.device={name}: this machine offers {count} CUDA devices; use trainer.device=auto")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ConfigError("trainer.device=mps: this machine offers no MPS device; use trainer.device=auto")
    return device


@dataclass(frozen=True)
class Precision:
    """A number format for the forward pass; parameters and optimizer stay in fp32.

    Attributes:
        name: fp32 or bf16.
        reason: why it was chosen, for the log.
    """

    name: str
    device: torch.device
    reason: str

    def facts(self) -> tuple[str, str, str]:
        """Device, format and reason, for the log."""
        return str(self.device), self.name, self.reason

    def autocast(self) -> AbstractContextManager[object]:
        """The context in which a forward pass runs."""
        if self.name == "fp32":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)


def resolve_precision(name: str, device: torch.device) -> Precision:
    """The precision named, or for `auto` bf16 where the hardware multiplies it, else fp32."""
    if name != "auto":
        return Precision(name, device, "as asked")
    fast, what = _multiplies_bf16(device)
    return Precision("bf16" if fast else "fp32", device, what)


def _multiplies_bf16(device: torch.device) -> tuple[bool, str]:
    if device.type == "cuda":
        fast = torch.cuda.get_device_capability(device) >= (8, 0)
        return fast, "this GPU multiplies bf16" if fast else "this GPU does not multiply bf16"
    if device.type == "cpu":
        able: Mapping[str, object] = getattr(
            torch.cpu, "get_capabilities", dict
        )()  # newer than the oldest torch allowed
        for flag, what in (("amx_bf16", "AMX"), ("avx512_bf16", "AVX512-BF16")):
            if able.get(flag, False):
                return True, f"this CPU multiplies bf16 ({what})"
        return False, "this CPU has neither AMX nor AVX512-BF16"
    return False, f"{device.type} runs in fp32"


CUBLAS = "CUBLAS_WORKSPACE_CONFIG"


@contextmanager
def determinism(on: bool) -> Iterator[None]:
    """Where `on`, let torch take only operations that give the same bits each time; afterwards all is as before.

    - On a CPU two runs with the same number of threads are equal to the bit with or without it.
    - On a GPU of one kind, with one version of torch and CUDA, it makes them so, and slower: sums by atomic addition,
      the search for the fastest convolution and cuBLAS's free choice of workspaces are off.
    - An operation that exists in no such form raises RuntimeError, which names it.

    Between devices, versions or numbers of threads nothing is promised.
    """
    if not on:
        yield
        return
    cudnn = torch.backends.cudnn
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    flags, workspace = (cudnn.deterministic, cudnn.benchmark), os.environ.get(CUBLAS)
    filling: Any = torch.utils.deterministic
    fill = filling.fill_uninitialized_memory
    try:
        os.environ.setdefault(CUBLAS, ":4096:8")  # read when cuBLAS starts
        torch.use_deterministic_algorithms(True)
        filling.fill_uninitialized_memory = False  # a help against bugs, which costs time
        cudnn.deterministic, cudnn.benchmark = True, False
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        filling.fill_uninitialized_memory = fill
        cudnn.deterministic, cudnn.benchmark = flags
        if workspace is None:
            os.environ.pop(CUBLAS, None)
