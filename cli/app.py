"""The `tkit` command: the table of commands, and how an error becomes a message and an exit code.

Exit codes: 0 done; 1 the task failed; 2 the command line or the configuration is wrong; 130 interrupted by the user;
141 the reader of a pipe left.

A command module holds one function of its own name (`fill_mask` for fill-mask), whose docstring is its help; it imports
its task when it is run, so that `--help` loads nothing heavy.
"""

from __future__ import annotations

import functools
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Annotated, Any

import typer

from transformer_kit import logs
from transformer_kit.errors import Interrupted, TkitError

COMMANDS = {
    "tokenize": "Corpora to a vocabulary and memory-mapped ids.",
    "train": "Train a model, or go on with a run.",
    "translate": "One line in, one translation out.",
    "generate": "Continue prompts.",
    "classify": "Tell the label of each line.",
    "fill-mask": "Guess the masked tokens of each line.",
    "embed": "A vector for each line.",
    "evaluate": "Score a run, or a file of translations.",
    "ablate": "Train combinations of options, compare them.",
    "plot": "Draw the curves of runs.",
    "diff": "List in what two runs differ.",
    "convert": "Models from and for other toolkits.",
    "completion": "The completion script of a shell.",
}
"""Every command with what it does, short enough for a line of `tkit --help`."""
INTERRUPTED, PIPE_CLOSED = 130, 141
COMPLETE = "__complete"  # what the shells' completion functions call
DEBUG_VARIABLE = "TKIT_DEBUG"


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point of the installed script; always ends in SystemExit."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == [COMPLETE]:
        from transformer_kit.cli.completion import complete

        sys.exit(complete(words[1:]))
    logs.setup()
    make_app()(words, prog_name="tkit")


def make_app() -> typer.Typer:
    """The application with every command of `COMMANDS`."""
    app = typer.Typer(
        name="tkit",
        add_completion=False,  # cli/completion.py completes overrides as well
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for name, summary in COMMANDS.items():
        word = name.replace("-", "_")
        command = getattr(importlib.import_module(f"transformer_kit.cli.{word}"), word)
        app.command(name, short_help=summary)(guarded(command))
    return app


def _version(wanted: bool) -> None:
    if wanted:
        print(f"tkit {metadata.version('transformer-kit')}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Train, decode and compare Transformers from declarative YAML."""


def guarded(command: Callable[..., Any]) -> Callable[..., None]:
    """A command whose errors end in one message on stderr and the exit code that this module documents."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
            sys.stdout.flush()
        except (typer.Exit, typer.Abort, typer.BadParameter):
            raise  # Typer's own ways to leave
        except Interrupted as error:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2):
                signal.signal(number, signal.SIG_IGN)  # a repetition while Python ends would change the exit code
            _explain(error)
            sys.exit(error.exit_code)
        except TkitError as error:
            _explain(error)
            sys.exit(error.exit_code)
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            sys.exit(INTERRUPTED)
        except BrokenPipeError:
            # What is still buffered cannot be written; without this the interpreter would complain as it ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(PIPE_CLOSED)
        except Exception as error:
            _explain(error)
            sys.exit(1)

    return run


def _explain(error: Exception) -> None:
    """A user's error as its lines; any other with the places it came through, shortened unless TKIT_DEBUG=1."""
    if os.environ.get(DEBUG_VARIABLE) == "1":
        traceback.print_exception(error)
    elif isinstance(error, TkitError):
        what = "" if isinstance(error, Interrupted) else "error:\n" if "\n" in str(error) else "error: "
        print(f"{what}{error}", file=sys.stderr)
    else:
        for frame in traceback.extract_tb(error.__traceback__)[-3:]:
            print(f"  {frame.filename}:{frame.lineno} in {frame.name}: {frame.line}", file=sys.stderr)
        print(f"error: {type(error).__name__}: {error}", file=sys.stderr)
        print(f"(set {DEBUG_VARIABLE}=1 for the whole traceback)", file=sys.stderr)
