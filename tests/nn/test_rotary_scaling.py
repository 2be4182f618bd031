"""Slowed rotary positions against their formulas, pair by pair in Python's own arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from transformer_kit.errors import ConfigError
from transformer_kit.nn.position.rotary import Rotary
from transformer_kit.nn.position.rotary_scaling import Layout, LinearRotary, Llama3Rotary, NtkRotary, YarnRotary

K, THETA, LENGTH = 22, 3000.0, 190
FAR = [0, 1, 2, 7, 255, 256, 257, 1000, 4099, 99_991]
CPU = torch.device("cpu")


def linear(i: int) -> float:
    return THETA ** (-2 * i / K) / 5.0


def ntk(i: int) -> float:
    return (THETA * 5.0 ** (K / (K - 2))) ** (-2 * i / K)


def yarn(i: int, truncate: bool = True, fast: float = 8.0, slow: float = 0.5) -> float:
    rate = THETA ** (-2 * i / K)

    def pair(turns: float) -> float:
        return K * math.log(LENGTH / (turns * 2 * math.pi)) / (2 * math.log(THETA))

    low, high = pair(fast), pair(slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, K - 1)
    ramp = min(max((i - low) / (high - low), 0.0), 1.0)
    return rate / 5.0 * ramp + rate * (1 - ramp)


def llama3(i: int, low: float = 1.0, high: float = 6.0) -> float:
    rate = THETA ** (-2 * i / K)
    wave = 2 * math.pi / rate
    if wave < LENGTH / high:
        return rate
    if wave > LENGTH / low:
        return rate / 5.0
    smooth = (LENGTH / wave - low) / (high - low)
    return (1 - smooth) * rate / 5.0 + smooth * rate


SCHEMES: dict[str, tuple[Callable[[Layout], Rotary], Callable[[int], float], float]] = {
    "linear": (lambda layout: LinearRotary(K, THETA, layout, 5.0), linear, 1.0),
    "ntk": (lambda layout: NtkRotary(K, THETA, layout, 5.0), ntk, 1.0),
    "yarn": (
        lambda layout: YarnRotary(K, THETA, layout, 5.0, LENGTH, 8.0, 0.5, None, True),
        yarn,
        0.1 * math.log(5.0) + 1.0,
    ),
    "yarn, ramp not rounded": (
        lambda layout: YarnRotary(K, THETA, layout, 5.0, LENGTH, 8.0, 0.5, 0.7, False),
        lambda i: yarn(i, truncate=False),
        0.7,
    ),
    "llama3": (lambda layout: Llama3Rotary(K, THETA, layout, 5.0, 1.0, 6.0, LENGTH), llama3, 1.0),
}
each_scheme = pytest.mark.parametrize("scheme", SCHEMES)
each_layout = pytest.mark.parametrize("layout", ["interleaved", "half"])


def heads(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """q (2, 3, 10, K), k (2, 1, 10, K), at (2, 10)"""
    draw = torch.Generator().manual_seed(1)
    q, k = (torch.randn(2, n, 10, K, generator=draw, dtype=torch.float64).to(dtype) for n in (3, 1))
    return q, k, torch.tensor([FAR, FAR[::-1]])


def turned(x: Tensor, at: Tensor, rate: Callable[[int], float], gain: float, layout: str) -> Tensor:
    """Each pair turned by hand."""
    result = torch.empty_like(x)
    for i in range(K // 2):
        first, second = (2 * i, 2 * i + 1) if layout == "interleaved" else (i, i + K // 2)
        angle = (at.double() * rate(i))[:, None]
        result[..., first] = gain * (x[..., first] * angle.cos() - x[..., second] * angle.sin())
        result[..., second] = gain * (x[..., first] * angle.sin() + x[..., second] * angle.cos())
    return result


@each_scheme
@each_layout
def test_it_is_the_formula_with_its_gradient(scheme: str, layout: Layout) -> None:
    build, rate, gain = SCHEMES[scheme]
    position = build(layout)
    q, k, at = heads()
    q.requires_grad_()
    for got, whole in zip(position.rotate(q, k, at, at), (q, k), strict=True):
        torch.testing.assert_close(got, turned(whole, at, rate, gain, layout), rtol=0, atol=1e-9)
    weights = torch.randn_like(q)
    (got_grad,) = torch.autograd.grad(position.rotate(q, k, at, at)[0], q, weights)
    (grad,) = torch.autograd.grad(turned(q, at, rate, gain, layout), q, weights)
    torch.testing.assert_close(got_grad, grad, rtol=0, atol=1e-9)


@each_scheme
def test_it_differs_from_plain_rotation_in_part_of_the_pairs(scheme: str) -> None:
    """The tests above see a ramp: some pairs keep their rate, some are slowed by the factor, some are between."""
    build, _, _ = SCHEMES[scheme]
    ratio = Rotary(K, THETA, "half").rates(CPU) / build("half").rates(CPU)
    if scheme == "linear":
        torch.testing.assert_close(ratio, torch.full_like(ratio, 5.0))
        return
    assert abs(ratio[0].item() - 1) < 1e-12
    assert abs(ratio[-1].item() - 5) < 1e-9
    assert ((ratio > 1.01) & (ratio < 4.99)).sum() >= 2
    assert (ratio.diff() > -1e-12).all()


@each_scheme
@each_layout
def test_it_is_exact_in_float32_after_a_cast_and_under_autocast(scheme: str, layout: Layout) -> None:
    """Also beyond position 256, where bf16 holds no whole numbers."""
    build, rate, gain = SCHEMES[scheme]
    position = build(layout).bfloat16()
    q, k, at = heads()
    with torch.autocast("cpu", torch.bfloat16):
        got = position.rotate(q.float(), k.float(), at, at)[0]
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), turned(q, at, rate, gain, layout), rtol=0, atol=3e-6)
    rounded = position.rotate(q.bfloat16(), k.bfloat16(), at, at)[0]
    assert rounded.dtype == torch.bfloat16
    exact = turned(q.bfloat16().double(), at, rate, gain, layout)
    torch.testing.assert_close(rounded.double(), exact, rtol=2**-8, atol=1e-5)


def test_a_ramp_without_width_is_a_step() -> None:
    """Where both ends are held at the first pair, it alone keeps its rate."""
    position = YarnRotary(K, THETA, "half", 5.0, 3, 8.0, 0.5, None, True)
    assert position.first == 0
    ratio = Rotary(K, THETA, "half").rates(CPU) / position.rates(CPU)
    assert ratio[1:].sub(5).abs().max() < 1e-9


@pytest.mark.parametrize("kind", [LinearRotary, NtkRotary])
def test_factor_one_changes_nothing(kind: type[LinearRotary]) -> None:
    q, k, at = heads()
    expected = Rotary(K, THETA, "half").rotate(q, k, at, at)[0]
    torch.testing.assert_close(kind(K, THETA, "half", 1.0).rotate(q, k, at, at)[0], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: LinearRotary(K, THETA, "half", 0.5), "factor=0.5: must be at least 1"),
        (lambda: NtkRotary(2, THETA, "half", 4.0), "head_dim=2"),
        (lambda: YarnRotary(K, THETA, "half", 4.0, LENGTH, 1.0, 32.0, None, True), "beta_slow=32.0"),
        (lambda: YarnRotary(K, THETA, "half", 4.0, 0, 32.0, 1.0, None, True), "original_max_length=0"),
        (lambda: YarnRotary(K, THETA, "half", 4.0, LENGTH, 32.0, 1.0, 0.0, True), "attention_factor=0.0"),
        (lambda: Llama3Rotary(K, THETA, "half", 4.0, 4.0, 1.0, LENGTH), "low_freq_factor=4.0"),
        (lambda: Llama3Rotary(K, THETA, "half", 4.0, 1.0, 4.0, 0), "original_max_length=0"),
        (lambda: LinearRotary(K, THETA, "halves", 4.0), "layout=halves"),  # type: ignore[arg-type]  # wrong on purpose
    ],
)
def test_wrong_options_are_named(build: Callable[[], Rotary], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build()
