from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from generation_toys import PIECES, Pieces, tiny_decoder, tiny_encoder
from toys import BOS, EOS, PAD, options

from transformer_kit.batch import Specials, pad
from transformer_kit.data.ragged import Ragged
from transformer_kit.decoding.reading import Embedder, Frame, LineClassifier, Verdict
from transformer_kit.errors import ConfigError, RunError
from transformer_kit.models.classifier import Classifier
from transformer_kit.objectives.classification import Classification

FRAME = Frame((BOS,), (EOS,), PAD, 24)
SPECIALS = Specials(PAD, BOS, EOS, 1, 4, (), 5 + len(PIECES), BOS)
LABELS = ["bad", "good", "so-so"]


def random_lines(count: int, seed: int = 3) -> list[str]:
    rng = np.random.default_rng(seed)
    return ["".join(rng.choice(["a", "b", " ", "c", "é", "xy"], rng.integers(0, 15))) for _ in range(count)]


def embedder(pooling: str = "mean", *, normalize: bool = False, frame: Frame = FRAME, **changes: object) -> Embedder:
    return Embedder(tiny_encoder(), Pieces(), frame, pooling, normalize, options(**changes))


@pytest.mark.parametrize("pooling", ["mean", "first", "last"])
def test_vectors_are_pooled_over_real_cells(pooling: str) -> None:
    lines = random_lines(17)
    found = embedder(pooling).embed(lines)
    assert found.shape == (17, 22)
    assert found.dtype == np.float32
    model = tiny_encoder()
    for line, vector in zip(lines, found, strict=True):
        with torch.no_grad():
            states = model.read(pad([[BOS, *Pieces().encode([line])[0], EOS]], PAD)).hidden[0]
        expected = {"mean": states.mean(0), "first": states[0], "last": states[-1]}[pooling]
        np.testing.assert_allclose(vector, expected.numpy(), atol=2e-6)


def test_vectors_of_length_one() -> None:
    lines = random_lines(5)
    plain, normal = embedder().embed(lines), embedder(normalize=True).embed(lines)
    np.testing.assert_allclose(normal, plain / np.linalg.norm(plain, axis=1, keepdims=True), atol=1e-6)


def test_vectors_do_not_depend_on_batch_or_order() -> None:
    lines = random_lines(31)
    alone = embedder(batch_tokens=1).embed(lines)
    order = np.random.default_rng(2).permutation(31)
    for changes in ({"batch_tokens": 70}, {"batch_tokens": 5000, "chunk": 100}, {"chunk": 7}):
        np.testing.assert_allclose(embedder(**changes).embed([lines[i] for i in order]), alone[order], atol=2e-6)


@pytest.mark.parametrize("count", [0, 1, 10, 11, 12, 22])
def test_as_many_rows_as_lines(count: int) -> None:
    assert embedder(chunk=11).embed(random_lines(count)).shape == (count, 22)


def test_a_long_line_is_cut_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "transformer_kit"):
        found = embedder().embed(["b", "a" * 50, "a" * 22])
    np.testing.assert_allclose(found[1], found[2], atol=2e-6)
    (record,) = caplog.records
    assert "1 line(s) had more than 22 tokens" in record.getMessage()
    assert "first: line 2" in record.getMessage()


def test_a_line_without_a_token_gives_zeros() -> None:
    found = embedder(frame=Frame((), (), PAD, 24)).embed(["a", "", "b"])
    assert not found[1].any()
    assert found[0].any()


def test_a_prefix_is_seen_in_both_directions() -> None:
    lines = ["ab c", "x"]
    frame = Frame((), (EOS,), PAD, 24, prefix=True)
    found = Embedder(tiny_decoder(), Pieces(), frame, "first", False, options()).embed(lines)
    causal = Embedder(tiny_decoder(), Pieces(), Frame((), (EOS,), PAD, 24), "first", False, options()).embed(lines)
    assert np.abs(found - causal).max() > 0.01


def test_bad_options_are_refused() -> None:
    with pytest.raises(ConfigError, match="pooling is 'max'"):
        embedder("max")
    with pytest.raises(ConfigError, match=r"decoding\.chunk is 0"):
        embedder(chunk=0)


def test_a_model_of_nans_is_named() -> None:
    subject = embedder()
    with torch.no_grad():
        subject.model.embedding.weight.fill_(float("nan"))
    with pytest.raises(RunError, match="not numbers"):
        subject.embed(["a"])


def classifier(*, pairs: bool = False, body=None, **changes: object) -> LineClassifier:
    objective = Classification(SPECIALS, None, False, 0.0, 0.0)
    torch.manual_seed(2)
    model = Classifier(tiny_encoder() if body is None else body, 3, "mean", False, 0.3)
    with torch.no_grad():
        model.classifier.weight.normal_()

    def fit(first: Ragged, second: Ragged | None) -> tuple[Ragged, Ragged | None]:
        return first.cut(20), None if second is None else second.cut(20)

    return LineClassifier(model, objective.tokens, fit, Pieces(), LABELS, pairs, options(**changes))


def test_a_verdict_is_the_softmax_of_the_classifier() -> None:
    lines = random_lines(13)
    subject = classifier()
    model = subject.model.eval()
    for line, verdict in zip(lines, subject.classify(lines), strict=True):
        if not line.strip():
            assert verdict is None
            continue
        with torch.no_grad():
            hidden = model.body.read(pad([[BOS, *Pieces().encode([line])[0], EOS]], PAD)).hidden[0]
            expected = model.classifier(hidden.mean(0)).softmax(0).tolist()
        assert verdict is not None
        assert list(verdict.probabilities) == LABELS
        assert list(verdict.probabilities.values()) == pytest.approx(expected, abs=2e-6)
        assert verdict.label == LABELS[int(np.argmax(expected))]
        assert verdict.probability == max(verdict.probabilities.values())


@pytest.mark.parametrize("pairs", [False, True])
def test_verdicts_do_not_depend_on_batch_or_order(pairs: bool) -> None:
    lines = [f"{a}\t{b}" if pairs else a for a, b in zip(random_lines(31), random_lines(31, 9), strict=True)]
    alone = classifier(pairs=pairs, batch_tokens=1).classify(lines)
    order = np.random.default_rng(2).permutation(31)
    for changes in ({"batch_tokens": 90}, {"batch_tokens": 5000, "chunk": 100}, {"chunk": 7}):
        mixed = classifier(pairs=pairs, **changes).classify([lines[i] for i in order])
        for place, index in enumerate(order):
            assert_close(mixed[place], alone[index])


def assert_close(one: Verdict | None, other: Verdict | None) -> None:
    if one is None or other is None:
        assert one == other
        return
    assert one.label == other.label
    assert one.probabilities == pytest.approx(other.probabilities, abs=2e-6)


def test_pairs_are_two_texts_and_a_missing_tab_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "transformer_kit"):
        joined, apart, single, none = classifier(pairs=True).classify(["abc", "ab\tc", "ab", ""])
    assert none is None
    assert joined is not None
    assert apart is not None
    assert single is not None
    assert joined.probabilities != apart.probabilities
    assert "2 line(s) hold no tab between two texts" in caplog.text
    plain = classifier().classify(["ab"])[0]
    assert plain is not None
    assert plain.probabilities != single.probabilities  # the empty second text has an EOS of its own


def test_a_decoder_classifies_too() -> None:
    lines = random_lines(7)
    assert sum(verdict is not None for verdict in classifier(body=tiny_decoder()).classify(lines)) > 4


def test_a_long_text_is_cut_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "transformer_kit"):
        found = classifier(chunk=2).classify(["b", "", "a" * 20, "a" * 50, "a" * 21])
    (record,) = caplog.records
    assert "2 line(s) had more tokens than the model was trained to read" in record.getMessage()
    assert "(first: line 4)" in record.getMessage()
    assert found[2] is not None
    assert found[3] is not None
    assert found[3].probability == pytest.approx(found[2].probability, abs=1e-6)
