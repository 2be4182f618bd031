from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from toys import Letters, Pair, options, tiny_model

from transformer_kit.decoding.translator import EMPTY, Translator, is_blank, token_batches
from transformer_kit.errors import ConfigError, RunError

BLANK = ["", " ", "\t", "\u00a0", "\u3000", "\u200b", "\ufeff", " \u200b\u2060\t", "\x00", "\u2028", "\r"]


def translator(positions: int = 64, **changes) -> Translator:
    return Translator(tiny_model(), Pair(), options(**changes), positions)


def random_lines(count: int) -> list[str]:
    rng = np.random.default_rng(11)
    return ["".join(chr(rng.integers(97, 123)) for _ in range(rng.integers(1, 17))) for _ in range(count)]


@pytest.mark.parametrize("beam", [1, 4])
def test_results_do_not_depend_on_batch_neighbours_or_order(beam: int) -> None:
    lines = random_lines(41)
    alone = translator(beam=beam, batch_tokens=1).translate_n_best(lines)
    assert len({candidates[0].length for candidates in alone}) > 5
    order = np.random.default_rng(2).permutation(len(lines))
    for changes in ({"batch_tokens": 7 * 17 * beam}, {"batch_tokens": 64 * 17 * beam, "chunk": 1000}, {"chunk": 7}):
        shuffled = translator(beam=beam, **changes).translate_n_best([lines[i] for i in order])
        for place, index in enumerate(order):
            assert shuffled[place][0].text == alone[index][0].text
            assert shuffled[place][0].score == pytest.approx(alone[index][0].score, rel=1e-5)


@pytest.mark.parametrize("count", [0, 1, 10, 11, 12, 21, 22, 23])
def test_every_line_gives_one_result_around_chunk_borders(count: int) -> None:
    lines = random_lines(count)
    short = {"beam": 1, "max_length": 4}
    assert translator(chunk=11, **short).translate(lines) == translator(batch_tokens=40, **short).translate(lines)


def test_lines_without_content_give_empty_lines() -> None:
    lines = ["abc", *BLANK, "abc"]
    results = translator().translate_n_best(lines)
    assert [candidates == [EMPTY] for candidates in results] == [False, *[True] * len(BLANK), False]
    assert results[0] == results[-1]
    assert translator().translate(BLANK) == [""] * len(BLANK)
    assert all(map(is_blank, BLANK))
    assert not is_blank("\u00adx")


def test_a_line_that_encodes_to_nothing_gives_an_empty_line() -> None:
    pair = Pair()
    pair.source.encode = lambda lines: [[] if line == "gone" else [5] for line in lines]
    assert Translator(tiny_model(), pair, options(), 64).translate_n_best(["gone", "a"])[0] == [EMPTY]


def test_an_overlong_line_is_cut_and_counted_and_its_neighbours_stay(caplog: pytest.LogCaptureFixture) -> None:
    short = random_lines(13)
    lines = [*short[:12], "a" * 500, short[12], "b" * 29]
    with caplog.at_level(logging.WARNING, "transformer_kit"):
        results = translator(positions=29, chunk=5).translate(lines)
    (record,) = caplog.records
    assert record.getMessage() == (
        "2 line(s) had more than 28 pieces, the model's limit, and were cut to that (first: line 13)"
    )
    plain = translator(positions=29).translate([*short, "a" * 28, "b" * 28])
    assert [*results[:12], results[13], results[12], results[14]] == plain


def test_a_translation_never_outgrows_the_model() -> None:
    subject = Translator(tiny_model(eos_bias=-90.0), Pair(), options(max_extra=50), 19)
    assert [candidates[0].length for candidates in subject.translate_n_best(["abc", "a" * 18])] == [19, 19]


def test_n_best_and_scores() -> None:
    for candidates in translator(beam=5, n_best=4).translate_n_best(random_lines(7)):
        assert len(candidates) == 4
        assert [c.score for c in candidates] == sorted((c.score for c in candidates), reverse=True)


def test_a_stream_is_read_one_chunk_ahead_and_no_further() -> None:
    taken = []

    def lines():
        for line in random_lines(30):
            taken.append(line)
            yield line

    stream = translator(beam=1, chunk=7).translate_stream(lines())
    next(stream)
    assert len(taken) == 7


def test_the_model_evaluates_and_returns_to_training_mode() -> None:
    subject = translator()
    subject.model.train()
    seen = []
    subject.model.encoder.register_forward_pre_hook(lambda module, _: seen.append(module.training))
    subject.translate(["abc"])
    assert seen == [False]
    assert subject.model.training


def test_a_model_of_nans_is_named() -> None:
    subject = translator()
    with torch.no_grad():
        subject.model.head.bias.fill_(float("nan"))
    with pytest.raises(RunError, match="not numbers"):
        subject.translate(["abc"])


def test_bad_options_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"decoding\.beam is 0"):
        translator(beam=0)


def test_a_line_feed_in_a_translation_becomes_a_space() -> None:
    pair = Pair()
    pair.target.decode = lambda rows, *, detokenize: ["a\nb" for _ in rows]
    assert Translator(tiny_model(), pair, options(), 64).translate(["x"]) == ["a b"]


def test_detokenize_reaches_the_tokenizer() -> None:
    seen = []

    class Watching(Letters):
        def decode(self, rows, *, detokenize):
            seen.append(detokenize)
            return super().decode(rows, detokenize=detokenize)

    pair = Pair()
    pair.target = Watching(37)
    for flag in (True, False):
        Translator(tiny_model(), pair, options(detokenize=flag), 64).translate(["x"])
    assert seen == [True, False]


def test_token_batches_keep_the_budget() -> None:
    lengths = {i: int(n) for i, n in enumerate(np.random.default_rng(1).integers(1, 30, 97))} | {97: 500}
    batches = token_batches(lengths, 60)
    assert sorted(i for batch in batches for i in batch) == sorted(lengths)
    assert batches[0] == [97]
    assert all(len(batch) * max(lengths[i] for i in batch) <= 60 for batch in batches[1:])
