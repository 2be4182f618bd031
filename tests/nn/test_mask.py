"""Masks written out against the conditions, cell by cell."""

from __future__ import annotations

import pytest
import torch

from transformer_kit.nn.mask import Mask

CPU = torch.device("cpu")
VALID = torch.tensor([[True, True, False, True, False], [False, False, False, False, False], [True] * 5])
Q_DOCUMENT, K_DOCUMENT = torch.tensor([[0, 0, 1], [2, 2, 2], [0, 1, 1]]), torch.tensor([[0, 0, 1, 1, 1]] * 3)

MASKS = {
    "nothing": Mask(),
    "causal": Mask(causal=True),
    "causal_later": Mask(causal=True, offset=2),
    "window": Mask(window=2),
    "window_later": Mask(window=2, offset=1),
    "causal_window": Mask(causal=True, window=1, offset=1),
    "padding": Mask(key_valid=VALID),
    "document": Mask(document=(Q_DOCUMENT, K_DOCUMENT)),
    "all": Mask(True, 3, VALID, (Q_DOCUMENT, K_DOCUMENT), 2),
}


def by_hand(mask: Mask, row: int, query: int, key: int) -> bool:
    place = query + mask.offset
    return (
        (not mask.causal or key <= place)
        and (mask.window is None or abs(place - key) < mask.window)
        and (mask.key_valid is None or bool(mask.key_valid[row, key]))
        and (mask.document is None or bool(mask.document[0][row, query] == mask.document[1][row, key]))
    )


def written_out(mask: Mask) -> torch.Tensor:
    """(3, 3, 5) bool."""
    dense = mask.dense(3, 5, CPU)
    return torch.ones(3, 3, 5, dtype=torch.bool) if dense is None else dense.expand(3, 1, 3, 5)[:, 0]


@pytest.mark.parametrize("name", MASKS)
def test_dense_is_the_conditions(name: str) -> None:
    mask = MASKS[name]
    expected = torch.tensor([[[by_hand(mask, b, t, s) for s in range(5)] for t in range(3)] for b in range(3)])
    assert torch.equal(written_out(mask), expected)


def test_what_hides_nothing_is_none() -> None:
    assert Mask().dense(3, 5, CPU) is None
    assert Mask(causal=True, offset=4).dense(1, 5, CPU) is None
    assert Mask(causal=True, offset=3).dense(2, 5, CPU) is not None
    assert Mask(window=5).dense(5, 5, CPU) is None
    assert Mask(window=4).dense(5, 5, CPU) is not None


@pytest.mark.parametrize("one", MASKS)
@pytest.mark.parametrize("other", MASKS)
def test_and_is_both(one: str, other: str) -> None:
    left, right = MASKS[one], MASKS[other]
    offsets = {mask.offset for mask in (left, right) if mask.causal or mask.window is not None}
    if len(offsets) > 1 or (left.document is not None and right.document is not None):
        with pytest.raises(AssertionError, match="joined"):
            left & right
        return
    assert torch.equal(written_out(left & right), written_out(left) & written_out(right))


def test_only_padding_and_documents_can_blind() -> None:
    assert not (Mask(causal=True) & Mask(window=1)).can_blind
    assert Mask(key_valid=VALID).can_blind
    assert Mask(document=(Q_DOCUMENT, K_DOCUMENT)).can_blind
