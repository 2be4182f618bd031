"""Translation by one stack: what the row looks like, and that a source cell sees the whole source."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from transformer_kit.batch import Specials, Tokens, translation_batch
from transformer_kit.models.base import ModelOutput
from transformer_kit.objectives.prefix_lm import PrefixLM, joined

SPECIALS = Specials(pad=0, bos=2, eos=3, unk=1, mask=None, sentinels=(), vocab_size=17, start=2)
BATCH = translation_batch([[5, 6, 7], [8]], [[9], [10, 11]], [0, 1], pad_id=0, bos_id=2, eos_id=3)


def test_the_row_goes_on_from_source_to_target() -> None:
    assert BATCH.source is not None
    row = joined(BATCH.source, BATCH.target)
    assert row.ids.tolist() == [[5, 6, 7, 3, 2, 9, 0], [8, 3, 0, 0, 2, 10, 11]]
    assert row.valid.tolist() == [[True] * 6 + [False], [True, True, False, False, True, True, True]]
    assert row.at.tolist() == [[0, 1, 2, 3, 4, 5, 0], [0, 1, 0, 0, 2, 3, 4]]
    assert row.prefix is not None
    assert row.prefix.tolist() == [[True] * 4 + [False] * 3, [True, True] + [False] * 5]
    assert not row.full


class Fixed(nn.Module):
    """States that tell their cell; only those of the target may reach the projection."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.states = nn.Parameter(torch.randn(2, 7, 5, dtype=torch.float64))
        self.weight = torch.randn(17, 5, dtype=torch.float64)

    def read(self, tokens: Tokens) -> ModelOutput:
        assert tokens.shape == (2, 7)
        return ModelOutput(self.states)

    def prepare(self, hidden: Tensor) -> Tensor:
        return hidden

    def output(self) -> tuple[Tensor, None]:
        return self.weight, None


def test_only_the_target_is_predicted() -> None:
    model = Fixed()
    sums = PrefixLM(SPECIALS, 0.1, "all", 2)(model, BATCH)
    log_probs = (model.states @ model.weight.T).log_softmax(-1)
    cells = [(0, 4, 9), (0, 5, 3), (1, 4, 10), (1, 5, 11), (1, 6, 3)]
    expected = -sum(0.9 * log_probs[b, t, y] + 0.1 * log_probs[b, t].mean() for b, t, y in cells)
    torch.testing.assert_close(sums.loss, expected)
    assert sums.count == 5
    sums.loss.backward()
    felt = model.states.grad.abs().sum(-1) > 0
    assert felt.tolist() == [[False] * 4 + [True, True, False], [False] * 4 + [True] * 3]
