"""The paired loss against its formula in float64, by autograd; chunks; number formats."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from transformer_kit.nn.consistency import paired_cross_entropy
from transformer_kit.nn.cross_entropy import SPREADS, Spread, linear_cross_entropy, reference_cross_entropy

TOKENS, WIDTH, VOCAB, PAD = 11, 5, 7, 0


def inputs(dtype: torch.dtype = torch.float64) -> tuple[list[Tensor], Tensor]:
    """Two passes, weight, bias (with gradients); labels."""
    torch.manual_seed(1)
    shapes = [(TOKENS, WIDTH), (TOKENS, WIDTH), (VOCAB, WIDTH), (VOCAB,)]
    given = [torch.randn(shape, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes]
    return given, torch.randint(1, VOCAB, (TOKENS,))


def formula(given: list[Tensor], labels: Tensor, spread: Spread, alpha: float) -> tuple[Tensor, Tensor]:
    """½ (CE₁ + CE₂) + ½ α ½ (KL(p₁ ‖ p₂) + KL(p₂ ‖ p₁)), as it is read; and the KL part without α."""
    first, second, weight, bias = given
    logs = [F.linear(states, weight, bias).log_softmax(-1) for states in (first, second)]
    divergences = [F.kl_div(b, a, reduction="sum", log_target=True) for a, b in (logs, logs[::-1])]  # KL(a ‖ b)
    entropies = [reference_cross_entropy(s, weight, bias, labels, 0.1, spread, PAD)[0] for s in (first, second)]
    kl = sum(divergences) / 2
    return sum(entropies) / 2 + alpha * kl / 2, kl


def paired(given: list[Tensor], labels: Tensor, spread: Spread, alpha: float, chunk: int) -> tuple[Tensor, ...]:
    first, second, weight, bias = given
    return paired_cross_entropy(first, second, weight, bias, labels, 0.1, spread, PAD, chunk, alpha)


@pytest.mark.parametrize("chunk", [3, TOKENS, 64])
@pytest.mark.parametrize("spread", SPREADS)
def test_equals_the_formula_and_its_gradient(spread: Spread, chunk: int) -> None:
    given, labels = inputs()
    loss, kl = formula(given, labels, spread, 3.0)
    expected = torch.autograd.grad(2.5 * loss, given)
    found, _, _, divergence = paired(given, labels, spread, 3.0, chunk)
    assert found.item() == pytest.approx(loss.item(), rel=1e-12)
    assert divergence.item() == pytest.approx(kl.item(), rel=1e-12)
    for ours, theirs in zip(torch.autograd.grad(2.5 * found, given), expected, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-9, atol=1e-12)


def test_blocks_within_a_chunk_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two rows, the last one short."""
    given, labels = inputs()
    whole = paired(given, labels, "others", 3.0, 7)
    expected = torch.autograd.grad(whole[0], given)
    monkeypatch.setattr("transformer_kit.nn.consistency._BLOCK", 2 * VOCAB + 1)
    parts = paired(given, labels, "others", 3.0, 7)
    torch.testing.assert_close(parts, whole, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(torch.autograd.grad(parts[0], given), expected, rtol=1e-12, atol=1e-12)


def test_passes_that_agree_are_one_pass() -> None:
    (first, _, weight, bias), labels = inputs()
    loss, nll, correct, kl = paired([first, first, weight, bias], labels, "all", 5.0, 4)
    alone = linear_cross_entropy(first, weight, bias, labels, 0.1, "all", PAD, 4)
    assert kl.item() == pytest.approx(0.0, abs=1e-12)
    assert [v.item() for v in (loss, nll, correct)] == pytest.approx([v.item() for v in alone], rel=1e-12)


def test_metrics_are_means_of_the_passes_and_take_no_gradient() -> None:
    (first, second, weight, bias), labels = inputs()
    _, nll, correct, kl = paired([first, second, weight, bias], labels, "all", 1.0, 4)
    each = [linear_cross_entropy(s, weight, bias, labels, 0.1, "all", PAD, 4) for s in (first, second)]
    assert nll.item() == pytest.approx((each[0][1] + each[1][1]).item() / 2, rel=1e-12)
    assert correct.item() == (each[0][2] + each[1][2]).item() / 2
    assert not any(value.requires_grad for value in (nll, correct, kl))


def test_under_autocast_products_alone_are_coarse() -> None:
    given, labels = inputs(torch.float32)
    loss, _ = formula([each.double() for each in given], labels, "all", 3.0)
    exact = torch.autograd.grad(loss, given)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = paired(given, labels, "all", 3.0, 4)[0]
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(loss.item(), rel=2e-2)
    for ours, theirs in zip(torch.autograd.grad(found, given), exact, strict=True):
        assert ours.dtype == torch.float32
        assert (ours - theirs).norm() < 3e-2 * theirs.norm()


def test_without_a_bias() -> None:
    (first, second, weight, _), labels = inputs()
    zero = torch.zeros(VOCAB, dtype=torch.float64)
    ours = paired_cross_entropy(first, second, weight, None, labels, 0.1, "all", PAD, 4, 1.0)[0]
    theirs = formula([first, second, weight, zero], labels, "all", 1.0)[0]
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-12)
    ours.backward()
