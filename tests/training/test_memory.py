"""Memory: what runs out is told, a batch that does not fit is halved once, and the update stays what it is."""

from __future__ import annotations

import pytest
import torch
from optimizer_toys import shipped

from transformer_kit.batch import translation_batch
from transformer_kit.errors import RunError
from transformer_kit.training.memory import is_out_of_memory, peak_memory
from transformer_kit.training.optimizer import build_optimizer
from transformer_kit.training.parallel import Parallel
from transformer_kit.training.precision import Precision
from transformer_kit.training.step import Step
from transformer_kit.training.update import Updater
from transformer_kit.training.windows import Window

CPU = torch.device("cpu")


def real_message():
    """What torch says when its CPU allocator is refused."""
    try:
        torch.empty(2**60)
    except RuntimeError as error:
        return error
    raise AssertionError("2^62 bytes were there")


KINDS = {
    "gpu": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    "cpu": real_message(),
    "python": MemoryError(),
    "cublas": RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    "mps": RuntimeError("MPS backend out of memory (MPS allocated: 9.00 GB)"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_errors_that_say_it(kind):
    assert is_out_of_memory(KINDS[kind])


@pytest.mark.parametrize("error", [RuntimeError("shape mismatch"), ValueError("out of memory"), KeyError("x")])
def test_errors_that_do_not(error):
    assert not is_out_of_memory(error)


def batch_of(*lengths):
    rows = [torch.arange(first, first + n) % 9 + 4 for first, n in enumerate(lengths)]
    return translation_batch(rows, rows[::-1], range(len(rows)), pad_id=0, bos_id=2, eos_id=3)


def test_rows_of_a_batch():
    whole = batch_of(3, 5, 2, 7)
    part = whole.rows(slice(1, 3))
    assert part.source is not None
    assert part.source.shape == (2, 8)
    assert part.num_labels == int(part.counted.sum()) == 6 + 3
    assert part.sample_ids.tolist() == [1, 2]
    assert torch.equal(part.labels, whole.labels[1:3])
    assert torch.equal(part.target.at, whole.target.at[1:3])


class Scarce:
    """Memory for so many rows: raises `error` in the middle of the backward pass of a larger batch."""

    def __init__(self, model, rows, error, where="backward"):
        self.rows, self.error, self.where, self.now, self.raised = rows, error, where, 0, 0
        model.register_forward_pre_hook(self.forward)
        model.middle.weight.register_hook(self.backward)

    def fail(self):
        if self.now > self.rows:
            self.raised += 1
            raise self.error

    def forward(self, model, inputs):
        self.now = len(inputs[0].labels)
        if self.where == "forward":
            self.fail()

    def backward(self, grad):
        if self.where == "backward":
            self.fail()


def one_update(make, window, dropout=0.0, rows=None, error=None, where="backward"):
    setup = make(dropout=dropout)
    model = setup.model.double()
    scarce = None if rows is None else Scarce(model, rows, error, where)
    step = Step(model, setup.trainer._parallel.step.objective)
    optimizer = build_optimizer(shipped("adam"), model)
    updater = Updater(Parallel(step), optimizer, lambda step: 0.1, Precision("fp32", CPU, ""), 1.0, 1)
    outcome = updater.run(Window.of(window), attempt=0, step=1)
    return model, outcome, scarce


@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_that_does_not_fit_is_computed_in_halves(make, kind, where):
    """A failing backward pass has added to some gradients already: these must not count."""
    window = [batch_of(3, 5), batch_of(2, 7, 4, 3, 6), batch_of(5, 4, 9)]
    plain, expected, _ = one_update(make, window)
    split, outcome, scarce = one_update(make, window, rows=3, error=KINDS[kind], where=where)
    assert (scarce.raised, outcome.splits, expected.splits) == (1, 1, 0)
    assert outcome.labels == expected.labels
    assert outcome.loss == pytest.approx(expected.loss, rel=1e-12)
    assert outcome.norm == pytest.approx(expected.norm, rel=1e-12)
    assert outcome.metrics == pytest.approx(expected.metrics, rel=1e-12)
    for (name, one), other in zip(plain.named_parameters(), split.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12, msg=name)


def test_batches_as_large_are_halved_with_it(make):
    """Else each of them would fail by itself, and every failure begins the window anew."""
    window = [batch_of(2, 7, 4, 3), batch_of(3, 3), batch_of(7, 3, 2, 2), batch_of(7, 1, 1, 1)]
    _, outcome, scarce = one_update(make, window, rows=2, error=MemoryError())
    assert (scarce.raised, outcome.splits) == (1, 3)


def test_a_smaller_batch_may_fail_later(make):
    window = [batch_of(2, 9, 4, 3), batch_of(3, 3, 2)]
    _, outcome, scarce = one_update(make, window, rows=2, error=MemoryError())
    assert (scarce.raised, outcome.splits) == (2, 2)


def test_halves_draw_differently(make):
    """With dropout the two halves are no copies of each other's draws."""
    row = batch_of(4, 4)
    model, outcome, _ = one_update(make, [row], dropout=0.5, rows=1, error=MemoryError())
    again, same, _ = one_update(make, [row], dropout=0.5, rows=1, error=MemoryError())
    assert outcome.loss == same.loss
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


@pytest.mark.parametrize(
    ("lengths", "rows", "said"),
    [
        (
            (3, 5, 2, 4, 3, 2),
            2,
            r"cpu has not enough memory for half a batch, 3 rows of 6 cells: a smaller data\.batch",
        ),
        ((3, 5), 0, "cpu has not enough memory for one row of 6 cells: shorter rows"),
        ((3,), 0, "cpu has not enough memory for one row of 4 cells: shorter rows"),
    ],
)
def test_a_half_that_does_not_fit_ends_it(make, lengths, rows, said):
    with pytest.raises(RunError, match=said) as found:
        one_update(make, [batch_of(*lengths)], rows=rows, error=KINDS["cpu"])
    assert "can't allocate memory" in str(found.value)


def test_other_errors_go_through(make):
    with pytest.raises(RuntimeError, match="shape mismatch"):
        one_update(make, [batch_of(3, 5)], rows=1, error=RuntimeError("shape mismatch"))


def test_the_optimizer_s_step_cannot_be_halved(make, monkeypatch):
    setup = make(steps=2)

    def fail(closure=None):
        raise KINDS["gpu"]

    monkeypatch.setattr(setup.trainer._optimizer, "step", fail)
    with pytest.raises(RunError, match="for the optimizer's step"):
        setup.trainer.fit()


def test_splits_are_counted_told_and_resumed(make, caplog):
    setup = make(steps=12, save_every=4)
    Scarce(setup.model, 2, MemoryError())
    with caplog.at_level("WARNING"):
        summary = setup.trainer.fit()
    large = [chunk for chunk in setup.stream.given if len(chunk) == 3]
    assert summary.oom_splits == len(large) == setup.tracker.of("train", "oom_splits")[-1][0]
    told = [record for record in caplog.records if "memory ran out" in record.message]
    assert [record.args[1] for record in told] == [1, 10]
    resumed = make(steps=13).trainer
    assert resumed.fit().oom_splits == summary.oom_splits, "with memory enough from there on"


def test_where_nothing_is_halved_nothing_is_told(make, caplog):
    with caplog.at_level("WARNING"):
        make(steps=5).trainer.fit()
    assert not [record for record in caplog.records if "memory" in record.message]


def test_peak_memory_grows_with_what_is_held():
    before = peak_memory(CPU)
    assert before is not None
    assert before > 50e6
    held = torch.ones(2**26)  # 256 MiB
    after = peak_memory(CPU)
    assert after is not None
    assert after >= max(before, held.nbytes)
