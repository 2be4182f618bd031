"""Multi-head attention against torch.nn.MultiheadAttention, weights copied, scores of unit spread."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer_kit.errors import ConfigError
from transformer_kit.nn.attention import MultiHeadAttention, SelfView
from transformer_kit.nn.kernels import Visibility
from transformer_kit.nn.mask import Mask
from transformer_kit.nn.position.base import Position
from transformer_kit.nn.state import KeyValueCache

CPU = torch.device("cpu")
B, L, S, D = 3, 7, 11, 30


def attention(**changes: object) -> MultiHeadAttention:
    """In float64 and sharp: queries and keys of unit variance."""
    options: dict[str, object] = {
        "dim": D,
        "num_heads": 6,
        "head_dim": 5,
        "v_head_dim": 5,
        "dropout": 0.0,
        "num_kv_heads": None,
        "bias": True,
        "out_bias": True,
        "scale": None,
        "window": None,
        "kernel": "auto",
    }
    torch.manual_seed(7)
    module = MultiHeadAttention(**(options | changes)).double()  # type: ignore[arg-type]  # options of mixed types
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=D**-0.5 if parameter.dim() == 2 else 0.3)
    return module.eval()


def view(mask: Mask, length: int = L, at: Tensor | None = None) -> SelfView:
    places = torch.arange(length).expand(B, length) if at is None else at
    return SelfView(Position(), places, Visibility(mask, None, length, length + mask.offset, CPU))


def torch_twin(module: MultiHeadAttention) -> nn.MultiheadAttention:
    twin = nn.MultiheadAttention(D, module.num_heads, batch_first=True, dtype=torch.float64).eval()
    assert module.qkv_bias is not None
    with torch.no_grad():
        twin.in_proj_weight.copy_(module.qkv_weight)
        twin.in_proj_bias.copy_(module.qkv_bias)
        twin.out_proj.load_state_dict(module.out.state_dict())
    return twin


def test_self_attention_equals_torch() -> None:
    module = attention()
    twin = torch_twin(module)
    x = torch.randn(B, L, D, dtype=torch.float64, requires_grad=True)
    valid = torch.arange(L) < torch.tensor([[7], [5], [2]])
    got = module(x, view(Mask(causal=True, key_valid=valid)))
    later = torch.ones(L, L, dtype=torch.bool).triu(1)
    expected, weights = twin(x, x, x, key_padding_mask=~valid, attn_mask=later, average_attn_weights=False)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)
    (grad,), (expected_grad,) = (torch.autograd.grad(out.square().sum(), x) for out in (got, expected))
    torch.testing.assert_close(grad, expected_grad, rtol=0, atol=1e-11)
    assert weights[0, :, -1].max() > 3 / L, "near-uniform weights would hide errors"


def test_cross_attention_equals_torch() -> None:
    module = attention()
    x, memory = torch.randn(B, L, D, dtype=torch.float64), torch.randn(B, S, D, dtype=torch.float64)
    valid = torch.arange(S) < torch.tensor([[11], [5], [2]])
    keys, values = module.remember(memory)
    got = module.cross(x, keys, values, Visibility(Mask(key_valid=valid), None, L, S, CPU))
    expected, _ = torch_twin(module)(x, memory, memory, key_padding_mask=~valid)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("groups", [1, 2, 3, 6])
@pytest.mark.parametrize("values", [5, 13])
def test_heads_widths_and_scale_by_the_formula(groups: int, values: int) -> None:
    """Per head, by slices of the packed matrix: the order of rows is q, k, v, and in each the heads."""
    module = attention(num_kv_heads=groups, v_head_dim=values, scale=0.7, bias=False, out_bias=False)
    x = torch.randn(B, L, D, dtype=torch.float64)
    w_q, w_k, w_v, w_o = module.matrices()
    assert [tuple(w.shape) for w in (w_q, w_k, w_v, w_o)] == [
        (30, D),
        (5 * groups, D),
        (values * groups, D),
        (D, 6 * values),
    ]
    heads = []
    for h in range(6):
        g = h // (6 // groups)
        q, k = x @ w_q[5 * h : 5 * h + 5].T, x @ w_k[5 * g : 5 * g + 5].T
        v = x @ w_v[values * g : values * (g + 1)].T
        heads.append(F.softmax(q @ k.mT * 0.7, -1) @ v)
    expected = torch.cat(heads, -1) @ w_o.T
    torch.testing.assert_close(module(x, view(Mask())), expected, rtol=0, atol=1e-12)


def test_default_scale_is_one_over_the_root_of_the_key_width() -> None:
    x = torch.randn(B, L, D, dtype=torch.float64)
    assert torch.equal(attention()(x, view(Mask())), attention(scale=5**-0.5)(x, view(Mask())))


@pytest.mark.parametrize("groups", [1, 6])
def test_beams_of_a_sentence_share_its_memory(groups: int) -> None:
    """Two beams over B memories equal B · 2 rows over repeated memories."""
    module = attention(num_kv_heads=groups)
    x = torch.randn(B * 2, 3, D, dtype=torch.float64)
    memory = torch.randn(B, S, D, dtype=torch.float64)
    valid = torch.arange(S) < torch.tensor([[11], [5], [2]])
    got = module.cross(x, *module.remember(memory), Visibility(Mask(key_valid=valid), None, 6, S, CPU))
    repeated = Visibility(Mask(key_valid=valid.repeat_interleave(2, 0)), None, 3, S, CPU)
    expected = module.cross(x, *module.remember(memory.repeat_interleave(2, 0)), repeated)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


def test_cache_equals_one_pass() -> None:
    module = attention(num_kv_heads=2, v_head_dim=13)
    x = torch.randn(B, L, D, dtype=torch.float64)
    expected = module(x, view(Mask(causal=True)))
    cache, got, done = KeyValueCache(L + 2), [], 0
    for piece in x.split((4, 1, 2), dim=1):
        got.append(module(piece, view(Mask(causal=True, offset=done), piece.shape[1]), cache))
        done += piece.shape[1]
    torch.testing.assert_close(torch.cat(got, 1), expected, rtol=0, atol=1e-12)


class Doubling(Position):
    """Rotates by multiplying with the position, so that a key rotated twice or not at all shows."""

    def rotate(self, q: Tensor, k: Tensor, q_at: Tensor, k_at: Tensor) -> tuple[Tensor, Tensor]:
        return q * q_at[:, None, :, None], k * k_at[:, None, :, None]


def test_new_keys_are_rotated_once_before_they_are_cached() -> None:
    module = attention(bias=False)
    x = torch.randn(B, L, D, dtype=torch.float64)
    at = torch.arange(L).expand(B, L)
    cache, got = KeyValueCache(L), []
    for t in range(L):
        seen = Visibility(Mask(causal=True, offset=t), None, 1, t + 1, CPU)
        got.append(module(x[:, t : t + 1], SelfView(Doubling(), at[:, t : t + 1], seen), cache))
    whole = module(x, SelfView(Doubling(), at, Visibility(Mask(causal=True), None, L, L, CPU)))
    torch.testing.assert_close(torch.cat(got, 1), whole, rtol=0, atol=1e-12)
    _, w_k, _, _ = module.matrices()
    scaled = x * at[..., None]
    assert cache.keys is not None
    torch.testing.assert_close(cache.keys.transpose(1, 2).flatten(2), scaled @ w_k.T, rtol=0, atol=1e-12)


def test_dropout_acts_in_training_alone() -> None:
    module, x = attention(dropout=0.5), torch.randn(B, L, D, dtype=torch.float64)
    still = module(x, view(Mask()))
    assert torch.equal(still, attention()(x, view(Mask())))
    assert not torch.allclose(module.train()(x, view(Mask())), still)


def test_kernels_agree_through_the_module_in_float32() -> None:
    x = torch.randn(B, L, D)
    out = {k: attention(kernel=k).float()(x, view(Mask(causal=True))) for k in ("reference", "plain", "fused", "auto")}
    for name in ("plain", "fused", "auto"):
        torch.testing.assert_close(out[name], out["reference"], rtol=0, atol=2e-5)


def test_wrong_options_are_named() -> None:
    for groups in (0, 4, 7, -1):
        with pytest.raises(ConfigError, match=f"num_kv_heads={groups}: must divide the number of heads, 6"):
            attention(num_kv_heads=groups)
    with pytest.raises(ConfigError, match="kernel=flash: must be one of auto, fused, plain, reference"):
        attention(kernel="flash")
