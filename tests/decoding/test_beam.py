from __future__ import annotations

import math

import pytest
import torch
from toys import (
    BOS,
    EOS,
    PAD,
    SPECIAL,
    UNK,
    TableScorer,
    UncachedScorer,
    brute_force,
    divisor,
    forced_log_prob,
    options,
    random_sources,
    tiny_model,
)

from transformer_kit.batch import pad
from transformer_kit.decoding.beam import Hypothesis, beam_search
from transformer_kit.decoding.scorer import ModelScorer
from transformer_kit.errors import ConfigError

SOURCES = [[7, EOS], [5, 11, 13, EOS], [5, EOS], [17, 7, EOS], [19, EOS]]
PENALTIES = [("none", 0.6), ("gnmt", 0.0), ("gnmt", 0.6), ("gnmt", 1.0), ("gnmt", 2.0), ("power", 0.6), ("power", 2.0)]


def search(scorer, sources=SOURCES, **changes) -> list[list[Hypothesis]]:
    return beam_search(scorer, pad(sources, PAD), options(**changes), **SPECIAL)


@pytest.mark.parametrize(("kind", "alpha"), PENALTIES)
def test_a_wide_beam_equals_brute_force(kind: str, alpha: float) -> None:
    scorer = TableScorer()
    found = search(scorer, beam=120, n_best=5, max_length=4, kind=kind, alpha=alpha)
    for source, hypotheses in zip(SOURCES, found, strict=True):
        expected = brute_force(scorer, tuple(source), 4, 0, kind, alpha)[:5]
        assert [hypothesis.ids for hypothesis in hypotheses] == [ids for _, _, ids in expected]
        for hypothesis, (score, log_prob, _) in zip(hypotheses, expected, strict=True):
            assert hypothesis.score == pytest.approx(score, rel=1e-5)
            assert hypothesis.log_prob == pytest.approx(log_prob, rel=1e-5)


def test_minimum_length_equals_brute_force() -> None:
    scorer = TableScorer()
    for source, (best,) in zip(SOURCES, search(scorer, beam=120, max_length=4, min_length=3), strict=True):
        assert best.ids == brute_force(scorer, tuple(source), 4, 3, "gnmt", 0.6)[0][2]
        assert best.length >= 3


def plain_beam_search(scorer, source, k, n, longest, kind, alpha) -> list[tuple[float, list[int]]]:
    """The documented search with lists, one sentence at a time, until nothing lives or k have finished."""
    live, ended, finished = [(0.0, ())], 0, []
    for length in range(1, longest + 1):
        candidates = []
        for parent, (log_prob, ids) in enumerate(live):
            row = scorer.log_probs(source, ids)
            for token in range(scorer.vocab):
                if row[token] > -math.inf and (length < longest or token == EOS):
                    candidates.append((-(log_prob + row[token]), parent, token, (*ids, token)))
        candidates.sort()
        for cost, _, token, ids in candidates[:k]:
            if token == EOS:
                finished.append((-cost / divisor(length, kind, alpha), list(ids)))
                ended += 1
        live = [(-cost, ids) for cost, _, token, ids in candidates if token != EOS][:k]
        if ended >= k:
            break
    return sorted(finished, key=lambda pair: -pair[0])[:n]


@pytest.mark.parametrize("beam", [1, 2, 3, 5])
@pytest.mark.parametrize(("kind", "alpha"), PENALTIES)
def test_equals_a_plain_search_that_never_stops_by_the_bound(beam: int, kind: str, alpha: float) -> None:
    scorer = TableScorer(vocab=11)
    found = search(scorer, beam=beam, n_best=(beam + 1) // 2, max_extra=7, kind=kind, alpha=alpha)
    for source, hypotheses in zip(SOURCES, found, strict=True):
        expected = plain_beam_search(scorer, tuple(source), beam, (beam + 1) // 2, len(source) + 7, kind, alpha)
        assert [hypothesis.ids for hypothesis in hypotheses] == [ids for _, ids in expected]


def test_beam_one_is_greedy() -> None:
    scorer = TableScorer(vocab=13, spread=2.0)
    for source, (best,) in zip(SOURCES, search(scorer, beam=1, max_extra=9), strict=True):
        ids: tuple[int, ...] = ()
        while EOS not in ids:
            row = scorer.log_probs(tuple(source), ids)
            ids = (*ids, int(row.argmax()) if len(ids) + 1 < len(source) + 9 else EOS)
        assert best.ids == list(ids)


def test_n_best_is_distinct_sorted_and_ends_once() -> None:
    scorer = TableScorer(vocab=11)
    many, one = search(scorer, beam=7, n_best=7), search(scorer, beam=7, n_best=1)
    for hypotheses, (best,) in zip(many, one, strict=True):
        assert hypotheses[0] == best
        assert len(hypotheses) == 7
        assert len({tuple(hypothesis.ids) for hypothesis in hypotheses}) == 7
        scores = [hypothesis.score for hypothesis in hypotheses]
        assert scores == sorted(scores, reverse=True)
        for hypothesis in hypotheses:
            assert hypothesis.ids.count(EOS) == 1
            assert hypothesis.ids[-1] == EOS
            assert not {PAD, BOS} & set(hypothesis.ids)
            assert hypothesis.score == pytest.approx(hypothesis.log_prob / divisor(hypothesis.length, "gnmt", 0.6))


def test_fewer_hypotheses_than_asked_for_where_the_limits_allow_no_more() -> None:
    (found,) = search(TableScorer(), [[5, EOS]], beam=3, n_best=3, max_length=1)
    assert [hypothesis.ids for hypothesis in found] == [[EOS]]


@pytest.mark.parametrize("beam", [1, 3])
def test_ties_go_to_the_lower_id(beam: int) -> None:
    class Even(TableScorer):
        def logits(self, source, prefix):
            return super().logits(source, prefix) * 0 + 1

    # All of {unk, eos, 4, 5} are equally likely; unk is the lowest id, so EOS is out until only EOS may come.
    (found,) = search(Even(), [[5, EOS]], beam=beam, max_length=3, kind="power", alpha=2.0)
    assert found[0].ids == [UNK, UNK, EOS]


def test_a_source_decides_its_length_limit_alone() -> None:
    class Endless(TableScorer):
        def logits(self, source, prefix):
            row = super().logits(source, prefix)
            row[EOS] = -30.0
            return row

    found = search(Endless(), beam=2, max_extra=3)
    assert [hypotheses[0].length for hypotheses in found] == [len(source) + 3 for source in SOURCES]
    for source, (best,) in zip(SOURCES, found, strict=True):  # the EOS that ends it costs what it costs
        whole = sum(Endless().log_probs(tuple(source), tuple(best.ids[:t]))[best.ids[t]] for t in range(best.length))
        assert best.log_prob == pytest.approx(whole, rel=1e-5)
        assert best.log_prob < -29


def test_finished_sentences_leave_and_the_bound_stops_the_rest() -> None:
    scorer = TableScorer(vocab=11)
    search(scorer, beam=3, max_extra=40)
    assert scorer.steps[0] == len(SOURCES) * 3
    assert sorted(scorer.steps, reverse=True) == scorer.steps
    assert len(set(scorer.steps)) > 2

    class Sure(TableScorer):
        def logits(self, source, prefix):
            row = super().logits(source, prefix)
            row[4] = 9.0
            row[EOS] = 30.0 if prefix == (4, 4) else -30.0
            return row

    sure = Sure(vocab=11)
    found = search(sure, beam=3, max_extra=40)
    assert [best.ids for (best,) in found] == [[4, 4, EOS]] * len(SOURCES)
    assert len(sure.steps) == 3  # the other two never end, and can never win


def test_no_sources_give_no_hypotheses() -> None:
    assert search(TableScorer(), []) == []


@pytest.mark.parametrize("changes", [{"beam": 0}, {"n_best": 4, "beam": 3}, {"alpha": -0.5}])
def test_bad_options_are_refused(changes: dict) -> None:
    with pytest.raises(ConfigError, match=r"decoding\.(beam|n_best|length_penalty\.alpha) is "):
        search(TableScorer(), **changes)


@pytest.mark.parametrize("beam", [1, 4])
def test_the_score_of_a_model_is_its_forced_score(beam: int) -> None:
    model, sources = tiny_model(), random_sources(17)
    with torch.inference_mode():
        found = search(ModelScorer(model, "fp32"), sources, beam=beam, n_best=beam, max_extra=9)
    lengths = set()
    for source, hypotheses in zip(sources, found, strict=True):
        assert len(hypotheses) == beam
        for hypothesis in hypotheses:
            forced = forced_log_prob(model, source, hypothesis.ids)
            assert hypothesis.log_prob == pytest.approx(forced, rel=1e-5)
            assert hypothesis.score == pytest.approx(forced / divisor(hypothesis.length, "gnmt", 0.6), rel=1e-5)
            lengths.add(hypothesis.length)
    assert len(lengths) > 5, "the model is too dull for this test"


@pytest.mark.parametrize("beam", [1, 5])
@pytest.mark.parametrize("batch", [1, 8])
def test_cached_decoding_equals_uncached(beam: int, batch: int) -> None:
    model, sources = tiny_model(), random_sources(batch, seed=beam)
    with torch.inference_mode():
        cached = search(ModelScorer(model, "fp32"), sources, beam=beam, n_best=beam)
        uncached = search(UncachedScorer(model), sources, beam=beam, n_best=beam)
    for one, other in zip(cached, uncached, strict=True):
        assert [hypothesis.ids for hypothesis in one] == [hypothesis.ids for hypothesis in other]
        for left, right in zip(one, other, strict=True):
            assert left.score == pytest.approx(right.score, rel=1e-5)


def test_bf16_scores_are_close_to_fp32() -> None:
    model, sources = tiny_model(), random_sources(13)
    with torch.inference_mode():
        exact = search(ModelScorer(model, "fp32"), sources)
        rough = search(ModelScorer(model, "bf16"), sources)
    gaps = [abs(one[0].score - other[0].score) for one, other in zip(exact, rough, strict=True)]
    assert max(gaps) < 0.3
    assert max(gaps) > 1e-6, "bf16 made no difference: was it on?"
