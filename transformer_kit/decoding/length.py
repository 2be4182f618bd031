"""Length penalties and limits. L counts a hypothesis' tokens including EOS everywhere."""

from __future__ import annotations

import torch
from torch import Tensor

from transformer_kit.decoding.options import DecodingOptions, LengthPenaltyOptions


def penalty(lengths: Tensor, options: LengthPenaltyOptions) -> Tensor:
    """The number that a log-probability is divided by; at least 1, and it never falls with L.

    `gnmt` ((5 + L) / 6)^alpha, `power` L^alpha, `none` 1.

    Args:
        lengths: any shape, tokens including EOS.

    Shape:
        float32, as `lengths`.

    Source:
        gnmt: Wu et al. 2016, "Google's Neural Machine Translation System", equation 14.
    """
    if options.kind == "gnmt":
        return ((5.0 + lengths) / 6.0) ** options.alpha
    if options.kind == "power":
        return lengths.float() ** options.alpha
    assert options.kind == "none", options.kind
    return torch.ones_like(lengths, dtype=torch.float32)


def limits(source_lengths: Tensor, options: DecodingOptions) -> Tensor:
    """The most tokens, EOS included, that a hypothesis of each sentence may have.

    Source length + max_extra, at most max_length, but never below min_length or 1.

    Args:
        source_lengths: (B,) int64 tokens including EOS.

    Shape:
        (B,) int64.
    """
    longest = source_lengths + options.max_extra
    if options.max_length is not None:
        longest = longest.clamp(max=options.max_length)
    return longest.clamp(min=max(1, options.min_length))
