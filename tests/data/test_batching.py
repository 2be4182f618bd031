from __future__ import annotations

import logging
import multiprocessing
from collections import Counter
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from corpora import data_options, made_up, tokenizer_options, write
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_kit.batch import Batch, Specials, translation_batch
from transformer_kit.data.batching import BatchStream, eval_batches, make_batch
from transformer_kit.data.buckets import by_length, cut, padding, quotas, sample_seeds
from transformer_kit.data.options import DataOptions, PairsOptions
from transformer_kit.data.prepare import Prepared, prepare
from transformer_kit.data.ragged import from_lists
from transformer_kit.data.symbol_tokenizers import ByteTokenizer, byte_model
from transformer_kit.data.text_rules import TextRule
from transformer_kit.data.tokenizer import Tokenizers
from transformer_kit.data.tokenizer_options import Kind, SamplingOptions, TokenizerOptions
from transformer_kit.errors import DataError

OURS = Specials(pad=0, bos=2, eos=3, unk=1, mask=None, sentinels=(), vocab_size=100, start=2)


def same(first: Batch, second: Batch) -> bool:
    assert first.source is not None
    assert second.source is not None
    pairs = [(first.labels, second.labels), (first.counted, second.counted), (first.sample_ids, second.sample_ids)]
    for one, other in ((first.source, second.source), (first.target, second.target)):
        pairs += [(one.ids, other.ids), (one.valid, other.valid), (one.at, other.at)]
        if one.full != other.full:
            return False
    return first.num_labels == second.num_labels and all(torch.equal(one, other) for one, other in pairs)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.lists(st.integers(4, 99), max_size=7), st.lists(st.integers(4, 99), max_size=7)), min_size=1)
)
def test_fast_batches_equal_the_plain_ones(pairs: list[tuple[list[int], list[int]]]) -> None:
    sources, targets = [source for source, _ in pairs], [target for _, target in pairs]
    ids = list(range(len(pairs)))
    fast = make_batch(from_lists(sources), from_lists(targets), np.array(ids), [OURS])
    assert same(fast, translation_batch(sources, targets, ids, pad_id=0, bos_id=2, eos_id=3))
    assert int(fast.counted.sum()) == fast.num_labels == sum(map(len, targets)) + len(pairs)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 50), max_size=60), st.integers(1, 120))
def test_cut_respects_the_budget_and_wastes_no_room(costs: list[int], tokens: int) -> None:
    array = np.array(costs, np.int64)
    spans = cut(array, tokens)
    assert [row for start, end in spans for row in range(start, end)] == list(range(len(costs)))
    for start, end in spans:
        assert end - start == 1 or (end - start) * array[start:end].max() <= tokens
        assert end == len(costs) or (end + 1 - start) * array[start : end + 1].max() > tokens


def test_length_order_has_no_jumps_between_neighbouring_buckets() -> None:
    sides = np.random.default_rng(0).integers(1, 12, (2, 500))
    order = by_length(sides[0], sides[1])
    longer = sides.max(0)[order]
    assert (np.diff(longer) >= 0).all()
    difference = (sides[1] - sides[0])[order]
    for length, next_length in pairwise(range(2, 11)):
        here, there = difference[longer == length], difference[longer == next_length]
        assert (here[-1] > 0) == (there[0] > 0)


def pairs_of(prepared: Prepared) -> PairsOptions:
    assert isinstance(prepared.data, PairsOptions)
    return prepared.data


def stream_of(prepared: Prepared, seed: int = 5, **options: int) -> BatchStream:
    return BatchStream(
        prepared.train,
        replace(prepared.data.batch, **options),
        temperature=pairs_of(prepared).temperature,
        seed=seed,
        sampling=prepared.tokenizer.sampling,
        tokenizers=prepared.tokenizers,
    )


def epoch_of(stream: BatchStream) -> list[Batch]:
    before, batches = stream.epoch, []
    for batch in stream:
        batches.append(batch)
        if stream.epoch > before:
            return batches
    raise AssertionError("endless")


def drawn(batches: list[Batch]) -> Counter[int]:
    return Counter(row for batch in batches for row in batch.sample_ids.tolist())


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    folder = tmp_path_factory.mktemp("one")
    options = data_options(folder, [made_up(folder, "one", 131)], valid=[made_up(folder, "valid", 23, seed=7)])
    return prepare(options, tokenizer_options())


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    folder = tmp_path_factory.mktemp("mixture")
    train = [made_up(folder, "small", 37, weight=3.0), made_up(folder, "large", 113, seed=11)]
    sampling = SamplingOptions(alpha=0.2)
    return prepare(data_options(folder, train), tokenizer_options(kind=Kind.unigram, sampling=sampling))


@pytest.mark.parametrize("pool", [7, 50, 1000])
def test_every_batch_is_within_budget_and_every_pair_comes_once(one: Prepared, pool: int) -> None:
    batches = epoch_of(stream_of(one, pool=pool))
    assert drawn(batches) == Counter(range(131))
    for batch in batches:
        assert batch.source is not None
        rows = len(batch.sample_ids)
        assert rows * max(batch.source.shape[1], batch.target.shape[1]) <= 97
        for row, sample in enumerate(batch.sample_ids.tolist()):
            dataset = one.train[0].dataset
            assert batch.source.ids[row][batch.source.valid[row]].tolist() == [*dataset.source(sample), 3]
            assert batch.target.ids[row][batch.target.valid[row]].tolist() == [2, *dataset.target(sample)]
            assert batch.labels[row][batch.counted[row]].tolist() == [*dataset.target(sample), 3]


def test_one_long_pair_among_many_short_ones(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    short, long = " a" * 3, " b" * 500
    corpus = write(tmp_path, "c", [short] * 400 + [long] + [short] * 599, [short] * 1000)
    prepared = prepare(data_options(tmp_path, [corpus], valid=[corpus]), tokenizer_options(vocab_size=264))
    for tokens, left_out in ((2000, 0), (480, 1)):
        stream = stream_of(prepared, tokens=tokens)
        batches = epoch_of(stream)
        assert len(drawn(batches)) == sum(drawn(batches).values()) == 1000 - left_out
        assert all(len(b.sample_ids) * max(b.source.shape[1], b.target.shape[1]) <= tokens for b in batches if b.source)
        assert stream.over_budget == left_out
    # Validation leaves nothing out: what is over the budget is a batch of its own, or is cut to the position table.
    assert prepared.valid is not None
    held_out = list(eval_batches(prepared.valid, 480))
    assert drawn(held_out) == Counter(range(1000))
    assert held_out[-1].sample_ids.tolist() == [400]
    limited = list(eval_batches(prepared.valid, 480, max_length=13))
    assert drawn(limited) == Counter(range(1000))
    assert max(batch.source.shape[1] for batch in limited if batch.source) == 13
    assert all(bool((batch.labels[batch.counted] == 3).sum() == len(batch.sample_ids)) for batch in limited)


def test_pairs_over_the_budget_are_announced_once(
    one: Prepared, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("transformer_kit"), "propagate", True)
    dataset = one.train[0].dataset
    longest = int(max(dataset.source_lengths.max(), dataset.target_lengths.max()))
    stream_of(one, tokens=longest + 1)
    assert not caplog.records
    stream_of(one, tokens=longest)
    (record,) = caplog.records
    assert f"of 131 training pairs are longer than data.batch.tokens={longest} allows" in record.getMessage()
    with pytest.raises(DataError, match=r"131 of 131 training pairs .*: 0 pairs left; raise data\.batch\.tokens"):
        stream_of(one, tokens=2)


@pytest.mark.parametrize("name", ["one", "mixture"])
def test_a_cursor_resumes_at_the_next_batch(name: str, request: pytest.FixtureRequest) -> None:
    prepared = request.getfixturevalue(name)
    stream = stream_of(prepared, pool=40)
    unbroken, cursors = [], [stream.state_dict()]
    for batch in islice(stream, 45):
        unbroken.append(batch)
        cursors.append(stream.state_dict())
    assert {cursor["epoch"] for cursor in cursors} >= {0, 1}
    for stop in range(0, 45, 4):
        resumed = stream_of(prepared, pool=40)
        resumed.load_state_dict(cursors[stop])
        for batch, expected in zip(islice(resumed, 3), unbroken[stop:], strict=False):
            assert same(batch, expected)


def batches_from(
    data: DataOptions, tokenizer: TokenizerOptions, cursor: dict[str, Any], count: int
) -> list[tuple[list[int], list[list[int]], list[list[int]]]]:
    stream = stream_of(prepare(data, tokenizer), pool=40)
    stream.load_state_dict(cursor)
    found = []
    for batch in islice(stream, count):
        assert batch.source is not None
        found.append((batch.sample_ids.tolist(), batch.source.ids.tolist(), batch.labels.tolist()))
    return found


def test_a_new_process_resumes_with_equal_sampled_pieces(mixture: Prepared) -> None:
    stream = stream_of(mixture, pool=40)
    start = stream.state_dict()
    for _ in islice(stream, 13):
        pass
    unbroken = batches_from(mixture.data, mixture.tokenizer, start, 30)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        resumed = pool.apply(batches_from, (mixture.data, mixture.tokenizer, stream.state_dict(), 17))
    assert resumed == unbroken[13:]


def test_epochs_and_seeds_differ_and_repeat(one: Prepared) -> None:
    stream = stream_of(one)
    first, second = epoch_of(stream), epoch_of(stream)
    order = [batch.sample_ids.tolist() for batch in first]
    assert order != [batch.sample_ids.tolist() for batch in second]
    assert order == [batch.sample_ids.tolist() for batch in epoch_of(stream_of(one))]
    assert order != [batch.sample_ids.tolist() for batch in epoch_of(stream_of(one, seed=6))]
    lengths = [max(batch.source.shape[1], batch.target.shape[1]) for batch in first if batch.source]
    assert lengths != sorted(lengths)


def test_quotas_follow_weight_size_and_temperature() -> None:
    sizes = np.array([100, 300])
    assert quotas(sizes, np.array([1.0, 1.0]), 1.0).tolist() == [100, 300]
    assert quotas(sizes, np.array([3.0, 1.0]), 1.0).tolist() == [200, 200]
    assert quotas(sizes, np.array([1.0, 1.0]), 1e9).tolist() == [200, 200]
    # sqrt(100) : sqrt(300) of 400
    assert quotas(sizes, np.array([1.0, 1.0]), 2.0).tolist() == [146, 254]
    assert quotas(np.array([7]), np.array([0.3]), 5.0).tolist() == [7]
    assert quotas(np.array([5, 5, 5]), np.array([1.0, 1.0, 2.0]), 1.0).sum() == 15


def test_a_mixture_walks_evenly_through_each_corpus(mixture: Prepared) -> None:
    stream = stream_of(mixture)
    # weights 3 · 37 and 113: of 150 pairs 74 from the small corpus, 76 from the large one
    batches = epoch_of(stream)
    counts = drawn(batches)
    assert sum(count for row, count in counts.items() if row < 37) == 74
    assert {counts[row] for row in range(37)} == {2}
    assert {counts[row] for row in range(37, 150)} == {0, 1}
    total = counts + drawn(epoch_of(stream)) + drawn(epoch_of(stream))
    assert {total[row] for row in range(37)} == {6}
    assert {total[row] for row in range(37, 150)} == {2, 3}  # 228 = 2 passes and 2 pairs


def test_sampled_pieces_depend_on_seed_epoch_and_sample_alone(mixture: Prepared) -> None:
    def sources(stream: BatchStream) -> dict[int, list[int]]:
        return {
            sample: batch.source.ids[row][batch.source.valid[row]].tolist()
            for batch in epoch_of(stream)
            if batch.source
            for row, sample in enumerate(batch.sample_ids.tolist())
        }

    stream = stream_of(mixture)
    first, second = sources(stream), sources(stream)
    assert sources(stream_of(mixture, pool=19, tokens=61)) == first
    common = first.keys() & second.keys()
    assert sum(first[sample] != second[sample] for sample in common) > len(common) / 4
    assert sources(stream_of(mixture, seed=6)) != first
    # Whatever the pieces, the text is the same, and the large corpus has its own.
    tokenizer = mixture.tokenizers.source
    for sample, ids in first.items():
        corpus = mixture.train[int(sample >= 37)].dataset
        assert tokenizer.decode([ids]) == [corpus.text(sample - 37 * (sample >= 37))[0]]


def test_sample_seeds_are_spread_out() -> None:
    seeds = [sample_seeds(seed, epoch, side, np.arange(500)) for seed in (1, 2) for epoch in (0, 1) for side in (0, 1)]
    everything = np.concatenate(seeds)
    assert len(np.unique(everything)) == len(everything)
    assert everything.min() >= 0
    assert everything.max() < 2**31
    assert sample_seeds(1, 0, 0, np.array([499]))[0] == seeds[0][499]


def test_padding_counts_real_tokens_per_cell() -> None:
    # Lengths with EOS 3/2, 3/3, 5/2: at a budget of 6 the first two fill 2 rows × (3 + 3), the third 1 row × (5 + 2).
    result = padding(np.array([2, 4, 2]), np.array([1, 1, 2]), 6)
    assert (result.batches, result.over_budget) == (2, 0)
    assert result.efficiency == pytest.approx((3 + 2 + 3 + 3 + 5 + 2) / (2 * 6 + 7))
    assert padding(np.array([2, 4]), np.array([1, 1]), 3).over_budget == 1
    assert padding(np.array([9]), np.array([9]), 3).batches == 0


def test_special_ids_are_those_of_each_side_s_tokenizer() -> None:
    source = Specials(pad=1, bos=0, eos=2, unk=3, mask=None, sentinels=(), vocab_size=50, start=0)
    target = Specials(pad=0, bos=7, eos=1, unk=2, mask=None, sentinels=(), vocab_size=60, start=0)  # T5 starts with pad
    batch = make_batch(from_lists([[5], [6, 8, 9]]), from_lists([[0, 11], [12]]), np.arange(2), [source, target])
    assert batch.source is not None
    assert batch.source.ids.tolist() == [[5, 2, 1, 1], [6, 8, 9, 2]]
    assert batch.target.ids.tolist() == [[0, 0, 11], [0, 12, 0]]
    assert batch.labels.tolist() == [[0, 11, 1], [12, 1, 0]]
    assert batch.counted.tolist() == [
        [True, True, True],
        [True, True, False],
    ]  # id 0 is real here
    assert batch.num_labels == 5


def test_ids_that_a_tokenizer_puts_in_front_stand_on_both_sides(tmp_path: Path) -> None:
    corpus = made_up(tmp_path, "c", 9)
    tokenizer = ByteTokenizer(byte_model([]), TextRule("en", normalize=False, tokenize=False, lowercase=False))
    plain = prepare(data_options(tmp_path, [corpus]), tokenizer_options(), Tokenizers.one(tokenizer)).train[0].dataset
    headed = ByteTokenizer(tokenizer.model, replace(tokenizer.rule, language="de"))
    headed.head_ids = [headed.bos_id]  # as BART's do
    options = data_options(tmp_path, [corpus], valid=[corpus])
    prepared = prepare(options, tokenizer_options(), Tokenizers.one(headed))
    dataset = prepared.train[0].dataset
    for row in range(9):
        assert dataset.source(row).tolist() == [1, *plain.source(row)]
        assert dataset.target(row).tolist() == [1, *plain.target(row)]
    assert dataset.about.counts.texts == plain.about.counts.texts
    for batches in (epoch_of(stream_of(prepared, tokens=300)), eval_batches(prepared.valid, 300)):
        for batch in batches:
            assert batch.source is not None
            assert set(batch.source.ids[:, 0].tolist()) == {1}
            assert set(batch.target.ids[:, 0].tolist()) == set(batch.target.ids[:, 1].tolist()) == {1}
            assert int((batch.labels[batch.counted] == 2).sum()) == len(batch.sample_ids)
