"""What every layout is held to, against the oracle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hf_oracle import (
    Case,
    config_of,
    difference,
    inputs,
    logits_alone,
    oracle,
    oracle_logits,
    our_logits,
    ours,
    spread,
    transformers,
)

from transformer_kit.interop.files import read_config, read_tensors, write_folder
from transformer_kit.interop.layouts import layout_of
from transformer_kit.training.weights import unique_tensors

SINGLE = 1e-4
AUTO = {
    "gpt2": "AutoModelForCausalLM",
    "llama": "AutoModelForCausalLM",
    "mistral": "AutoModelForCausalLM",
    "bert": "AutoModelForMaskedLM",
    "roberta": "AutoModelForMaskedLM",
    "t5": "AutoModelForSeq2SeqLM",
    "bart": "AutoModelForSeq2SeqLM",
    "marian": "AutoModelForSeq2SeqLM",
}


@torch.no_grad()
def check_logits(case: Case, dtype: torch.dtype, most: float) -> None:
    """Equal logits at real cells, padding on either side."""
    model = oracle(case, dtype)
    given = inputs(model)
    alone = case.alone and dtype == torch.float64
    expected = logits_alone(case, model, given) if alone else oracle_logits(case, model, given)
    assert 0.4 < spread(case, model, given) < 2.5, "near-uniform attention would hide errors"
    _, own = ours(model)
    found = {side: difference(our_logits(own, given, side), expected) for side in ("right", "left")}
    if case.left and not alone:
        found["both left"] = difference(our_logits(own, given, "left"), oracle_logits(case, model, given, "left"))
    print(f"{case.name} {str(dtype).removeprefix('torch.')}: {max(found.values()):.2g}")
    assert max(found.values()) <= most, found
    assert expected.abs().max() > 0.5, "logits near zero would hide errors"


def check_gradients(case: Case) -> None:
    """Equal gradients to 1e-3, with a floor of 1e-5 of the largest."""
    model = oracle(case)
    given = inputs(model)
    layout, own = ours(model)
    expected = oracle_logits(case, model, given)
    weights = torch.randn(expected.shape, generator=torch.Generator().manual_seed(5)) / expected.numel() ** 0.5
    (expected * weights).sum().backward()
    (our_logits(own, given) * weights).sum().backward()
    grads = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    expected_grads = layout.from_hf(grads, config_of(model))
    own_grads = {name: parameter.grad for name, parameter in own.named_parameters() if parameter.grad is not None}
    if any(name == "final_logits_bias" for name, _ in model.named_buffers()):
        del own_grads["head.bias"], expected_grads["head.bias"]  # fixed there, learnt here
    assert own_grads.keys() == expected_grads.keys()
    worst = max(
        difference(own_grads[name], grad) / float(grad.abs().max())
        for name, grad in expected_grads.items()
        if grad.any()
    )
    print(f"{case.name} gradients: {worst:.2g} of a tensor's largest")
    floor = 1e-5 * max(float(grad.abs().max()) for grad in expected_grads.values())
    for name, grad in expected_grads.items():
        torch.testing.assert_close(
            own_grads[name], grad, rtol=1e-3, atol=floor, msg=lambda text, n=name: f"{n}: {text}"
        )


@torch.no_grad()
def check_round_trip(case: Case, folder: Path) -> None:
    """Import, export, import: the same options and tensors; and the oracle loads the folder and computes the same."""
    model = oracle(case)
    given = inputs(model)
    config, tensors = config_of(model), dict(model.state_dict())
    layout = layout_of(config)
    options, state = layout.model_options(config, tensors.keys()), layout.from_hf(tensors, config)
    written = layout.to_hf(state, options)
    pad_id = {"pad_token_id": model.config.pad_token_id}
    write_folder(folder, written[0] | pad_id, written[1])
    again, tensors = read_config(folder), read_tensors(folder)
    assert layout_of(again).model_options(again, tensors.keys()) == options
    state_again = layout.from_hf(tensors, again)
    assert state_again.keys() == state.keys()
    assert all(torch.equal(state_again[name], state[name]) for name in state)
    auto = getattr(transformers, AUTO[layout.names.layout])
    loaded, info = auto.from_pretrained(folder, attn_implementation="eager", output_loading_info=True)
    assert not info["missing_keys"], info
    assert not info["unexpected_keys"], info
    assert not info["mismatched_keys"], info
    assert difference(oracle_logits(case, loaded.eval(), given), oracle_logits(case, model, given)) <= 1e-6


@torch.no_grad()
def check_mutations(case: Case) -> None:
    """A weight whose rows are permuted, and each changed option, show."""
    model = oracle(case)
    given = inputs(model)
    expected = oracle_logits(case, model, given)
    for key, value in case.mutations.items():
        _, own = ours(model, {key: value})
        assert difference(our_logits(own, given), expected) > SINGLE, f"{key}={value} went unnoticed"
    _, own = ours(model)
    assert difference(our_logits(own, given), expected) <= SINGLE
    for name, tensor in unique_tensors(own).items():
        if not name.endswith(("qkv_weight", "out.weight", "down.weight", "norm.weight", "embedding.weight")):
            continue
        kept = tensor.clone()
        tensor.copy_(tensor.roll(1, 0))
        assert difference(our_logits(own, given), expected) > SINGLE, f"{name}: permuted rows went unnoticed"
        tensor.copy_(kept)


def parametrize(cases: list[Case]) -> Any:
    return pytest.mark.parametrize("case", cases, ids=str)
