"""A snapshot is a copy that is not touched by what happens to the originals, in memory that is used again."""

from __future__ import annotations

import torch

from transformer_kit.training.snapshot import Snapshot


def tree():
    tied = torch.arange(15.0).view(3, 5)
    return {
        "weights": {"a": tied, "b": tied.detach(), "t": torch.arange(21.0).view(3, 7).t()},
        "state": {"a": {"step": torch.tensor(3.0), "moment": torch.ones(5, dtype=torch.bfloat16)}, "lr": 0.5},
        "more": [torch.zeros(0, 3), (torch.tensor([True, False]), None)],
    }


def tensors(found):
    if isinstance(found, torch.Tensor):
        return [found]
    inner = found.values() if isinstance(found, dict) else found if isinstance(found, list | tuple) else ()
    return [tensor for each in inner for tensor in tensors(each)]


def test_copies_stay_while_the_originals_change():
    originals = tree()
    copies = Snapshot().take(originals)
    assert copies["state"]["lr"] == 0.5
    assert copies["more"][1][1] is None
    assert type(copies["more"][1]) is tuple
    for tensor in tensors(originals):
        tensor.fill_(1)
    for copy, wanted in zip(tensors(copies), tensors(tree()), strict=True):
        assert torch.equal(copy, wanted)
        assert copy.dtype is wanted.dtype


def test_memory_is_used_again_and_ties_are_copied_once():
    snapshot = Snapshot()
    first = snapshot.take(tree())
    assert first["weights"]["a"] is first["weights"]["b"]
    assert first["weights"]["t"].is_contiguous()
    held = {tensor.data_ptr() for tensor in tensors(first) if tensor.numel()}
    assert len(held) == 5, "seven tensors: one of them twice, one empty"
    changed = tree()
    changed["weights"]["a"] += 1
    second = snapshot.take(changed)
    assert {tensor.data_ptr() for tensor in tensors(second) if tensor.numel()} == held
    assert torch.equal(second["weights"]["a"], changed["weights"]["a"])


def test_other_shapes_take_other_memory_and_what_is_gone_is_given_back():
    snapshot = Snapshot()
    first = snapshot.take({"a": torch.zeros(3), "b": torch.zeros(5)})
    second = snapshot.take({"a": torch.ones(7)})
    assert torch.equal(second["a"], torch.ones(7))
    assert torch.equal(first["a"], torch.zeros(3))
    assert len(snapshot._buffers) == 1
    snapshot.clear()
    assert not snapshot._buffers


def test_a_tie_that_is_cut_is_copied_twice():
    snapshot, shared = Snapshot(), torch.zeros(3)
    snapshot.take({"a": shared, "b": shared})
    cut = snapshot.take({"a": shared, "b": torch.ones(3)})
    assert cut["a"].tolist() == [0, 0, 0]
    assert cut["b"].tolist() == [1, 1, 1]
