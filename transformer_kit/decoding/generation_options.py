"""The options of generation: what `generation.*` in a config means. No torch here: configs are checked at once."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from transformer_kit.decoding.options import PRECISIONS

OVERFLOWS = ("stop", "slide")


@dataclass
class GenerationOptions:
    """How a prompt is continued, one token after the other.

    The order is that of the options: the penalty, then the temperature, then the `top_k` best of what is left, then the
    most probable of these that together hold `top_p`; one of them is drawn.

    Attributes:
        max_new_tokens: the most tokens of a continuation, its end token included.
        min_new_tokens: the fewest tokens before an end token. Stop strings end a text all the same.
        repetition_penalty: logits of tokens that prompt or continuation hold already are divided by this where they are
            positive and multiplied where they are negative; 1 is off, above 1 discourages.
        temperature: logits are divided by this; 0 takes the best token every time.
        top_k: how many of the best tokens may be drawn; 0 is off.
        top_p: draw from the fewest best tokens whose probabilities sum to at least this; 1 is off, 0 takes the best.
        overflow: what happens where prompt and continuation fill the model (`model.max_length`): `stop`, or `slide`,
            which goes on from the last half of them, read anew (a decoder-only model).
        stop: a continuation ends where one of these strings begins, and leaves it out.
        num_samples: continuations of each prompt.
        seed: of the draws; a result depends on the seed, the number of its line, its sample and its prompt, and on
            nothing else.
        batch_tokens: rows × (longest prompt + new tokens) of one batch; a prompt that is more by itself is a batch of
            its own.
        chunk: lines read ahead at most, to be sorted by length; a pipe never waits for a chunk to fill.
        precision: `fp32`, in which a continuation does not depend on its neighbours, or `bf16`.
        detokenize: undo the tokenisation of the tokenizer's text rule (Moses) in the output.

    Source:
        repetition_penalty: Keskar et al. 2019, "CTRL", section 4.1; for negative logits as in later practice. top_p:
        Holtzman et al. 2020, "The Curious Case of Neural Text Degeneration", section 3.1.
    """

    max_new_tokens: int
    min_new_tokens: int
    repetition_penalty: float
    temperature: float
    top_k: int
    top_p: float
    overflow: str
    stop: list[str]
    num_samples: int
    seed: int
    batch_tokens: int
    chunk: int
    precision: str
    detokenize: bool

    def problems(self) -> list[tuple[str, str]]:
        """(key, message) for each value out of range."""
        found = []
        for key, least in (
            ("max_new_tokens", 1),
            ("min_new_tokens", 0),
            ("top_k", 0),
            ("num_samples", 1),
            ("seed", 0),
            ("batch_tokens", 1),
            ("chunk", 1),
        ):
            if getattr(self, key) < least:
                found.append((key, f"is {getattr(self, key)}; at least {least} is needed"))
        if self.min_new_tokens > self.max_new_tokens >= 1:
            found.append(
                ("min_new_tokens", f"is {self.min_new_tokens}, more than max_new_tokens={self.max_new_tokens}")
            )
        if not (isfinite(self.repetition_penalty) and self.repetition_penalty > 0):
            found.append(("repetition_penalty", f"is {self.repetition_penalty}; a number above 0 is needed (1: off)"))
        if not (isfinite(self.temperature) and self.temperature >= 0):
            found.append(("temperature", f"is {self.temperature}; a finite number of at least 0 is needed (0: greedy)"))
        if not 0 <= self.top_p <= 1:
            found.append(("top_p", f"is {self.top_p}; a number from 0 to 1 is needed (1: off)"))
        if self.overflow not in OVERFLOWS:
            found.append(("overflow", f"is {self.overflow!r}; valid are {', '.join(OVERFLOWS)}"))
        if "" in self.stop:
            found.append(("stop", "holds an empty string, which every text begins with; drop it"))
        if self.precision not in PRECISIONS:
            found.append(("precision", f"is {self.precision!r}; valid are {', '.join(PRECISIONS)}"))
        return found
