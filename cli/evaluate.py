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
        Path | None, typer.Option("-m", "--model", help="The run folder that translates.", show_default=False)
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
    split: Annotated[str, typer.Option("--split", help="Without --src: test or valid.")] = "test",
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
    """Translate a test set and score it, or score a file of hypotheses. Every score comes with its signature."""
    _check(model, hypotheses, source, reference, split, overrides, checkpoint)
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
    split: str,
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
    if split not in ("test", "valid"):
        problems.append(f"--split must be test or valid, not {split!r}")
    if problems:
        raise ConfigError(problems)


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
