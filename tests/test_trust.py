"""Nothing that comes in a file is run: which calls could, and the two places that may make them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted(
    path.relative_to(ROOT).as_posix() for room in ("transformer_kit", "cli") for path in (ROOT / room).rglob("*.py")
)
PICKLES = {
    "transformer_kit/data/workers.py": "a pipe to the process's own children",
    "transformer_kit/training/sharded_state.py": "an unpickler that takes the classes which describe tensors",
}
NEVER = {"eval", "exec", "np.load", "numpy.load", "torch.jit.load", "torch.package", "hydra.utils.instantiate"}
LOADERS = {"pickle", "dill", "cloudpickle", "marshal", "shelve", "joblib", "yaml", "torch"}


def faults(source: str, may_unpickle: bool = False) -> list[str]:
    """The calls in a module that could run what a file holds."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module in LOADERS:
            found += [f"from {node.module} import {a.name}" for a in node.names if "load" in a.name.lower()]
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        given = {word.arg: ast.unparse(word.value) for word in node.keywords}
        room, _, last = name.rpartition(".")
        unsafe = name in NEVER or (room == "torch" and last == "load" and given.get("weights_only") != "True")
        unsafe |= room == "yaml" and "load" in last and not last.startswith("safe_load")
        unsafe |= (
            room in LOADERS - {"torch", "yaml"} and last in ("load", "loads", "Unpickler", "open") and not may_unpickle
        )
        if unsafe:
            found.append(name)
    return found


@pytest.mark.parametrize("path", FILES)
def test_no_call_runs_what_a_file_holds(path: str) -> None:
    assert faults((ROOT / path).read_text(encoding="utf-8"), path in PICKLES) == []


@pytest.mark.parametrize(
    "source",
    [
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "torch.load(path, weights_only=trusted)",
        "pickle.loads(data)",
        "pickle.Unpickler(file).load()",
        "yaml.load(text, Loader=yaml.Loader)",
        "yaml.unsafe_load(text)",
        "np.load(path, allow_pickle=True)",
        "from pickle import loads",
        "from torch import load",
        "eval(text)",
    ],
)
def test_such_calls_are_seen(source: str) -> None:
    assert faults(source) != []
    assert faults("torch.load(path, weights_only=True); yaml.safe_load(text); model.eval(); json.loads(text)") == []
