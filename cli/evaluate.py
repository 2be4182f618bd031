"""`tkit evaluate`."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from transformer_kit.cli.translate import Checkpoint, UseOverrides, sink
from transformer_kit.errors import ConfigError

if TYPE_CHECKING:
    from transformer_kit.evaluation.options import EvaluationOptions
    from transformer_kit.tasks.evaluate import Evaluation

DEFAULT_METRICS = ["bleu", "chrf", "ter"]


def evaluate(
    overrides: UseOverrides = None,
    model: Annotated[
        Path | None, typer.Option("-m", "--model", help="The run folder that is scored.", show_default=False)
    ] = None,
    hypotheses: Annotated[
        Path | None, typer.Option("--hyp", help="Score these lines instead of translating.", show_default=False)
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option("--src", help="What to translate; the run's own test data by default.", show_default=False),
    ] = None,
    reference: Annotated[
        list[Path] | None, typer.Option("--ref", help="A reference; may be repeated.", show_default=False)
    ] = None,
    split: Annotated[
        str | None,
        typer.Option("--split", help="Of the run's own data: test (the default) or valid.", show_default=False),
    ] = None,
    text: Annotated[
        list[Path] | None,
        typer.Option(
            "--text", help="A text to predict; may be repeated. The run's own by default.", show_default=False
        ),
    ] = None,
    stride: Annotated[
        int | None,
        typer.Option(
            "--stride",
            help="Windows of a text overlap and predict their last tokens, so many; without it they do not overlap.",
            show_default=False,
        ),
    ] = None,
    tsv: Annotated[
        list[Path] | None,
        typer.Option("--tsv", help="Labelled texts; may be repeated. The run's own by default.", show_default=False),
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            "--metric",
            help="bleu, bleu_intl, bleu_tok, bleu_tok_lc, chrf or ter; may be repeated. "
            "Default: bleu, chrf and ter, and the tokenised form where the run's text is tokenised.",
            show_default=False,
        ),
    ] = None,
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Ignore case; shown in the signature.")] = False,
    language: Annotated[
        str | None,
        typer.Option("--language", help="Target language, for bleu_tok; the run's own by default.", show_default=False),
    ] = None,
    bootstrap: Annotated[int, typer.Option("--bootstrap", help="Resamples for 95 % intervals; 0 for none.")] = 1000,
    seed: Annotated[int, typer.Option("--seed", help="Of the resampling.")] = 1,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Keep the hypotheses here.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the scores as JSON.")] = False,
    checkpoint: Checkpoint = None,
) -> None:
    """Score a run on its own test data or on yours, or score a file of translations.

    A run that translates: BLEU, chrF and TER, each with its signature. A run of running text: perplexity, and bits per
    character and per byte, with the rule of how much context a token is predicted from. A run that classifies:
    accuracy, F1, and what was taken for what.
    """
    _check(model, hypotheses, source, reference, overrides, checkpoint)
    split = _split(split, [source, hypotheses, *(text or []), *(tsv or [])])
    if model is not None and (kind := _kind(model, source, metric, output, text, stride, tsv)) != "pairs":
        from transformer_kit.cli import evaluate_reports as reports

        chosen = reports.Chosen(split, overrides or [], checkpoint, as_json)
        if kind == "documents":
            reports.text(model, text, chosen, stride=stride)
        else:
            reports.labels(model, tsv, chosen, bootstrap=bootstrap, seed=seed)
        return
    if text or tsv or stride is not None:
        raise ConfigError("--text, --stride and --tsv need -m RUN")
    from transformer_kit.data.corpus import read_lines
    from transformer_kit.evaluation.options import EvaluationOptions
    from transformer_kit.tasks import evaluate as tasks

    with contextlib.nullcontext() if output is None else sink(output) as kept:  # first: it may not be writable
        references = [read_lines(path) for path in reference] if reference else None
        if model is None:
            assert hypotheses is not None
            options = _options(
                EvaluationOptions(metric or DEFAULT_METRICS, lowercase, language or "en", bootstrap, seed)
            )
            found = tasks.score(read_lines(hypotheses), references or [], options, str(hypotheses))
        else:
            metrics, spoken = tasks.suited(model)
            options = _options(EvaluationOptions(metric or metrics, lowercase, language or spoken, bootstrap, seed))
            found = tasks.evaluate_run(
                model,
                read_lines(source) if source else None,
                references,
                options,
                overrides=overrides or [],
                checkpoint=checkpoint,
                split=split,
                what=str(source),
            )
        if kept is not None:
            kept.write("".join(line + "\n" for line in found.hypotheses).encode())
    _print(found, as_json)


def _check(
    model: Path | None,
    hypotheses: Path | None,
    source: Path | None,
    reference: list[Path] | None,
    overrides: list[str] | None,
    checkpoint: str | None,
) -> None:
    problems = []
    if (model is None) == (hypotheses is None):
        problems.append("give either -m RUN, to translate and score, or --hyp FILE, to score what is there")
    if hypotheses is not None and (source is not None or overrides or checkpoint):
        problems.append("--src, --checkpoint and overrides are for -m RUN; --hyp FILE needs --ref alone")
    if not reference and (source is not None or hypotheses is not None):
        problems.append("there is nothing to score against: give --ref FILE")
    if reference and model is not None and source is None:
        problems.append("--ref needs --src: the references of another text do not fit the run's own test data")
    if problems:
        raise ConfigError(problems)


def _split(asked: str | None, files: list[Path | None]) -> str:
    """Which part of the run's own data is meant."""
    if asked not in (None, "test", "valid"):
        raise ConfigError(f"--split must be test or valid, not {asked!r}")
    if asked is not None and any(file is not None for file in files):
        raise ConfigError("--split is of the run's own data: drop it, or --src, --hyp, --text or --tsv")
    return asked or "test"


def _kind(
    model: Path,
    source: Path | None,
    metric: list[str] | None,
    output: Path | None,
    text: list[Path] | None,
    stride: int | None,
    tsv: list[Path] | None,
) -> str:
    """What the run learnt from; options that are for runs of other kinds are refused."""
    from transformer_kit.tasks.evaluate import kind_of

    kind = kind_of(model)
    given: dict[str, tuple[str, object]] = {
        "--src": ("pairs", source),
        "--metric": ("pairs", metric),
        "-o": ("pairs", output),
        "--text": ("documents", text),
        "--stride": ("documents", stride),
        "--tsv": ("labels", tsv),
    }
    wrong = [name for name, (wanted, value) in given.items() if value is not None and value != [] and wanted != kind]
    if wrong:
        raise ConfigError(
            [f"{name} is for runs that learn from {given[name][0]}; {model} learnt from {kind}" for name in wrong]
        )
    return kind


def _options(options: EvaluationOptions) -> EvaluationOptions:
    names = {"metrics": "--metric", "bootstrap": "--bootstrap", "seed": "--seed"}
    if problems := options.problems():
        raise ConfigError([f"{names[key]} {message}" for key, message in problems])
    return options


def _print(found: Evaluation, as_json: bool) -> None:
    if as_json:
        print(json.dumps(_plain(found), indent=2, ensure_ascii=False))
        return
    from transformer_kit.console import print_table

    rows = []
    for score, interval in zip(found.scores, found.intervals, strict=True):
        between = "" if interval is None else f"{interval.low:.2f} to {interval.high:.2f}"
        rows.append([score.label, f"{score.value:.2f}", between, score.signature])
    took = "" if found.seconds is None else f", translated in {found.seconds:.1f} s"
    title = f"{found.what}: {len(found.hypotheses):,} lines{took}"
    print_table(["metric", "score", "95 % interval", "signature"], rows, title=title, stream=sys.stdout)
    for score in found.scores:
        if score.detail:
            print(f"{score.label}: {score.detail}")


def _plain(found: Evaluation) -> dict[str, Any]:
    scores = {}
    for score, interval in zip(found.scores, found.intervals, strict=True):
        scores[score.name] = {"score": score.value, "signature": score.signature, "detail": score.detail}
        if interval is not None:
            scores[score.name] |= {"low": interval.low, "high": interval.high}
    return {"what": found.what, "lines": len(found.hypotheses), "seconds": found.seconds, "scores": scores}
