from __future__ import annotations

import math
from dataclasses import fields
from importlib.resources import files

import numpy as np
import pytest
import torch
import yaml
from generation_toys import generation

from transformer_kit.decoding.generation_options import GenerationOptions
from transformer_kit.decoding.sampling import (
    draw,
    keep_top_k,
    keep_top_p,
    next_tokens,
    penalise,
    shape,
    with_temperature,
)

INF = math.inf
V = 13


def random_logits(rows: int = 7, vocab: int = V, seed: int = 1) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((rows, vocab)) * 2).float()


def expected(logits: list[float], **changes: float) -> list[float]:
    """The distribution written out again, one row in plain Python."""
    options = generation(**changes)
    best = max(logits)
    scaled = [(x - best) / options.temperature for x in logits]
    order = sorted(range(len(scaled)), key=lambda i: (-scaled[i], i))
    if options.top_k:
        order = order[: options.top_k]
    total = sum(math.exp(scaled[i]) for i in order)
    kept, held = [], 0.0
    for i in order:
        if kept and held >= options.top_p and options.top_p < 1:
            break
        kept.append(i)
        held += math.exp(scaled[i]) / total
    mass = sum(math.exp(scaled[i]) for i in kept)
    return [math.exp(scaled[i]) / mass if i in kept else 0.0 for i in range(len(scaled))]


SETTINGS = [
    {"temperature": 1.0},
    {"temperature": 0.7},
    {"temperature": 100.0},
    {"temperature": 1.0, "top_k": 3},
    {"temperature": 1.0, "top_p": 0.6},
    {"temperature": 1.3, "top_k": 5, "top_p": 0.8},
    {"temperature": 1.0, "top_k": 1},
    {"temperature": 1.0, "top_p": 0.0},
]


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_the_distribution_is_the_one_written_out(setting: dict[str, float]) -> None:
    logits = random_logits()
    logits[:, 4] = -INF
    logits[2, 5] = logits[2, 6]
    shaped = shape(logits, generation(**setting)).softmax(1)
    for row, found in zip(logits.double().tolist(), shaped.tolist(), strict=True):
        assert found == pytest.approx(expected(row, **setting), abs=1e-12)


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_draws_follow_the_distribution(setting: dict[str, float]) -> None:
    """40,000 draws: no frequency is further off than 5 standard deviations, and barred tokens never come."""
    count = 40_000
    (row,) = random_logits(1, 7, seed=3).tolist()
    row[2] = -INF
    uniform = torch.from_numpy(np.random.default_rng(5).random(count))
    drawn = next_tokens(torch.tensor([row]).expand(count, -1), generation(**setting), uniform)
    frequencies = np.bincount(drawn.numpy(), minlength=7) / count
    for frequency, probability in zip(frequencies, expected(row, **setting), strict=True):
        assert abs(frequency - probability) <= 5 * math.sqrt(probability * (1 - probability) / count) + 1e-12


def test_a_draw_is_the_inverse_of_the_distribution_function() -> None:
    logits = torch.tensor([[0.2, 0.0, 0.5, 0.3]], dtype=torch.float64).log()
    for uniform, token in [(0.0, 0), (0.1999, 0), (0.2001, 2), (0.6999, 2), (0.7001, 3), (1 - 2**-53, 3)]:
        assert draw(logits, torch.tensor([uniform], dtype=torch.float64)).item() == token


def test_a_row_is_drawn_by_itself() -> None:
    logits, uniform = random_logits(23, 101), torch.rand(23, dtype=torch.float64)
    options = generation(temperature=0.9, top_k=31, top_p=0.7)
    together = next_tokens(logits, options, uniform).tolist()
    assert together == [next_tokens(logits[i : i + 1], options, uniform[i : i + 1]).item() for i in range(23)]
    order = torch.randperm(23)
    assert next_tokens(logits[order], options, uniform[order]).tolist() == [together[i] for i in order]


@pytest.mark.parametrize(
    "limit",
    [
        {"temperature": 0.0},
        {"temperature": 1e-6},
        {"temperature": 1e-300},
        {"top_k": 1},
        {"top_p": 0.0},
        {"top_p": 1e-8},
        {"temperature": 100.0, "top_k": 1, "top_p": 0.0},
    ],
    ids=str,
)
def test_limits_are_greedy(limit: dict[str, float]) -> None:
    logits = random_logits(50)
    logits[0, 3] = 3e38  # largest of float32
    logits[1, :] = -INF
    logits[1, 7] = -3e38
    found = next_tokens(logits, generation(**{"temperature": 1.0, **limit}), torch.rand(50, dtype=torch.float64))
    assert found.tolist() == logits.argmax(1).tolist()


@pytest.mark.parametrize("k", [0, V, V + 1])
def test_limits_that_are_off(k: int) -> None:
    logits = random_logits()
    assert torch.equal(keep_top_k(logits, k), logits)
    assert torch.equal(keep_top_p(logits, 1.0), logits)


@pytest.mark.parametrize("temperature", [1e-6, 1.0, 100.0])
@pytest.mark.parametrize("k", [0, 1, V, V + 1])
@pytest.mark.parametrize("p", [0.0, 1e-8, 1.0])
def test_nothing_becomes_nan(temperature: float, k: int, p: float) -> None:
    logits = torch.tensor([[-INF] * 4 + [3e38, -3e38, 0.0, 3e38] + [-INF] * 5, [0.0] * V, [-INF, *[1e-30] * (V - 1)]])
    shaped = shape(
        penalise(logits, torch.ones_like(logits).bool(), 1e30), generation(temperature=temperature, top_k=k, top_p=p)
    )
    assert not shaped.isnan().any()
    probabilities = shaped.softmax(1)
    assert probabilities.sum(1).tolist() == pytest.approx([1, 1, 1])
    for u in (0.0, 0.5, 1 - 2**-53):
        drawn = draw(shaped, torch.full((3,), u, dtype=torch.float64))
        assert (probabilities.gather(1, drawn[:, None]) > 0).all()


def test_ties_go_to_the_lower_id() -> None:
    logits = torch.tensor([[1.0, 5.0, 2.0, 5.0, 5.0, 0.0]])
    assert (keep_top_k(logits, 2) > -INF).tolist() == [[False, True, False, True, False, False]]
    assert (keep_top_p(logits, 0.5) > -INF).tolist() == [[False, True, False, True, False, False]]
    assert next_tokens(logits, generation(temperature=0.0), torch.zeros(1, dtype=torch.float64)).item() == 1


def test_top_p_keeps_the_fewest_that_hold_enough() -> None:
    logits = torch.tensor([[0.5, 0.25, 0.125, 0.125]], dtype=torch.float64).log()
    for p, kept in [(0.0, 1), (0.49, 1), (0.51, 2), (0.74, 2), (0.76, 3), (0.9, 4), (1.0, 4)]:
        assert int((keep_top_p(logits, p) > -INF).sum()) == kept, p


def test_the_penalty_divides_and_multiplies() -> None:
    logits = torch.tensor([[3.0, -3.0, 0.0, 3.0, -INF]])
    seen = torch.tensor([[True, True, True, False, True]])
    assert penalise(logits, seen, 1.5).tolist() == [[2.0, -4.5, 0.0, 3.0, -torch.finfo(torch.float32).max]]
    assert penalise(logits, seen, 1.0) is logits


def test_temperature_scales_differences() -> None:
    logits = random_logits()
    scaled = with_temperature(logits, 0.25)
    assert scaled.amax(1).tolist() == [0.0] * 7
    torch.testing.assert_close(scaled - scaled[:, :1], 4 * (logits - logits[:, :1]))


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"min_new_tokens": -1}, "min_new_tokens"),
        ({"min_new_tokens": 9, "max_new_tokens": 8}, "min_new_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": INF}, "temperature"),
        ({"temperature": math.nan}, "temperature"),
        ({"top_k": -1}, "top_k"),
        ({"top_p": -0.1}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_p": math.nan}, "top_p"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"repetition_penalty": INF}, "repetition_penalty"),
        ({"overflow": "wrap"}, "overflow"),
        ({"stop": ["x", ""]}, "stop"),
        ({"num_samples": 0}, "num_samples"),
        ({"seed": -1}, "seed"),
        ({"batch_tokens": 0}, "batch_tokens"),
        ({"chunk": 0}, "chunk"),
        ({"precision": "fp64"}, "precision"),
    ],
)
def test_invalid_values_are_refused_by_name(changes: dict[str, object], key: str) -> None:
    assert [name for name, _ in generation(**changes).problems()] == [key]


def test_good_values_have_no_problems() -> None:
    assert generation().problems() == []


@pytest.mark.parametrize("name", ["default", "greedy"])
def test_a_yaml_lists_every_option_in_range(name: str) -> None:
    plain = yaml.safe_load((files("transformer_kit.conf") / "generation" / f"{name}.yaml").read_text())
    assert set(plain) == {field.name for field in fields(GenerationOptions)}
    assert GenerationOptions(**plain).problems() == []
    assert (plain["temperature"] == 0) == (name == "greedy")


@pytest.mark.slow
def test_the_same_as_an_independent_implementation() -> None:
    """transformers' processors of logits, in the order in which its `generate` applies them."""
    transformers = pytest.importorskip("transformers", reason="the oracle, transformers, is not installed")
    logits, ids = random_logits(31, 211, seed=6), torch.from_numpy(np.random.default_rng(1).integers(0, 211, (31, 9)))
    seen = torch.zeros_like(logits, dtype=torch.bool).scatter_(1, ids, True)
    for penalty, temperature, k, p in [
        (1.3, 0.7, 0, 0.9),
        (0.8, 1.7, 17, 1.0),
        (1.1, 1.0, 40, 0.55),
        (2.0, 1.0, 0, 0.1),
    ]:
        expected = transformers.RepetitionPenaltyLogitsProcessor(penalty)(ids, logits)
        expected = transformers.TemperatureLogitsWarper(temperature)(ids, expected)
        expected = transformers.TopKLogitsWarper(k)(ids, expected) if k else expected
        expected = transformers.TopPLogitsWarper(p)(ids, expected) if p < 1 else expected
        found = shape(penalise(logits, seen, penalty), generation(temperature=temperature, top_k=k, top_p=p))
        torch.testing.assert_close(found.softmax(1), expected.double().softmax(1), atol=1e-6, rtol=0)
