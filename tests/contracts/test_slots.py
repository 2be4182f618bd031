"""What every part of a slot has to hold. The files of `conf/model/<slot>/` are listed here by themselves: a new one is
checked at once, in a small encoder–decoder of pairwise different sizes, in float64, with scores of unit spread."""

from __future__ import annotations

import inspect
from functools import cache
from importlib.resources import files
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor

from transformer_kit.batch import Batch, Side, Tokens, pad, translation_batch
from transformer_kit.config.build import BASES, FACTS, OBJECTIVE_FACTS, build_model, build_objective
from transformer_kit.config.check import ANY_SPECIALS
from transformer_kit.config.parts import resolve
from transformer_kit.models.encoder_decoder import EncoderDecoder
from transformer_kit.objectives.base import Objective

CONF = files("transformer_kit.conf")
PARTS = [
    (slot, entry.name.removesuffix(".yaml"))
    for slot in BASES
    for entry in sorted(CONF.joinpath("model", slot).iterdir(), key=lambda entry: entry.name)
    if entry.name.endswith(".yaml") and (slot, entry.name) != ("head", "none.yaml")
]
USUAL = {
    "position": "sinusoidal",
    "norm": "layernorm",
    "residual": "post",
    "attention": "mha",
    "feedforward": "relu",
    "head": "linear",
}
SOURCE, TARGET = 23, 19
PAD, BOS, EOS = 0, 2, 3
SOURCES, TARGETS = (5, 7, 1), (4, 6, 9)
"""Lengths without EOS and BOS."""

every_part = pytest.mark.parametrize(("slot", "name"), PARTS, ids=["/".join(part) for part in PARTS])


def options(slot: str, name: str) -> dict[str, Any]:
    loaded = yaml.safe_load(CONF.joinpath("model", slot, f"{name}.yaml").read_text(encoding="utf-8"))
    assert isinstance(loaded, dict)
    return loaded


def built(slot: str, name: str, device: str = "cpu") -> EncoderDecoder:
    """A small model with one slot changed."""
    model = {
        "family": "encoder_decoder",
        "d_model": 13,
        "d_ff": 11,
        "num_heads": 8,  # the groups of every YAML must divide it
        "head_dim": 6,  # rotary positions need an even one
        "v_head_dim": 5,
        "encoder": {"layers": 2},
        "decoder": {"layers": 3},
        "tie": "none",
        "embedding": {"scale": True, "norm": False, "types": 0},
        "pooler": False,
        "pattern": [],
        "max_length": 37,
        "init": "glorot",
        "dropout": {"embedding": 0.0, "residual": 0.0, "attention": 0.0, "feedforward": 0.0},
        **{each: options(each, name if each == slot else usual) for each, usual in USUAL.items()},
    }
    torch.manual_seed(1)
    return build_model(model, SOURCE, TARGET, device=device)


@cache
def sharp(slot: str, name: str) -> EncoderDecoder:
    """In float64, no parameter left at 0 or 1, queries and keys of unit variance, so scores of unit spread."""
    model = built(slot, name).double()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.normal_(std=parameter.shape[1] ** -0.5)
            else:
                parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return model.eval()


def rows(lengths: tuple[int, ...], size: int) -> list[Tensor]:
    return [torch.randint(0, size, (length,), generator=torch.Generator().manual_seed(length)) for length in lengths]


def batch(which: slice = slice(None), side: Side = "right") -> Batch:
    sources, targets = rows(SOURCES, SOURCE)[which], rows(TARGETS, TARGET)[which]
    return translation_batch(sources, targets, range(len(sources)), pad_id=PAD, bos_id=BOS, eos_id=EOS, side=side)


def logits(model: EncoderDecoder, given: Batch) -> Tensor:
    with torch.no_grad():
        return model.logits(model(given).hidden)


def padded(tokens: Tokens, cells: int, side: Side) -> Tokens:
    """One row with that many cells of padding."""
    return pad([tokens.ids[0]], PAD, side, tokens.ids.shape[1] + cells)


@every_part
def test_yaml_lists_every_option_of_the_constructor(slot: str, name: str) -> None:
    """Keys and signature less build-time facts are equal; the defaults stand in the YAML alone; nothing is caught."""
    given = options(slot, name)
    problems: list[str] = []
    kind = resolve(f"model.{slot}", given["_target_"], BASES[slot], problems)
    assert kind is not None, problems
    parameters = inspect.signature(kind).parameters
    assert set(given) - {"_target_"} == set(parameters) - FACTS[slot]
    assert all(each.default is inspect.Parameter.empty for each in parameters.values())
    assert not any(each.kind in (each.VAR_KEYWORD, each.VAR_POSITIONAL) for each in parameters.values())
    assert kind.__doc__


@every_part
def test_shapes_and_gradients(slot: str, name: str) -> None:
    """Every parameter feels the loss, in a batch with padding."""
    model = sharp(slot, name)
    given = batch()
    output = model(given)
    assert output.hidden.shape == (3, 10, 13)
    assert model.logits(output.hidden).shape == (3, 10, TARGET)
    model.zero_grad()
    (model.logits(output.hidden)[given.counted].log_softmax(-1)[:, 1].sum() + sum(output.aux.values())).backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key
        assert parameter.grad.abs().max() > 0, key


@every_part
@pytest.mark.parametrize("way", ["float32", "bfloat16", "autocast"])
def test_types(slot: str, name: str, way: str) -> None:
    """In each type, hidden states of that type near those in float64, and finite gradients."""
    given, exact = batch(), sharp(slot, name)
    model = built(slot, name)
    model.load_state_dict(exact.state_dict())
    model = model.eval().to(torch.bfloat16 if way == "bfloat16" else torch.float32)
    with torch.autocast("cpu", torch.bfloat16, enabled=way == "autocast"):
        hidden = model(given).hidden
    assert way == "autocast" or hidden.dtype == getattr(torch, way)
    with torch.no_grad():
        off = hidden[given.counted].double() - exact(given).hidden[given.counted]
    assert off.norm() / off.numel() ** 0.5 < (1e-5 if way == "float32" else 0.15)
    model.logits(hidden[given.counted].to(model.output()[0].dtype)).float().square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@every_part
@pytest.mark.parametrize("pieces", [(1,) * 10, (5, 1, 4)], ids=["one by one", "in pieces"])
def test_one_forward_pass_is_cached_decoding(slot: str, name: str, pieces: tuple[int, ...]) -> None:
    """Two beams a sentence with equal tokens; sources padded."""
    model, given = sharp(slot, name), batch()
    assert given.source is not None
    expected = logits(model, given)
    with torch.no_grad():
        state = model.start(model.encode(given.source), beams=2, max_length=10)
        ids = given.target.ids.repeat_interleave(2, dim=0).split(pieces, dim=1)
        got = torch.cat([model.logits(model.extend(piece, state)) for piece in ids], dim=1)
    for row in range(6):
        real = given.target.valid[row // 2]
        torch.testing.assert_close(got[row, real], expected[row // 2, real], rtol=0, atol=1e-9)


@every_part
@pytest.mark.parametrize("side", ["right", "left"])
def test_padding_changes_nothing(slot: str, name: str, side: Side) -> None:
    """A sentence by itself, with 1 or 20 cells of padding, and beside longer ones: equal logits on real tokens."""
    model = sharp(slot, name)
    together = batch(side=side)
    among = logits(model, together)
    for row in range(3):
        alone = batch(slice(row, row + 1))
        assert alone.source is not None
        expected = logits(model, alone)[0]
        torch.testing.assert_close(among[row, together.counted[row]], expected, rtol=0, atol=1e-9)
        for cells in (1, 20):
            source, target = padded(alone.source, cells, side), padded(alone.target, cells, side)
            with torch.no_grad():
                hidden = model.decode(target, model.encode(source))
            torch.testing.assert_close(model.logits(hidden)[target.valid], expected, rtol=0, atol=1e-9)


@every_part
def test_later_tokens_leave_earlier_logits_alone(slot: str, name: str) -> None:
    """To the bit; and what comes at and after the change does notice, as does everything after a changed source."""
    model, given = sharp(slot, name), batch(slice(2, 3))
    before = logits(model, given)
    for place in (1, 6):
        given.target.ids[0, place:] = (given.target.ids[0, place:] + 1) % TARGET
        after = logits(model, given)
        assert torch.equal(after[0, :place], before[0, :place])
        assert (after[0, place:] != before[0, place:]).any(dim=-1).all()
        before = after
    assert given.source is not None
    given.source.ids[0, 0] = (given.source.ids[0, 0] + 1) % SOURCE
    assert (logits(model, given) != before).any(dim=-1).all()


@every_part
def test_weights_are_all_there_is(slot: str, name: str) -> None:
    """A model made without memory and given the saved weights answers to the bit as the one that saved them."""
    model = sharp(slot, name)
    other = built(slot, name, device="meta").double().to_empty(device="cpu").eval()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.fill_(float("nan"))
    other.load_state_dict(model.state_dict())
    assert torch.equal(logits(other, batch()), logits(model, batch()))


def test_objectives_list_every_option_of_the_constructor() -> None:
    """Every file of `conf/objective`: its keys are its constructor's less the facts, and it builds."""
    entries = [entry for entry in CONF.joinpath("objective").iterdir() if entry.name.endswith(".yaml")]
    assert entries
    for entry in entries:
        given = yaml.safe_load(entry.read_text(encoding="utf-8"))
        kind = resolve("objective", given["_target_"], Objective, [])
        assert kind is not None
        parameters = inspect.signature(kind).parameters
        assert set(given) - {"_target_"} == set(parameters) - OBJECTIVE_FACTS
        assert all(each.default is inspect.Parameter.empty for each in parameters.values())
        assert isinstance(build_objective(given, specials=ANY_SPECIALS), Objective)


def test_every_slot_has_choices() -> None:
    """The listing finds the files: each slot has its usual one and another."""
    for slot, usual in USUAL.items():
        names = {name for each, name in PARTS if each == slot}
        assert usual in names
        assert len(names) > 1
