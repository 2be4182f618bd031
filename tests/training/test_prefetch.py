"""Batches made ahead: the same batches, with the cursor of those handed out; errors and ends in their place."""

from __future__ import annotations

import threading
import time

import pytest
import torch
from training_toys import Stream

from transformer_kit.errors import DataError, Interrupted
from transformer_kit.training.prefetch import Prefetched, batches_ahead


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "batches"]


def take(stream, count):
    """What a consumer sees of some batches: ids, cursor and epoch behind each."""
    seen = []
    for batch in stream:
        seen.append((batch.sample_ids.tolist(), stream.state_dict(), stream.epoch))
        if len(seen) == count:
            return seen
    return seen


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_equals_the_stream_across_an_epoch_border(ahead):
    expected = take(Stream(), 19)
    with Prefetched(Stream(), ahead, pin=False) as stream:
        assert (stream.state_dict(), stream.epoch) == ({"epoch": 0, "batch": 0}, 0)
        assert take(stream, 19) == expected
    assert {epoch for *_, epoch in expected} == {0, 1, 2}
    assert threads() == []


@pytest.mark.parametrize("ahead", [0, 2])
def test_goes_on_behind_the_last_batch_handed_out(ahead):
    expected = take(Stream(), 20)
    inner = Stream()
    stream = Prefetched(inner, ahead, pin=False)
    got = take(stream, 5)
    time.sleep(0.02)  # the thread is ahead by now
    cursor = stream.state_dict()
    got += take(stream, 5)  # the same object, iterated over anew
    stream.close()
    assert inner.state_dict() == stream.state_dict()
    other = Prefetched(Stream(), ahead, pin=False)
    other.load_state_dict(cursor)
    assert take(other, 15) == expected[5:]
    assert got == expected[:10]
    other.load_state_dict(expected[2][1])
    assert take(other, 4) == expected[3:7]
    other.close()
    assert threads() == []


def test_makes_no_more_than_it_may_ahead():
    inner = Stream()
    with Prefetched(inner, 2, pin=False) as stream:
        batches = iter(stream)
        next(batches)
        deadline = time.monotonic() + 5
        while len(inner.given) < 3 and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.02)
        assert len(inner.given) == 3
        batches.close()
        assert threads() == []


class Failing(Stream):
    def batch(self, chunk):
        if len(self.given) == 4:
            raise DataError("line 4: not a line")
        return super().batch(chunk)


@pytest.mark.parametrize("ahead", [0, 1, 7])
def test_an_error_comes_in_place_of_its_batch(ahead):
    seen: list[object] = []
    with pytest.raises(DataError, match="line 4"):
        seen.extend(iter(Prefetched(Failing(), ahead, pin=False)))
    assert len(seen) == 3
    assert threads() == []


def test_an_end_comes_behind_the_last_batch():
    class Short(Stream):
        def __iter__(self):
            for number, batch in enumerate(super().__iter__()):
                if number == 2:
                    return
                yield batch

    assert len(list(Prefetched(Short(), 5, pin=False))) == 2
    assert threads() == []


def test_a_gpu_is_what_it_pays_for():
    assert [batches_ahead(None, torch.device(name)) for name in ("cpu", "cuda", "mps")] == [0, 2, 0]
    assert [batches_ahead(n, torch.device("cpu")) for n in (0, 3)] == [0, 3]


# -- in the loop --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stops", [(40,), (16, 40), (13, 17, 40)])
def test_training_equals_the_one_without(make, stops):
    def train(folder, ahead, stops):
        rows, setup = [], None
        for stop in stops:
            setup = make(folder=folder, steps=stop, prefetch=ahead, accumulate_tokens=29)
            setup.trainer.fit()
            assert threads() == []
            rows += setup.tracker.of("train", "step", "loss", "samples", "grad_norm")
        return rows, setup.model.state_dict()

    rows, weights = train("plain", 0, (40,))
    ahead_rows, ahead_weights = train("ahead", 3, stops)
    assert ahead_rows == rows
    assert all(torch.equal(weights[name], ahead_weights[name]) for name in weights)


def test_an_interrupted_training_leaves_no_thread(make):
    setup = make(prefetch=2, validate_every=5, validate=lambda model: (_ for _ in ()).throw(KeyError("loss")))
    with pytest.raises(KeyError):
        setup.trainer.fit()
    assert threads() == []


def test_a_signal_while_a_batch_is_made_stops_behind_the_update_in_hand(make):
    import signal

    class Slow(Stream):
        def batch(self, chunk):
            if len(self.given) == 7:
                signal.raise_signal(signal.SIGTERM)  # Python's handler runs in the main thread
            return super().batch(chunk)

    setup = make(prefetch=2, stream=Slow(), folder="stopped")
    with pytest.raises(Interrupted, match="the state is saved"):
        setup.trainer.fit()
    step = setup.trainer.state.step
    assert setup.store.latest_good().state()["cursor"] == take(Stream(), step)[-1][1]
    assert threads() == []
    resumed = make(prefetch=2, folder="stopped")
    resumed.trainer.fit()
    whole = make(folder="whole")
    whole.trainer.fit()
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name])


def test_an_error_in_the_thread_surfaces_in_the_loop(make):
    with pytest.raises(DataError, match="line 4"):
        make(prefetch=2, stream=Failing()).trainer.fit()
    assert threads() == []


def test_places_of_counted_cells_go_along_to_a_device():
    """What is known before the copy needs no look at the device behind it."""
    from transformer_kit.objectives.tokens import counted

    batch = Stream().batch([3, 5, 11])
    assert batch.num_labels < batch.labels.numel()
    moved = batch.to("meta")
    assert moved.places is not None
    assert moved.places.shape == (batch.num_labels,)
    hidden = torch.randn(*batch.labels.shape, 7)
    expected = counted(hidden, batch)
    got = counted(hidden, batch._with_places())
    assert all(torch.equal(one, other) for one, other in zip(expected, got, strict=True))
    assert torch.equal(got[1], batch.labels[batch.counted])
    twice = batch._with_places().repeated(2).places
    assert twice is not None
    assert torch.equal(twice, batch.repeated(2).counted.flatten().nonzero().squeeze(1))
    assert batch._with_places().rows(slice(0, 1)).places is None
