"""The blocked feed-forward layer draws and computes what the plain one does."""

from __future__ import annotations

import pytest
import torch

from transformer_kit.nn.feedforward import blocked
from transformer_kit.nn.feedforward.dense import Dense


def run(monkeypatch: pytest.MonkeyPatch, layer: Dense, x: torch.Tensor, largest: int) -> list[torch.Tensor]:
    """Output and gradients, with random draws fixed; `largest` 0 turns the blocked way off."""
    monkeypatch.setattr(blocked, "_LARGEST", largest)
    monkeypatch.setattr(blocked, "_BLOCK", 17 * 13 * 4)  # several blocks, the last one short
    leaf = x.clone().requires_grad_()
    torch.manual_seed(5)
    y, aux = layer(leaf)
    assert aux == {}
    weights = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view(y.shape)
    layer.zero_grad()
    (y * weights).sum().backward()
    assert leaf.grad is not None
    grads = [p.grad for p in layer.parameters() if p.grad is not None]
    return [y.detach(), leaf.grad, *(grad.clone() for grad in grads)]


@pytest.mark.parametrize("activation", blocked.ACTIVATIONS)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_blocked_equals_plain(
    monkeypatch: pytest.MonkeyPatch, activation: str, bias: bool, dropout: float, dtype: torch.dtype
) -> None:
    torch.manual_seed(1)
    layer = Dense(7, 13, dropout, activation, bias).to(dtype).train()
    x = torch.randn(3, 11, 7, dtype=dtype)
    plain, fast = run(monkeypatch, layer, x, 0), run(monkeypatch, layer, x, 2**17)
    assert len(plain) == len(fast) == (6 if bias else 4)
    tolerance = 2e-6 if dtype == torch.float32 else 1e-14
    for one, other in zip(plain, fast, strict=True):
        torch.testing.assert_close(other, one, rtol=tolerance, atol=tolerance)


def test_only_training_of_narrow_layers_in_full_precision_takes_it() -> None:
    x, narrow, wide = torch.randn(2, 7), torch.randn(13, 7), torch.randn(2**10, 2**8)
    assert blocked.suits(x, narrow, "relu")
    assert not blocked.suits(x, wide, "relu")
    assert not blocked.suits(x, narrow, "sigmoid")
    assert not blocked.suits(x.bfloat16(), narrow, "relu")
    with torch.autocast("cpu", torch.bfloat16):
        assert not blocked.suits(x, narrow, "relu")
    with torch.no_grad():
        assert not blocked.suits(x, narrow, "relu")


def test_no_rows_give_no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = Dense(7, 13, 0.0, "gelu", True).train()
    y, *grads = run(monkeypatch, layer, torch.empty(0, 5, 7), 2**17)
    assert y.shape == (0, 5, 7)
    assert all(not grad.any() for grad in grads)
