"""One-stack models and a tokenizer of multi-character and byte pieces, for the tests of generation and reading."""

from __future__ import annotations

import torch
from toys import BOS, EOS, PAD, UNK, Dense, LayerNorm, Sum, Waves

from transformer_kit.decoding.generation_options import GenerationOptions
from transformer_kit.decoding.generator import Generator
from transformer_kit.decoding.prompts import CausalReader, Marks
from transformer_kit.models.decoder_only import DecoderOnly
from transformer_kit.models.encoder_only import EncoderOnly
from transformer_kit.models.heads import LinearHead
from transformer_kit.models.stack import Stack
from transformer_kit.nn.attention import MultiHeadAttention
from transformer_kit.nn.block import Block
from transformer_kit.nn.embedding import TokenEmbedding

MASK = 4
PIECES = [
    b"a",
    b"b",
    b" ",
    b"c",
    b"\n",
    b"\xc3",
    b"\xa9",
    b"\xa4",
    b"ab",
    b" a",
    b" b",
    b"c c",
    b"END",
    b"E",
    b"N",
    b"D",
]
PIECES += [b"\xe2", b"\x82", b"\xac", b"x", b"y", b"z", b" x", b" yz", b"\\", b"\t", b".", b"d", b"e", b"f", b"g", b"h"]
VOCAB = 5 + len(PIECES)  # 37


def generation(**changes: object) -> GenerationOptions:
    """Up to 17 tokens at temperature 1, with changes."""
    values: dict[str, object] = {
        "max_new_tokens": 17,
        "min_new_tokens": 0,
        "repetition_penalty": 1.0,
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
        "overflow": "stop",
        "stop": [],
        "num_samples": 1,
        "seed": 1,
        "batch_tokens": 300,
        "chunk": 11,
        "precision": "fp32",
        "detokenize": True,
    }
    return GenerationOptions(**{**values, **changes})


class Pieces:
    """The longest piece that fits, from left to right; what no piece begins is unknown. Decoding joins bytes."""

    def encode(self, lines: list[str]) -> list[list[int]]:
        return [self._cut(line.encode()) for line in lines]

    def decode(self, rows: list[list[int]], *, detokenize: bool = True) -> list[str]:
        return [
            b"".join(PIECES[i - 5] if i > 4 else b"?" if i == UNK else b"" for i in row).decode(errors="replace")
            for row in rows
        ]

    def _cut(self, data: bytes) -> list[int]:
        ids = []
        while data:
            fitting = [piece for piece in PIECES if data.startswith(piece)]
            piece = max(fitting, key=len, default=b"")
            ids.append(PIECES.index(piece) + 5 if piece else UNK)
            data = data[max(1, len(piece)) :]
        return ids


def tiny_decoder(*, seed: int = 5, eos_bias: float = 2.0) -> DecoderOnly:
    """A random decoder-only model with decided opinions and texts of many lengths; evaluation mode."""
    torch.manual_seed(seed)
    return _decided(DecoderOnly(_stack(causal=True), TokenEmbedding(VOCAB, 22, True, 0), _head()), eos_bias)


def tiny_encoder(*, seed: int = 5) -> EncoderOnly:
    """A random encoder with decided opinions; evaluation mode."""
    torch.manual_seed(seed)
    return _decided(EncoderOnly(_stack(causal=False), TokenEmbedding(VOCAB, 22, True, 0), _head(), None), 0.0)


def _stack(causal: bool) -> Stack:
    def attention() -> MultiHeadAttention:
        return MultiHeadAttention(22, 2, 11, 11, 0.0, None, True, True, None, None, "auto")

    return Stack(Waves(), [Block(attention(), None, Dense(22, 29), Sum) for _ in range(2)], LayerNorm(), 0.0, causal)


def _head() -> LinearHead:
    return LinearHead(22, VOCAB, None, bias=True, scale=False)


def _decided(model, eos_bias: float):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * (1.3 * parameter.shape[-1] ** -0.5))
        model.head.bias.zero_()
        model.head.bias[EOS] = eos_bias
    return model.eval()


MARKS = Marks(PAD, (BOS,), (), frozenset({EOS}), frozenset({PAD, BOS, EOS, MASK}))


def generator(
    model: DecoderOnly | None = None, *, positions: int = 64, marks: Marks = MARKS, **changes: object
) -> Generator:
    """A generator over the tiny decoder."""
    options = generation(**changes)
    model = tiny_decoder() if model is None else model
    reader = CausalReader(model, marks.pad, options.precision, torch.device("cpu"))
    return Generator(model, reader, Pieces(), Pieces(), marks, options, positions)
