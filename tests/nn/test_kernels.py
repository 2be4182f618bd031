"""Every way to attend against the formula, backwards too, and at the rims: rows that see nothing, bf16, dropout."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from transformer_kit.nn.kernels import Kernel, Visibility, attend, choose, default_scale
from transformer_kit.nn.mask import Mask

CPU = torch.device("cpu")
B, H, T, K, W = 3, 6, 5, 7, 11
Leaves = tuple[Tensor, Tensor, Tensor, Tensor]


def leaves(groups: int, keys: int, values: int = W, dtype: torch.dtype = torch.float64) -> Leaves:
    """q, k, v of unit variance, so scores of unit spread, and a position bias."""
    draw = torch.Generator().manual_seed(keys)
    sizes = ((B, H, T, K), (B, groups, keys, K), (B, groups, keys, values), (1, H, T, keys))
    q, k, v, bias = (torch.randn(size, generator=draw, dtype=torch.float64).to(dtype) for size in sizes)
    for leaf in (q, k, v, bias):
        leaf.requires_grad_()
    return q, k, v, bias


def masks(keys: int) -> dict[str, Mask]:
    padded = torch.arange(keys) < torch.tensor([[keys], [keys - 2], [1]])
    nothing = padded & torch.tensor([[True], [False], [True]])
    return {
        "none": Mask(),
        "causal": Mask(causal=True, offset=keys - T),
        "padding": Mask(key_valid=padded),
        "left_padding": Mask(causal=True, key_valid=padded.flip(1), offset=keys - T),
        "blind_row": Mask(key_valid=nothing),
    }


def with_gradients(
    run: Callable[[Leaves], Tensor], inputs: Leaves, bias_learns: bool
) -> tuple[Tensor, tuple[Tensor, ...]]:
    out = run(inputs)
    weight = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)
    return out, torch.autograd.grad(out, inputs if bias_learns else inputs[:3], weight)


@pytest.mark.parametrize("keys", [5, 13, 17, 31])  # below and above the width of a register
@pytest.mark.parametrize("groups", [6, 2, 1])
@pytest.mark.parametrize("kernel", ["plain", "fused"])
@pytest.mark.parametrize("biased", [False, True], ids=["unbiased", "biased"])
def test_kernels_equal_the_formula(kernel: Kernel, groups: int, keys: int, biased: bool) -> None:
    for name, mask in masks(keys).items():
        inputs = leaves(groups, keys)

        def run(x: Leaves, how: Kernel, mask: Mask = mask) -> Tensor:
            seen = Visibility(mask, x[3] if biased else None, T, keys, CPU)
            return attend(*x[:3], seen, 0.8, 0.0, how)

        expected, expected_grads = with_gradients(lambda x: run(x, "reference"), inputs, biased)
        got, grads = with_gradients(lambda x: run(x, kernel), inputs, biased)
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-12, msg=name)
        for grad, expected_grad in zip(grads, expected_grads, strict=True):
            torch.testing.assert_close(grad, expected_grad, rtol=0, atol=1e-11, msg=name)


def test_reference_is_the_formula_cell_by_cell() -> None:
    """softmax over the visible keys alone, head h reading key/value head h // (H / G); zeros without a visible key."""
    keys, groups = 13, 2
    q, k, v, bias = (leaf.detach() for leaf in leaves(groups, keys))
    mask = masks(keys)["left_padding"]
    seen = Visibility(mask, bias, T, keys, CPU)
    got = attend(q, k, v, seen, 0.3, 0.0, "reference")
    assert seen.visible is not None
    visible = seen.visible.expand(B, 1, T, keys)
    for b in range(B):
        for h in range(H):
            for t in range(T):
                cells = visible[b, 0, t].nonzero()[:, 0]
                if not len(cells):
                    assert torch.equal(got[b, h, t], torch.zeros(W, dtype=torch.float64))
                    continue
                group = h // (H // groups)
                scores = torch.stack([q[b, h, t] @ k[b, group, s] * 0.3 + bias[0, h, t, s] for s in cells])
                weights = scores.exp() / scores.exp().sum()
                expected = torch.stack([w * v[b, group, s] for w, s in zip(weights, cells, strict=True)]).sum(0)
                torch.testing.assert_close(got[b, h, t], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kernel", ["reference", "plain", "fused"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_that_sees_nothing_is_zero_and_harmless(kernel: Kernel, dtype: torch.dtype) -> None:
    """Zeros out, finite gradients, none of which reach the blind row; the other rows as without it."""
    keys = 13
    inputs = leaves(H, keys, K, dtype)
    mask = masks(keys)["blind_row"]
    out, grads = with_gradients(
        lambda x: attend(*x[:3], Visibility(mask, None, T, keys, CPU), 0.4, 0.0, kernel), inputs, False
    )
    assert out.dtype == dtype
    assert torch.equal(out[1], torch.zeros_like(out[1]))
    assert all(grad.isfinite().all() for grad in grads)
    assert all(torch.equal(grad[1], torch.zeros_like(grad[1])) for grad in grads)
    assert mask.key_valid is not None
    others = torch.tensor([0, 2])
    rest = Visibility(Mask(key_valid=mask.key_valid[others]), None, T, keys, CPU)
    q, k, v = (leaf[others] for leaf in inputs[:3])
    torch.testing.assert_close(out[others], attend(q, k, v, rest, 0.4, 0.0, kernel))
    assert out[others].abs().min() > 0


@pytest.mark.parametrize("kernel", ["plain", "fused"])
@pytest.mark.parametrize("keys", [13, 31])
def test_bfloat16_is_near_the_formula(kernel: Kernel, keys: int) -> None:
    exact, rounded = leaves(2, keys), leaves(2, keys, dtype=torch.bfloat16)
    seen, scale = Visibility(masks(keys)["padding"], None, T, keys, CPU), default_scale(K)
    expected, expected_grads = with_gradients(lambda x: attend(*x[:3], seen, scale, 0.0, "reference"), exact, False)
    got, grads = with_gradients(lambda x: attend(*x[:3], seen, scale, 0.0, kernel), rounded, False)
    for one, other in zip((got, *grads), (expected, *expected_grads), strict=True):
        assert one.dtype == torch.bfloat16
        assert (one.double() - other).norm() < 0.01 * other.norm()


def test_plain_under_autocast_keeps_its_own_types() -> None:
    """What arrives in float32 is computed in float32, also when backward runs inside autocast."""
    inputs = leaves(H, 13, W, torch.float32)
    seen = Visibility(Mask(), None, T, 13, CPU)
    expected, expected_grads = with_gradients(lambda x: attend(*x[:3], seen, 0.4, 0.0, "plain"), inputs, False)
    with torch.autocast("cpu", torch.bfloat16):
        got, grads = with_gradients(lambda x: attend(*x[:3], seen, 0.4, 0.0, "plain"), inputs, False)
    for one, other in zip((got, *grads), (expected, *expected_grads), strict=True):
        assert torch.equal(one, other)


def test_plain_drops_weights_and_differentiates_what_it_kept() -> None:
    """With v = identity, the outputs are the weights: dropped or rescaled; the gradient is that of these weights."""
    keys, rate = 19, 0.4
    q, k, _, _ = leaves(H, keys)
    v = torch.eye(keys, dtype=torch.float64).expand(B, H, keys, keys).contiguous().requires_grad_()
    seen = Visibility(Mask(), None, T, keys, CPU)
    whole = attend(q, k, v, seen, 0.4, 0.0, "plain")
    torch.manual_seed(3)
    kept = attend(q, k, v, seen, 0.4, rate, "plain")
    mask = kept != 0
    torch.testing.assert_close(kept, whole * mask / (1 - rate), rtol=0, atol=1e-12)
    cells = mask.numel()
    assert abs(mask.double().mean().item() - (1 - rate)) < 4 * (rate * (1 - rate) / cells) ** 0.5
    weight = torch.randn_like(kept)
    expected = torch.autograd.grad(whole * mask / (1 - rate), (q, k), weight)
    for grad, other in zip(torch.autograd.grad(kept, (q, k, v), weight)[:2], expected, strict=True):
        torch.testing.assert_close(grad, other, rtol=0, atol=1e-12)


def test_additive_is_made_once_per_type_and_shared() -> None:
    seen = Visibility(Mask(causal=True), None, T, T, CPU)
    assert seen.additive(torch.float32) is seen.additive(torch.float32)
    assert Visibility(Mask(), None, T, T, CPU).additive(torch.float32) is None


def test_auto_chooses_by_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)

    def chosen(queries: int, keys: int, width: int, dtype: torch.dtype, dropout: float = 0.0, values: int = 0) -> str:
        q, k = torch.empty(1, 2, queries, width, dtype=dtype), torch.empty(1, 2, keys, width, dtype=dtype)
        v = torch.empty(1, 2, keys, values or width, dtype=dtype)
        return choose(q, k, v, Visibility(Mask(), None, queries, keys, CPU), dropout)

    assert chosen(13, 13, 32, torch.float32) == "plain"
    assert chosen(128, 128, 32, torch.float32) == "fused"
    assert chosen(128, 128, 32, torch.float32, dropout=0.1) == "plain"
    assert chosen(128, 128, 32, torch.float32, values=16) == "plain"
    assert chosen(1, 512, 64, torch.float32) == "plain"
    assert chosen(128, 128, 32, torch.bfloat16) == "plain"
    assert chosen(2048, 2048, 32, torch.bfloat16) == "fused"
    bias = torch.zeros(1, 2, 128, 128, requires_grad=True)
    x = torch.empty(1, 2, 128, 32)
    assert choose(x, x, x, Visibility(Mask(), bias, 128, 128, CPU), 0.0) == "plain"
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert chosen(128, 128, 32, torch.float32) == "plain"
    assert chosen(192, 192, 32, torch.float32) == "fused"
    assert chosen(1, 2**15, 64, torch.float32) == "plain"
