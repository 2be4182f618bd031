from __future__ import annotations

import pytest
import torch

from transformer_kit.errors import ConfigError
from transformer_kit.nn.norm.layernorm import LayerNorm
from transformer_kit.nn.norm.rmsnorm import RMSNorm


@pytest.mark.parametrize("bias", [True, False])
def test_layernorm_is_its_formula(bias: bool) -> None:
    torch.manual_seed(1)
    norm = LayerNorm(7, 1e-3, bias).double()
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.normal_()
    x = 3 * torch.randn(3, 5, 7, dtype=torch.float64) + 2
    centred = x - x.mean(dim=-1, keepdim=True)
    expected = centred / (centred.square().mean(dim=-1, keepdim=True) + 1e-3).sqrt() * norm.weight
    if norm.bias is not None:
        expected = expected + norm.bias
    assert len(list(norm.parameters())) == 1 + bias
    torch.testing.assert_close(norm(x), expected)


def test_rmsnorm_is_its_formula_with_its_gradients() -> None:
    torch.manual_seed(1)
    norm = RMSNorm(7, 1e-3).double()
    with torch.no_grad():
        norm.weight.normal_()
    x = (3 * torch.randn(3, 5, 7, dtype=torch.float64) + 2).requires_grad_()
    torch.testing.assert_close(norm(x), x / (x.square().mean(dim=-1, keepdim=True) + 1e-3).sqrt() * norm.weight)
    assert torch.autograd.gradcheck(lambda x, weight: norm(x), (x, norm.weight))


def test_rmsnorm_agrees_with_torch() -> None:
    torch.manual_seed(1)
    norm, reference = RMSNorm(13, 1e-6), torch.nn.RMSNorm(13, 1e-6)
    x = torch.randn(11, 13)
    torch.testing.assert_close(norm(x), reference(x))


@pytest.mark.parametrize("norm", [LayerNorm(1031, 1e-6, True), RMSNorm(1031, 1e-6)], ids=["layernorm", "rmsnorm"])
def test_statistics_are_float32_under_bf16(norm: torch.nn.Module) -> None:
    """Sums of 1031 squares in bf16 would be off by several percent; the result may differ by its own rounding only."""
    torch.manual_seed(1)
    x = (torch.randn(5, 1031) * 50).bfloat16()
    expected = norm(x.double().float())
    for got in (norm.bfloat16()(x), torch.autocast("cpu", torch.bfloat16)(norm)(x)):
        assert got.dtype == torch.bfloat16
        torch.testing.assert_close(got.float(), expected, rtol=2**-8, atol=1e-6)


def test_rmsnorm_in_bf16_has_gradients_in_the_types_of_its_inputs() -> None:
    norm = RMSNorm(7, 1e-6)
    x = torch.randn(3, 7).bfloat16().requires_grad_()
    norm(x).sum().backward()
    assert x.grad is not None
    assert norm.weight.grad is not None
    assert (x.grad.dtype, norm.weight.grad.dtype) == (torch.bfloat16, torch.float32)


@pytest.mark.parametrize("eps", [0.0, -1.0, float("nan")])
def test_eps_must_be_positive(eps: float) -> None:
    for make in (lambda: LayerNorm(7, eps, True), lambda: RMSNorm(7, eps)):
        with pytest.raises(ConfigError, match=r"model\.norm\.eps"):
            make()
