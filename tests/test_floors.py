"""Imports run downwards only, without cycles, and the heavy libraries stay where the design puts them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "transformer_kit"
FLOORS = {
    "cli": 7,
    "tasks": 6,
    "ablation": 5,
    "config": 4,
    "training": 3,
    "decoding": 3,
    "evaluation": 3,
    "interop": 3,
    "objectives": 2,
    "models": 1,
    "data": 1,
    "nn": 0,
    "errors": 0,
    "logs": 0,
    "shapes": 0,
    "batch": 0,
    "specials": 0,
    "console": 0,
}
# Siblings of floor 1: models and data know nothing of each other; they meet in an objective, and in a Batch.
FORBIDDEN = {("models", "data"), ("data", "models"), ("data", "nn")}
COMPOSERS = {f"{PACKAGE}.config.compose", f"{PACKAGE}.config.schema"}


def module_files() -> Iterator[tuple[str, Path]]:
    """Every module of the project under its import name."""
    for folder, prefix in ((ROOT / PACKAGE, PACKAGE), (ROOT / "cli", f"{PACKAGE}.cli")):
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            if parts[-1] == "__init__":
                parts = parts[:-1]
            yield ".".join((prefix, *parts)), path


MODULES = dict(module_files())


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """The modules that a file imports, and whether at module level (outside functions and TYPE_CHECKING)."""

    def walk(node: ast.AST, top: bool) -> Iterator[tuple[str, bool]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                yield from ((alias.name, top) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{path}: relative import"
                for alias in child.names:
                    whole = f"{child.module}.{alias.name}"
                    yield (whole if whole in MODULES else str(child.module)), top
            else:
                typing_only = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
                inner = top and not typing_only and not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
                yield from walk(child, inner)

    yield from walk(ast.parse(path.read_text(encoding="utf-8")), True)


def room(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if parts[0] == PACKAGE and len(parts) > 1 else None


def test_every_room_has_a_floor() -> None:
    rooms = {room(module) for module in MODULES} - {None, "__main__"}
    assert rooms <= set(FLOORS), "give the new room a floor here and in the design"


@pytest.mark.parametrize("module", sorted(MODULES))
def test_imports_run_downwards(module: str) -> None:
    here = room(module)
    if here is None:  # the package itself: the public names, imported lazily
        return
    for imported, _ in imports(MODULES[module]):
        there = room(imported)
        if there is None or there == here:
            continue
        assert FLOORS[there] <= FLOORS[here], f"{module} (floor {FLOORS[here]}) imports {imported} above it"
        assert (here, there) not in FORBIDDEN, f"{module} and {imported} never meet below floor 3"
        if FLOORS[there] == FLOORS[here] == 3:
            pytest.fail(f"{module} imports its sibling {imported}")
        if here == "nn":
            assert there in {"shapes", "errors", "batch"}, f"nn knows torch, shapes, errors and batch; not {imported}"


@pytest.mark.parametrize("module", sorted(MODULES))
def test_hydra_stays_in_its_two_rooms(module: str) -> None:
    for imported, _ in imports(MODULES[module]):
        if imported.split(".")[0] in {"hydra", "omegaconf"}:
            assert module in COMPOSERS or room(module) == "cli", f"{module} imports {imported}"


@pytest.mark.parametrize("module", sorted(m for m in MODULES if room(m) == "cli" or m.endswith(".options")))
def test_no_torch_at_module_level(module: str) -> None:
    heavy = {"torch", "safetensors", "sacrebleu", "sentencepiece"}
    for imported, top in imports(MODULES[module]):
        assert not (top and imported.split(".")[0] in heavy), f"{module} imports {imported} when it is loaded"


def test_no_cycles() -> None:
    graph = {
        module: {name for name, top in imports(path) if top and name in MODULES} for module, path in MODULES.items()
    }
    done: set[str] = set()

    def visit(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, " -> ".join((*trail[trail.index(module) :], module))
        if module in done:
            return
        for imported in graph[module]:
            visit(imported, (*trail, module))
        done.add(module)

    for module in graph:
        visit(module, ())


def test_packages_import_nothing() -> None:
    for module, path in MODULES.items():
        if path.name == "__init__.py" and module != PACKAGE:
            body = ast.parse(path.read_text(encoding="utf-8")).body
            assert all(isinstance(node, ast.Expr) for node in body), f"{module}/__init__.py holds more than a docstring"
