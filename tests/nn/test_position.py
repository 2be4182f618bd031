from __future__ import annotations

import copy
import io
import math

import pytest
import torch
from torch import Tensor

from transformer_kit.errors import ConfigError
from transformer_kit.nn.position.alibi import Alibi
from transformer_kit.nn.position.base import Position
from transformer_kit.nn.position.learned import Learned
from transformer_kit.nn.position.none import NoPosition
from transformer_kit.nn.position.relative import RelativeBias
from transformer_kit.nn.position.rotary import Rotary
from transformer_kit.nn.position.sinusoidal import Sinusoidal

FAR = [0, 1, 2, 7, 255, 256, 257, 1000, 4099, 99_991]
"""Positions beyond 256 are not exact in bf16, beyond 4096 their products with a rate lose digits in float32."""


def waves(layout: str, dim: int, position: int, base: float) -> list[float]:
    """The published formulas in Python's own arithmetic."""
    if layout == "interleaved":
        return [(math.cos if i % 2 else math.sin)(position / base ** (2 * (i // 2) / dim)) for i in range(dim)]
    half = dim // 2
    if layout == "split":
        paper = waves("interleaved", dim, position, base)
        return paper[0::2] + paper[1::2]
    step = math.log(base) / (half - 1)
    phase = [position * math.exp(-step * i) for i in range(half)]
    return [*map(math.sin, phase), *map(math.cos, phase), *([0.0] * (dim % 2))]


@pytest.mark.parametrize("dim", [7, 12])
@pytest.mark.parametrize("layout", ["interleaved", "concatenated", "split"])
def test_sinusoids_are_the_formula(layout: str, dim: int) -> None:
    position = Sinusoidal(dim, 1000.0, layout)  # type: ignore[arg-type]  # a parametrized str
    at = torch.tensor([FAR, FAR[::-1]])
    x = torch.randn(2, len(FAR), dim, dtype=torch.float64)
    expected = torch.tensor([[waves(layout, dim, p, 1000.0) for p in row] for row in at.tolist()], dtype=torch.float64)
    torch.testing.assert_close(position.embed(x, at), x + expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(position.embed(x.float() * 0, at).double(), expected, rtol=0, atol=3e-7)


def test_sinusoids_do_not_suffer_from_bf16() -> None:
    """The waves are right before they are rounded, at positions that bf16 cannot hold."""
    position = Sinusoidal(12, 1e4, "interleaved").bfloat16()
    at = torch.tensor([FAR])
    exact = position.embed(torch.zeros(1, len(FAR), 12, dtype=torch.float64), at)
    got = position.embed(torch.zeros(1, len(FAR), 12, dtype=torch.bfloat16), at)
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.double(), exact, rtol=2**-8, atol=1e-6)


def test_learned_rows_and_the_rule_beyond() -> None:
    """From max_length on, positions share the last row; neighbours do not notice."""
    torch.manual_seed(1)
    position = Learned(5, 7)
    assert position.limit == 7
    x = torch.randn(2, 3, 5)
    at = torch.tensor([[0, 3, 6], [6, 7, 1000]])
    expected = x + position.table[torch.tensor([[0, 3, 6], [6, 6, 6]])]
    torch.testing.assert_close(position.embed(x, at), expected)
    torch.testing.assert_close(position.embed(x[:1], at[:1]), expected[:1])


def heads(groups: int = 2, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """q (3, 4, 10, 6), k (3, groups, 10, 6), at (3, 10)"""
    torch.manual_seed(1)
    at = torch.tensor([FAR, FAR[::-1], [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]])
    return torch.randn(3, 4, 10, 6, dtype=dtype), torch.randn(3, groups, 10, 6, dtype=dtype), at


def rotated(x: Tensor, at: Tensor, theta: float, layout: str) -> Tensor:
    """Equation 34 of the paper, number by number."""
    result = torch.empty_like(x)
    width = x.shape[-1]
    for i in range(width // 2):
        first, second = (2 * i, 2 * i + 1) if layout == "interleaved" else (i, i + width // 2)
        angle = (at.double() * theta ** (-2 * i / width))[:, None]
        result[..., first] = x[..., first] * angle.cos() - x[..., second] * angle.sin()
        result[..., second] = x[..., first] * angle.sin() + x[..., second] * angle.cos()
    return result


@pytest.mark.parametrize("layout", ["interleaved", "half"])
def test_rotary_is_the_formula_with_its_gradient(layout: str) -> None:
    q, k, at = heads()
    position = Rotary(6, 500.0, layout)  # type: ignore[arg-type]  # a parametrized str
    q.requires_grad_()
    for got, whole in zip(position.rotate(q, k, at, at), (q, k), strict=True):
        torch.testing.assert_close(got, rotated(whole, at, 500.0, layout), rtol=0, atol=1e-9)
    weights = torch.randn_like(q)
    (got_grad,) = torch.autograd.grad(position.rotate(q, k, at, at)[0], q, weights)
    (grad,) = torch.autograd.grad(rotated(q, at, 500.0, layout), q, weights)
    torch.testing.assert_close(got_grad, grad, rtol=0, atol=1e-9)


@pytest.mark.parametrize("layout", ["interleaved", "half"])
def test_rotated_products_know_the_distance_alone(layout: str) -> None:
    position = Rotary(6, 1e4, layout)  # type: ignore[arg-type]  # a parametrized str
    q, k, at = heads(groups=4)
    one, other = position.rotate(q, k, at, at + 5)
    moved, along = position.rotate(q, k, at + 1234, at + 1239)
    torch.testing.assert_close((one * other).sum(-1), (moved * along).sum(-1), rtol=0, atol=1e-8)


@pytest.mark.parametrize("layout", ["interleaved", "half"])
@pytest.mark.parametrize("offset", [0, 1])
def test_rotary_takes_any_view(layout: str, offset: int) -> None:
    """Slices of a packed matrix with an odd row, as other widths of v make them."""
    packed = torch.randn(3, 10, 4 * 6 + 7)
    view = packed[..., offset : offset + 24].unflatten(-1, (4, 6)).transpose(1, 2)
    at = heads()[2]
    position = Rotary(6, 1e4, layout)  # type: ignore[arg-type]  # a parametrized str
    expected = position.rotate(view.contiguous(), view.contiguous(), at, at)[0]
    torch.testing.assert_close(position.rotate(view, view, at, at)[0], expected, rtol=0, atol=0)


@pytest.mark.parametrize("layout", ["interleaved", "half"])
def test_rotary_is_exact_in_float32_whatever_is_done_to_the_module(layout: str) -> None:
    """After a cast, under autocast, after loading, on a copy, made without memory: always the float64 turns."""
    made = Rotary(6, 1e4, layout)  # type: ignore[arg-type]  # a parametrized str
    buffer = io.BytesIO()
    torch.save(made.bfloat16().state_dict(), buffer)
    buffer.seek(0)
    loaded = Rotary(6, 1e4, layout)  # type: ignore[arg-type]  # a parametrized str
    loaded.load_state_dict(torch.load(buffer, weights_only=True))
    with torch.device("meta"):
        meta = Rotary(6, 1e4, layout)  # type: ignore[arg-type]  # a parametrized str
    q, k, at = heads()
    expected = rotated(q, at, 1e4, layout)
    for position in (made, loaded, copy.deepcopy(made).half(), meta.to_empty(device="cpu")):
        with torch.autocast("cpu", torch.bfloat16):
            got = position.rotate(q.float(), k.float(), at, at)[0]
        assert got.dtype == torch.float32
        torch.testing.assert_close(got.double(), expected, rtol=0, atol=2e-6)
        rounded = position.rotate(q.bfloat16(), k.bfloat16(), at, at)[0]
        assert rounded.dtype == torch.bfloat16
        torch.testing.assert_close(
            rounded.double(), rotated(q.bfloat16().double(), at, 1e4, layout), rtol=2**-8, atol=1e-5
        )


def test_published_slopes() -> None:
    """The list that the authors' code gives."""
    root = 2**-0.5
    published = {
        1: [2**-8],
        2: [2**-4, 2**-8],
        3: [2**-4, 2**-8, 2**-2],
        6: [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3],
        8: [2**-i for i in range(1, 9)],
        12: [*(2**-i for i in range(1, 9)), root, root * 2**-1, root * 2**-2, root * 2**-3],
    }
    for num_heads, slopes in published.items():
        torch.testing.assert_close(torch.tensor(Alibi(num_heads).slopes), torch.tensor(slopes))


def test_alibi_is_minus_slope_times_distance() -> None:
    """One slope per query head; symmetric; from positions, not from places in the tensor."""
    position = Alibi(3)
    q_at, k_at = torch.tensor([[5, 0], [9, 7]]), torch.tensor([[0, 4, 5, 6, 300], [1, 2, 3, 4, 5]])
    bias = position.bias(q_at, k_at)
    assert bias.shape == (2, 3, 2, 5)
    for b, h, t, s in ((b, h, t, s) for b in range(2) for h in range(3) for t in range(2) for s in range(5)):
        distance = abs(q_at[b, t].item() - k_at[b, s].item())
        assert bias[b, h, t, s].item() == -position.slopes[h] * distance
    assert bias.dtype == torch.float32


def test_alibi_is_exact_after_a_cast() -> None:
    at = torch.tensor([FAR])
    assert torch.equal(Alibi(6).bfloat16().bias(at, at), Alibi(6).bias(at, at))


@pytest.mark.parametrize(
    "position",
    [
        NoPosition(),
        Sinusoidal(6, 1e4, "interleaved"),
        Learned(6, 7),
        Rotary(6, 1e4, "half"),
        Alibi(4),
        RelativeBias(6, 4, True, 8, 11),
    ],
    ids=lambda position: type(position).__name__,
)
def test_a_scheme_overrides_one_hook(position: Position) -> None:
    """The others are neutral: the same objects come back."""
    q, k, at = heads()
    x = torch.randn(3, 10, 6)
    changed = [
        position.embed(x, at) is not x,
        position.rotate(q, k, at, at)[0] is not q or position.rotate(q, k, at, at)[1] is not k,
        position.bias(at, at) is not None,
    ]
    assert sum(changed) == (0 if isinstance(position, NoPosition) else 1)
    assert (position.limit is None) == (not isinstance(position, Learned))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Rotary(5, 1e4, "half"), "head_dim=5"),
        (lambda: Rotary(6, 1.0, "half"), "theta=1.0"),
        (lambda: Rotary(6, 1e4, "halves"), "layout=halves"),
        (lambda: Sinusoidal(6, 0.5, "interleaved"), "base=0.5"),
        (lambda: Sinusoidal(6, 1e4, "half"), "layout=half: must be one of interleaved, concatenated, split"),
    ],
)
def test_wrong_options_are_named(build: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build()  # type: ignore[operator]  # a parametrized call
