from __future__ import annotations

import math

import pytest
import torch

from transformer_kit.nn.dropout import Dropout, add_dropout, dropout, keep_mask


@pytest.mark.parametrize("p", [0.001, 0.1, 0.3, 0.5, 0.75, 0.999])
def test_rate_is_p(p: float) -> None:
    torch.manual_seed(1)
    mask = keep_mask((1999, 1009), p)
    assert set(mask.unique().tolist()) <= {0, 1}
    assert abs(1 - mask.double().mean().item() - p) < 0.001


def test_rate_is_p_at_each_element_and_lane() -> None:
    """No place in a word, and no place in the tensor, is favoured: each within five standard errors."""
    torch.manual_seed(2)
    lanes = torch.stack([keep_mask((8, 1001), 0.1) for _ in range(20)]).double()
    by_lane = 1 - lanes.flatten(1)[:, :8000].unflatten(1, (-1, 8)).mean(dim=(0, 1))
    assert (by_lane - 0.1).abs().max() < 5 * math.sqrt(0.09 / 20_000)
    small = 1 - torch.stack([keep_mask((3,), 0.3) for _ in range(6000)]).double().mean(dim=0)
    assert (small - 0.3).abs().max() < 5 * math.sqrt(0.21 / 6000)


def test_neighbours_are_independent() -> None:
    torch.manual_seed(3)
    mask = keep_mask((400_009,), 0.3).double() - 0.7
    for lag in (1, 2, 4, 7, 8, 64):
        correlation = (mask[lag:] * mask[:-lag]).mean() / 0.21
        assert abs(correlation) < 5 / math.sqrt(400_000), lag


def test_scale_gradient_and_generator() -> None:
    x = torch.arange(1, 78, dtype=torch.float64).view(7, 11).requires_grad_()
    torch.manual_seed(5)
    y = dropout(x, 0.3, True)
    kept = y != 0
    assert 0 < kept.sum() < 77
    torch.testing.assert_close(y, torch.where(kept, x / 0.7, 0.0))
    (grad,) = torch.autograd.grad(y, x, torch.full_like(y, 3.0))
    torch.testing.assert_close(grad, torch.where(kept, 3.0 / 0.7, 0.0).double())
    torch.manual_seed(5)
    assert torch.equal(dropout(x, 0.3, True), y)
    assert not torch.equal(dropout(x, 0.3, True), y)


def test_views_and_types() -> None:
    x = torch.randn(5, 7, 3).transpose(0, 2)
    torch.manual_seed(1)
    y = dropout(x, 0.5, True)
    torch.testing.assert_close(y[y != 0], 2 * x[y != 0])
    assert dropout(x.bfloat16(), 0.5, True).dtype == torch.bfloat16
    assert dropout(torch.empty(0, 3), 0.5, True).shape == (0, 3)


@pytest.mark.parametrize("inner", [torch.float32, torch.bfloat16])
def test_add_dropout_is_the_sum(inner: torch.dtype) -> None:
    x = torch.randn(5, 13, requires_grad=True)
    y = torch.randn(5, 13).to(inner).requires_grad_()
    weights = torch.randn(5, 13)
    torch.manual_seed(4)
    expected = x + dropout(y.float(), 0.3, True)
    torch.manual_seed(4)
    got = add_dropout(x, y, 0.3, True)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, expected, rtol=1e-2 if inner == torch.bfloat16 else 1e-6, atol=1e-6)
    for one, other in zip(
        torch.autograd.grad(got, (x, y), weights), torch.autograd.grad(expected, (x, y), weights), strict=True
    ):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other, rtol=1e-2 if inner == torch.bfloat16 else 1e-6, atol=1e-6)


def test_identity_outside_training_and_at_rate_0() -> None:
    x = torch.randn(3, 5)
    assert dropout(x, 0.3, False) is x
    assert dropout(x, 0.0, True) is x
    assert torch.equal(add_dropout(x, x, 0.3, False), x + x)
    module = Dropout(0.3)
    assert module.eval()(x) is x
    assert module.train()(x) is not x
