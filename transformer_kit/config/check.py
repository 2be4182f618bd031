"""What only building shows to be wrong, found before any work: slots, their options, and how they fit together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from transformer_kit.batch import Specials
from transformer_kit.config.build import BASES, FACTS, NoDraws, build_model, build_objective, build_slot, model_parts
from transformer_kit.config.convert import Reader
from transformer_kit.config.parts import part
from transformer_kit.config.schema import SLOTS, Config, ModelOptions
from transformer_kit.errors import ConfigError
from transformer_kit.objectives.base import Objective

VOCABULARY = 7  # any size would do: nothing that is checked depends on it
ANY_SPECIALS = Specials(pad=0, bos=2, eos=3, unk=1, mask=4, sentinels=(5, 6), vocab_size=VOCABULARY, start=2)


def model_problems(config: Config | Mapping[str, Any]) -> list[str]:
    """One line per problem of `model` and `objective`.

    Args:
        config: a whole configuration, whose model is built on the meta device; or, where other parts are wrong, its
            plain data, of which as much is checked as can be.
    """
    problems: list[str] = []
    model = config.model if isinstance(config, Config) else _readable_model(config)
    if isinstance(model, ModelOptions):
        problems += _build_problems(model)
    else:
        _check_slots(config, problems)
    objective = config.objective if isinstance(config, Config) else config.get("objective")
    if isinstance(objective, Mapping) and "_target_" in objective:
        try:
            made = build_objective(objective, specials=_planned(config))
        except ConfigError as error:
            problems += error.problems
        else:
            problems += _fit_problems(made, config) if isinstance(config, Config) else []
    return problems


def _planned(config: Config | Mapping[str, Any]) -> Specials:
    """Special ids of the kinds that the tokenizer will have; a tokenizer that exists may have any."""
    if not isinstance(config, Config) or config.tokenizer.path is not None:
        return ANY_SPECIALS
    tokenizer = config.tokenizer
    sentinels = ANY_SPECIALS.sentinels if tokenizer.sentinels else ()
    return replace(ANY_SPECIALS, mask=ANY_SPECIALS.mask if tokenizer.mask else None, sentinels=sentinels)


def _fit_problems(objective: Objective, config: Config) -> list[str]:
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
    return found


def _build_problems(model: ModelOptions) -> list[str]:
    """What the slots' constructors refuse, each slot by itself, and then what the whole refuses."""
    problems: list[str] = []
    parts = model_parts(model, problems)
    if model.problems():
        return problems  # told already; no part can be built with sizes out of range
    with torch.device("meta"), NoDraws():
        for stack, slot, layer in parts:
            if slot in ("residual", "attention", "head") and (stack, "norm", 0) not in parts:
                continue  # it may be made with a norm
            try:
                build_slot(model, parts, stack, slot, layer, vocab_size=VOCABULARY)
            except ConfigError as error:
                problems += error.problems
    if not problems:
        try:
            build_model(model, VOCABULARY, VOCABULARY, device="meta")
        except ConfigError as error:
            problems += error.problems
    return list(dict.fromkeys(problems))


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
