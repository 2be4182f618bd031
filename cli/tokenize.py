"""`tkit tokenize`."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from transformer_kit.cli import hydra_bridge
from transformer_kit.cli.hydra_bridge import Cfg, ConfigDirs, Overrides, Resolve

if TYPE_CHECKING:
    from transformer_kit.config.schema import Config
    from transformer_kit.data.report import Report


def tokenize(
    overrides: Overrides = None,
    config_dir: ConfigDirs = None,
    cfg: Cfg = None,
    resolve: Resolve = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
) -> None:
    """Train the tokenizer and turn the corpora into memory-mapped ids, once for equal text and options.

    Prints how many lines, tokens and unknown pieces there are, what was filtered, and how well batches are filled.
    """
    given, folders = overrides or [], config_dir or []
    if cfg is not None:
        hydra_bridge.show("tokenize", given, folders, resolve=resolve)
        return
    found = hydra_bridge.run("tokenize", given, folders, _task)
    if as_json:
        print(json.dumps(found.as_dict(), indent=2, ensure_ascii=False))
        return
    from transformer_kit.console import print_table

    for title, columns, rows in found.tables():
        print_table(columns, rows, title=title, stream=sys.stdout)


def _task(config: Config) -> Report:
    from transformer_kit.errors import ConfigError
    from transformer_kit.tasks.tokenize import tokenize as task

    if config.cluster is not None:
        raise ConfigError("cluster: is for `tkit train`; tokenizing runs here")
    return task(config)
