from __future__ import annotations

import pytest
import torch

from transformer_kit.decoding.topk import rank, top_k


@pytest.mark.parametrize(("width", "k"), [(7, 3), (5, 5), (5, 4), (4096, 1), (4999, 7), (5000, 5)])
@pytest.mark.parametrize("kind", ["distinct", "many ties", "all equal", "barred"])
def test_equals_a_stable_sort(width: int, k: int, kind: str) -> None:
    x = torch.randn(11, width, generator=torch.Generator().manual_seed(width + k))
    if kind == "many ties":
        x = (2 * x).round()
    elif kind == "all equal":
        x.fill_(1.5)
    elif kind == "barred":
        x[:, ::2] = -torch.inf
    before = x.clone()
    values, indices = top_k(x, k)
    expected, order = x.sort(dim=1, descending=True, stable=True)
    possible = expected[:, :k] > -torch.inf
    assert torch.equal(values, expected[:, :k])
    assert torch.equal(indices[possible], order[:, :k][possible])
    assert torch.equal(x, before)


def test_a_tie_across_the_edge_of_blocks_goes_to_the_lower_index() -> None:
    x = torch.zeros(1, 5000)
    x[0, [4990, 300, 2000]] = 2.0
    x[0, 4000] = 3.0
    assert top_k(x, 3)[1].tolist() == [[4000, 300, 2000]]


def test_rank_breaks_ties_by_key() -> None:
    values = torch.tensor([[1.0, 3.0, 1.0, 3.0, -torch.inf]])
    assert rank(values, torch.tensor([[9, 8, 2, 7, 1]])).tolist() == [[3, 1, 2, 0, 4]]
