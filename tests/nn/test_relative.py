"""T5's relative bias: the published rule of buckets, positions instead of places, gradients through the kernels."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from transformer_kit.errors import ConfigError
from transformer_kit.nn.kernels import Kernel, Visibility, attend
from transformer_kit.nn.mask import Mask
from transformer_kit.nn.position.relative import RelativeBias

CPU = torch.device("cpu")


def published(distance: int, causal: bool, buckets: int, max_distance: int) -> int:
    """The rule of the published code, one distance (key − query) at a time, its logarithm in float32."""
    first = 0
    if causal:
        distance = max(-distance, 0)
    else:
        buckets //= 2
        first = buckets if distance > 0 else 0
        distance = abs(distance)
    exact = buckets // 2
    if distance < exact:
        return first + distance
    steps = np.log(np.float32(distance) / np.float32(exact)) / np.float32(math.log(max_distance / exact))
    return first + min(exact + int(steps * np.float32(buckets - exact)), buckets - 1)


@pytest.mark.parametrize(
    ("buckets", "max_distance"), [(32, 128), (32, 20), (8, 128), (7, 11), (5, 3), (64, 37), (64, 1000)]
)
@pytest.mark.parametrize("causal", [False, True])
def test_buckets_are_the_published_ones(causal: bool, buckets: int, max_distance: int) -> None:
    position = RelativeBias(3, 2, causal, buckets, max_distance)
    distances = list(range(-1100, 1101))
    expected = [published(distance, causal, buckets, max_distance) for distance in distances]
    assert position.bucket(torch.tensor(distances)).tolist() == expected


def test_default_buckets_by_heart() -> None:
    """32 buckets up to 128: where each begins, as the paper's section 2.1 describes them."""
    encoder, decoder = RelativeBias(3, 2, False, 32, 128), RelativeBias(3, 2, True, 32, 128)
    assert encoder.starts == [1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91]
    assert decoder.starts[:16] == list(range(1, 17))
    assert len(decoder.starts) == 31
    assert decoder.starts[-1] < 128
    at = torch.tensor([-5, 0, 5, 1000])
    assert encoder.bucket(at).tolist() == [5, 0, 21, 31]
    assert decoder.bucket(at).tolist() == [5, 0, 0, 0]


def test_bias_is_a_row_of_the_table_by_positions() -> None:
    """From positions, not from places in the tensor; one number per head."""
    torch.manual_seed(1)
    position = RelativeBias(7, 3, False, 8, 11).double()
    q_at, k_at = torch.tensor([[5, 0], [9, 7]]), torch.tensor([[0, 4, 5, 6, 300], [1, 2, 3, 4, 5]])
    bias = position.bias(q_at, k_at)
    assert bias.shape == (2, 3, 2, 5)
    for b, h, t, s in ((b, h, t, s) for b in range(2) for h in range(3) for t in range(2) for s in range(5)):
        row = published(int(k_at[b, s] - q_at[b, t]), False, 8, 11)
        assert bias[b, h, t, s] == position.table[row, h]


@pytest.mark.parametrize("kernel", ["plain", "fused", "auto"])
def test_the_table_learns_through_every_kernel(kernel: Kernel) -> None:
    """Gradients of the table as the reference's, with padding and causality; two layers share one bias."""
    torch.manual_seed(1)
    position = RelativeBias(7, 6, True, 8, 11).double()
    q, k, v = (torch.randn(3, heads, 13, 5, dtype=torch.float64) for heads in (6, 2, 2))
    at = torch.arange(13).expand(3, -1)
    mask = Mask(causal=True, key_valid=torch.arange(13) < torch.tensor([[13], [9], [1]]))

    def learn(how: Kernel) -> torch.Tensor:
        seen = Visibility(mask, position.bias(at, at), 13, 13, CPU)
        first = attend(q, k, v, seen, 1.0, 0.0, how)
        second = attend(first, k, v, seen, 1.0, 0.0, how)
        weights = torch.linspace(-1, 1, second.numel(), dtype=torch.float64).view(second.shape)
        return torch.autograd.grad(second, position.table, weights)[0]

    grad = learn("reference")
    assert grad.abs().min() > 0
    torch.testing.assert_close(learn(kernel), grad, rtol=0, atol=1e-11)


def test_wrong_options_are_named() -> None:
    with pytest.raises(ConfigError, match="num_buckets=1: must be at least 2"):
        RelativeBias(3, 2, True, 1, 128)
    with pytest.raises(ConfigError, match="num_buckets=3: must be at least 4"):
        RelativeBias(3, 2, False, 3, 128)
    with pytest.raises(ConfigError, match="max_distance=8: must be above 8"):
        RelativeBias(3, 2, False, 32, 8)
