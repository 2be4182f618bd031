from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from transformer_kit.batch import Batch, Side, Specials, translation_batch
from transformer_kit.errors import ConfigError
from transformer_kit.models.base import ModelOutput
from transformer_kit.models.encoder_decoder import EncoderDecoder
from transformer_kit.models.heads import LinearHead
from transformer_kit.models.stack import Stack
from transformer_kit.nn.attention import MultiHeadAttention
from transformer_kit.nn.block import Block
from transformer_kit.nn.cross_entropy import SPREADS, Spread, smoothed_target
from transformer_kit.nn.embedding import TokenEmbedding
from transformer_kit.nn.feedforward.dense import Dense
from transformer_kit.nn.norm.layernorm import LayerNorm
from transformer_kit.nn.position.sinusoidal import Sinusoidal
from transformer_kit.nn.residual.post import PostNorm
from transformer_kit.objectives.base import Sums
from transformer_kit.objectives.translation import Translation

SOURCE, TARGET, WIDTH = 17, 13, 7
LENGTHS = (11, 101)
SPECIALS = Specials(pad=0, bos=2, eos=3, unk=1, mask=None, sentinels=(), vocab_size=TARGET, start=2)


def stack(causal: bool) -> Stack:
    def attention() -> MultiHeadAttention:
        return MultiHeadAttention(WIDTH, 3, 2, 5, 0.0, None, True, True, None, None, "auto")

    blocks = [
        Block(
            attention(),
            attention() if causal else None,
            Dense(WIDTH, 11, 0.0, "relu", True),
            lambda: PostNorm(lambda: LayerNorm(WIDTH, 1e-6, True), 0.0),
        )
    ]
    return Stack(Sinusoidal(WIDTH, 1e4, "interleaved"), blocks, None, 0.0, causal)


@pytest.fixture
def model() -> EncoderDecoder:
    torch.manual_seed(1)
    embeddings = TokenEmbedding(SOURCE, WIDTH, True), TokenEmbedding(TARGET, WIDTH, True)
    return EncoderDecoder(stack(False), stack(True), *embeddings, LinearHead(WIDTH, TARGET, None, True, False)).double()


def rows(lengths: tuple[int, ...], size: int) -> list[Tensor]:
    """Rows of ids, the same whatever they are batched with; the padding id, 0, occurs as a real token too."""
    return [torch.randint(0, size, (length,), generator=torch.Generator().manual_seed(length)) for length in lengths]


def batch(lengths: tuple[int, ...], side: Side = "right") -> Batch:
    sources, targets = rows(tuple(length + 2 for length in lengths), SOURCE), rows(lengths, TARGET)
    return translation_batch(sources, targets, range(len(lengths)), pad_id=0, bos_id=2, eos_id=3, side=side)


def objective(spread: Spread = "all", chunk: int = 8) -> Translation:
    return Translation(SPECIALS, 0.1, spread, chunk, 0.0)


def gradients(model: nn.Module, sums: list[Sums]) -> list[Tensor]:
    """The gradients of the mean over all counted labels, accumulated over batches as a loop does."""
    model.zero_grad()
    total = sum(one.count for one in sums)
    for one in sums:
        (one.loss / total).backward()
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


def longer(given: Batch, cells: int) -> Batch:
    """The same batch with more padding on the right."""

    def pad(x: Tensor) -> Tensor:
        return nn.functional.pad(x, (0, cells))

    def pad_tokens(tokens):  # type: ignore[no-untyped-def]  # takes Tokens, gives Tokens
        return type(tokens)(pad(tokens.ids), pad(tokens.valid), pad(tokens.at), full=False)

    assert given.source is not None
    return Batch(
        pad_tokens(given.source),
        pad_tokens(given.target),
        pad(given.labels),
        pad(given.counted),
        given.num_labels,
        given.sample_ids,
    )


@pytest.mark.parametrize("spread", SPREADS)
def test_loss_is_the_formula(model: EncoderDecoder, spread: Spread) -> None:
    """Token by token, from the logits of each sentence by itself."""
    loss = nll = 0.0
    correct = 0
    target = smoothed_target(TARGET, 0.1, spread, 0)
    for length in LENGTHS:
        one = batch((length,))
        log_probs = model.logits(model(one).hidden)[0].log_softmax(dim=-1)
        for place, label in enumerate(one.labels[0].tolist()):
            q = torch.full((TARGET,), target.rest, dtype=torch.float64)
            if spread == "others_but_pad":
                q[0] = 0.0
            q[label] += target.gold
            loss -= (q @ log_probs[place]).item()
            nll -= log_probs[place, label].item()
            correct += int(log_probs[place].argmax()) == label
    sums = objective(spread)(model, batch(LENGTHS))
    assert sums.count == sum(LENGTHS) + 2
    assert sums.loss.item() == pytest.approx(loss, rel=1e-10)
    assert sums.metrics["nll"].item() == pytest.approx(nll, rel=1e-10)
    assert sums.metrics["correct"].item() == correct
    assert set(sums.metrics) == {"nll", "correct"}


@pytest.mark.parametrize("side", ["right", "left"])
def test_accumulation_1_by_2_is_batch_2_by_1(model: EncoderDecoder, side: Side) -> None:
    one_by_one = [objective()(model, batch((length,), side)) for length in LENGTHS]
    expected = gradients(model, one_by_one)
    together = objective()(model, batch(LENGTHS, side))
    torch.testing.assert_close(together.loss, one_by_one[0].loss + one_by_one[1].loss)
    torch.testing.assert_close(gradients(model, [together]), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("spread", SPREADS)
def test_50_more_cells_of_padding_change_nothing(model: EncoderDecoder, spread: Spread) -> None:
    short = objective(spread)(model, batch(LENGTHS))
    expected = gradients(model, [short])
    padded = objective(spread)(model, longer(batch(LENGTHS), 50))
    assert padded.count == short.count
    torch.testing.assert_close(padded.loss, short.loss, rtol=1e-12, atol=0)
    torch.testing.assert_close(padded.metrics, short.metrics, rtol=1e-12, atol=0)
    torch.testing.assert_close(gradients(model, [padded]), expected, rtol=1e-9, atol=1e-12)


def test_chunks_change_nothing(model: EncoderDecoder) -> None:
    whole, pieces = objective(chunk=1000)(model, batch(LENGTHS)), objective(chunk=7)(model, batch(LENGTHS))
    torch.testing.assert_close(whole.loss, pieces.loss)
    torch.testing.assert_close(gradients(model, [whole]), gradients(model, [pieces]), rtol=1e-9, atol=1e-12)


def test_only_counted_cells_are_projected() -> None:
    """Hidden states of other cells may be anything, and their labels no type at all."""

    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            hidden = torch.randn(2, 5, WIDTH, dtype=torch.float64)
            hidden[1, 3:] = math.nan
            self.hidden = nn.Parameter(hidden)
            self.weight = torch.randn(TARGET, WIDTH, dtype=torch.float64)

        def forward(self, batch: Batch) -> ModelOutput:
            return ModelOutput(self.hidden)

        def prepare(self, hidden: Tensor) -> Tensor:
            return hidden

        def output(self) -> tuple[Tensor, None]:
            return self.weight, None

    model, given = Fixed(), batch((4, 2))
    given.labels[1, 3:] = -100
    sums = objective()(model, given)
    sums.loss.backward()
    assert sums.loss.isfinite()
    assert model.hidden.grad is not None
    assert model.hidden.grad.isfinite().all()
    assert (model.hidden.grad[1, 3:] == 0).all()
    assert (model.hidden.grad[given.counted] != 0).all()


def test_every_wrong_option_is_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        Translation(SPECIALS, 1.0, "some", 0, 0.0)  # type: ignore[arg-type]  # wrong on purpose
    assert [line.split("=")[0] for line in caught.value.problems] == [
        "objective.label_smoothing",
        "objective.smoothing_over",
        "objective.chunk",
    ]


def noisy(model: EncoderDecoder, rate: float) -> EncoderDecoder:
    """The same model with dropout behind its layers."""
    for module in model.modules():
        if isinstance(module, PostNorm):
            module.dropout = rate
    return model


def test_rdrop_is_two_passes_under_different_dropout(model: EncoderDecoder) -> None:
    """By the paper's formula over the passes of a batch whose rows stand there twice; half of it, per real token."""
    model, given = noisy(model, 0.3).train(), batch(LENGTHS)
    twice = given.repeated(2)
    assert (twice.num_labels, twice.target.shape[0]) == (2 * given.num_labels, 4)
    torch.manual_seed(5)
    logs = model.logits(model(twice).hidden).log_softmax(-1)
    one, two = logs[:2][given.counted], logs[2:][given.counted]
    target = smoothed_target(TARGET, 0.1, "all", 0)
    expected = torch.zeros((), dtype=torch.float64)
    nll = 0.0
    for log, other in ((one, two), (two, one)):
        gold = log.gather(1, given.labels[given.counted][:, None])
        nll -= gold.sum().item() / 2
        expected -= (target.gold * gold.sum() + target.rest * log.sum()) / 2
        expected += 5.0 / 2 * (log.exp() * (log - other)).sum() / 2
    torch.manual_seed(5)
    sums = Translation(SPECIALS, 0.1, "all", 8, 5.0).train()(model, given)
    assert sums.count == given.num_labels
    assert sums.loss.item() == pytest.approx(expected.item(), rel=1e-10)
    assert sums.metrics["nll"].item() == pytest.approx(nll, rel=1e-10), "without smoothing"
    assert not torch.allclose(one, two)
    ours = torch.autograd.grad(sums.loss, list(model.parameters()))
    theirs = torch.autograd.grad(expected, list(model.parameters()))
    assert all(torch.allclose(a, b, rtol=1e-8, atol=1e-10) for a, b in zip(ours, theirs, strict=True))


def test_rdrop_is_a_single_pass_in_evaluation_and_where_it_is_off(model: EncoderDecoder) -> None:
    given = batch(LENGTHS)
    plain = objective()(model, given).loss.item()
    assert Translation(SPECIALS, 0.1, "all", 8, 5.0).eval()(model, given).loss.item() == plain
    assert objective().train()(model, given).loss.item() == plain
    for alpha in (-1.0, float("inf"), float("nan")):
        with pytest.raises(ConfigError, match=rf"objective\.rdrop={alpha}: must be at least 0 and finite"):
            Translation(SPECIALS, 0.1, "all", 8, alpha)
