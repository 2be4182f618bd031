"""Batched beam search over decoding state; a beam of one is greedy decoding.

- Padding and BOS are never emitted: their probability is shared out over the rest, which sums to one again.
- At each step the continuations of a sentence's live hypotheses are ranked; one that ends in EOS is finished if it is
  among the `beam` best, and the `beam` best of the others live on.
- A sentence is done when `beam` hypotheses are finished, or when no live one can still beat the n-th best of the
  finished (its log-probability only falls, and the penalty is largest at the length limit), and leaves the batch.
- A hypothesis that reaches the length limit ends there: its last token is EOS, at the probability that the model gives
  it. So every hypothesis has exactly one EOS and its score is the model's score of the whole sequence.
- The limits bar tokens from being chosen; they do not change the probability of the others.
- Ties go to the better-ranked parent, then to the lower id; between finished hypotheses to the one finished first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from transformer_kit.batch import Tokens
from transformer_kit.decoding.length import limits, penalty
from transformer_kit.decoding.options import DecodingOptions
from transformer_kit.decoding.scorer import Scorer
from transformer_kit.decoding.topk import rank, top_k
from transformer_kit.errors import ConfigError

_CELLS = 1 << 19  # logits worked on at a time on a CPU: what fits its cache takes 40 % of the time


@dataclass(frozen=True)
class Hypothesis:
    """One finished translation.

    Attributes:
        ids: its tokens; the last one is EOS, the only one.
        score: log_prob / penalty(length).
        log_prob: the sum of the log-probabilities of `ids`.
    """

    ids: list[int]
    score: float
    log_prob: float

    @property
    def length(self) -> int:
        """L: tokens including EOS."""
        return len(self.ids)


def beam_search(
    scorer: Scorer, sources: Tokens, options: DecodingOptions, *, start_id: int, eos_id: int, banned: Sequence[int]
) -> list[list[Hypothesis]]:
    """The `n_best` best hypotheses of each source, best first (fewer only if the limits allow no more).

    Args:
        sources: (B, S) with EOS, on the device of the scorer.
        options: their `beam`, `length_penalty`, `n_best`, `min_length`, `max_extra` and `max_length` are used.
        start_id: what the decoder reads first.
        eos_id: ends a hypothesis.
        banned: ids that no hypothesis holds.

    Raises:
        ConfigError: an option is out of range.
    """
    if problems := options.problems():
        raise ConfigError([f"decoding.{key} {message}" for key, message in problems])
    if not sources.shape[0]:
        return []
    search = _Search(sources, options, start_id, eos_id, banned)
    state = scorer.start(sources, options.beam, int(search.limit.max()))
    while True:
        done = search.advance(scorer.step(search.last, state))
        if bool(done.any()):
            stay = (~done).nonzero().squeeze(1)
            search.leave(done, stay)
            if not len(stay):
                return search.results
            state.keep(stay)
        if (rows := search.rows()) is not None:
            state.reorder(rows)


class _Search:
    """The hypotheses of the sentences that are still in the batch: k live and up to n finished ones of each.

    Attributes:
        live: (B, k) log-probabilities; minus infinity marks an empty place.
        tokens: (B, k, t) their tokens so far.
        parent: (B, k) the places that they continued in the last step.
        score, log_prob, length, ids: (B, n), (B, n), (B, n), (B, n, longest) of the finished ones, best first.
        ended: (B,) how many have finished, kept or not.
        sentence: (B,) the row of `sources` that a row of these belongs to.
    """

    def __init__(
        self, sources: Tokens, options: DecodingOptions, start_id: int, eos_id: int, banned: Sequence[int]
    ) -> None:
        device, count = sources.ids.device, sources.shape[0]
        self.options, self.eos_id = options, eos_id
        self.banned = torch.tensor(banned, dtype=torch.int64, device=device)
        k, n = options.beam, options.n_best
        self.limit = limits(sources.valid.sum(1), options)
        self.live = torch.full((count, k), -torch.inf, device=device)
        self.live[:, 0] = 0.0
        self.tokens = torch.empty((count, k, 0), dtype=torch.int64, device=device)
        self.parent = torch.zeros((count, k), dtype=torch.int64, device=device)
        self.score = torch.full((count, n), -torch.inf, device=device)
        self.log_prob, self.length = self.score.clone(), torch.zeros((count, n), dtype=torch.int64, device=device)
        self.ids = torch.full((count, n, int(self.limit.max())), eos_id, dtype=torch.int64, device=device)
        self.ended = torch.zeros(count, dtype=torch.int64, device=device)
        self.sentence = torch.arange(count, device=device)
        self.last = torch.full((count * k,), start_id, dtype=torch.int64, device=device)
        self.results: list[list[Hypothesis]] = [[] for _ in range(count)]

    def advance(self, logits: Tensor) -> Tensor:
        """Take one step by the logits (R, V); (B,) bool, the sentences that are done."""
        count, k = self.live.shape
        length = self.tokens.shape[2] + 1
        words, ends, ids = self._continuations(logits, length)
        word_score, place = top_k(words.flatten(1), k)  # places rise with parent, then with rank
        parent = place // words.shape[2]
        token = ids.flatten(1).gather(1, place)
        # EOS is one more continuation of each live hypothesis: is it among the k best of all?
        width = logits.shape[1]
        here = torch.arange(k, device=self.live.device).expand(count, k)
        keys = torch.cat((parent * width + token, here * width + self.eos_id), dim=1)
        chosen = rank(torch.cat((word_score, ends), dim=1), keys)[:, :k]  # (B, k) of 2k
        accepted = torch.zeros((count, 2 * k), dtype=torch.bool, device=self.live.device)
        accepted = accepted.scatter_(1, chosen, True)[:, k:] & (ends > -torch.inf)
        if bool(accepted.any()):
            self._finish(ends.masked_fill(~accepted, -torch.inf), length)
            self.ended += accepted.sum(1)
        self.live, self.parent = word_score, parent
        self.tokens = torch.cat(
            (self.tokens.gather(1, parent[:, :, None].expand(-1, -1, length - 1)), token[:, :, None]), dim=2
        )
        self.last = token.flatten()
        bound = self.live[:, 0] / penalty(self.limit, self.options.length_penalty)
        return (self.ended >= k) | (self.score[:, -1] >= bound) | ~(self.live[:, 0] > -torch.inf)

    def _continuations(self, logits: Tensor, length: int) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities of the best words (B, k, m) and of EOS (B, k) after each live one, and the words' ids."""
        count, k = self.live.shape
        rows = max(1, _CELLS // logits.shape[1]) if logits.device.type == "cpu" else len(logits)
        parts = zip(*(self._best(part, k) for part in logits.split(rows)), strict=True)
        best, ids, end = (torch.cat(part) for part in parts)
        words = self.live[:, :, None] + best.view(count, k, -1)
        ends = self.live + end.view(count, k)
        if length < self.options.min_length:
            ends = torch.full_like(ends, -torch.inf)
        return words.masked_fill((self.limit == length)[:, None, None], -torch.inf), ends, ids.view(count, k, -1)

    def _best(self, logits: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities and ids of the k best words (R, m), and the log-probability of EOS (R,)."""
        # On CPUs the fused log-softmax beats torch's logsumexp. `index_fill` copies: the scorer's tensor stays.
        scores = logits.index_fill(1, self.banned, -torch.inf).log_softmax(1)
        end = scores[:, self.eos_id].clone()
        scores[:, self.eos_id] = -torch.inf
        return *top_k(scores, min(k, scores.shape[1])), end

    def _finish(self, ends: Tensor, length: int) -> None:
        """Sort newly finished hypotheses, (B, k) log-probabilities or minus infinity, in among the n best."""
        n = self.options.n_best
        lengths = torch.full_like(ends, length, dtype=torch.int64)
        score = torch.cat((self.score, ends / penalty(lengths, self.options.length_penalty)), dim=1)
        order = score.argsort(dim=1, descending=True, stable=True)[:, :n]
        self.score = score.gather(1, order)
        self.log_prob = torch.cat((self.log_prob, ends), dim=1).gather(1, order)
        self.length = torch.cat((self.length, lengths), dim=1).gather(1, order)
        # Behind the end of a hypothesis `ids` holds EOS, so a finished one is its tokens and one EOS more.
        room = self.ids.shape[2] - self.tokens.shape[2]
        new = torch.nn.functional.pad(self.tokens, (0, room), value=self.eos_id)
        self.ids = torch.cat((self.ids, new), dim=1).gather(1, order[:, :, None].expand(-1, -1, self.ids.shape[2]))

    def leave(self, done: Tensor, stay: Tensor) -> None:
        """Record the results of the sentences that are done and drop them."""
        out = done.nonzero().squeeze(1)
        columns = (self.sentence, self.score, self.log_prob, self.length, self.ids)
        for row, *finished in zip(*(column[out].tolist() for column in columns), strict=True):
            self.results[row] = [
                Hypothesis(ids[:length], score, log_prob)
                for score, log_prob, length, ids in zip(*finished, strict=True)
                if length
            ]
        if len(stay):
            names = ["limit", "live", "tokens", "parent", "score", "log_prob", "length", "ids", "ended", "sentence"]
            for name in names:
                setattr(self, name, getattr(self, name)[stay])
            self.last = self.last.view(len(done), -1)[stay].flatten()

    def rows(self) -> Tensor | None:
        """(R,) which row each row continues, or None when every row continues itself."""
        count, k = self.parent.shape
        here = torch.arange(k, device=self.parent.device)
        if bool((self.parent == here).all()):
            return None
        return (self.parent + k * torch.arange(count, device=self.parent.device)[:, None]).flatten()
