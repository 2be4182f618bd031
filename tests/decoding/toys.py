"""Scorers and models small enough to know everything about, for the tests of decoding."""

from __future__ import annotations

import math
from itertools import product
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer_kit.batch import Specials, Tokens, pad
from transformer_kit.decoding.options import DecodingOptions, LengthPenaltyOptions
from transformer_kit.models.encoder_decoder import EncoderDecoder
from transformer_kit.models.heads import LinearHead
from transformer_kit.models.stack import Stack
from transformer_kit.nn.attention import MultiHeadAttention
from transformer_kit.nn.block import Block
from transformer_kit.nn.embedding import TokenEmbedding
from transformer_kit.nn.feedforward.base import FeedForward
from transformer_kit.nn.norm.base import Norm
from transformer_kit.nn.position.base import Position
from transformer_kit.nn.residual.base import Residual

PAD, UNK, BOS, EOS = 0, 1, 2, 3
SPECIAL = {"start_id": BOS, "eos_id": EOS, "banned": (PAD, BOS)}


def options(**changes: object) -> DecodingOptions:
    """Beam 3, ((5 + L) / 6)^0.6, source + 5, with changes; `kind` and `alpha` reach the length penalty."""
    kind, alpha = changes.pop("kind", "gnmt"), changes.pop("alpha", 0.6)
    values: dict[str, object] = {
        "beam": 3,
        "n_best": 1,
        "min_length": 0,
        "max_extra": 5,
        "max_length": None,
        "batch_tokens": 500,
        "chunk": 11,
        "precision": "fp32",
        "detokenize": True,
    }
    return DecodingOptions(length_penalty=LengthPenaltyOptions(kind, alpha), **{**values, **changes})


def divisor(length: int, kind: str, alpha: float) -> float:
    """The length penalty, written out again."""
    return {"gnmt": ((5 + length) / 6) ** alpha, "power": length**alpha, "none": 1.0}[kind]


class TableState:
    """The prefixes of all rows."""

    def __init__(self, sources: list[tuple[int, ...]], beams: int) -> None:
        self.beams = beams
        self.rows = [(source, ()) for source in sources for _ in range(beams)]

    def reorder(self, rows: Tensor) -> None:
        order = rows.tolist()
        assert all(old // self.beams == new // self.beams for new, old in enumerate(order)), "rows left their sentence"
        self.rows = [self.rows[row] for row in order]

    def keep(self, sentences: Tensor) -> None:
        self.rows = [self.rows[s * self.beams + beam] for s in sentences.tolist() for beam in range(self.beams)]


class TableScorer:
    """Logits that are a fixed random function of (source, tokens so far)."""

    def __init__(self, vocab: int = 6, spread: float = 1.5) -> None:
        self.vocab, self.spread = vocab, spread
        self.steps: list[int] = []  # rows of each step

    def logits(self, source: tuple[int, ...], prefix: tuple[int, ...]) -> np.ndarray:
        rng = np.random.default_rng([*source, 97, *prefix])
        return (rng.standard_normal(self.vocab) * self.spread).astype(np.float32)

    def log_probs(self, source: tuple[int, ...], prefix: tuple[int, ...]) -> np.ndarray:
        """float64, padding and BOS without probability."""
        logits = self.logits(source, prefix).astype(np.float64)
        logits[[PAD, BOS]] = -math.inf
        return logits - logits.max() - math.log(np.exp(logits - logits.max()).sum())

    def start(self, sources: Tokens, beams: int, max_length: int) -> TableState:
        rows = zip(sources.ids.tolist(), sources.valid.tolist(), strict=True)
        return TableState([tuple(i for i, real in zip(*row, strict=True) if real) for row in rows], beams)

    def step(self, last: Tensor, state: TableState) -> Tensor:
        self.steps.append(len(last))
        state.rows = [
            (source, (*prefix, token)) for (source, prefix), token in zip(state.rows, last.tolist(), strict=True)
        ]
        return torch.from_numpy(np.stack([self.logits(source, prefix[1:]) for source, prefix in state.rows]))


def brute_force(
    scorer: TableScorer, source: tuple[int, ...], longest: int, shortest: int, kind: str, alpha: float
) -> list[tuple[float, float, list[int]]]:
    """(score, log-probability, ids) of every hypothesis within the limits, best first."""
    words = [token for token in range(scorer.vocab) if token not in (PAD, BOS, EOS)]
    found = []
    for length in range(max(1, shortest), longest + 1):
        for choice in product(words, repeat=length - 1):
            ids = (*choice, EOS)
            log_prob = sum(scorer.log_probs(source, ids[:t])[ids[t]] for t in range(length))
            found.append((log_prob / divisor(length, kind, alpha), log_prob, list(ids)))
    return sorted(found, reverse=True)


class LayerNorm(Norm):
    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:])


class Sum(Residual):
    def __init__(self) -> None:
        super().__init__()
        self.norm = LayerNorm()

    def forward(self, x: Tensor, sublayer) -> Tensor:
        return x + sublayer(self.norm(x))


class Dense(FeedForward):
    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(dim, width), nn.Linear(width, dim)

    def forward(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return self.down(torch.relu(self.up(x))), {}


class Waves(Position):
    def embed(self, x: Tensor, at: Tensor) -> Tensor:
        return x + torch.sin(at[..., None] / 1.7 ** torch.arange(x.shape[-1]))


def tiny_model(source_vocab: int = 43, target_vocab: int = 37, *, seed: int = 5, eos_bias: float = 2.0):
    """A random encoder–decoder with decided opinions and translations of many lengths; evaluation mode."""
    torch.manual_seed(seed)
    dim, heads = 22, 2

    def attention() -> MultiHeadAttention:
        return MultiHeadAttention(dim, heads, 11, 11, 0.0, None, True, True, None, None, "auto")

    def stack(causal: bool, layers: int) -> Stack:
        blocks = [Block(attention(), attention() if causal else None, Dense(dim, 29), Sum) for _ in range(layers)]
        return Stack(Waves(), blocks, LayerNorm(), 0.0, causal)

    model = EncoderDecoder(
        stack(False, 2),
        stack(True, 2),
        TokenEmbedding(source_vocab, dim, True),
        TokenEmbedding(target_vocab, dim, True),
        LinearHead(dim, target_vocab, None, bias=True, scale=False),
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * (1.3 * parameter.shape[-1] ** -0.5))
        model.head.bias.zero_()
        model.head.bias[EOS] = eos_bias
    return model.eval()


def random_sources(count: int, vocab: int = 43, longest: int = 13, seed: int = 3) -> list[list[int]]:
    """Ids with EOS, of mixed length."""
    rng = np.random.default_rng(seed)
    return [[*rng.integers(4, vocab, rng.integers(1, longest)).tolist(), EOS] for _ in range(count)]


def forced_log_prob(model: EncoderDecoder, source: list[int], ids: list[int]) -> float:
    """log p(ids | source) by one pass over the whole target in float64, padding and BOS without probability."""
    model = model.double()
    try:
        with torch.no_grad():
            memory = model.encode(pad([source], PAD))
            logits = model.logits(model.decode(pad([[BOS, *ids[:-1]]], PAD), memory))[0]
    finally:
        model.float()
    logits[:, [PAD, BOS]] = -torch.inf
    return float(logits.log_softmax(1)[torch.arange(len(ids)), torch.tensor(ids)].sum())


class UncachedScorer:
    """The same model, reading every prefix anew at each step."""

    def __init__(self, model: EncoderDecoder) -> None:
        self.model = model

    def start(self, sources: Tokens, beams: int, max_length: int) -> TableState:
        return TableScorer().start(sources, beams, max_length)

    def step(self, last: Tensor, state: TableState) -> Tensor:
        state.rows = [(source, (*prefix, t)) for (source, prefix), t in zip(state.rows, last.tolist(), strict=True)]
        memory = self.model.encode(pad([source for source, _ in state.rows], PAD))
        hidden = self.model.decode(pad([prefix for _, prefix in state.rows], PAD), memory)
        return self.model.logits(hidden[:, -1])


class Letters:
    """A tokenizer: one piece a character, ids 4 to `vocab` - 1 by code point; decoding gives letters."""

    specials = Specials(PAD, BOS, EOS, UNK, None, (), 37, BOS)
    head_ids: ClassVar[list[int]] = []

    def __init__(self, vocab: int) -> None:
        self.vocab = vocab

    def encode(self, lines: list[str]) -> list[list[int]]:
        return [[4 + ord(char) % (self.vocab - 4) for char in line if not char.isspace()] for line in lines]

    def decode(self, rows: list[list[int]], *, detokenize: bool) -> list[str]:
        return ["".join("?" if i == UNK else chr(ord("A") + i) for i in row) for row in rows]


class Pair:
    """Tokenizers of both sides for `tiny_model`."""

    def __init__(self) -> None:
        self.source, self.target = Letters(43), Letters(37)
