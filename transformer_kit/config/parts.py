"""Slot options to classes: a safe way from `_target_` to a built part.

- A class comes from `transformer_kit`, or from a package that the environment variable `TKIT_TRUST` names (several are
  separated by commas); module and one attribute, nothing nested, nothing private.
- It must be a subclass of the slot's base, checked before anything is called: a configuration that comes with
  somebody's checkpoint can choose among parts and cannot call anything else.
- Options are checked against the constructor's signature, in names and types; every problem is told at once.
- Facts known only when a model is built (`dim`, `causal`, …) are offered, and taken if the constructor names them.
"""

from __future__ import annotations

import importlib
import inspect
import os
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformer_kit.config.convert import Reader
from transformer_kit.config.spelling import nearest
from transformer_kit.errors import ConfigError, Interrupted

TRUST_VARIABLE = "TKIT_TRUST"


@dataclass(frozen=True)
class Part:
    """A slot's class with its checked options.

    Attributes:
        at: the dotted key of the slot, for messages.
        kind: the class.
        options: what the YAML sets, converted to the constructor's types.
        takes: the names of the constructor's parameters.
    """

    at: str
    kind: type
    options: dict[str, Any]
    takes: frozenset[str]

    def build(self, **facts: Any) -> Any:
        """A new object; `facts` are taken if the constructor names them.

        Raises:
            ConfigError: the constructor refuses a value.
        """
        try:
            return self.kind(**self.options, **{name: value for name, value in facts.items() if name in self.takes})
        except ConfigError:
            raise
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{self.at}: {self.kind.__name__}: {str(error).splitlines()[0]}") from error


def part(at: str, data: Mapping[str, Any], base: type, facts: frozenset[str], problems: list[str]) -> Part | None:
    """The part that the options of a slot describe, or None with its problems noted.

    Args:
        at: the dotted key of the slot.
        data: `_target_` and the options.
        base: what the class must be a subclass of.
        facts: names that the builder offers.
        problems: one line is added for each problem.
    """
    kind = resolve(at, str(data.get("_target_")), base, problems)
    if kind is None:
        return None
    before = len(problems)
    parameters, hints = signature(kind, base)
    for name, parameter in parameters.items():
        if parameter.kind in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL):
            problems.append(f"{at}: {kind.__name__} takes any options (*{name}), so none can be checked; name them")
    valid = [name for name in parameters if name not in facts]
    reader = Reader(Path.cwd())
    options: dict[str, Any] = {}
    for name, value in data.items():
        if name == "_target_":
            continue
        if name not in valid:
            why = "is set by the builder" if name in parameters else f"unknown option{nearest(name, valid)}"
            listed = ", ".join(valid) or "none"
            problems.append(f"{at}.{name}: {why} (options of {kind.__name__}: {listed})")
        else:
            options[name] = reader.read(hints.get(name, Any), value, (*at.split("."), name))
    for name in valid:
        if name not in data and parameters[name].default is inspect.Parameter.empty:
            problems.append(f"{at}.{name}: {kind.__name__} needs this option; it has no default")
    problems += reader.problems
    return Part(at, kind, options, frozenset(parameters)) if len(problems) == before else None


def signature(kind: type, base: type) -> tuple[dict[str, inspect.Parameter], dict[str, Any]]:
    """The parameters of a constructor and their types; none where it is the base's own, which takes nothing."""
    constructor = inspect.getattr_static(kind, "__init__")
    if constructor is inspect.getattr_static(base, "__init__"):
        return {}, {}
    return dict(inspect.signature(kind).parameters), typing.get_type_hints(constructor)


def resolve(at: str, target: str, base: type, problems: list[str]) -> type | None:
    """The class that `_target_` names, or None with the problem noted.

    Args:
        at: the dotted key of the slot.
        target: `package.module.Class`.
        base: what the class must be a subclass of.
        problems: one line is added when the class is refused.
    """

    kind, why = _resolve(target, base)
    if why:
        problems.append(f"{at}._target_: {why}")
    return kind


def _resolve(target: str, base: type) -> tuple[type | None, str]:
    """The class, or None and why not."""
    module_name, _, name = target.rpartition(".")
    if not module_name or any(not word.isidentifier() or word.startswith("_") for word in target.split(".")):
        return None, f"{target!r} is not of the form package.module.Class"
    if not any(module_name == package or module_name.startswith(f"{package}.") for package in trusted()):
        package = module_name.partition(".")[0]
        return None, f"{target} is not trusted; if you trust its code, set {TRUST_VARIABLE}={package}"
    try:
        module = importlib.import_module(module_name)
    except Interrupted:
        raise
    except Exception as error:  # a module of the user's may fail in any way
        return None, f"{module_name} cannot be imported: {type(error).__name__}: {error}"
    kind = vars(module).get(name)
    if isinstance(kind, type) and issubclass(kind, base):
        return kind, ""
    there = [key for key, value in vars(module).items() if isinstance(value, type) and issubclass(value, base)]
    hint = nearest(name, [key for key in there if key != base.__name__])
    return None, f"{target} is no {base.__name__} (a class derived from {base.__module__}.{base.__name__}){hint}"


def trusted() -> list[str]:
    """The packages whose classes a configuration may name."""
    return [
        "transformer_kit",
        *(name.strip() for name in os.environ.get(TRUST_VARIABLE, "").split(",") if name.strip()),
    ]
