"""Where configurations come from: the package's own groups and recipes, and the user's folders."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

PATH_VARIABLE = "TKIT_CONFIG_PATH"
STORED = {"recipe": "recipes", "variant": "variants"}
"""Groups of package `_global_` that our own loop stores, and the folder that holds them. Hydra's search path would not
do: a user's recipe under the name of a shipped one dies there, and here the later one wins."""


def package_folder(name: str) -> Path:
    """The folder of a data package, `conf` or `recipes`, of the installed toolkit."""
    return Path(str(resources.files(f"transformer_kit.{name}")))


def config_folders(given: Sequence[str | Path], problems: list[str]) -> list[Path]:
    """The user's folders, those of `TKIT_CONFIG_PATH` first; a folder that is not there becomes a problem."""
    named = [(PATH_VARIABLE, part) for part in os.environ.get(PATH_VARIABLE, "").split(os.pathsep) if part]
    named += [("--config-dir", str(part)) for part in given]
    folders: list[Path] = []
    for origin, part in named:
        folder = Path(os.path.abspath(os.path.expanduser(part)))
        if not folder.is_dir():
            problems.append(f"{origin}: there is no folder {part!r}")
        elif folder not in folders:
            folders.append(folder)
            problems += [f"{origin}: {path} has the name of a shipped one; rename it" for path in _hidden(folder)]
    return folders


def _hidden(folder: Path) -> list[Path]:
    """Group options of a folder that Hydra would not find, as the package's own come first."""
    shipped = package_folder("conf")
    return [path for path in sorted(folder.rglob("*.yaml")) if (shipped / path.relative_to(folder)).is_file()]


def stored_files(folders: Sequence[Path]) -> dict[tuple[str, str], Path]:
    """(group, name) -> file of every recipe and variant; a later folder wins."""
    found: dict[tuple[str, str], Path] = {}
    for group, folder_name in STORED.items():
        places = [folder / folder_name for folder in folders]
        if group == "recipe":
            places.insert(0, package_folder("recipes"))
        for place in places:
            for path in sorted(place.glob("*.yaml")):
                found[group, path.stem] = path
    return found


def slot_files(folders: Sequence[Path], slots: Sequence[str]) -> dict[tuple[str, str], Path]:
    """(group, name) -> file of every option of the model's slots, under the decoder's own groups.

    `model/decoder/position=rope` takes the file that `model/position=rope` takes, and
    `model/decoder/cross_attention=gqa` that of `model/attention=gqa`.
    """
    found: dict[tuple[str, str], Path] = {}
    for own, slot in [*((slot, slot) for slot in slots), ("cross_attention", "attention")]:
        for place in [package_folder("conf"), *folders]:
            for path in sorted((place / "model" / slot).glob("*.yaml")):
                if not (place / "model" / "decoder" / own / path.name).exists():
                    found[f"model/decoder/{own}", path.stem] = path
    return found


def group_options(folders: Sequence[Path], slots: Sequence[str]) -> dict[str, list[str]]:
    """The options of every group that can be chosen from; Hydra's own groups left out."""
    names: dict[str, set[str]] = {}
    for group, name in (*stored_files(folders), *slot_files(folders, slots)):
        names.setdefault(group, set()).add(name)
    for folder in [package_folder("conf"), *folders]:
        for path in folder.rglob("*.yaml"):
            group = path.parent.relative_to(folder).as_posix()
            if group not in (".", *STORED.values()) and not group.startswith("hydra"):
                names.setdefault(group, set()).add(path.stem)
    return {group: sorted(names[group]) for group in sorted(names)}
