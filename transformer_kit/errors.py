"""Errors that a user can cause, each with the exit code that the command line returns.

A message is one line that says what is wrong, where, and what to do about it. Broken invariants of our own code are
`assert`s instead.
"""

from __future__ import annotations

from collections.abc import Sequence


class TkitError(Exception):
    """Something went wrong in a way that a user can understand and mend."""

    exit_code = 1


class ConfigError(TkitError):
    """The configuration is wrong; every problem is listed, one line each.

    Args:
        problems: one line per problem: key, what is wrong, the nearest valid spelling or range.
    """

    exit_code = 2

    def __init__(self, problems: str | Sequence[str]) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(dict.fromkeys(problems))
        super().__init__("\n".join(self.problems))


class DataError(TkitError):
    """A corpus, tokenizer or prepared file cannot be used as it is."""


class CheckpointError(TkitError):
    """A saved model or training state is missing, damaged or does not fit."""


class RunError(TkitError):
    """A run folder cannot be used: locked, finished, or made by another config."""


class Interrupted(TkitError):
    """The user stopped the command; the state was saved at a step boundary."""

    exit_code = 130
