"""Parts that a configuration of the tests names by `_target_`."""

from __future__ import annotations

from typing import Any, Literal

from transformer_kit.nn.norm.layernorm import LayerNorm
from transformer_kit.nn.position.base import Position

called: list[str] = []


class Recorder(Position):
    """Keeps what it was given."""

    def __init__(
        self, dim: int, head_dim: int, causal: bool, base: float, layout: Literal["a", "b"], note: str | None
    ) -> None:
        super().__init__()
        if base <= 0:
            raise ValueError(f"base must be above 0, not {base}")
        self.given: dict[str, Any] = {"dim": dim, "head_dim": head_dim, "causal": causal, "base": base}


class Greedy(Position):
    """Takes anything, which a slot's class may not."""

    def __init__(self, **options: Any) -> None:
        super().__init__()


class Plain:
    """No part of any slot."""

    def __init__(self) -> None:
        called.append("Plain")


class CountingNorm(LayerNorm):
    """Counts its objects."""

    made = 0

    def __init__(self, dim: int, eps: float, bias: bool) -> None:
        super().__init__(dim, eps, bias)
        CountingNorm.made += 1


def canary() -> None:
    called.append("canary")
