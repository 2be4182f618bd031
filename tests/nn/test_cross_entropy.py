from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from transformer_kit.nn.cross_entropy import (
    SPREADS,
    Spread,
    entropy,
    linear_cross_entropy,
    reference_cross_entropy,
    smoothed_target,
)


def drawn(bias: bool, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """hidden (13, 5), weight (11, 5), bias (11,), labels (13,): logits of unit spread and more."""
    torch.manual_seed(1)
    hidden = torch.randn(13, 5, dtype=dtype, requires_grad=True)
    weight = torch.randn(11, 5, dtype=dtype, requires_grad=True)
    return (
        hidden,
        weight,
        torch.randn(11, dtype=dtype, requires_grad=True) if bias else None,
        torch.randint(1, 11, (13,)),
    )


def with_grads(
    sums: tuple[Tensor, Tensor, Tensor], *inputs: Tensor | None
) -> tuple[tuple[Tensor, Tensor, Tensor], tuple[Tensor, ...]]:
    return sums, torch.autograd.grad(sums[0] / 7, [tensor for tensor in inputs if tensor is not None])


@pytest.mark.parametrize("chunk", [1, 4, 13, 100])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("spread", SPREADS)
def test_chunks_equal_the_reference(spread: Spread, bias: bool, chunk: int) -> None:
    h, w, b, labels = drawn(bias)
    expected = with_grads(reference_cross_entropy(h, w, b, labels, 0.1, spread, 0), h, w, b)
    got = with_grads(linear_cross_entropy(h, w, b, labels, 0.1, spread, 0, chunk), h, w, b)
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)
    assert not got[0][1].requires_grad


def test_softmax_in_blocks_equals_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of three rows, the last one short."""
    monkeypatch.setattr("transformer_kit.nn.cross_entropy._BLOCK", 35)
    h, w, b, labels = drawn(True)
    expected = with_grads(reference_cross_entropy(h, w, b, labels, 0.1, "others", 0), h, w, b)
    got = with_grads(linear_cross_entropy(h, w, b, labels, 0.1, "others", 0, 8), h, w, b)
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("order", "label", "padding"), [([8.0, 4.0, 2.0, 2.0], 1, 0), ([4.0, 2.0, 8.0, 2.0], 0, 2)])
def test_kinds_of_smoothing_by_hand(order: list[float], label: int, padding: int) -> None:
    """Probabilities: padding 1/2, the label 1/4, the others 1/8 each, wherever they stand; ε = 0.3.

    In units of log 2 these cost 1, 2, 3, 3. all: 0.7·2 + 0.3·(9/4); others: 0.7·2 + 0.1·(1 + 3 + 3);
    others_but_pad: 0.7·2 + 0.15·(3 + 3).
    """
    hidden = torch.ones(1, 1, dtype=torch.float64)
    weight = torch.tensor(order, dtype=torch.float64).log()[:, None]
    costs = {"all": 2.075, "others": 2.1, "others_but_pad": 2.3}
    for spread in SPREADS:
        for function, rest in ((linear_cross_entropy, (1,)), (reference_cross_entropy, ())):
            loss, nll, correct = function(hidden, weight, None, torch.tensor([label]), 0.3, spread, padding, *rest)  # type: ignore[operator]  # one of two functions
            assert loss.item() == pytest.approx(costs[spread] * math.log(2), rel=1e-12)
            assert nll.item() == pytest.approx(2 * math.log(2), rel=1e-12)
            assert correct.item() == 0


def test_all_is_what_torch_calls_label_smoothing() -> None:
    h, w, b, labels = drawn(True)
    expected = torch.nn.functional.cross_entropy(
        torch.nn.functional.linear(h, w, b), labels, label_smoothing=0.1, reduction="sum"
    )
    torch.testing.assert_close(linear_cross_entropy(h, w, b, labels, 0.1, "all", 0, 4)[0], expected)


@pytest.mark.parametrize("spread", SPREADS)
def test_no_smoothing_is_the_plain_likelihood(spread: Spread) -> None:
    h, w, b, labels = drawn(True)
    loss, nll, _ = linear_cross_entropy(h, w, b, labels, 0.0, spread, 0, 4)
    torch.testing.assert_close(loss, nll)


def test_correct_counts_the_largest() -> None:
    h, w, b, labels = drawn(True)
    best = torch.nn.functional.linear(h, w, b).argmax(dim=-1)
    labels = torch.where(torch.arange(13) < 6, best, (best + 1) % 11)
    assert linear_cross_entropy(h, w, b, labels, 0.1, "all", 0, 4)[2].item() == 6


def test_large_logits_stay_finite() -> None:
    """Logits of ±1e4: the loss is exact, gradients are finite."""
    h = torch.tensor([[1.0], [-1.0]], requires_grad=True)
    w = torch.tensor([[1e4], [0.0], [-1e4]], requires_grad=True)
    sums, grads = with_grads(linear_cross_entropy(h, w, None, torch.tensor([0, 0]), 0.0, "all", 0, 2), h, w)
    assert sums[0].item() == pytest.approx(2e4)
    assert all(grad.isfinite().all() for grad in grads)


def test_no_rows_no_loss() -> None:
    h, w, b, _ = drawn(True)
    sums, grads = with_grads(
        linear_cross_entropy(h[:0], w, b, torch.empty(0, dtype=torch.int64), 0.1, "all", 0, 4), w, b
    )
    assert [value.item() for value in sums] == [0, 0, 0]
    assert all((grad == 0).all() for grad in grads)


def test_without_gradients_the_sums_are_the_same() -> None:
    h, w, b, labels = drawn(True)
    expected = linear_cross_entropy(h, w, b, labels, 0.1, "all", 0, 4)
    with torch.no_grad():
        got = linear_cross_entropy(h, w, b, labels, 0.1, "all", 0, 4)
    assert not got[0].requires_grad
    torch.testing.assert_close(got, tuple(value.detach() for value in expected), rtol=0, atol=0)


def test_autocast_rounds_products_and_keeps_reductions() -> None:
    h, w, b, labels = drawn(True, torch.float32)
    expected = with_grads(linear_cross_entropy(h, w, b, labels, 0.1, "all", 0, 4), h, w, b)
    with torch.autocast("cpu", torch.bfloat16):
        got = with_grads(linear_cross_entropy(h.bfloat16(), w, b, labels, 0.1, "all", 0, 4), h, w, b)
    assert got[0][0].dtype == torch.float32
    torch.testing.assert_close(got[0][0], expected[0][0], rtol=1e-2, atol=0)
    assert got[0][0].item() != expected[0][0].item()
    for one, other in zip(got[1], expected[1], strict=True):
        assert one.dtype == torch.float32
        assert (one - other).norm() < 0.02 * other.norm()


def test_bf16_parameters_get_bf16_gradients() -> None:
    h, w, b, labels = drawn(True, torch.bfloat16)
    sums, grads = with_grads(linear_cross_entropy(h, w, b, labels, 0.1, "all", 0, 4), h, w, b)
    assert sums[0].dtype == torch.float32
    assert {grad.dtype for grad in grads} == {torch.bfloat16}


def test_backward_twice_gives_the_same() -> None:
    h, w, b, labels = drawn(True)
    loss = linear_cross_entropy(h, w, b, labels, 0.1, "all", 0, 4)[0]
    first = torch.autograd.grad(loss, (h, w), torch.tensor(2.0, dtype=torch.float64), retain_graph=True)
    second = torch.autograd.grad(loss, (h, w), torch.tensor(2.0, dtype=torch.float64))
    torch.testing.assert_close(first, second, rtol=0, atol=0)


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
def test_entropy_is_the_loss_of_the_smoothed_target_itself(spread: Spread, smoothing: float) -> None:
    target = smoothed_target(7, smoothing, spread, 2)
    q = torch.full((7,), target.rest, dtype=torch.float64)
    if target.hole is not None:
        q[target.hole] = 0
    q[5] += target.gold
    assert float(q.sum()) == pytest.approx(1)
    assert entropy(target, 7) == pytest.approx(float(torch.special.entr(q).sum()))
