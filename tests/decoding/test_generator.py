from __future__ import annotations

import io
import json
import logging
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from generation_toys import MARKS, PIECES, Pieces, generation, generator, tiny_decoder
from toys import BOS, EOS, PAD, SPECIAL, Pair, options, tiny_model

from transformer_kit.batch import pad
from transformer_kit.decoding.generator import EMPTY, Generation, Generator
from transformer_kit.decoding.prompts import Marks, SourceReader
from transformer_kit.decoding.sampling import next_tokens, penalise
from transformer_kit.decoding.translator import Translator
from transformer_kit.errors import ConfigError, RunError
from transformer_kit.tasks.generate import answer_prompts, escaped, formatted, generate_pipe, split_words, unescaped

BARRED = sorted(MARKS.barred - MARKS.ends)


def random_prompts(count: int, longest: int = 19, seed: int = 3) -> list[str]:
    rng = np.random.default_rng(seed)
    letters = ["a", "b", " ", "c", "é", "€", "x", "y z", "ab"]
    return ["".join(rng.choice(letters, rng.integers(0, longest))) for _ in range(count)]


def plain(prompt: str, **changes: object) -> tuple[list[int], str]:
    """Without cache, batch or padding: the ids of a continuation, its end token too, and why it ended."""
    model, chosen = tiny_decoder(), generation(**changes)
    ids = [BOS, *Pieces().encode([prompt])[0]]
    new: list[int] = []
    while len(new) < chosen.max_new_tokens:
        with torch.no_grad():
            logits = model.logits(model.read(pad([ids + new], PAD)).hidden[:, -1])
        seen = torch.zeros_like(logits, dtype=torch.bool)
        seen[0, ids + new] = True
        logits = penalise(logits, seen, chosen.repetition_penalty)
        logits[:, BARRED] = -torch.inf
        if len(new) < chosen.min_new_tokens:
            logits[:, EOS] = -torch.inf
        new.append(int(logits.argmax(1)))
        if new[-1] == EOS:
            return new, "eos"
    return new, "length"


@pytest.mark.parametrize(
    "changes", [{}, {"repetition_penalty": 1.4}, {"min_new_tokens": 6}, {"max_new_tokens": 3}], ids=str
)
def test_greedy_is_the_argmax_loop_without_a_cache(changes: dict[str, object]) -> None:
    prompts = random_prompts(23)
    found = generator(temperature=0.0, **changes).generate(prompts)
    finishes = Counter()
    for prompt, (one,) in zip(prompts, found, strict=True):
        ids, finish = plain(prompt, **changes)
        words = [i for i in ids if i != EOS]
        whole, before = Pieces().decode([[*Pieces().encode([prompt])[0], *words], Pieces().encode([prompt])[0]])
        assert one == Generation(whole[len(before) :], len(ids), finish)
        finishes[finish] += 1
    assert len(finishes) == 2 or changes.get("max_new_tokens") == 3


def test_the_first_token_of_a_sample_is_the_one_its_generator_draws() -> None:
    """Seed, line and sample make the number; the number makes the token."""
    model, chosen = tiny_decoder(), generation(max_new_tokens=1, num_samples=3, seed=7)
    found = generator(max_new_tokens=1, num_samples=3, seed=7).generate(["ab", "c"])
    for line, prompt in enumerate(["ab", "c"]):
        with torch.no_grad():
            ids = [BOS, *Pieces().encode([prompt])[0]]
            logits = model.logits(model.read(pad([ids], PAD)).hidden[:, -1])
        logits[:, BARRED] = -torch.inf
        for sample in range(3):
            number = np.random.default_rng(np.random.SeedSequence(7, spawn_key=(line, sample))).random()
            token = int(next_tokens(logits, chosen, torch.tensor([number], dtype=torch.float64)))
            expected = "" if token == EOS else Pieces().decode([[token]])[0]
            assert found[line][sample].text == expected


def test_samples_follow_the_model() -> None:
    """Frequencies of the first token over 3,000 lines, within 5 standard deviations of its probabilities."""
    count = 3000
    found = generator(max_new_tokens=1, batch_tokens=3000, chunk=3000).generate(["ab c"] * count)
    model = tiny_decoder()
    with torch.no_grad():
        logits = model.logits(model.read(pad([[BOS, *Pieces().encode(["ab c"])[0]]], PAD)).hidden[:, -1])[0].double()
    logits[BARRED] = -torch.inf
    seen = Counter(one.text if one.finish != "eos" else None for (one,) in found)
    for token, probability in enumerate(logits.softmax(0).tolist()):
        text = None if token == EOS else Pieces().decode([[token]])[0]
        if PIECES[token - 5][:1].isascii() or token == EOS:
            bound = 5 * (probability * (1 - probability) / count) ** 0.5 + 1e-12
            assert abs(seen[text] / count - probability) <= bound or text == "", (
                token,
                seen[text] / count,
                probability,
            )


@pytest.mark.parametrize("changes", [{}, {"top_k": 7, "top_p": 0.8}, {"temperature": 0.0}, {"repetition_penalty": 1.2}])
def test_results_do_not_depend_on_batch_or_neighbours(changes: dict[str, object]) -> None:
    prompts = random_prompts(13)
    alone = generator(batch_tokens=1, num_samples=2, max_new_tokens=9, **changes).generate(prompts)
    assert len({one for found in alone for one in found}) > 5
    for size in ({"batch_tokens": 150}, {"batch_tokens": 10_000, "chunk": 100}, {"chunk": 3}):
        assert generator(num_samples=2, max_new_tokens=9, **size, **changes).generate(prompts) == alone
    # other neighbours, the same line number
    others = random_prompts(13, seed=8)
    mixed = [prompt if line % 3 else others[line] for line, prompt in enumerate(prompts)]
    found = generator(num_samples=2, max_new_tokens=9, **changes).generate(mixed)
    assert all(found[line] == alone[line] for line in range(13) if line % 3)


def test_lines_and_samples_and_seeds_draw_their_own() -> None:
    found = generator(num_samples=2).generate(["ab"] * 5)
    assert len({one for line in found for one in line}) > 5
    assert generator(num_samples=2).generate(["ab"] * 5) == found
    assert generator(num_samples=2, seed=2).generate(["ab"] * 5) != found
    assert [line[0] for line in found] == [line[0] for line in generator().generate(["ab"] * 5)]


def test_greedy_limits_of_sampling() -> None:
    prompts = random_prompts(9)
    greedy = generator(temperature=0.0).generate(prompts)
    for changes in ({"temperature": 1e-6}, {"top_k": 1}, {"top_p": 0.0}, {"top_p": 1e-8}):
        assert generator(**changes).generate(prompts) == greedy


def test_special_tokens_are_never_emitted() -> None:
    model = tiny_decoder()
    with torch.no_grad():
        model.head.bias[BARRED] = 50.0
    (one,) = generator(model, temperature=3.0, max_new_tokens=40).generate(["ab"])[0]
    assert one.tokens > 0
    for changes in ({"temperature": 0.0}, {"temperature": 5.0}):
        subject = generator(model, max_new_tokens=40, **changes)
        rows = [row for row in subject._rows(["ab", "c"], 0, _problems()) if row is not None]
        for _ in subject._decode(rows):
            pass
        assert not {PAD, BOS, EOS, 4} & {token for row in rows for token in row.ids}


def _problems():
    from transformer_kit.decoding.generator import _Problems

    return _Problems()


def test_bos_ends_a_text_where_it_begins_the_next() -> None:
    model = tiny_decoder(eos_bias=40.0)
    with torch.no_grad():
        model.head.bias[BOS] = 50.0
    marks = replace(MARKS, ends=frozenset({BOS}))
    assert generator(model, marks=marks).generate(["ab"])[0] == [Generation("", 1, "eos")]


def test_a_stop_string_ends_a_text_across_token_borders() -> None:
    prompts = random_prompts(40, seed=9)
    whole = generator(max_new_tokens=30).generate(prompts)
    # the two characters around the border of two tokens of the first long text
    long = next(one.text for (one,) in whole if len(one.text) > 12 and one.text.isascii())
    stop = long[4:7]
    found = generator(max_new_tokens=30, stop=[stop, "\x00never"]).generate(prompts)
    stopped = 0
    for (before,), (after,) in zip(whole, found, strict=True):
        at = before.text.find(stop)
        if at < 0:
            assert after == before
        else:
            stopped += 1
            assert (after.text, after.finish) == (before.text[:at], "stop")
            assert after.tokens <= before.tokens
    assert stopped


@pytest.mark.parametrize("stops", [[], ["END"], ["a", "é"], ["c c", "\n"]], ids=str)
def test_a_stream_is_the_text_and_never_breaks_a_character(stops: list[str]) -> None:
    for seed in range(7):
        subject = generator(max_new_tokens=40, seed=seed, stop=stops)
        pieces = list(subject.stream("ab"))
        ((whole,),) = subject.generate(["ab"])
        assert "".join(pieces) == whole.text
        assert all(pieces)
        if not stops:  # a stop string that may have begun holds back what is behind a replacement
            assert not any(piece.endswith("\ufffd") for piece in pieces[:-1])


def test_a_stream_comes_token_by_token() -> None:
    model = tiny_decoder(eos_bias=-50.0)
    stream = generator(model, temperature=0.0, max_new_tokens=30).stream("ab")
    calls: list[int] = []
    model.decoder.register_forward_pre_hook(lambda *_: calls.append(1))
    next(stream)
    assert len(calls) < 8
    stream.close()


def test_prompt_and_text_together_are_the_whole() -> None:
    class Words:
        """Decoding drops the space in front of the first word, as SentencePiece does."""

        def encode(self, lines: list[str]) -> list[list[int]]:
            return [[5 + ord(c) % 30 for c in line] for line in lines]

        def decode(self, rows: list[list[int]], *, detokenize: bool) -> list[str]:
            return ["".join(f" w{i}" for i in row if i > 4).removeprefix(" ") for row in rows]

    subject = generator(temperature=0.0)
    subject.encoder = subject.decoder = Words()
    assert subject.generate(["ab"])[0][0].text.startswith(" w")
    assert subject.generate([""])[0][0].text.startswith("w")


def test_the_context_ends_a_text(caplog: pytest.LogCaptureFixture) -> None:
    model = tiny_decoder(eos_bias=-50.0)
    subject = generator(model, positions=9, max_new_tokens=30)
    with caplog.at_level(logging.WARNING, "transformer_kit"):
        found = subject.generate(["", "a", "aaaaaaa", "aaaaaaaa", "a" * 30, "x"])
    assert [one.tokens for (one,) in found] == [8, 7, 1, 0, 0, 7]
    assert {one.finish for (one,) in found} == {"length"}
    (record,) = caplog.records
    assert record.getMessage() == (
        "2 prompt(s) fill the 9 tokens that the model holds: no room is left (first: line 4)"
    )
    assert list(subject.stream("a" * 30)) == []


def test_an_empty_prompt_needs_a_bos(caplog: pytest.LogCaptureFixture) -> None:
    assert generator().generate([""])[0][0].tokens > 0
    with caplog.at_level(logging.WARNING, "transformer_kit"):
        found = generator(marks=replace(MARKS, before=())).generate(["a", "", "b"])
    assert found[1] == [EMPTY]
    assert found[0][0].tokens
    assert "1 prompt(s) are empty, and this model knows no token that begins a text (first: line 2)" in caplog.text


def source_generator(**changes: object) -> Generator:
    model, chosen = tiny_model(eos_bias=5.0), generation(**changes)
    reader = SourceReader(model, PAD, BOS, "fp32", torch.device("cpu"))
    marks = Marks(PAD, (), (EOS,), frozenset({EOS}), frozenset({PAD, BOS, EOS}))
    pair = Pair()
    return Generator(model, reader, pair.source, pair.target, marks, chosen, 64)


def test_greedy_with_an_encoder_decoder_is_a_beam_of_one() -> None:
    rng = np.random.default_rng(4)
    lines = ["".join(chr(rng.integers(97, 123)) for _ in range(rng.integers(1, 17))) for _ in range(31)]
    lines += ["", " ", "a" * 90]
    translated = Translator(tiny_model(eos_bias=5.0), Pair(), options(beam=1, max_extra=60, kind="none"), 64).translate(
        lines
    )
    found = source_generator(temperature=0.0, max_new_tokens=64, batch_tokens=900).generate(lines)
    for (one,), text in zip(found, translated, strict=True):
        # at its limit a translation ends in a forced EOS, a continuation in one token more
        assert one.text[: len(text)] == text if one.finish == "length" else one.text == text
    assert sum(one.finish == "eos" for (one,) in found) > 15
    assert found[-2] == found[-3] == [EMPTY]
    assert SPECIAL["eos_id"] == EOS


def test_an_encoder_decoder_samples_by_line(caplog: pytest.LogCaptureFixture) -> None:
    lines = ["abc", "abc", "defgh", "a" * 90]
    with caplog.at_level(logging.WARNING, "transformer_kit"):
        alone = source_generator(batch_tokens=1, num_samples=3).generate(lines)
    assert "1 prompt(s) had more tokens than the model's 64 and were cut to that (first: line 4)" in caplog.text
    assert source_generator(batch_tokens=900, num_samples=3).generate(lines) == alone
    assert len({one for found in alone[:2] for one in found}) > 3


def test_the_model_evaluates_and_returns_to_training_mode() -> None:
    model = tiny_decoder().train()
    seen = []
    model.decoder.register_forward_pre_hook(lambda module, _: seen.append(module.training))
    generator(model).generate(["ab"])
    assert seen
    assert not any(seen)
    assert model.training
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()


def test_a_model_of_nans_is_named() -> None:
    model = tiny_decoder()
    with torch.no_grad():
        model.head.bias.fill_(float("nan"))
    with pytest.raises(RunError, match="not numbers"):
        generator(model).generate(["a"])


def test_bad_options_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"generation\.top_p is 2"):
        generator(top_p=2)


def through(data: bytes, *, as_json: bool = False, escapes: bool = False, **changes: object) -> list[bytes]:
    sink = io.BytesIO()
    generate_pipe(io.BytesIO(data), sink, generator(**changes), as_json=as_json, escapes=escapes)
    assert sink.getvalue().endswith(b"\n") or not sink.getvalue()
    return sink.getvalue().split(b"\n")[:-1]


@pytest.mark.parametrize("count", [0, 1, 10, 11, 12, 22, 23])
def test_as_many_lines_out_as_in(count: int) -> None:
    data = b"".join(f"{prompt}\n".encode() for prompt in random_prompts(count))
    found = through(data, temperature=2.0)
    assert len(found) == count
    expected = generator(temperature=2.0).generate(random_prompts(count))
    assert found == [escaped(one.text).encode() for (one,) in expected]


def test_json_lines_and_numbers() -> None:
    ((one, other),) = generator(num_samples=2).generate(["a\tb"])
    rows = [json.loads(line) for line in through(b"a\tb\n", as_json=True, num_samples=2)]
    assert rows == [
        {"line": 1, "sample": i, "prompt": "a\tb", "text": each.text, "tokens": each.tokens, "finish": each.finish}
        for i, each in enumerate((one, other), 1)
    ]
    (row,) = (json.loads(line) for line in through(b"a\tb\n", as_json=True))
    assert list(row) == ["prompt", "text", "tokens", "finish"]
    assert through(b"a\tb\n", num_samples=2) == [b"1\t" + escaped(each.text).encode() for each in (one, other)]


def test_escapes() -> None:
    text = 'a\nb\\n\r\t\\"\u2028'
    assert escaped(text) == 'a\\nb\\\\n\\r\t\\\\"\u2028'
    assert unescaped(escaped(text)) == text
    assert unescaped("\\q\\") == "\\q\\"
    assert unescaped("a\\nb\\tc\\\\n") == "a\nb\tc\\n"
    (one,) = generator(temperature=0.0).generate(["a\nb"])[0]
    assert through(b"a\\nb\n", escapes=True, temperature=0.0) == [escaped(one.text).encode()]
    assert formatted("x", [Generation("a\nb", 2, "eos")], 1, as_json=False) == "a\\nb\n"


def test_prompts_of_the_command_line() -> None:
    sink = io.BytesIO()
    subject = generator(temperature=0.0, max_new_tokens=30)
    ((one,), (other,)) = subject.generate(["ab", "c"])
    answer_prompts(["ab"], sink, subject, as_json=False, stream=False)
    assert sink.getvalue() == one.text.encode() + b"\n"
    streamed = io.BytesIO()
    answer_prompts(["ab"], streamed, subject, as_json=False, stream=True)
    assert streamed.getvalue() == sink.getvalue()
    both = io.BytesIO()
    answer_prompts(["ab", "c"], both, subject, as_json=False, stream=True)
    assert both.getvalue().decode() == f"{escaped(one.text)}\n{escaped(other.text)}\n"


def test_words_are_prompts_or_overrides() -> None:
    words = ["To be", "generation.top_p=0.9", "", "a=b", "x.y = z", "decoding=greedy", "trainer.device=cpu", "e=mc^2"]
    prompts, overrides = split_words([*words, "generaton.top_k=1", "model=x"])
    assert overrides == ["generation.top_p=0.9", "decoding=greedy", "trainer.device=cpu", "generaton.top_k=1"]
    assert prompts == ["To be", "", "a=b", "x.y = z", "e=mc^2", "model=x"]


def sliding(prompt: str, positions: int, count: int, **changes: object) -> list[int]:
    """Greedy tokens without a cache; where the model is full the last half of what is there is all it reads on."""
    model, whole = tiny_decoder(eos_bias=-50.0), [BOS, *Pieces().encode([prompt])[0]]
    start = len(whole)
    context = whole if len(whole) < positions else whole[-(positions // 2) :]
    while len(whole) - start < count:
        if len(context) == positions:
            context = whole[-(positions // 2) :]
        with torch.no_grad():
            logits = model.logits(model.read(pad([context], PAD)).hidden[:, -1])
        seen = torch.zeros_like(logits, dtype=torch.bool)
        seen[0, whole] = True
        logits = penalise(logits, seen, generation(**changes).repetition_penalty)
        logits[:, BARRED] = -torch.inf
        whole, context = [*whole, int(logits.argmax(1))], [*context, int(logits.argmax(1))]
    return whole[start:]


@pytest.mark.parametrize("changes", [{}, {"repetition_penalty": 1.5}], ids=str)
def test_a_sliding_text_goes_on_from_its_last_half(changes: dict[str, object]) -> None:
    prompts = ["", "ab c", "a" * 8, "a" * 9, "ab" * 17, "x"]
    model = tiny_decoder(eos_bias=-50.0)
    subject = generator(model, positions=9, temperature=0.0, max_new_tokens=31, overflow="slide", **changes)
    found = subject.generate(prompts)
    for prompt, (one,) in zip(prompts, found, strict=True):
        before = Pieces().encode([prompt])[0]
        whole, start = Pieces().decode([before + sliding(prompt, 9, 31, **changes), before])
        assert one == Generation(whole[len(start) :], 31, "length")
    drawn = {"positions": 9, "max_new_tokens": 31, "overflow": "slide"}
    alone = generator(tiny_decoder(), batch_tokens=1, **drawn).generate(prompts)
    assert generator(tiny_decoder(), batch_tokens=900, **drawn).generate(prompts) == alone
    assert "".join(subject.stream("ab c")) == found[1][0].text
