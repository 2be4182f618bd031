from __future__ import annotations

import torch

from transformer_kit.nn.embedding import TokenEmbedding


def test_rows_of_the_table_scaled() -> None:
    torch.manual_seed(1)
    plain, scaled = TokenEmbedding(11, 5, scale=False), TokenEmbedding(11, 5, scale=True)
    ids = torch.tensor([[0, 10, 3], [3, 3, 7]])
    assert torch.equal(plain(ids), plain.weight[ids])
    torch.testing.assert_close(scaled(ids), scaled.weight[ids] * 5**0.5)
    scaled(ids).sum().backward()
    assert scaled.weight.grad is not None
    torch.testing.assert_close(scaled.weight.grad[:, 0], torch.tensor([1, 0, 0, 3, 0, 0, 0, 1, 0, 0, 1]) * 5**0.5)


def test_rows_enter_the_stack_with_unit_variance() -> None:
    torch.manual_seed(1)
    embedding = TokenEmbedding(997, 131, scale=True)
    assert abs(embedding(torch.arange(997)).var().item() - 1) < 0.02
