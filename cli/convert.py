"""`tkit convert`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from transformer_kit.errors import ConfigError


def convert(
    source: Annotated[
        str,
        typer.Argument(metavar="SOURCE", help="hf:FOLDER or llama2c:FILE to import; a run folder to export."),
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="The folder to make; nothing may be there.", show_default=False)
    ],
    to: Annotated[str | None, typer.Option("--to", help="Export a run to this form: hf.", show_default=False)] = None,
    layout: Annotated[
        str | None,
        typer.Option(
            "--layout",
            help="gpt2, llama, mistral, bert, roberta, t5, bart or marian; the first that holds the model by default.",
            show_default=False,
        ),
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option("--tokenizer", help="The tokenizer's file, with llama2c:.", show_default=False)
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option("--checkpoint", help="Export best, last or a step, not the final model.", show_default=False),
    ] = None,
) -> None:
    """Import a foreign model as a run, or export a run for other programs.

    Local files alone are read, safetensors and never pickles; nothing that comes with a model is run.
    """
    imports = source.startswith(("hf:", "llama2c:"))
    exports = "exporting a run"
    problems = [
        f"{option}: is for {use}"
        for option, given, fits, use in (
            ("--to", to, not imports, exports),
            ("--layout", layout, not imports, exports),
            ("--checkpoint", checkpoint, not imports, exports),
            ("--tokenizer", tokenizer, source.startswith("llama2c:"), "importing llama2c:FILE"),
        )
        if given is not None and not fits
    ]
    if not imports and to != "hf":
        problems.append(f"{source}: to import, write hf:FOLDER or llama2c:FILE; to export this run, add --to hf")
    if problems:
        raise ConfigError(problems)
    from transformer_kit.tasks.convert import export_model, import_model

    if imports:
        import_model(source, output, tokenizer)
    else:
        export_model(Path(source), output, layout, checkpoint)
