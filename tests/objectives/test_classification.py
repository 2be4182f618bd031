from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
from objective_toys import (
    FAMILIES,
    SPECIALS,
    check_batch,
    check_padding_changes_nothing,
    check_two_steps,
    labelled,
    lists,
    real,
    toy,
)

from transformer_kit.batch import Tokens, pad
from transformer_kit.data.ragged import from_lists
from transformer_kit.errors import ConfigError
from transformer_kit.models.base import Model
from transformer_kit.models.classifier import Classifier, pool
from transformer_kit.models.encoder_only import EncoderOnly
from transformer_kit.objectives.classification import POOLING, Classification

CLASSES = 3
LENGTHS = (5, 17, 1, 11)
every_family = pytest.mark.parametrize("family", FAMILIES)


def objective(**changes: Any) -> Classification:
    usual = {"specials": SPECIALS, "pooling": None, "pooler": False, "dropout": 0.0, "label_smoothing": 0.0}
    return Classification(**{**usual, **changes})


def adapted(made: Classification, model: Model) -> Classifier:
    """With a head whose logits are far from 0."""
    found = made.adapt(model, CLASSES).double()
    assert isinstance(found, Classifier)
    with torch.no_grad():
        found.classifier.weight.mul_(30)
    return found


def test_rows() -> None:
    """`BOS first EOS`, and for pairs `second EOS` behind it, of the second type."""
    rows = labelled(*LENGTHS, pairs=True)
    bos, eos = SPECIALS.bos, SPECIALS.eos
    single = objective().collate(replace(rows, second=None))
    check_batch(single)
    assert real(single.target.ids, single.target.valid) == [[bos, *row, eos] for row in lists(rows.first)]
    assert single.target.types is None
    batch = objective().collate(rows)
    check_batch(batch)
    assert rows.second is not None
    pairs = list(zip(lists(rows.first), lists(rows.second), strict=True))
    assert real(batch.target.ids, batch.target.valid) == [[bos, *a, eos, *b, eos] for a, b in pairs]
    assert batch.target.types is not None
    expected = [[0] * (len(a) + 2) + [1] * (len(b) + 1) for a, b in pairs]
    assert real(batch.target.types, batch.target.valid) == expected
    assert batch.labels.flatten().tolist() == rows.labels.tolist()
    assert batch.labels.shape == (4, 1)
    assert batch.num_labels == 4


@every_family
@pytest.mark.parametrize("pooling", [None, "first", "mean", "last"])
@pytest.mark.parametrize("pairs", [False, True], ids=["single", "pairs"])
def test_loss_is_the_formula(family: str, pooling: Literal["first", "mean", "last"] | None, pairs: bool) -> None:
    """Row by row, from the states of each by itself."""
    made = objective(pooling=pooling)
    model = adapted(made, toy(family))
    how = pooling or {"encoder_only": "first", "decoder_only": "last", "encoder_decoder": "mean"}[family]
    loss, correct = 0.0, 0
    for length in LENGTHS:
        one = made.collate(labelled(length, pairs=pairs))
        states = model.body.read(replace(one.target, types=None)).hidden[0]
        pooled = {"first": states[0], "last": states[-1], "mean": states.mean(0)}[how]
        logits = model.classifier.weight @ pooled + model.classifier.bias
        label = int(one.labels)
        loss -= logits.log_softmax(0)[label].item()
        correct += int(logits.argmax()) == label
    batch = made.collate(labelled(*LENGTHS, pairs=pairs))
    sums = made(model, batch)
    assert sums.count == 4
    assert sums.loss.item() == pytest.approx(loss, rel=1e-10)
    assert sums.metrics["nll"].item() == pytest.approx(loss, rel=1e-10)
    assert sums.metrics["correct"].item() == correct
    smooth = objective(pooling=pooling, label_smoothing=0.3)(model, batch)
    log_probs = model(batch).hidden[:, 0].log_softmax(1)
    q = torch.full((4, CLASSES), 0.1, dtype=torch.float64)
    q[torch.arange(4), batch.labels[:, 0]] += 0.7
    assert smooth.loss.item() == pytest.approx(-(q * log_probs).sum().item(), rel=1e-10)
    assert smooth.metrics["nll"].item() == pytest.approx(loss, rel=1e-10)


@every_family
@pytest.mark.parametrize("pairs", [False, True], ids=["single", "pairs"])
def test_padding_changes_nothing(family: str, pairs: bool) -> None:
    made = objective()
    model = adapted(made, toy(family))
    alone = [made.collate(labelled(length, pairs=pairs)) for length in LENGTHS]
    check_padding_changes_nothing(made, model, alone, made.collate(labelled(*LENGTHS, pairs=pairs)))


@every_family
def test_left_padding_changes_nothing(family: str) -> None:
    model = adapted(objective(), toy(family))
    batch = objective().collate(labelled(*LENGTHS))
    left = pad([torch.tensor(row) for row in real(batch.target.ids, batch.target.valid)], SPECIALS.pad, "left")
    torch.testing.assert_close(model(replace(batch, target=left)).hidden, model(batch).hidden, rtol=1e-9, atol=1e-11)


@every_family
def test_two_steps(family: str) -> None:
    made = objective(pooler=True)
    model = made.adapt(toy(family), 2).double()
    check_two_steps(made, model, made.collate(labelled(*LENGTHS, pairs=True)))


@every_family
def test_what_has_no_part_takes_no_gradient(family: str) -> None:
    """Every parameter that is trained feels the loss; the others belong to the head and the decoder."""
    made = objective()
    model = adapted(made, toy(family))
    made(model, made.collate(labelled(*LENGTHS))).loss.backward()
    idle = {name.split(".")[1] for name, p in model.named_parameters() if not p.requires_grad}
    felt = {name: p.grad is not None for name, p in model.named_parameters() if p.requires_grad}
    assert all(felt.values()), felt
    expected = {"head", "decoder", "target_embedding"} if family == "encoder_decoder" else {"head"}
    assert idle == expected


def test_a_shared_table_is_trained() -> None:
    model = objective().adapt(toy("encoder_decoder", tie="three_way"), CLASSES)
    assert isinstance(model, Classifier)
    assert next(model.body.source_embedding.parameters()).requires_grad  # type: ignore[union-attr]  # that family has it


def test_segments_count_where_the_model_has_them() -> None:
    """And a model with one segment, or none, reads pairs too."""
    batch = objective().collate(labelled(*LENGTHS, pairs=True))
    same = replace(batch, target=replace(batch.target, types=None))
    for types in (0, 1, 2):
        model = adapted(objective(), toy("encoder_only", embedding={"scale": False, "norm": False, "types": types}))
        assert torch.equal(model(batch).hidden, model(same).hidden) == (types < 2)


def test_the_bodys_pooler_is_used_where_it_has_one() -> None:
    """It reads the first token; for another pooling, or another body, there is a fresh one."""
    model = adapted(objective(pooler=True), toy("encoder_only", pooler=True))
    assert model.pooler is None
    batch = objective().collate(labelled(*LENGTHS))
    body = model.body
    assert isinstance(body, EncoderOnly)
    assert body.pooler is not None
    pooled = body.pooler(body.read(batch.target).hidden[:, 0]).tanh()
    torch.testing.assert_close(model(batch).hidden[:, 0], model.classifier(pooled), rtol=1e-10, atol=1e-12)
    for other in (toy("encoder_only"), toy("decoder_only")):
        fresh = adapted(objective(pooler=True), other)
        assert fresh.pooler is not None
        pooled = pool(fresh.read(batch.target).hidden, batch.target, fresh.pooling)
        expected = fresh.classifier((fresh.pooler.weight @ pooled.T + fresh.pooler.bias[:, None]).tanh().T)
        torch.testing.assert_close(fresh(batch).hidden[:, 0], expected, rtol=1e-10, atol=1e-12)


def test_pool_finds_first_and_last_and_mean() -> None:
    hidden = torch.arange(2 * 5 * 3, dtype=torch.float64).reshape(2, 5, 3)
    valid = torch.tensor([[False, True, True, True, False], [True, False, False, False, False]])
    tokens = Tokens(torch.zeros(2, 5, dtype=torch.int64), valid, torch.zeros(2, 5, dtype=torch.int64), False)
    hidden[~valid] = float("nan")
    assert torch.equal(pool(hidden, tokens, "first"), torch.stack([hidden[0, 1], hidden[1, 0]]))
    assert torch.equal(pool(hidden, tokens, "last"), torch.stack([hidden[0, 3], hidden[1, 0]]))
    assert torch.equal(pool(hidden, tokens, "mean"), torch.stack([hidden[0, 2], hidden[1, 0]]))


def test_a_fresh_head() -> None:
    torch.manual_seed(3)
    head = Classifier(toy("encoder_only", d_model=200), 50, "first", True, 0.0)
    for layer in (head.classifier, head.pooler):
        assert layer is not None
        assert layer.weight.std().item() == pytest.approx(0.02, rel=0.05)
        assert not layer.bias.any()
    assert head.dim == 200
    assert head.family == "encoder_only"


def test_it_predicts_no_tokens() -> None:
    model = objective().adapt(toy("decoder_only"), CLASSES).double()
    with pytest.raises(ConfigError, match="tkit classify"):
        model.output()
    logits = model(objective().collate(labelled(3))).hidden
    assert logits.shape == (1, 1, CLASSES)
    assert torch.equal(model.logits(logits), logits)


def test_weights_by_name() -> None:
    """The body's under `body.`, so that a checkpoint tells body and head apart; dropout is before the classifier."""
    body = toy("encoder_only")
    names = set(body.state_dict())
    model = Classifier(body, CLASSES, "first", True, 0.5)
    assert set(model.state_dict()) == {f"body.{name}" for name in names} | {
        f"{layer}.{what}" for layer in ("classifier", "pooler") for what in ("weight", "bias")
    }
    batch = objective().collate(labelled(*LENGTHS))
    model.double()
    assert not torch.equal(model(batch).hidden, model(batch).hidden)
    model.eval()
    assert torch.equal(model(batch).hidden, model(batch).hidden)


def test_empty_texts_have_a_label_too() -> None:
    rows = labelled(3, 0)
    rows = replace(rows, first=from_lists([[7, 8, 9], []]))
    for family in FAMILIES:
        made = objective()
        sums = made(adapted(made, toy(family)), made.collate(rows))
        assert sums.count == 2
        assert sums.loss.isfinite()


def test_every_wrong_option_is_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        objective(pooling="max", dropout=1.0, label_smoothing=-0.1)
    assert [line.split("=")[0] for line in caught.value.problems] == [
        "objective.pooling",
        "objective.dropout",
        "objective.label_smoothing",
    ]


def test_every_family_has_a_pooling() -> None:
    assert set(POOLING) == set(FAMILIES) == Classification.families
