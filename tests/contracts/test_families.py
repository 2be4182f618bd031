"""What every family of models has to hold, with every position scheme and every way to attend that `conf/model` lists:
in float64, with scores of unit spread, in rows of pairwise different length."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any, cast

import pytest
import torch
import yaml
from torch import Tensor

from transformer_kit.batch import Batch, Side, Tokens, pad
from transformer_kit.config.build import build_model
from transformer_kit.config.schema import FAMILIES
from transformer_kit.models.base import Model
from transformer_kit.models.decoder_only import DecoderOnly
from transformer_kit.models.encoder_decoder import EncoderDecoder
from transformer_kit.models.encoder_only import EncoderOnly
from transformer_kit.nn.kernels import KERNELS
from transformer_kit.objectives.prefix_lm import joined

CONF = files("transformer_kit.conf")
VOCAB, PAD = 29, 0
PROMPTS = (1, 5, 17)


def listed(slot: str) -> list[str]:
    names = (entry.name for entry in CONF.joinpath("model", slot).iterdir())
    return sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml"))


def option(slot: str, name: str) -> dict[str, Any]:
    return dict(yaml.safe_load(CONF.joinpath("model", slot, f"{name}.yaml").read_text(encoding="utf-8")))


@cache
def model(family: str, slot: str = "position", name: str = "rope", window: int | None = None) -> Model:
    """A small model of a family with one slot changed; no parameter at 0 or 1."""
    choice = {"position": "rope", "norm": "layernorm", "residual": "pre", "attention": "mha", "feedforward": "swiglu"}
    slots = {each: option(each, usual) for each, usual in (choice | {"head": "linear"} | {slot: name}).items()}
    if window is not None:
        slots["attention"]["window"] = window
    given = {
        "family": family,
        "d_model": 13,
        "d_ff": 11,
        "num_heads": 8,
        "head_dim": 6,
        "v_head_dim": 5,
        "encoder": {"layers": 2} if "encoder" in FAMILIES[family] else None,
        "decoder": {"layers": 3} if "decoder" in FAMILIES[family] else None,
        "tie": "none",
        "embedding": {"scale": True, "norm": True, "types": 3},
        "pooler": family == "encoder_only",
        "pattern": [],
        "max_length": 37,
        "init": "glorot",
        "dropout": {"embedding": 0.0, "residual": 0.0, "attention": 0.0, "feedforward": 0.0},
        **slots,
    }
    torch.manual_seed(1)
    built = build_model(given, VOCAB).double().eval()
    with torch.no_grad():
        for parameter in built.parameters():
            if parameter.dim() == 2:
                parameter.normal_(std=parameter.shape[1] ** -0.5)
            else:
                parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return built


def decoder(slot: str = "position", name: str = "rope", window: int | None = None) -> DecoderOnly:
    return cast(DecoderOnly, model("decoder_only", slot, name, window))


def rows(*lengths: int) -> list[Tensor]:
    return [torch.randint(1, VOCAB, (n,), generator=torch.Generator().manual_seed(n)) for n in lengths]


def close(got: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-9)


def read(subject: Model, tokens: Tokens) -> Tensor:
    with torch.no_grad():
        hidden = subject.read(tokens).hidden
        return subject.logits(hidden)


PLACES = [("position", name) for name in listed("position")]
WAYS = [*PLACES, *(("attention", name) for name in listed("attention"))]
every_way = pytest.mark.parametrize(("slot", "name"), WAYS, ids=["/".join(way) for way in WAYS])


@every_way
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("pieces", [(17,), (5, 7, 1, 4)], ids=["at once", "in pieces"])
def test_prompts_of_several_lengths_decode_as_they_would_alone(
    slot: str, name: str, side: Side, pieces: tuple[int, ...]
) -> None:
    """Prompts of 1, 5 and 17 tokens in one batch, padded on either side, prefilled in chunks, then three more tokens
    one by one: at every real token the logits of an uncached pass over that row alone."""
    subject, prompts, more = decoder(slot, name), rows(*PROMPTS), torch.tensor([[3, 5, 7], [11, 13, 17], [19, 23, 2]])
    block = pad(prompts, PAD, side)
    state = subject.start(3, 1, 20)
    cut = zip(block.ids.split(pieces, 1), block.valid.split(pieces, 1), strict=True)
    got = [subject.extend(ids, state, valid) for ids, valid in cut]
    got += [subject.extend(more[:, step : step + 1], state) for step in range(3)]
    cached = subject.logits(torch.cat(got, 1))
    for row, prompt in enumerate(prompts):
        alone = read(subject, pad([torch.cat((prompt, more[row]))], PAD))[0]
        close(cached[row, :17][block.valid[row]], alone[: len(prompt)])
        close(cached[row, 17:], alone[len(prompt) :])


@every_way
def test_beams_of_a_prefix_go_on_as_the_whole_row_says(slot: str, name: str) -> None:
    """Sources of 1, 5 and 17 tokens, two beams each with their own targets: cached equals the joined row, and a source
    cell does see later source cells."""
    subject, sources = decoder(slot, name), rows(*PROMPTS)
    source, targets = pad(sources, PAD), rows(3, 4, 6, 7, 8, 9)
    target = pad([row[:3] for row in targets], PAD)
    twice = pad([row for row in sources for _ in range(2)], PAD)
    whole = read(subject, joined(twice, target))[:, 17:]
    state = subject.begin(source, 2, 3)
    assert state.rows == 6
    got = torch.cat([subject.extend(target.ids[:, step : step + 1], state) for step in range(3)], 1)
    close(subject.logits(got), whole)
    changed = source.ids.clone()
    changed[2, 16] = changed[2, 16] % (VOCAB - 1) + 1
    prefix = Tokens(source.ids, source.valid, source.at, source.full, prefix=source.valid)
    other = Tokens(changed, source.valid, source.at, source.full, prefix=source.valid)
    assert (read(subject, prefix)[2, 3] != read(subject, other)[2, 3]).any()
    assert torch.equal(
        read(subject, source)[2, :16], read(subject, Tokens(changed, source.valid, source.at, False))[2, :16]
    )


@every_way
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_packed_documents_are_as_rows_of_their_own(family: str, slot: str, name: str) -> None:
    subject, documents = model(family, slot, name), rows(5, 1, 7)
    lengths = [len(row) for row in documents]
    packed = Tokens(
        ids=torch.cat(documents)[None],
        valid=torch.ones(1, 13, dtype=torch.bool),
        at=torch.cat([torch.arange(length) for length in lengths])[None],
        full=True,
        document=torch.repeat_interleave(torch.tensor([4, 2, 9]), torch.tensor(lengths))[None],
    )
    together = subject.read(packed).hidden[0].split(lengths)
    for document, hidden in zip(documents, together, strict=True):
        close(hidden, subject.read(pad([document], PAD)).hidden[0])


@every_way
@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing(family: str, slot: str, name: str, side: Side) -> None:
    """1 or 20 padded cells, and longer neighbours."""
    subject, alone = model(family, slot, name), pad(rows(5), PAD)
    expected = subject.read(alone).hidden[0]
    for cells in (1, 20):
        wide = pad(rows(5), PAD, side, 5 + cells)
        close(subject.read(wide).hidden[0][wide.valid[0]], expected)
    block = pad(rows(5, 17, 1), PAD, side)
    close(subject.read(block).hidden[0][block.valid[0]], expected)


@every_way
def test_later_tokens_leave_earlier_ones_alone(slot: str, name: str) -> None:
    """To the bit in a causal stack; in an encoder every state notices."""
    block = pad(rows(11), PAD)
    other = Tokens(block.ids.clone(), block.valid, block.at, block.full)
    other.ids[0, 6] = other.ids[0, 6] % (VOCAB - 1) + 1
    subject = decoder(slot, name)
    assert torch.equal(read(subject, block)[0, :6], read(subject, other)[0, :6])
    assert (read(subject, block)[0, 6:] != read(subject, other)[0, 6:]).any(-1).all()
    encoder = model("encoder_only", slot, name)
    assert (encoder.read(block).hidden != encoder.read(other).hidden).any(-1).all()


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("window", [1, 3, 11, 12])
def test_a_window_sees_exactly_as_many_keys_as_it_says(kernel: str, window: int) -> None:
    """One layer: state t depends on exactly the last min(t + 1, window) tokens, in one pass and step by step; padding
    before the row takes no place in a window."""
    subject = _one_layer(window, kernel)
    ids = rows(11)[0]
    base = subject.read(pad([ids], PAD)).hidden[0]
    for change in range(11):
        touched = ids.clone()
        touched[change] = touched[change] % (VOCAB - 1) + 1
        state = subject.start(1, 1, 11)
        stepped = torch.cat([subject.extend(touched[None, step : step + 1], state) for step in range(11)], 1)[0]
        for hidden in (
            subject.read(pad([touched], PAD)).hidden[0],
            subject.read(pad([touched], PAD, "left", 19)).hidden[0, 8:],
            stepped,
        ):
            differs = (hidden - base).abs().amax(-1) > 1e-9
            expected = torch.tensor([t - window < change <= t for t in range(11)])
            assert torch.equal(differs, expected)


@cache
def _one_layer(window: int, kernel: str) -> DecoderOnly:
    whole = decoder(window=window)
    subject = cast(DecoderOnly, _copy_of(whole))
    subject.decoder.blocks = subject.decoder.blocks[:1]
    attention: Any = subject.decoder.blocks[0].self_attention
    attention.kernel = kernel
    return subject


def _copy_of(subject: Model) -> Model:
    from copy import deepcopy

    return deepcopy(subject)


def test_layers_differ_as_the_pattern_says() -> None:
    """Local, local, global over five layers; the other families' stacks take the same pattern."""
    given = {
        "family": "decoder_only", "d_model": 12, "d_ff": 11, "num_heads": 2, "head_dim": None, "v_head_dim": None,
        "encoder": None, "decoder": {"layers": 5}, "tie": "output",
        "embedding": {"scale": False, "norm": False, "types": 0}, "pooler": False,
        "pattern": [{"attention": {"window": 3}}, {"feedforward": option("feedforward", "relu")}, {}],
        "max_length": 37, "init": "glorot",
        "dropout": {"embedding": 0.0, "residual": 0.0, "attention": 0.0, "feedforward": 0.0},
        "position": option("position", "none"), "norm": option("norm", "rmsnorm"),
        "residual": option("residual", "pre"), "attention": option("attention", "gqa"),
        "feedforward": option("feedforward", "swiglu"), "head": option("head", "linear"),
    }  # fmt: skip
    built = cast(DecoderOnly, build_model(given, VOCAB))
    blocks: Any = built.decoder.blocks
    assert [block.self_attention.window for block in blocks] == [3, None, None, 3, None]
    assert [type(block.feedforward).__name__ for block in blocks] == ["Gated", "Dense", "Gated", "Gated", "Dense"]


def test_types_of_segments_are_added() -> None:
    subject = cast(EncoderOnly, model("encoder_only"))
    block = pad(rows(5), PAD)
    second = torch.tensor([[0, 0, 1, 2, 2]])
    typed = Tokens(block.ids, block.valid, block.at, block.full, types=second)
    table = subject.embedding.types
    assert table is not None
    expected = subject.embedding.weight[block.ids] * 13**0.5 + table.weight[second]
    close(subject.embedding(block.ids, second), expected)
    assert (subject.read(typed).hidden != subject.read(block).hidden).any()


def test_the_pooler_reads_the_first_cell() -> None:
    subject = cast(EncoderOnly, model("encoder_only"))
    assert subject.pooler is not None
    hidden = subject.read(pad(rows(5, 7), PAD)).hidden
    close(subject.pool(hidden), torch.tanh(hidden[:, 0] @ subject.pooler.weight.T + subject.pooler.bias))


def test_an_encoder_decoder_reads_with_its_encoder() -> None:
    subject = cast(EncoderDecoder, model("encoder_decoder"))
    block = pad(rows(5, 7), PAD)
    close(subject.read(block).hidden, subject.encode(block).hidden)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_fully_masked_rows_and_garbage_in_padded_cells_stay_finite(family: str) -> None:
    """A row of padding alone beside a real one: finite states and gradients, the real row unchanged."""
    subject = model(family)
    block = pad([rows(5)[0], torch.empty(0, dtype=torch.int64)], PAD)
    expected = subject.read(pad(rows(5), PAD)).hidden[0]
    hidden = subject.read(block).hidden
    close(hidden[0], expected)
    hidden.square().sum().backward()
    assert hidden.isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in subject.parameters())
    subject.zero_grad()


def test_a_batch_of_one_input_goes_where_it_should() -> None:
    for family in ("decoder_only", "encoder_only"):
        block = pad(rows(5, 7), PAD)
        batch = Batch(None, block, block.ids, block.valid, 12, torch.arange(2))
        close(model(family)(batch).hidden, model(family).read(block).hidden)
