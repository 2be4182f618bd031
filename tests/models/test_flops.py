"""The formula for a training update's operations equals what torch counts while it computes one."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from transformer_kit.batch import Batch, Specials, Tokens, pad
from transformer_kit.config.build import build_model
from transformer_kit.config.compose import compose
from transformer_kit.models.base import Model
from transformer_kit.models.classifier import Classifier
from transformer_kit.models.flops import TrainingCost
from transformer_kit.nn.cross_entropy import reference_cross_entropy
from transformer_kit.objectives.classification import Classification
from transformer_kit.objectives.prefix_lm import PrefixLM
from transformer_kit.objectives.tokens import TokenObjective, counted

VOCAB, PAD = 31, 0
SPECIALS = Specials(pad=PAD, bos=1, eos=2, unk=3, mask=None, sentinels=(), vocab_size=VOCAB, start=1)
PAIR = ["data.train=[{source: x, target: y}]", "data.valid=[{source: x, target: y}]"]
SIZES = ["model.d_model=12", "model.d_ff=11", "model.num_heads=2", "model.max_length=37"]
LAYERS = {
    "encoder_decoder": ["model.encoder.layers=2", "model.decoder.layers=3"],
    "decoder_only": ["model.decoder.layers=3"],
    "encoder_only": ["model.encoder.layers=2"],
}
CASES = {
    "2017": ("encoder_decoder", ["model/position=sinusoidal"]),
    "own heads": ("encoder_decoder", ["model.head_dim=5", "model.v_head_dim=7", "model.tie=none"]),
    "t5": ("encoder_decoder", ["model/position=relative", "model/feedforward=geglu"]),
    "llama": ("decoder_only", ["model/position=rope", "model/attention=mqa", "model/feedforward=swiglu"]),
    "prefix": ("decoder_only", ["model/position=alibi"]),
    "bert": ("encoder_only", ["model/position=learned", "model/head=mlm"]),
    "class bert": ("encoder_only", ["model.pooler=true"]),
    "class gpt": ("decoder_only", []),
    "class t5": ("encoder_decoder", []),
}


def build(family: str, changes: list[str]) -> Model:
    kernel = "model.attention.kernel=reference"
    return build_model(
        compose("train", [f"model={family}", *SIZES, *LAYERS[family], kernel, *changes, *PAIR], check=False).model,
        VOCAB,
        VOCAB,
    ).train()


def block(*lengths: int) -> Tokens:
    return pad([torch.arange(n) % 7 + 4 for n in lengths], PAD)


def batch(case: str, sources: tuple[int, ...], targets: tuple[int, ...]) -> Batch:
    target, ids = block(*targets), torch.arange(len(targets))
    if case.startswith("class"):
        labels = torch.zeros(len(targets), 1, dtype=torch.int64)
        return Batch(None, target, labels, torch.ones_like(labels, dtype=torch.bool), len(targets), ids)
    source = block(*sources) if case in ("2017", "own heads", "t5", "prefix") else None
    return Batch(source, target, target.ids, target.valid, sum(targets), ids)


def made(case: str) -> tuple[Model, torch.nn.Module]:
    model = build(*CASES[case])
    if case.startswith("class"):
        objective = Classification(SPECIALS, None, True, 0.0, 0.0)
        return objective.adapt(model, 5), objective
    kind = PrefixLM if case == "prefix" else TokenObjective
    return model, kind(SPECIALS, 0.1, "all", 4)


def added_product(total: torch.Size, left: torch.Size, right: torch.Size, **others: object) -> int:
    """Operations of total += left @ right."""
    return 2 * left[0] * left[1] * right[1]


@pytest.mark.parametrize("case", CASES)
def test_the_formula_is_what_torch_counts(case: str) -> None:
    model, objective = made(case)
    whole = batch(case, (9, 9, 9), (7, 7, 7))
    in_place = {torch.ops.aten.addmm_: added_product}  # torch does not know of it
    with FlopCounterMode(display=False, custom_mapping=in_place) as counter:
        if isinstance(objective, TokenObjective):
            states, labels = counted(objective.hidden(model, whole), whole)
            loss = reference_cross_entropy(model.prepare(states), *model.output(), labels, 0.1, "all", PAD)[0]
        else:
            loss = objective(model, whole).loss
        loss.backward()
    assert TrainingCost(model).of(whole) == counter.get_total_flops()


@pytest.mark.parametrize("case", CASES)
def test_padding_is_no_work(case: str) -> None:
    cost = TrainingCost(made(case)[0])
    alone = [cost.of(batch(case, (source,), (target,))) for source, target in ((9, 3), (2, 7), (5, 1))]
    assert cost.of(batch(case, (9, 2, 5), (3, 7, 1))) == sum(alone)


def test_packed_documents_cost_what_they_cost_apart() -> None:
    cost = TrainingCost(build(*CASES["llama"]))
    apart = batch("llama", (), (4, 3))
    ids = torch.cat([torch.arange(4), torch.arange(3)])[None] + 4
    document, valid = torch.tensor([[0, 0, 0, 0, 1, 1, 1]]), torch.ones(1, 7, dtype=torch.bool)
    packed = Tokens(ids, valid, ids - 4, True, document)
    assert cost.of(Batch(None, packed, ids, valid, 7, torch.arange(1))) == cost.of(apart)


@pytest.mark.parametrize(("family", "window", "seen"), [("decoder_only", 3, 3), ("encoder_only", 3, 5)])
def test_a_window_counts_as_wide_as_it_is(family: str, window: int, seen: int) -> None:
    wide, narrow = build(family, []), build(family, [f"model.attention.window={window}"])
    one, layers = batch("llama", (), (11,)), 3 if family == "decoder_only" else 2
    difference = TrainingCost(wide).of(one) - TrainingCost(narrow).of(one)
    assert difference == 6 * layers * 2 * 12 * (11 * 11 - 11 * seen)
    short = batch("llama", (), (2,))
    assert TrainingCost(wide).of(short) == TrainingCost(narrow).of(short)


def test_the_idle_head_of_a_classifier_is_not_counted() -> None:
    model, _ = made("class bert")
    assert isinstance(model, Classifier)
    larger = build("encoder_only", ["model.pooler=true", "model/head=mlm"])
    other = Classifier(larger, 5, "first", True, 0.0)
    given = batch("class bert", (), (4, 4))
    assert TrainingCost(model).of(given) == TrainingCost(other).of(given)
