"""Shell completion of commands, options and Hydra overrides.

`tkit completion bash` prints a function that sends the line up to the cursor to `tkit __complete`, which answers one
candidate a line. A candidate that can go on (`trainer.`, `model/position=`) ends so; a finished one ends in a space.
bash splits words at `=` and `:`, so its function compares whole words and hands back the part behind the last split.
"""

from __future__ import annotations

import importlib
import json
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from enum import Enum, StrEnum
from types import UnionType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer

SWEEPS = ("ablate",)
OVERRIDDEN = {"train": "train", "tokenize": "tokenize", "ablate": "ablate"}  # command -> its configuration
FROM_RUN = {  # these take overrides of some options of a run
    "generate": "generation",
    **dict.fromkeys(("translate", "classify", "fill-mask", "embed", "evaluate"), "decoding"),
}

BASH = """\
# tkit: completion for bash; put this line into ~/.bashrc:  eval "$(tkit completion bash)"
_tkit() {
    local line="${COMP_LINE:0:COMP_POINT}" candidate
    local word="${line##* }" split=""
    if [[ $COMP_WORDBREAKS == *=* && $word == *=* ]]; then split="${word%"${word##*=}"}"; fi
    if [[ $COMP_WORDBREAKS == *:* && ${word#"$split"} == *:* ]]; then split="${word%"${word##*:}"}"; fi
    COMPREPLY=()
    while IFS= read -r candidate; do
        [[ -n $candidate ]] && COMPREPLY+=("${candidate#"$split"}")
    done < <("${COMP_WORDS[0]}" __complete "$line" 2>/dev/null)
    (( ${#COMPREPLY[@]} )) || compopt +o nospace  # files, completed by bash itself
}
complete -o nospace -o default -F _tkit tkit
"""

ZSH = """\
#compdef tkit
# tkit: completion for zsh; put this line into ~/.zshrc, behind compinit:  eval "$(tkit completion zsh)"
_tkit() {
    local -a candidates finished open
    local candidate
    candidates=("${(@f)$(${words[1]} __complete "${(j: :)words[1,CURRENT]}" 2>/dev/null)}")
    for candidate in $candidates; do
        if [[ $candidate == *' ' ]]; then finished+=("${candidate% }"); else open+=("$candidate"); fi
    done
    (( $#finished )) && compadd -Q -- $finished
    (( $#open )) && compadd -Q -S '' -- $open
    (( $#finished + $#open )) || _files
}
compdef _tkit tkit
"""

FISH = """\
# tkit: completion for fish:  tkit completion fish > ~/.config/fish/completions/tkit.fish
complete -c tkit -a '(tkit __complete (commandline -cp | string collect) 2>/dev/null | string trim -r)'
"""


class Shell(StrEnum):
    bash = "bash"
    zsh = "zsh"
    fish = "fish"


SCRIPTS = {Shell.bash: BASH, Shell.zsh: ZSH, Shell.fish: FISH}


def completion(shell: Annotated[Shell, typer.Argument(help="bash, zsh or fish")]) -> None:
    """Print the completion script of a shell; its first line says where to put it."""
    print(SCRIPTS[shell], end="")


def complete(arguments: Sequence[str]) -> int:
    """Answer a shell: print the candidates for the last word of the line that is the first argument."""
    try:
        for candidate in candidates(arguments[0] if arguments else ""):
            print(candidate)
    except Exception:  # an error message in the middle of a command line helps nobody
        return 1
    return 0


def candidates(line: str) -> list[str]:
    """What may stand in place of the last word of `line`, which starts with the name of the program."""
    from transformer_kit.cli.app import COMMANDS

    words, word = _split(line)
    if len(words) <= 1:
        return _starting([f"{name} " for name in (*COMMANDS, "--help", "--version")], word)
    command, given = words[1], words[2:]
    if command == "completion":
        return _starting([f"{shell.value} " for shell in Shell], word)
    if word.startswith("-"):
        return _starting([f"{name} " for name in _options(command)], word)
    if given and given[-1].startswith("-"):  # the value of an option: a closed choice, or files, which the shell knows
        return _starting([f"{value} " for value in _choices(command, given[-1])], word)
    if command in OVERRIDDEN:
        return _overrides(OVERRIDDEN[command], given, word, sweep=command in SWEEPS)
    if command in FROM_RUN:
        return _overrides("train", [], word, only=FROM_RUN[command])
    return []


def _split(line: str) -> tuple[list[str], str]:
    """Whole words before the cursor, and the word at it; an open quotation mark ends with the line."""
    for closing in ("", "'", '"'):
        try:
            words = shlex.split(line + closing)
        except ValueError:
            continue
        return (words, "") if line[-1:].isspace() and not closing else (words[:-1], words[-1] if words else "")
    return line.split()[:-1], ""


def _starting(names: Iterable[str], word: str) -> list[str]:
    return sorted(name for name in names if name.startswith(word))


def _options(command: str) -> list[str]:
    from transformer_kit.cli.app import make_app

    group = typer.main.get_command(make_app())
    found: Mapping[str, Any] = getattr(group, "commands", {})
    if command not in found:
        return []
    return ["--help", *(name for option in found[command].params for name in option.opts if name.startswith("--"))]


def _choices(command: str, name: str) -> list[str]:
    """The values of an option that takes a closed choice."""
    from transformer_kit.cli.app import COMMANDS

    if command not in COMMANDS:
        return []
    word = command.replace("-", "_")
    function = getattr(importlib.import_module(f"transformer_kit.cli.{word}"), word)
    for hint in get_type_hints(function, include_extras=True).values():
        kind, *rest = get_args(hint) or (None,)
        # Typer keeps the first name of an annotated option where a default would stand
        names = [
            each
            for info in rest
            for each in (getattr(info, "default", None), *(getattr(info, "param_decls", None) or ()))
        ]
        if name in names:
            members = [
                each for each in (get_args(kind) or (kind,)) if isinstance(each, type) and issubclass(each, Enum)
            ]
            return [str(value.value) for member in members for value in member]
    return []


def _overrides(
    entry: str, given: Sequence[str], word: str, *, sweep: bool = False, only: str | None = None
) -> list[str]:
    """Groups and keys, then their values; with `sweep`, each value of a list with commas."""
    from transformer_kit.config.compose import survey
    from transformer_kit.config.schema import ENTRIES

    folders = [given[at + 1] for at, text in enumerate(given[:-1]) if text == "--config-dir"]
    found = survey(entry, [text for text in given if "=" in text and not text.startswith("-")], folders)
    key, equals, value = word.partition("=")
    if not equals:
        names = _steps(found.groups, found.chosen, found.data, word)
        return [name for name in names if only is None or name.startswith(only)]
    head, comma, last = value.rpartition(",") if sweep else ("", "", value)
    values = found.groups.get(key.lstrip("+")) or _values(ENTRIES[entry], found.data, key.split("."))
    end = "" if sweep else " "
    return [f"{key}={head}{comma}{choice}{end}" for choice in values if choice.startswith(last)]


def _steps(groups: Iterable[str], chosen: Collection[str], data: Mapping[str, Any], word: str) -> list[str]:
    """The next step of groups and keys: `mo` -> `model.`, `model/`; `trainer.st` -> `trainer.steps=`."""
    plus = "+" if word.startswith("+") else ""
    stem = word.lstrip("+")
    names = {_step(f"{group}=", stem, "/") for group in groups if (group not in chosen) == bool(plus)}
    if not plus:
        names |= {_step(key, stem, ".") for key in _dotted(data)}
    return sorted(plus + name for name in names if name.startswith(stem) and name != stem)


def _step(whole: str, stem: str, separator: str) -> str:
    """`whole`, cut behind the first separator that `stem` does not reach, so that one level is offered at a time."""
    end = whole.find(separator, len(stem))
    return whole if end < 0 else whole[: end + 1]


def _dotted(data: Mapping[str, Any], at: str = "") -> Iterator[str]:
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from _dotted(value, f"{at}{key}.")
        elif key != "_target_":
            yield f"{at}{key}="


def _values(kind: Any, data: Any, path: Sequence[str]) -> list[str]:
    """The values of a closed choice, else the value as it stands."""
    for name in path:
        if not isinstance(data, Mapping) or name not in data:
            return []
        kind = get_type_hints(kind).get(name) if is_dataclass(kind) else None
        data = data[name]
    plain = (
        [member for member in get_args(kind) if member is not type(None)] if get_origin(kind) is UnionType else [kind]
    )
    if plain == [bool]:
        return ["false", "true"]
    if get_origin(plain[0]) is Literal:
        return sorted(str(value) for value in get_args(plain[0]))
    if isinstance(plain[0], type) and issubclass(plain[0], Enum):
        return sorted(str(member.value) for member in plain[0])
    if isinstance(data, Mapping | list):
        return []
    return [json.dumps(data) if data is None or isinstance(data, bool) else str(data)]
