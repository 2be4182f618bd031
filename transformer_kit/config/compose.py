"""Overrides and YAML to a typed configuration, with every error found before any work and told at once.

- The usual case is one call of Hydra's Compose API and one typed reading of its result.
- Only when Hydra refuses are the overrides tried one by one; those that fail are set aside, each with its line, and
  the rest is read, so that a second mistake is not hidden by the first.
- Environment values (`${oc.env:…}`) stay unresolved in what is saved; every other interpolation is resolved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

from hydra import compose as hydra_compose
from hydra import initialize_config_module
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from omegaconf.resolvers import oc

from transformer_kit.config import sources
from transformer_kit.config.convert import MISSING, dotted
from transformer_kit.config.inherit import inherit
from transformer_kit.config.overrides import (
    Line,
    group_problem,
    how_to_quote,
    key_problem,
    known_keys,
    one_line,
    quoted,
)
from transformer_kit.config.plain import keep_env, key_of, typed, unmark
from transformer_kit.config.schema import ENTRIES, SLOTS, Config
from transformer_kit.errors import ConfigError
from transformer_kit.training.tracker_options import missing_packages

CONFIG_MODULE = "transformer_kit.conf"


def compose(
    entry: str = "train",
    overrides: Sequence[str] = (),
    config_dirs: Sequence[str | Path] = (),
    *,
    check: bool = True,
) -> Config:
    """The configuration that `conf/<entry>.yaml`, the recipes and the overrides describe.

    Args:
        entry: a key of `ENTRIES`.
        overrides: Hydra overrides, as typed on a command line.
        config_dirs: folders of the user's own groups, `recipes/` and `variants/`; read after those of
            `TKIT_CONFIG_PATH`.
        check: also build the model without memory, which finds wrong slot options (and imports torch), and ask that
            environment variables are set. `--cfg job` goes without.

    Raises:
        ConfigError: with one line per problem.
    """
    problems: list[str] = []
    with session(config_dirs) as extra:
        given = parse(overrides, problems)
        good, tree = given, None if problems else _compose_all(entry, extra, given)
        if tree is None:
            good, tree = _compose_piecewise(entry, extra, given, group_options(config_dirs), problems)
        data = _plain(tree, problems)
        inherit(data, good, problems)
        if check:
            problems += [f"tracker.{key}: {message}" for key, message in missing_packages(data.get("tracker"))]
        try:
            return typed(ENTRIES[entry], data, [item.canonical for item in good], problems, check=check)
        except ConfigError as error:
            # Options with a wrong type hide what else is wrong beside them: look again without them. Groups stay: the
            # options of another one than was meant would be judged.
            named, groups = {key_of(line) for line in error.problems}, group_options(config_dirs)
            rest = [item for item in good if item.is_group(groups) or item.key not in named]
            if len(rest) < len(good) and (tree := _compose_all(entry, extra, rest)) is not None:
                data = _plain(tree, [])
                inherit(data, good, [])
                typed(ENTRIES[entry], data, [], error.problems, check=check)
            raise


@contextmanager
def session(config_dirs: Sequence[str | Path] = ()) -> Iterator[list[str]]:
    """Hydra, ready to compose; yields the overrides that make it search the user's folders.

    Raises:
        ConfigError: a folder that is not there, a recipe that is no YAML.
    """
    problems: list[str] = []
    extra = register(config_dirs, problems)
    if problems:
        raise ConfigError(problems)
    GlobalHydra.instance().clear()
    with initialize_config_module(CONFIG_MODULE, job_name="tkit", version_base="1.3"):
        yield extra


def register(config_dirs: Sequence[str | Path], problems: list[str]) -> list[str]:
    """Store recipes, variants and the decoder's own slots; returns the overrides that name the user's folders."""
    folders = sources.config_folders(config_dirs, problems)
    store = ConfigStore.instance()
    for group in sources.STORED:
        store.repo.pop(group, None)  # what an earlier call stored for other folders
    stored: dict[tuple[str, str], tuple[Path, str | None]]
    stored = {key: (path, "_global_") for key, path in sources.stored_files(folders).items()}
    stored |= {key: (path, None) for key, path in sources.slot_files(folders, SLOTS).items()}
    for (group, name), (path, package) in stored.items():
        try:
            node = _load(path, path.stat().st_mtime_ns)
        except Exception as error:  # YAML errors of several libraries
            problems.append(f"{path}: {one_line(error)}")
            continue
        store.store(name=name, node=node, group=group, package=package, provider="recipes")
    return [f"hydra.searchpath={[f'file://{folder}' for folder in folders]!r}"] if folders else []


@cache
def _load(path: Path, changed: int) -> DictConfig | ListConfig:
    """A YAML file, read once as long as it does not change: a sweep composes many times."""
    return OmegaConf.load(path)


def parse(overrides: Sequence[str], problems: list[str], *, sweep: bool = False) -> list[Line]:
    """Parsed overrides; what cannot be parsed, or names several values where one is wanted, becomes a problem."""
    found = []
    for text in overrides:
        try:
            item = parse_one(text)
        except Exception as error:  # the parser raises errors of several kinds
            what = "expected KEY=VALUE" if "=" not in text else f"{one_line(error)}; {how_to_quote(text)}"
            problems.append(f"{text}: {what}")
            continue
        if item.is_sweep_override() and not sweep:
            key = item.key_or_group
            problems.append(
                f"{text}: several values are a sweep: use `tkit ablate`; a list is written {key}=[a,b], "
                f"one value with a comma '{key}=\"a,b\"'"
            )
            continue
        found.append(_line(item))
    return found


def parse_one(text: str) -> Override:
    """One override as Hydra sees it, or the error of its parser."""
    parser = OverridesParser.create()
    try:
        return parser.parse_override(text)
    except Exception:
        if quoted(text) == text:
            raise
        return parser.parse_override(quoted(text))  # `文件.txt`, `~/x`, `c=d`: one value, whatever is in it


def _line(item: Override) -> Line:
    text, swept = str(item.input_line), item.is_sweep_override()
    canonical = text
    if not swept and not item.is_delete():
        canonical = f"{item.get_key_element()}={item.get_value_element_as_str()}"
    return Line(
        text=text,
        key=item.key_or_group,
        value=None if swept else item.value(),
        canonical=canonical,
        added=item.is_add() or item.is_force_add(),
    )


def hydra_arguments(overrides: Sequence[str], config_dirs: Sequence[str | Path], *, sweep: bool = False) -> list[str]:
    """What Hydra's own main function is given: the overrides, quoted where needed, and the user's folders.

    Raises:
        ConfigError: what cannot be parsed, or a folder that is not there.
    """
    problems: list[str] = []
    lines = parse(overrides, problems, sweep=sweep)
    extra = register(config_dirs, problems)
    if problems:
        raise ConfigError(problems)
    return [*extra, *(item.text for item in lines)]


@dataclass(frozen=True)
class Survey:
    """What can be overridden.

    Attributes:
        data: the plain configuration, interpolations kept.
        groups: the options of each group.
        chosen: the groups in the defaults list; the others are added with `+`.
    """

    data: dict[str, Any]
    groups: dict[str, list[str]]
    chosen: frozenset[str]


def survey(entry: str, overrides: Sequence[str] = (), config_dirs: Sequence[str | Path] = ()) -> Survey:
    """What can be overridden after `overrides`, of which wrong ones are left out."""
    problems: list[str] = []
    with session(config_dirs) as extra:
        given = parse(overrides, problems)
        if _compose_all(entry, extra, given) is None:
            given, _ = _compose_piecewise(entry, extra, given, group_options(config_dirs), problems)
        tree = hydra_compose(entry, [*extra, *(item.text for item in given)], return_hydra_config=True)
    chosen = frozenset(str(name) for name in tree.hydra.runtime.choices)
    with open_dict(tree):
        tree.pop("hydra")
    return Survey(cast(dict[str, Any], OmegaConf.to_container(tree)), group_options(config_dirs), chosen)


def group_node(item: Line, problems: list[str]) -> Any:
    """The plain data of one option of a shipped group, `decoding=greedy`; None where there is none."""
    problem = group_problem(item, group_options())
    if problem is not None:
        problems.append(problem)
        return None
    with session() as extra:
        tree = hydra_compose("train", [*extra, item.text])
    return _plain(OmegaConf.create({item.key: tree[item.key]}), problems)[item.key]


def group_options(config_dirs: Sequence[str | Path] = ()) -> dict[str, list[str]]:
    """The options of every group, the user's among them."""
    return sources.group_options(sources.config_folders(config_dirs, []), SLOTS)


def _compose_all(entry: str, extra: Sequence[str], given: Sequence[Line]) -> DictConfig | None:
    """Everything at once, or None where Hydra refuses."""
    try:
        return hydra_compose(entry, [*extra, *(item.text for item in given)])
    except Exception:  # Hydra raises errors of many kinds for one mistake; the slow path finds the words
        return None


def _compose_piecewise(
    entry: str, extra: Sequence[str], given: Sequence[Line], groups: Mapping[str, Sequence[str]], problems: list[str]
) -> tuple[list[Line], DictConfig]:
    """The configuration of those overrides that can be applied, and a problem for each of the others."""
    good: list[Line] = []

    def tree() -> DictConfig:
        return hydra_compose(entry, [*extra, *(item.text for item in good)])

    def accept(items: Sequence[Line]) -> None:
        """Take what Hydra takes: all at once if it can be, else one by one."""
        if _compose_all(entry, extra, [*good, *items]) is not None:
            good.extend(items)
            return
        for item in items:
            problem = _refusal(entry, [*extra, *(other.text for other in good)], item)
            if problem is None:
                good.append(item)
            else:
                problems.append(problem)

    def sift(item: Line, problem: str | None) -> bool:
        problems.extend([problem] if problem else [])
        return problem is None

    # Groups first: they bring the keys that the others change.
    accept([item for item in given if item.is_group(groups) and sift(item, group_problem(item, groups))])
    keys = list(known_keys(OmegaConf.to_container(tree())))
    accept([item for item in given if not item.is_group(groups) and sift(item, key_problem(item, keys))])
    return good, tree()


def _refusal(entry: str, before: Sequence[str], item: Line) -> str | None:
    """What Hydra says against one more override, in one line."""
    try:
        hydra_compose(entry, [*before, item.text])
    except Exception as error:  # see _compose_all
        other = item.text.lstrip("+") if item.added else f"+{item.text}"
        if item.key.startswith("hydra."):
            return f"{item.text}: {one_line(error)}"  # a part of Hydra's takes no key that it does not have
        try:
            hydra_compose(entry, [*before, other])
        except Exception:
            return f"{item.text}: {one_line(error)}"
        return f"{item.text}: write {other}"
    return None


def _plain(tree: DictConfig, problems: list[str]) -> dict[str, Any]:
    """Plain data with everything resolved but `${oc.env:…}`; interpolations that lead nowhere become problems."""
    with open_dict(tree):
        tree.pop("hydra", None)
    OmegaConf.register_new_resolver("oc.env", keep_env, replace=True)
    try:
        return unmark(_resolve(tree, (), problems))
    finally:
        OmegaConf.register_new_resolver("oc.env", oc.env, replace=True)


def _resolve(node: DictConfig | ListConfig, at: tuple[str | int, ...], problems: list[str]) -> Any:
    def value(key: Any) -> Any:
        where = (*at, key)
        if OmegaConf.is_missing(node, key):
            return MISSING
        try:
            found = node[key]
        except OmegaConfBaseException as error:
            problems.append(f"{dotted(where)}: {one_line(error)}")
            return MISSING
        return _resolve(found, where, problems) if isinstance(found, DictConfig | ListConfig) else found

    if isinstance(node, ListConfig):
        return [value(index) for index in range(len(node))]
    return {str(key): value(key) for key in node}
