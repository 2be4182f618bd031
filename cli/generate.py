"""`tkit generate`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from transformer_kit.cli.translate import Checkpoint, RunOption, sink, source_lines
from transformer_kit.errors import ConfigError


def generate(
    model: RunOption,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PROMPT]... [OVERRIDES]...",
            help="Prompts, and options such as generation=greedy or generation.top_p=0.9 generation.max_new_tokens=50.",
            show_default=False,
        ),
    ] = None,
    prompt: Annotated[
        list[str] | None,
        typer.Option("-p", "--prompt", help="A prompt that looks like an option; may be repeated.", show_default=False),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option("-i", "--input", help="Prompts, one a line; stdin by default.", show_default=False),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Where texts go; stdout by default.", show_default=False)
    ] = None,
    stop: Annotated[
        list[str] | None,
        typer.Option("--stop", help="End a text before this; may be repeated.", show_default=False),
    ] = None,
    escapes: Annotated[
        bool, typer.Option("-e", "--escapes", help="Read \\n, \\t and \\\\ in prompts and --stop.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a text: prompt, text, tokens, finish (eos, stop, length).")
    ] = False,
    checkpoint: Checkpoint = None,
) -> None:
    """Continue prompts: those on the command line, or the lines of a file or of stdin, one text for each.

    Prompt and text together are the whole; the prompt is not repeated. A single prompt on the command line is answered
    with the text as it is, piece by piece on a terminal. Otherwise each text is one line: a line feed in it is written
    as \\n, a carriage return as \\r and a backslash as \\\\. With generation.num_samples above 1 each prompt gives
    several lines: number TAB text. The same seed gives the same text for the same line, whatever the others are.
    """
    from transformer_kit.tasks import generate as tasks

    prompts, overrides = tasks.split_words(words or [])
    prompts += prompt or []
    if prompts and source is not None:
        raise ConfigError("give prompts either on the command line or by -i FILE")
    if escapes:
        prompts, stop = ([tasks.unescaped(text) for text in texts] for texts in (prompts, stop or []))
    if prompts:
        with sink(output) as out:
            generator = tasks.make_generator(model, overrides, checkpoint, stop or [])
            tasks.answer_prompts(
                prompts, out, generator, as_json=as_json, stream=output is None and sys.stdout.isatty()
            )
        return
    with source_lines(source) as lines, sink(output) as out:
        generator = tasks.make_generator(model, overrides, checkpoint, stop or [])
        tasks.generate_pipe(lines, out, generator, as_json=as_json, escapes=escapes)
