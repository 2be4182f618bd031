"""The encoder–decoder whole: against torch.nn.Transformer, cached decoding, padding that is garbage, ties, counts."""

from __future__ import annotations

import copy
from functools import cache
from importlib.resources import files
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor, nn

from transformer_kit.batch import Cells, Tokens, pad, translation_batch
from transformer_kit.config.build import build_model, count_parameters
from transformer_kit.models.encoder_decoder import EncoderDecoder
from transformer_kit.models.stack import Memory, Stack, add_sums
from transformer_kit.nn.attention import MultiHeadAttention
from transformer_kit.nn.block import Block
from transformer_kit.nn.feedforward.dense import Dense

SOURCE, TARGET = 23, 19
CONF = files("transformer_kit.conf")


def slot(group: str, name: str) -> dict[str, Any]:
    return dict(yaml.safe_load(CONF.joinpath("model", group, f"{name}.yaml").read_text(encoding="utf-8")))


def model_of(**changes: Any) -> EncoderDecoder:
    """A small model in float64 with scores of unit spread; changes are keys of the config's `model`."""
    options: dict[str, Any] = {
        "family": "encoder_decoder",
        "d_model": 12,
        "d_ff": 13,
        "num_heads": 2,
        "head_dim": None,
        "v_head_dim": None,
        "encoder": {"layers": 2},
        "decoder": {"layers": 3},
        "tie": "none",
        "embedding": {"scale": True, "norm": False, "types": 0},
        "pooler": False,
        "pattern": [],
        "max_length": 64,
        "init": "glorot",
        "dropout": dict.fromkeys(("embedding", "residual", "attention", "feedforward"), 0.0),
        "position": slot("position", "sinusoidal"),
        "norm": slot("norm", "layernorm"),
        "residual": slot("residual", "post"),
        "attention": slot("attention", "mha"),
        "feedforward": slot("feedforward", "relu"),
        "head": slot("head", "linear"),
    }
    torch.manual_seed(3)
    one = changes.get("tie") in ("three_way", "inputs")
    model = build_model(options | changes, 17 if one else SOURCE, 17 if one else TARGET).double()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.normal_(std=1.5 * parameter.shape[1] ** -0.5)
            else:
                parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return model.eval()


@cache
def variant(name: str) -> EncoderDecoder:
    """Models that exercise each hook of position, and grouped heads."""
    if name == "sinusoidal":
        return model_of()
    grouped = {"num_heads": 4, "head_dim": 6, "v_head_dim": 5, "attention": slot("attention", "gqa")}
    return model_of(position=slot("position", name), residual=slot("residual", "pre"), **grouped)


each_position = pytest.mark.parametrize("name", ["sinusoidal", "learned", "rope", "alibi"])


def ids(*lengths: int, vocab: int = TARGET) -> list[Tensor]:
    return [torch.randint(0, vocab, (n,), generator=torch.Generator().manual_seed(n)) for n in lengths]


def sources() -> Tokens:
    return pad(ids(3, 8, 5, vocab=SOURCE), 0)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_equals_torch_transformer() -> None:
    """Embeddings × √D, pre-norm layers and last norms, memory through every decoder layer: composition as torch's."""
    attention = slot("attention", "mha") | {"bias": True, "out_bias": True}
    mine = model_of(position=slot("position", "none"), residual=slot("residual", "pre"), attention=attention)
    theirs = nn.Transformer(
        12, 2, 2, 3, 13, 0.0, batch_first=True, norm_first=True, layer_norm_eps=1e-6, dtype=torch.float64
    ).eval()
    for stack, twin in ((mine.encoder, theirs.encoder), (mine.decoder, theirs.decoder)):
        assert stack.final_norm is not None
        twin.norm.load_state_dict(stack.final_norm.state_dict())
        for block, layer in zip(stack.blocks, twin.layers, strict=True):
            _copy(block, layer)
    source, target = sources(), pad(ids(7, 2, 6), 0)
    later = torch.ones(7, 7, dtype=torch.bool).triu(1)
    expected = theirs(
        nn.functional.embedding(source.ids, mine.source_embedding.weight) * 12**0.5,
        nn.functional.embedding(target.ids, mine.target_embedding.weight) * 12**0.5,
        tgt_mask=later,
        src_key_padding_mask=~source.valid,
        memory_key_padding_mask=~source.valid,
        tgt_key_padding_mask=~target.valid,
    )
    got = mine.decode(target, mine.encode(source))
    torch.testing.assert_close(got[target.valid], expected[target.valid], rtol=0, atol=1e-11)


def _copy(block: nn.Module, layer: Any) -> None:
    """Write a block's parameters into torch's layer."""
    assert isinstance(block, Block)
    assert isinstance(block.feedforward, Dense)
    residuals = [block.self_residual, block.cross_residual, block.feedforward_residual]
    present = [residual for residual in residuals if residual is not None]
    for number, residual in enumerate(present, start=1):
        getattr(layer, f"norm{number}").load_state_dict(residual.get_submodule("norm").state_dict())
    for attention, twin in ((block.self_attention, "self_attn"), (block.cross_attention, "multihead_attn")):
        if attention is not None:
            assert isinstance(attention, MultiHeadAttention)
            other = getattr(layer, twin)
            other.out_proj.load_state_dict(attention.out.state_dict())
            with torch.no_grad():
                other.in_proj_weight.copy_(attention.qkv_weight)
                other.in_proj_bias.copy_(attention.qkv_bias)
    layer.linear1.load_state_dict(block.feedforward.up.state_dict())
    layer.linear2.load_state_dict(block.feedforward.down.state_dict())


@each_position
def test_prompts_of_different_length_decode_as_if_alone(name: str) -> None:
    """Left-padded prompts of 1, 5 and 17 tokens in one state, prefilled in pieces of 5 + 7 + 5, then 1 + 3 more."""
    model, source = variant(name), sources()
    prompts = [torch.cat(parts) for parts in zip(ids(1, 5, 17), ids(4, 4, 4), strict=True)]
    prompt = pad([p[:-4] for p in prompts], 0, "left")
    with torch.no_grad():
        state = model.start(model.encode(source), beams=1, max_length=21)
        hidden = [
            model.extend(piece, state, valid)
            for piece, valid in zip(prompt.ids.split((5, 7, 5), 1), prompt.valid.split((5, 7, 5), 1), strict=True)
        ]
        rest = torch.stack([p[-4:] for p in prompts])
        hidden += [model.extend(piece, state) for piece in rest.split((1, 3), 1)]
        got = torch.cat(hidden, 1)
        for row, p in enumerate(prompts):
            alone = pad([source.ids[row, source.valid[row]]], 0)
            expected = model.decode(pad([p], 0), model.encode(alone))[0]
            torch.testing.assert_close(got[row, -len(p) :], expected, rtol=0, atol=1e-10)
    assert state.length == 21


@each_position
def test_prefill_in_pieces_equals_one_pass(name: str) -> None:
    """5 + 7 + 1."""
    model, source, target = variant(name), sources(), pad(ids(13, 13, 13), 0)
    with torch.no_grad():
        memory = model.encode(source)
        state = model.start(memory, beams=1, max_length=13)
        got = torch.cat([model.extend(piece, state) for piece in target.ids.split((5, 7, 1), 1)], 1)
        torch.testing.assert_close(got, model.decode(target, memory), rtol=0, atol=1e-10)


@each_position
def test_beams_reorder_and_sentences_leave(name: str) -> None:
    """Rows move among the beams of a sentence at each step, and a sentence leaves: as decoding from scratch."""
    model, source, beams = variant(name), sources(), 2
    draw = torch.Generator().manual_seed(11)
    with torch.no_grad():
        memory = model.encode(source)
        state = model.start(memory, beams, max_length=9)
        sentences, history = torch.arange(3), torch.empty(6, 0, dtype=torch.int64)
        for step in range(6):
            new = torch.randint(0, TARGET, (len(history), 1), generator=draw)
            history = torch.cat((history, new), 1)
            got = model.extend(new, state)
            rows = sentences.repeat_interleave(beams)
            repeated = Memory(memory.hidden[rows], memory.valid[rows], memory.full)
            expected = model.decode(pad(list(history), 0), repeated)[:, -1:]
            torch.testing.assert_close(got, expected, rtol=0, atol=1e-10)
            move = torch.randint(0, beams, (len(sentences), beams), generator=draw)
            order = (torch.arange(len(sentences))[:, None] * beams + move).flatten()
            state.reorder(order)
            history = history[order]
            if step == 3:
                stay = torch.tensor([2, 0])
                state.keep(stay)
                history, sentences = history.view(3, beams, -1)[stay].flatten(0, 1), sentences[stay]
    assert state.rows == 4
    assert state.nbytes > 0


@each_position
@pytest.mark.parametrize("way", ["float32", "autocast"])
def test_garbage_in_padded_cells_reaches_nothing(name: str, way: str) -> None:
    """NaN embeddings at padding leave outputs and all gradients finite, and real cells to the bit as with zeros."""
    model = copy.deepcopy(variant(name)).float()
    source, target = sources(), pad(ids(7, 2, 6), 0)
    outputs = []
    for garbage in (0.0, float("nan")):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=way == "autocast"):
            x, y = model.source_embedding(source.ids), model.target_embedding(target.ids)
            x, y = (e.masked_fill(~t.valid[..., None], garbage) for e, t in ((x, source), (y, target)))
            hidden, _ = model.encoder(x, Cells(source.at, source.valid))
            memory = Memory(hidden, source.valid, full=False)
            hidden, _ = model.decoder(y, Cells(target.at, target.valid), memory=memory)
        outputs.append(hidden[target.valid])
        assert hidden.isfinite().all()
        hidden.float().square().sum().backward()
        grads = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        assert len(grads) > 20
        assert all(grad.isfinite().all() for grad in grads)
    assert torch.equal(*outputs)


def test_an_empty_source_row_stays_finite_and_alone() -> None:
    """A row that is nothing but padding: cross-attention sees no key; gradients finite, the other rows unchanged."""
    model = copy.deepcopy(variant("sinusoidal"))
    batch = translation_batch([ids(3)[0], ids(8)[0]], ids(4, 6), [0, 1], pad_id=0, bos_id=2, eos_id=3)
    assert batch.source is not None
    expected = model(batch).hidden[1]
    batch.source.valid[0] = False
    hidden = model(batch).hidden
    hidden.sum().backward()
    assert hidden.isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    torch.testing.assert_close(hidden[1], expected, rtol=0, atol=1e-12)


def test_documents_in_a_row_do_not_see_each_other() -> None:
    """Two packed documents with restarting positions equal the two alone, in a causal stack and another."""
    model = variant("learned")
    first, second = ids(5, 8)
    at = torch.cat((torch.arange(5), torch.arange(8)))[None]
    document = torch.tensor([[0] * 5 + [1] * 8])
    x = model.source_embedding(torch.cat((first, second))[None])
    for stack in (model.encoder, causal_encoder(model)):
        packed, _ = stack(x, Cells(at, None, document))
        one, _ = stack(x[:, :5], Cells(at[:, :5]))
        other, _ = stack(x[:, 5:], Cells(at[:, 5:]))
        torch.testing.assert_close(packed, torch.cat((one, other), 1), rtol=0, atol=1e-12)


def causal_encoder(model: EncoderDecoder) -> Stack:
    stack = copy.deepcopy(model.encoder)
    stack.causal = True
    return stack


def test_decoding_builds_no_graph() -> None:
    model = variant("sinusoidal")
    state = model.start(model.encode(sources()), beams=2, max_length=3)
    assert not model.extend(torch.zeros(6, 1, dtype=torch.int64), state).requires_grad
    assert not any(k.requires_grad or v.requires_grad for k, v in state.cross)


TIES = {"three_way": 1, "inputs": 2, "output": 2, "none": 3}


@pytest.mark.parametrize("tie", TIES)
def test_ties_are_one_storage(tie: str) -> None:
    """Before and after deepcopy and loading; counted once; the output is trained where the embedding is."""
    model = model_of(tie=tie)
    other = model_of(tie=tie)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    other.load_state_dict(model.state_dict())
    for each in (model, copy.deepcopy(model), other):
        tables = {each.source_embedding.weight.data_ptr(), each.target_embedding.weight.data_ptr()}
        tables.add(each.output()[0].data_ptr())
        assert len(tables) == TIES[tie]
        assert torch.equal(each.output()[0], model.output()[0])
    rows = {"three_way": 17, "inputs": 2 * 17, "output": SOURCE + TARGET, "none": SOURCE + 2 * TARGET}[tie]
    assert count_parameters(model) == layer_parameters(d=12, f=13, widths=(6, 6, 6), heads=(2, 2)) + rows * 12


def layer_parameters(d: int, f: int, widths: tuple[int, int, int], heads: tuple[int, int]) -> int:
    """2 + 3 layers, post-norm LayerNorms, feed-forward biases, no attention biases."""
    q, k, v = widths[0] * heads[0], widths[1] * heads[1], widths[2] * heads[1]
    attention = d * (q + k + v) + heads[0] * widths[2] * d
    feedforward = 2 * d * f + f + d
    return 2 * (attention + feedforward + 2 * 2 * d) + 3 * (2 * attention + feedforward + 3 * 2 * d)


def test_parameters_of_grouped_heads_with_their_own_widths() -> None:
    model = model_of(num_heads=4, head_dim=7, v_head_dim=5, attention=slot("attention", "gqa"))
    expected = layer_parameters(d=12, f=13, widths=(7, 7, 5), heads=(4, 2)) + (SOURCE + 2 * TARGET) * 12
    assert count_parameters(model) == expected


def test_logits_are_the_output_projection() -> None:
    model = model_of(tie="output")
    hidden = torch.randn(2, 3, 12, dtype=torch.float64)
    weight, bias = model.output()
    assert bias is None
    torch.testing.assert_close(model.logits(hidden), hidden @ weight.T)


def test_position_bias_is_made_once_a_pass_and_cross_attention_gets_none() -> None:
    model = copy.deepcopy(variant("alibi"))
    calls: list[tuple[int, int]] = []
    for stack in (model.encoder, model.decoder):
        made = stack.position.bias

        def counted(q_at: Tensor, k_at: Tensor, made: Any = made) -> Tensor:
            calls.append((q_at.shape[1], k_at.shape[1]))
            return made(q_at, k_at)

        stack.position.bias = counted  # type: ignore[method-assign]  # counts the calls
    model.decode(pad(ids(7, 2, 6), 0), model.encode(sources()))
    assert calls == [(8, 8), (7, 7)]


def test_auxiliary_sums_add_up_by_name() -> None:
    one, two = torch.tensor(1.0), torch.tensor(2.0)
    assert add_sums({"a": one, "b": one}, {"b": two, "c": two}) == {"a": 1.0, "b": 3.0, "c": 2.0}
