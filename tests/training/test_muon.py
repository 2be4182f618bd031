"""Muon against its formula in float64 and against torch's own."""

from __future__ import annotations

import pytest
import torch
from optimizer_toys import gradient, shipped, small, train

from transformer_kit.training.groups import members
from transformer_kit.training.muon import SCALES, Muon, orthogonalised
from transformer_kit.training.optimizer import Together, build_optimizer, set_lr

ITERATIONS = 5


def newton_schulz(matrix):
    """As published, matrix by matrix, in float64."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrix.double() / matrix.double().norm()
    if len(matrix) > matrix.shape[1]:
        x = x.T
    for _ in range(ITERATIONS):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if len(matrix) > matrix.shape[1] else x


@pytest.mark.parametrize("shape", [(5, 7), (7, 5), (6, 6), (1, 3)])
def test_iterations_equal_the_formula(shape):
    torch.manual_seed(1)
    matrices = torch.randn(3, *shape, dtype=torch.float64) * torch.tensor([1e-4, 1.0, 1e3])[:, None, None]
    found = orthogonalised(matrices, ITERATIONS, torch.float64)
    assert torch.allclose(found, torch.stack([newton_schulz(m) for m in matrices]), rtol=1e-10, atol=1e-12)
    values = torch.linalg.svdvals(found)
    assert values.min() > 0.3
    assert values.max() < 1.25


def test_a_zero_gradient_moves_nothing():
    assert torch.equal(orthogonalised(torch.zeros(2, 3, 5), ITERATIONS, torch.float32), torch.zeros(2, 3, 5))


@pytest.mark.parametrize("scale", SCALES)
def test_equals_the_published_algorithm_part_by_part(scale):
    """In float64, with groups of different learning rates and decays, several parameters of a shape, and parts."""
    sizes = {"packed": (9, 4), "wide": (3, 4), "tall": (7, 3), "same": (3, 4)}
    rows = {"packed": (4, 3, 2)}
    groups = [(("packed", "wide"), 0.1, 0.3), (("tall", "same"), 0.02, 0.0)]
    torch.manual_seed(2)
    parameters = {name: torch.nn.Parameter(torch.randn(size, dtype=torch.float64)) for name, size in sizes.items()}
    expected = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    momenta = {name: torch.zeros(size, dtype=torch.float64) for name, size in sizes.items()}
    optimizer = Muon(
        [{"params": [parameters[n] for n in names], "lr": lr, "weight_decay": wd} for names, lr, wd in groups],
        momentum=0.9,
        scale=scale,
        iterations=ITERATIONS,
        dtype=torch.float64,
        parts={parameters[name]: part for name, part in rows.items()},
    )
    for step in range(1, 5):
        for names, lr, wd in groups:
            for name in names:
                g = gradient(expected[name], step, list(sizes).index(name))
                parameters[name].grad = g.clone()
                momenta[name] = 0.9 * momenta[name] + 0.1 * g
                expected[name] *= 1 - lr * wd
                update = 0.1 * g + 0.9 * momenta[name]
                start = 0
                for count in rows.get(name, (len(g),)):
                    part = slice(start, start + count)
                    ratio = {
                        "rms": 0.2 * max(count, g.shape[1]) ** 0.5,
                        "spectral": max(1, count / g.shape[1]) ** 0.5,
                    }[scale]
                    expected[name][part] -= lr * ratio * newton_schulz(update[part])
                    start += count
        optimizer.step()
    for name, value in expected.items():
        assert torch.allclose(parameters[name], value, rtol=1e-9, atol=1e-11), name


@pytest.mark.parametrize(("scale", "theirs"), [("rms", "match_rms_adamw"), ("spectral", "original")])
def test_equals_torchs(scale, theirs):
    """To what bfloat16 products leave."""
    torch.manual_seed(4)
    ours = [torch.nn.Parameter(torch.randn(size)) for size in [(16, 24), (24, 16), (16, 24)]]
    other = [torch.nn.Parameter(p.detach().clone()) for p in ours]
    muon = Muon(
        [{"params": ours, "lr": 0.05, "weight_decay": 0.1}],
        momentum=0.95,
        scale=scale,
        iterations=5,
        dtype=torch.bfloat16,
        parts={},
    )
    oracle = torch.optim.Muon(other, lr=0.05, weight_decay=0.1, momentum=0.95, adjust_lr_fn=theirs)
    for step in range(1, 6):
        for index, (a, b) in enumerate(zip(ours, other, strict=True)):
            a.grad = gradient(a, step, index)
            b.grad = a.grad.clone()
        muon.step()
        oracle.step()
    for a, b in zip(ours, other, strict=True):
        assert torch.equal(muon.state[a]["momentum_buffer"], oracle.state[b]["momentum_buffer"])
        assert torch.allclose(a, b, atol=0.02 * SCALES[scale](*a.shape))


def test_matrices_of_layers_take_muon_and_the_rest_adamw():
    model, reference = small("encoder_decoder"), small("encoder_decoder")
    options = shipped("muon", weight_decay=0.3)
    optimizer = build_optimizer(options, model)
    assert isinstance(optimizer, Together)
    train(model, optimizer, 3)
    train(reference, build_optimizer(shipped("adamw", weight_decay=0.3), reference), 3)
    for member, (name, other) in zip(members(model), reference.named_parameters(), strict=True):
        matrix = member.role == "matrix"
        assert torch.equal(member.parameter, other) != matrix, name
        assert ("momentum_buffer" in optimizer.state[member.parameter]) == matrix


def test_the_rms_rule_gives_updates_of_one_size():
    model = small("decoder_only")
    optimizer = build_optimizer(shipped("muon", weight_decay=0.0), model)
    before = {member.name: member.parameter.detach().clone() for member in members(model)}
    set_lr(optimizer, 1.0)
    for index, parameter in enumerate(model.parameters()):
        parameter.grad = gradient(parameter, 1, index)
    optimizer.step()
    for member in members(model):
        if member.role == "matrix":
            for part in (member.parameter - before[member.name]).split(list(member.parts)):
                assert 0.1 < part.square().mean().sqrt() < 0.26, member.name


def test_a_matrix_without_a_gradient_stays():
    model = small("encoder_only")
    optimizer = build_optimizer(shipped("muon"), model)
    before = model.encoder.blocks[0].feedforward.up_weight.detach().clone()
    train(model, optimizer, 1)
    moved = model.encoder.blocks[0].feedforward.up_weight
    assert not torch.equal(moved, before)
    kept = moved.detach().clone()
    optimizer.zero_grad()
    optimizer.step()
    assert torch.equal(moved, kept)
