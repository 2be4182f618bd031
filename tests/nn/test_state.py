"""Decoding state: what is appended, reordered, kept; positions and padding."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from transformer_kit.nn.state import DecoderState, KeyValueCache

CPU = torch.device("cpu")
G, K, W, S = 3, 5, 7, 11


def state(sentences: int, beams: int, max_length: int = 13) -> DecoderState:
    cross = [(torch.randn(sentences, G, S, K), torch.randn(sentences, G, S, W)) for _ in range(2)]
    valid = torch.rand(sentences, S) < 0.7
    return DecoderState(2, cross, valid, sentences, beams, max_length, CPU)


def append(to: DecoderState, cells: int, valid: Tensor | None = None) -> list[tuple[Tensor, Tensor]]:
    """Random keys and values in every layer; copies of all that the layers hold."""
    to.append(cells, valid)
    held = [c.append(torch.randn(to.rows, G, cells, K), torch.randn(to.rows, G, cells, W)) for c in to.caches]
    return [(k.clone(), v.clone()) for k, v in held]


def test_cache_returns_all_that_was_appended() -> None:
    cache = KeyValueCache(13)
    keys, values = torch.randn(2, G, 9, K), torch.randn(2, G, 9, W)
    for k, v in zip(keys.split((5, 1, 3), 2), values.split((5, 1, 3), 2), strict=True):
        got_k, got_v = cache.append(k, v)
    assert torch.equal(got_k, keys)
    assert torch.equal(got_v, values)
    assert cache.nbytes == 2 * G * 13 * (K + W) * 4


def test_reorder_moves_rows_and_leaves_the_source_alone() -> None:
    decoding = state(2, 3)
    before = append(decoding, 4)
    cross = decoding.cross
    rows = torch.tensor([1, 1, 0, 5, 3, 3])
    decoding.reorder(rows)
    after = append(decoding, 1)
    for (old_k, old_v), (new_k, new_v) in zip(before, after, strict=True):
        assert new_k.shape == (6, G, 5, K)
        assert torch.equal(new_k[:, :, :4], old_k[rows])
        assert torch.equal(new_v[:, :, :4], old_v[rows])
    assert decoding.cross is cross
    decoding.reorder(torch.tensor([0, 2, 1, 4, 4, 5]))  # back into the buffers that the first reorder left
    for (k, v), held in zip(after, decoding.caches, strict=True):
        assert held.keys is not None
        assert held.values is not None
        assert torch.equal(held.keys[:, :, :5], k[[0, 2, 1, 4, 4, 5]])
        assert torch.equal(held.values[:, :, :5], v[[0, 2, 1, 4, 4, 5]])


def test_reorder_before_any_token_is_harmless() -> None:
    decoding = state(2, 2)
    decoding.reorder(torch.tensor([1, 0, 2, 2]))
    decoding.keep(torch.tensor([1]))
    assert decoding.rows == 2
    assert append(decoding, 1)[0][0].shape == (2, G, 1, K)


def test_keep_drops_sentences_with_all_they_own() -> None:
    decoding = state(3, 2)
    before = append(decoding, 4)
    cross, valid, used = decoding.cross, decoding.memory_valid, decoding.nbytes
    assert valid is not None
    sentences, rows = torch.tensor([2, 0]), torch.tensor([4, 5, 0, 1])
    decoding.keep(sentences)
    assert decoding.rows == 4
    assert decoding.memory_valid is not None
    assert torch.equal(decoding.memory_valid, valid[sentences])
    for (k, v), (old_k, old_v) in zip(decoding.cross, cross, strict=True):
        assert torch.equal(k, old_k[sentences])
        assert torch.equal(v, old_v[sentences])
    assert decoding.nbytes == used * 2 // 3
    for (old_k, _), (new_k, _) in zip(before, append(decoding, 2), strict=True):
        assert torch.equal(new_k[:, :, :4], old_k[rows])


def test_positions_skip_padding_and_go_on() -> None:
    decoding = state(1, 3)
    prompt = torch.arange(5) >= torch.tensor([[4], [0], [2]])  # left-padded prompts of 1, 5 and 3 tokens
    assert decoding.append(5, prompt).tolist() == [[0, 0, 0, 0, 0], [0, 1, 2, 3, 4], [0, 0, 0, 1, 2]]
    assert decoding.append(2, None).tolist() == [[1, 2], [5, 6], [3, 4]]
    assert decoding.key_valid is not None
    assert torch.equal(decoding.key_valid, torch.cat((prompt, torch.ones(3, 2, dtype=torch.bool)), 1))
    decoding.reorder(torch.tensor([2, 0, 0]))
    assert decoding.append(1, None).tolist() == [[5], [3], [3]]
    assert decoding.key_at[0].tolist() == [0, 0, 0, 1, 2, 3, 4, 5]
    assert torch.equal(decoding.key_valid[1, :5], prompt[0])
    assert decoding.length == 8


def test_without_padding_no_mask_is_kept() -> None:
    decoding = state(2, 1)
    decoding.append(3, None)
    assert decoding.key_valid is None


def test_more_than_max_length_is_refused() -> None:
    decoding = state(1, 1, max_length=3)
    decoding.append(2, None)
    with pytest.raises(AssertionError, match="max_length = 3"):
        decoding.append(2, None)
