"""Rotary positions whose rates are slowed, so that a model reads further than it was trained to.

All change the radians per position r_i = theta^(−2i/K) of pair i; where a rate is divided by `factor`, the text may be
`factor` times as long and the turns stay among those of training.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from transformer_kit.errors import ConfigError
from transformer_kit.nn.position.angles import rates, wide
from transformer_kit.nn.position.rotary import Rotary

Layout = Literal["interleaved", "half"]


class LinearRotary(Rotary):
    """r_i / factor: every turn is slowed alike, as if position p were p / factor.

    Args:
        head_dim: K, even.
        theta: base of the wave lengths, > 1.
        layout: see `Rotary`.
        factor: how many times longer texts are to be, at least 1.

    Raises:
        ConfigError: a factor below 1, or what `Rotary` refuses.

    Source: Chen et al. 2023, "Extending Context Window of Large Language Models via Positional Interpolation",
        equation 4.
    """

    def __init__(self, head_dim: int, theta: float, layout: Layout, factor: float) -> None:
        super().__init__(head_dim, theta, layout)
        self.factor = at_least_one(factor)

    def rates(self, device: torch.device) -> Tensor:
        return super().rates(device) / self.factor


class NtkRotary(Rotary):
    """(theta · factor^(K/(K−2)))^(−2i/K): the fastest pair keeps its rate, the slowest is slowed by `factor`.

    Args:
        head_dim: K, even, at least 4.
        theta: base of the wave lengths before they are scaled, > 1.
        layout: see `Rotary`.
        factor: how many times longer texts are to be, at least 1.

    Raises:
        ConfigError: a factor below 1, one pair alone, or what `Rotary` refuses.

    Source: Peng et al. 2023, "YaRN", section 3.1, definition 1 ("NTK-aware" interpolation).
    """

    def __init__(self, head_dim: int, theta: float, layout: Layout, factor: float) -> None:
        super().__init__(head_dim, theta, layout)
        if head_dim < 4:
            raise ConfigError(f"model.head_dim={head_dim}: NTK-aware rotary positions need at least 4")
        self.factor = at_least_one(factor)

    def rates(self, device: torch.device) -> Tensor:
        base = self.theta * self.factor ** (self.head_dim / (self.head_dim - 2))
        return rates(self.head_dim // 2, 2 / self.head_dim, base, device)


class YarnRotary(Rotary):
    """r_i · (1 − γ_i) / factor + r_i · γ_i, cosines and sines times the attention factor.

    γ_i falls from 1, for pairs that turn `beta_fast` times or more within the original length, to 0, for those that
    turn `beta_slow` times or less. As in the published code it is linear in i (in the paper's text, in the turns),
    between i(beta_fast) and i(beta_slow), where pair

        i(β) = K · ln(original_max_length / 2πβ) / (2 ln theta)

    turns β times; `truncate` rounds the two outwards, and both are held within 0 … K − 1.

    Args:
        head_dim: K, even.
        theta: base of the wave lengths, > 1.
        layout: see `Rotary`.
        factor: how many times longer texts are to be, at least 1.
        original_max_length: the longest text of the training before, in tokens.
        beta_fast: turns from which a pair keeps its rate, above `beta_slow`.
        beta_slow: turns up to which a pair is slowed by `factor`, > 0.
        attention_factor: of cosines and sines, > 0; None means 0.1 · ln(factor) + 1.
        truncate: whether the ends of the ramp are rounded to whole pairs.

    Raises:
        ConfigError: a value out of its range, or what `Rotary` refuses.

    Source: Peng et al. 2023, "YaRN: Efficient Context Window Extension of Large Language Models", sections 3.2 to 3.4,
        and its published code.
    """

    def __init__(
        self,
        head_dim: int,
        theta: float,
        layout: Layout,
        factor: float,
        original_max_length: int,
        beta_fast: float,
        beta_slow: float,
        attention_factor: float | None,
        truncate: bool,
    ) -> None:
        super().__init__(head_dim, theta, layout)
        self.factor = at_least_one(factor)
        if original_max_length < 1:
            raise ConfigError(f"model.position.original_max_length={original_max_length}: must be at least 1")
        if not 0 < beta_slow < beta_fast:
            raise ConfigError(f"model.position.beta_slow={beta_slow}: must be above 0 and below beta_fast={beta_fast}")
        if attention_factor is not None and not attention_factor > 0:
            raise ConfigError(f"model.position.attention_factor={attention_factor}: must be above 0, or null")
        self.gain = 0.1 * math.log(factor) + 1.0 if attention_factor is None else attention_factor
        first, last = (self._pair(turns, original_max_length) for turns in (beta_fast, beta_slow))
        if truncate:
            first, last = math.floor(first), math.ceil(last)
        self.first, self.last = max(first, 0), min(last, head_dim - 1)

    def _pair(self, turns: float, length: int) -> float:
        """The number of the pair that turns so many times within `length` positions."""
        return self.head_dim * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(self.theta))

    def rates(self, device: torch.device) -> Tensor:
        own = super().rates(device)
        pairs = torch.arange(len(own), dtype=wide(device), device=device)
        width = self.last - self.first or 0.001  # a ramp without width is a step
        slowed = ((pairs - self.first) / width).clamp(0, 1)  # 1 − γ
        return own * (1 - slowed) + own / self.factor * slowed


class Llama3Rotary(Rotary):
    """r_i where pair i turns often within the original length, r_i / factor where it hardly does, a blend between.

    With n_i = original_max_length · r_i / 2π turns, r_i · ((1 − s_i) / factor + s_i), where

        s_i = (n_i − low_freq_factor) / (high_freq_factor − low_freq_factor), held within 0 … 1.

    Args:
        head_dim: K, even.
        theta: base of the wave lengths, > 1.
        layout: see `Rotary`.
        factor: how many times longer texts are to be, at least 1.
        low_freq_factor: turns up to which a pair is slowed by `factor`, > 0.
        high_freq_factor: turns from which a pair keeps its rate, above `low_freq_factor`.
        original_max_length: the longest text of the training before, in tokens.

    Raises:
        ConfigError: a value out of its range, or what `Rotary` refuses.

    Source: Llama 3.1's published code, `apply_scaling`; Llama Team 2024, "The Llama 3 Herd of Models".
    """

    def __init__(
        self,
        head_dim: int,
        theta: float,
        layout: Layout,
        factor: float,
        low_freq_factor: float,
        high_freq_factor: float,
        original_max_length: int,
    ) -> None:
        super().__init__(head_dim, theta, layout)
        self.factor = at_least_one(factor)
        if not 0 < low_freq_factor < high_freq_factor:
            raise ConfigError(
                f"model.position.low_freq_factor={low_freq_factor}: must be above 0 and below "
                f"high_freq_factor={high_freq_factor}"
            )
        if original_max_length < 1:
            raise ConfigError(f"model.position.original_max_length={original_max_length}: must be at least 1")
        self.low_freq_factor, self.high_freq_factor = low_freq_factor, high_freq_factor
        self.original_max_length = original_max_length

    def rates(self, device: torch.device) -> Tensor:
        own = super().rates(device)
        turns = self.original_max_length * own / (2 * math.pi)
        kept = ((turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)).clamp(0, 1)
        return own * ((1 - kept) / self.factor + kept)


def at_least_one(factor: float) -> float:
    """The factor itself.

    Raises:
        ConfigError: it is below 1, and would quicken the turns.
    """
    if not factor >= 1:
        raise ConfigError(f"model.position.factor={factor}: must be at least 1")
    return factor
