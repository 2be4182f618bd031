"""data.batch.tokens=auto: the line through two trials, what is refused, and that a trial leaves no trace."""

from __future__ import annotations

import pytest
import torch

from transformer_kit.errors import RunError
from transformer_kit.training import budget as module
from transformer_kit.training.budget import Trial, auto_tokens, fit_tokens
from transformer_kit.training.memory import available_memory, peak_of
from transformer_kit.training.precision import Precision
from transformer_kit.training.step import Step

CPU = Precision("fp32", torch.device("cpu"), "")


@pytest.mark.parametrize(
    ("room", "fixed", "tokens"),
    [
        (7_000_000, 0, 6 * 1024 - 256),  # 1,000,000 and 1000 a token: 6000, in multiples of 256 5888
        (7_000_000, 2_000_000, 3840),
        (10**12, 0, 65_536),
        (1_100_000, 0, 0),
        (900_000, 0, 0),
        (7_000_000, 9_000_000, 0),
    ],
)
def test_the_line_through_two_trials(room, fixed, tokens):
    trials = [Trial(n, 1_000_000 + 1000 * n) for n in (1024, 2048)]
    assert fit_tokens(*trials, fixed=fixed, room=room) == tokens


def test_trials_that_look_alike_reach_the_cap():
    """As where earlier work held more than both."""
    assert fit_tokens(Trial(1024, 5000), Trial(2048, 5000), fixed=0, room=10**9) == module.MOST


@pytest.fixture
def parts(make):
    """A step in training mode and the batches of a budget: as many rows of 8 cells as it holds."""
    setup = make(dropout=0.5)
    step = Step(setup.model, setup.trainer._parallel.step.objective).train()
    asked = []

    def batches(tokens):
        asked.append(tokens)
        return iter([setup.stream.batch([0, 1, 2]), setup.stream.batch(list(range(9)))])

    return step, batches, asked


def test_the_choice(parts, monkeypatch):
    step, batches, asked = parts
    monkeypatch.setattr(module, "available_memory", lambda device: 20_000_000)
    peaks = iter([2_024_000, 3_048_000])
    monkeypatch.setattr(module, "_peak", lambda step, batch, precision: next(peaks))
    tokens = auto_tokens(step, batches, CPU, least=700)
    assert asked == [1024, 2048]
    parameters = sum(p.numel() for p in step.parameters())
    assert tokens == int((10_000_000 - 12 * parameters - 1_000_000) / 1000) // 256 * 256


def test_long_rows_need_a_large_budget(parts, monkeypatch):
    step, batches, asked = parts
    monkeypatch.setattr(module, "_peak", lambda step, batch, precision: 10**9)
    monkeypatch.setattr(module, "available_memory", lambda device: 10**9)
    with pytest.raises(RunError, match=r"50% of the free memory of cpu .* does not hold batches of 2,560 tokens"):
        auto_tokens(step, batches, CPU, least=2500)
    assert asked == [2560, 5120]


def test_memory_that_runs_out_in_a_trial(parts, monkeypatch):
    step, batches, _ = parts

    def fail(step, batch, precision):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(module, "_peak", fail)
    with pytest.raises(RunError, match=r"take shorter rows, a smaller model, or give a number"):
        auto_tokens(step, batches, CPU, least=1)
    monkeypatch.setattr(module, "available_memory", lambda device: None)
    with pytest.raises(RunError, match="how much memory cpu has is not known"):
        auto_tokens(step, batches, CPU, least=1)


def test_a_trial_leaves_no_trace(parts):
    step, batches, _ = parts
    before = {name: value.clone() for name, value in step.state_dict().items()}
    torch.manual_seed(17)
    state = torch.get_rng_state()
    if available_memory(CPU.device) is None:
        pytest.skip("this system does not tell how much memory is free")
    assert 0 < auto_tokens(step, batches, CPU, least=5) <= module.MOST
    assert torch.equal(torch.get_rng_state(), state)
    assert all(p.grad is None for p in step.parameters())
    assert all(torch.equal(before[name], value) for name, value in step.state_dict().items())
    assert step.training


def test_the_heaviest_batch_is_tried(parts):
    _, batches, _ = parts
    assert len(module._heaviest(batches(1)).labels) == 9


def test_the_peak_of_a_piece_of_work():
    with peak_of(torch.device("cpu")) as small:
        pass
    with peak_of(torch.device("cpu")) as large:
        torch.ones(2**26)  # 256 MiB
    assert large() >= max(small(), 2**28)
