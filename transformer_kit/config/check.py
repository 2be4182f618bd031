"""What only building shows to be wrong, found before any work: slots, their options, and how they fit together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from transformer_kit.batch import Specials
from transformer_kit.config.build import BASES, FACTS, build_model, build_objective, build_slot, model_parts
from transformer_kit.config.convert import Reader
from transformer_kit.config.parts import part
from transformer_kit.config.schema import SLOTS, Config, ModelOptions
from transformer_kit.errors import ConfigError
from transformer_kit.models.base import Model
from transformer_kit.models.empty import NoDraws
from transformer_kit.objectives.base import Objective

VOCABULARY = 7  # any size would do: nothing that is checked depends on it
FITTED = frozenset({"model", "objective", "data", "tokenizer"})
"""Groups that must fit each other. Where one that was chosen does not exist, nothing can be said of that."""
ANY_SPECIALS = Specials(pad=0, bos=2, eos=3, unk=1, mask=4, sentinels=(5, 6), vocab_size=VOCABULARY, start=2)


def model_problems(config: Config | Mapping[str, Any], *, fit: bool = True) -> list[str]:
    """One line per problem of `model` and `objective`.

    Args:
        config: a whole configuration, whose model is built on the meta device; or, where other parts are wrong, its
            plain data, of which as much is checked as can be.
        fit: also look at what does not fit together, where each part is right by itself.
    """
    problems: list[str] = []
    built: Model | None = None
    model = config.model if isinstance(config, Config) else _readable_model(config)
    if isinstance(model, ModelOptions):
        built = _built(model, problems)
    else:
        _check_slots(config, problems)
    objective = config.objective if isinstance(config, Config) else config.get("objective")
    if isinstance(objective, Mapping) and "_target_" in objective:
        try:
            made = build_objective(objective, specials=_planned(config) if fit else ANY_SPECIALS)
        except ConfigError as error:
            problems += error.problems
        else:
            problems += _fit_problems(made, config, built) if fit and isinstance(config, Config) else []
    return problems


def _planned(config: Config | Mapping[str, Any]) -> Specials:
    """Special ids of the kinds that the tokenizer will have; a tokenizer that exists may have any."""
    if not isinstance(config, Config) or config.tokenizer.path is not None:
        return ANY_SPECIALS
    tokenizer = config.tokenizer
    sentinels = ANY_SPECIALS.sentinels[: max(0, tokenizer.sentinels)]
    return replace(ANY_SPECIALS, mask=ANY_SPECIALS.mask if tokenizer.mask else None, sentinels=sentinels)


def _fit_problems(objective: Objective, config: Config, built: Model | None) -> list[str]:
    """What does not fit together of objective, model and data, each right by itself."""
    name, model, data = type(objective).__name__, config.model, config.data
    found = []
    if model.family not in objective.families:
        families = " or ".join(sorted(objective.families))
        found.append(f"objective: {name} trains models of the family {families}, not {model.family}: set model=…")
    if data.kind != objective.reads:
        example = {"pairs": "parallel", "documents": "text", "labels": "labels"}[objective.reads]
        found.append(f"data: {name} learns from {objective.reads}, these are {data.kind}: set data={example}")
    if data.kind == "documents" and (longest := objective.longest(data.length, data.pack)) > model.max_length:
        found.append(f"data.length={data.length}: makes rows of {longest} tokens; model.max_length={model.max_length}")
    if data.kind == "labels" and data.max_length > model.max_length:
        found.append(
            f"data.max_length={data.max_length}: makes rows of so many tokens; model.max_length={model.max_length}"
        )
    if built is not None and not found:
        try:
            objective.check(built)
        except ConfigError as error:
            found += error.problems
    return found


def _built(model: ModelOptions, told: list[str]) -> Model | None:
    """The model without memory; or None, with what the slots' constructors, each by itself, or the whole refuse."""
    problems: list[str] = []
    parts = model_parts(model, problems)
    if model.problems() or model.embedding.problems():
        told += dict.fromkeys(problems)
        return None  # told already; no part can be built with sizes out of range
    with torch.device("meta"), NoDraws():
        for stack, slot, layer in parts:
            if slot in ("residual", "attention", "head") and (stack, "norm", 0) not in parts:
                continue  # it may be made with a norm
            try:
                build_slot(model, parts, stack, slot, layer, vocab_size=VOCABULARY)
            except ConfigError as error:
                problems += error.problems
    built = None
    if not problems:
        try:
            built = build_model(model, VOCABULARY, VOCABULARY, device="meta")
        except ConfigError as error:
            problems += error.problems
    told += dict.fromkeys(problems)
    return built


def _readable_model(data: Any) -> ModelOptions | None:
    reader = Reader(Path.cwd())
    model = reader.read(ModelOptions, data.get("model"), ("model",))
    return None if reader.problems else model


def _check_slots(data: Any, problems: list[str]) -> None:
    model = data.get("model")
    for slot in SLOTS if isinstance(model, Mapping) else ():
        options = model.get(slot)
        if isinstance(options, Mapping) and isinstance(options.get("_target_"), str):
            part(f"model.{slot}", options, BASES[slot], FACTS[slot], problems)
