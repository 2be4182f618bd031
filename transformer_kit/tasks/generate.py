"""`tkit generate`, and the same for Python: prompts in, continuations out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from torch import nn

from transformer_kit.batch import Specials
from transformer_kit.config.schema import Config
from transformer_kit.data.options import DocumentsOptions
from transformer_kit.data.tokenizer import Tokenizers
from transformer_kit.decoding.generation_options import GenerationOptions
from transformer_kit.decoding.generator import Generation, Generator
from transformer_kit.decoding.pipe import line_pipe, write
from transformer_kit.decoding.prompts import CausalReader, Marks, Reader, SourceReader
from transformer_kit.errors import RunError
from transformer_kit.tasks.load import load, model_limit, set_threads


def make_generator(
    run: str | Path,
    overrides: Sequence[str] = (),
    checkpoint: str | None = None,
    stop: Sequence[str] = (),
) -> Generator:
    """A generator with the model, the tokenizer and the options of a run.

    Args:
        run: the run folder: a decoder-only model of documents, or an encoder–decoder.
        overrides: `generation.temperature=0`, `trainer.device=cpu`, ….
        checkpoint: see `load`.
        stop: strings that end a continuation, in place of `generation.stop`.

    Raises:
        TkitError: see `load`; RunError: the run does not write text, or is a translator.
    """
    loaded = load(run, overrides, checkpoint)
    check_writes(loaded.folder, loaded.config)
    set_threads(loaded.config.trainer.threads)
    options = loaded.config.generation
    if stop:
        options = replace(options, stop=list(stop))
    return generator_of(loaded.model, loaded.tokenizers, loaded.config, options)


def generator_of(model: nn.Module, tokenizers: Tokenizers, config: Config, options: GenerationOptions) -> Generator:
    """A generator with a model that writes text (see `check_writes`), as its configuration trains it."""
    source, target = tokenizers.source, tokenizers.target
    one: Any = model  # of one of two families
    device = next(model.parameters()).device
    reader: Reader[Any]
    if config.model.family == "decoder_only":
        reader = CausalReader(one, target.specials.pad, options.precision, device)
        before, ends = document_marks(config, target.specials)
        marks = Marks(target.specials.pad, before, (), ends, target.specials.all)
    else:
        reader = SourceReader(one, source.specials.pad, target.specials.start, options.precision, device)
        ends = frozenset({target.specials.eos})
        written = {*target.head_ids, *(target.specials.sentinels if config.data.kind == "documents" else ())}
        barred = target.specials.all - written  # sentinels are what a span-corruption model answers with
        marks = Marks(source.specials.pad, (), (source.specials.eos,), ends, barred)
    return Generator(model, reader, source, target, marks, options, model_limit(config))


def document_marks(config: Config, specials: Specials) -> tuple[tuple[int, ...], frozenset[int]]:
    """What the run's data put in front of a document, and the ids that end one.

    Where documents have no EOS but BOS, and a model saw one behind the other, the next BOS is the end. Without either
    nothing is: the model has never seen a text end, and would end one by accident.
    """
    data = config.data
    assert isinstance(data, DocumentsOptions)
    before = (specials.bos,) if data.bos else ()
    if data.eos:
        return before, frozenset({specials.eos})
    return before, frozenset({specials.bos} if data.bos and data.pack and not data.mask_documents else ())


def check_writes(folder: Path, config: Config) -> None:
    """Raise `RunError` unless the run writes text that goes on from a prompt, or answers a source."""
    kind, family = config.data.kind, config.model.family
    if kind == "labels":
        raise RunError(f"{folder} gives labels and writes no text: use `tkit classify`")
    if family == "encoder_only":
        raise RunError(
            f"{folder} reads text and writes none (encoder_only): use `tkit fill-mask`, `classify` or `embed`"
        )
    if kind == "pairs" and family == "decoder_only":
        raise RunError(f"{folder} was trained to translate (prefix_lm): use `tkit translate`")


def generate_pipe(source: BinaryIO, sink: BinaryIO, generator: Generator, *, as_json: bool, escapes: bool) -> int:
    """Continue every line of a stream; the number of lines. See `formatted` for what is written."""

    def answer(chunks: Iterable[list[str]]) -> Iterator[str]:
        seen: list[str] = []  # prompts that were read and are not answered yet

        def read() -> Iterator[list[str]]:
            for chunk in chunks:
                prompts = [unescaped(line) for line in chunk] if escapes else chunk
                seen.extend(prompts)
                yield prompts

        for number, found in enumerate(generator.generate_chunks(read()), 1):
            yield formatted(seen.pop(0), found, number, as_json=as_json)

    return line_pipe(source, sink, generator.options.chunk, answer)


def answer_prompts(
    prompts: Sequence[str], sink: BinaryIO, generator: Generator, *, as_json: bool, stream: bool
) -> None:
    """Continue prompts in order. A single one with a single continuation is answered with the text as it is.

    Args:
        stream: write that text piece by piece.
    """
    if len(prompts) == 1 and generator.options.num_samples == 1 and not as_json:
        pieces = generator.stream(prompts[0]) if stream else iter([generator.generate(prompts)[0][0].text])
        for piece in pieces:
            write(sink, piece.encode("utf-8", "replace"))
        write(sink, b"\n")
        return
    for number, found in enumerate(generator.generate_chunks([prompts]), 1):
        write(sink, formatted(prompts[number - 1], found, number, as_json=as_json).encode("utf-8", "replace"))


def formatted(prompt: str, found: Sequence[Generation], number: int, *, as_json: bool) -> str:
    """One line for each continuation of a prompt.

    The text, with a backslash written as `\\\\`, a line feed as `\\n` and a carriage return as `\\r`; or a JSON object
    of prompt, text, tokens and finish. With several continuations `number TAB`, or `line` and `sample`, come first.
    """
    lines = []
    for sample, one in enumerate(found, 1):
        if as_json:
            fields: dict[str, Any] = {"line": number, "sample": sample} if len(found) > 1 else {}
            fields |= {"prompt": prompt, "text": one.text, "tokens": one.tokens, "finish": one.finish}
            lines.append(json.dumps(fields, ensure_ascii=False))
        else:
            lines.append((f"{number}\t" if len(found) > 1 else "") + escaped(one.text))
    return "".join(line + "\n" for line in lines)


def escaped(text: str) -> str:
    """A text in one line; `unescaped` undoes it."""
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")


def unescaped(text: str) -> str:
    """`\\n`, `\\r`, `\\t` and `\\\\` as the characters that they stand for; another backslash stays."""
    known = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\"}
    parts, rest = [], text
    while (at := rest.find("\\")) >= 0:
        stands_for = known.get(rest[at + 1 : at + 2])
        parts += [rest[:at], "\\" if stands_for is None else stands_for]
        rest = rest[at + 1 + (stands_for is not None) :]
    return "".join((*parts, rest))


def split_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Prompts and overrides among the words of a command line.

    A word is an override if it begins with a dotted name and `=` (`generation.top_p=0.9`), or with `generation=` or
    `decoding=`. One that is misspelt is refused where it is applied.

    """
    prompts: list[str] = []
    overrides: list[str] = []
    for word in words:
        name, equals, _ = word.partition("=")
        parts = name.split(".")
        dotted = len(parts) > 1 and all(part.isidentifier() for part in parts)
        (overrides if equals and (dotted or name in ("generation", "decoding")) else prompts).append(word)
    return prompts, overrides
