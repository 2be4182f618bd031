"""From logits to the next token: pure functions on (R, V), each row by itself.

- Barred tokens have minus infinity as their logit. Every function leaves at least one token of a row that has one, so
  nothing here becomes NaN.
- Ties go to the lower id.
- A draw is the inverse of the distribution function at one uniform number a row, with the tokens in the order of their
  ids: it depends on no other row, and a rounding error of the logits moves it only where it falls on a border.
"""

from __future__ import annotations

import torch
from torch import Tensor

from transformer_kit.decoding.generation_options import GenerationOptions
from transformer_kit.decoding.topk import top_k


def penalise(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Logits of tokens seen before: x / penalty where x > 0, x · penalty elsewhere.

    Args:
        logits: (R, V) floating point.
        seen: (R, V) bool.
        penalty: above 0; 1 changes nothing.

    Source:
        Keskar et al. 2019, section 4.1 (equation for positive scores).
    """
    if penalty == 1:
        return logits
    most = torch.finfo(logits.dtype).max
    changed = torch.where(logits > 0, logits / penalty, logits * penalty).clamp(-most, most)
    return torch.where(seen, changed, logits)


def with_temperature(logits: Tensor, temperature: float) -> Tensor:
    """(x − max x) / temperature, so that the best token stands at 0 and nothing overflows upwards.

    Args:
        logits: (R, V); each row has a finite largest value.
        temperature: above 0.
    """
    return (logits - logits.amax(1, keepdim=True)) / temperature


def keep_top_k(logits: Tensor, k: int) -> Tensor:
    """Minus infinity but for the k largest; k = 0 and k >= V keep all."""
    if k == 0 or k >= logits.shape[1]:
        return logits
    values, ids = top_k(logits, k)
    return torch.full_like(logits, -torch.inf).scatter_(1, ids, values)


def keep_top_p(logits: Tensor, p: float) -> Tensor:
    """Minus infinity but for the fewest most probable tokens whose probabilities sum to at least p, one at least.

    Args:
        p: 0 to 1; 1 keeps all.

    Source:
        Holtzman et al. 2020, section 3.1.
    """
    if p >= 1:
        return logits
    order = logits.argsort(dim=1, descending=True, stable=True)
    sums = logits.gather(1, order).softmax(1).cumsum(1)
    drop = torch.zeros_like(sums, dtype=torch.bool)
    drop[:, 1:] = sums[:, :-1] >= p  # the tokens before hold enough
    return logits.masked_fill(torch.zeros_like(drop).scatter_(1, order, drop), -torch.inf)


def shape(logits: Tensor, options: GenerationOptions) -> Tensor:
    """Logits of the distribution that a token is drawn from: float64, temperature, then top_k, then top_p.

    Args:
        logits: (R, V), penalty applied and barred tokens at minus infinity.
        options: with a temperature above 0.
    """
    return keep_top_p(keep_top_k(with_temperature(logits.double(), options.temperature), options.top_k), options.top_p)


def draw(logits: Tensor, uniform: Tensor) -> Tensor:
    """The first token at which the distribution function of softmax(logits) exceeds a uniform number.

    Args:
        logits: (R, V) float64.
        uniform: (R,) float64 in [0, 1).

    Shape:
        (R,) int64.
    """
    weights = (logits - logits.amax(1, keepdim=True)).exp()
    sums = weights.cumsum(1)
    above = (sums > (uniform * sums[:, -1])[:, None]) & (weights > 0)
    return above.to(torch.uint8).argmax(1)  # the first of equal ones


def next_tokens(logits: Tensor, options: GenerationOptions, uniform: Tensor) -> Tensor:
    """The best token of each row where the temperature is 0, else a draw.

    Args:
        logits: (R, V).
        uniform: (R,) float64 in [0, 1), on the CPU.

    Shape:
        (R,) int64, on the device of the logits.
    """
    if options.temperature == 0:
        return logits.argmax(1)  # the first of equal ones
    device = torch.device("cpu") if logits.device.type == "mps" else logits.device  # MPS has no float64
    return draw(shape(logits.to(device), options), uniform.to(device)).to(logits.device)
