"""TensorBoard: what was written is read back; a resumed session hides what it writes again."""

from __future__ import annotations

import pytest

pytest.importorskip("tensorboard", reason="tensorboard is not installed (extra: dev)")
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from transformer_kit.training.tensorboard_tracker import Tensorboard


def scalars(folder):
    """What TensorBoard shows: (name, step, value)."""
    reader = EventAccumulator(str(folder))
    reader.Reload()
    return sorted((name, item.step, item.value) for name in reader.Tags()["scalars"] for item in reader.Scalars(name))


def train(step, loss):
    return {"kind": "train", "step": step, "loss": loss, "samples": "00ff"}


def test_scalars_and_configuration(tmp_path):
    tracker = Tensorboard(tmp_path, "seed: 1\nname: x\n")
    tracker.rewind(0, 0)
    for row in (train(1, 0.5), train(2, float("nan")), {"kind": "validation", "step": 2, "bleu": 30.5}):
        tracker.add(row)
    tracker.finish({"step": 2, "scores": {"bleu": 31.5}})
    found = scalars(tmp_path)
    assert found[:2] == [("final/bleu", 2, 31.5), ("train/loss", 1, 0.5)]
    assert found[2][:2] == ("train/loss", 2)
    assert found[2][2] != found[2][2]
    assert found[3:] == [("validation/bleu", 2, 30.5)]
    reader = EventAccumulator(str(tmp_path))
    reader.Reload()
    (text,) = reader.Tensors("configuration/text_summary")
    assert text.tensor_proto.string_val == [b"    seed: 1\n    name: x\n"]


@pytest.mark.parametrize("back", [3, 1, 0])
def test_a_resumed_session_shows_each_step_once(tmp_path, back):
    first = Tensorboard(tmp_path, "")
    first.rewind(0, 0)
    for step in (1, 2, 3, 4, 5):
        first.add(train(step, 1.0))
    first._writer.flush()  # then it was killed
    second = Tensorboard(tmp_path, "")
    second.rewind(back, back)
    for step in range(back + 1, 7):
        second.add(train(step, 2.0))
    second.finish(None)
    assert scalars(tmp_path) == [("train/loss", step, 1.0 if step <= back else 2.0) for step in range(1, 7)]
    first.finish(None)


def test_a_session_that_never_began_has_nothing_to_finish(tmp_path):
    Tensorboard(tmp_path / "x", "").finish(None)
    assert not (tmp_path / "x").exists()
