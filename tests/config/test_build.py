"""The builder: only known classes, checked before they are called; facts; a part per use."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import parts_for_tests
import pytest
import torch
import yaml

from transformer_kit.config.build import BASES, FACTS, build_model, build_objective, count_parameters
from transformer_kit.config.check import ANY_SPECIALS
from transformer_kit.config.compose import compose
from transformer_kit.config.parts import part, resolve, signature
from transformer_kit.config.sources import package_folder
from transformer_kit.errors import ConfigError
from transformer_kit.nn.position.base import Position

OPTIONS = {"base": 3.0, "layout": "a", "note": None}


def slot(name: str, at: str = "parts_for_tests", **options: Any) -> dict[str, Any]:
    return {"_target_": f"{at}.{name}", **options}


@pytest.fixture(scope="module")
def plain() -> dict[str, Any]:
    """The plain data of a small model: widths and depths pairwise different."""
    sizes = [
        "model.d_model=12",
        "model.d_ff=7",
        "model.num_heads=3",
        "model.encoder.layers=2",
        "model.decoder.layers=1",
    ]
    return compose("train", ["data=demo", *sizes], check=False).plain()["model"]


@pytest.fixture(autouse=True)
def _trust(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TKIT_TRUST", "parts_for_tests")
    parts_for_tests.called.clear()


def refusals(model: dict[str, Any], vocabularies: tuple[int, int] = (13, 13)) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        build_model(model, *vocabularies, device="meta")
    return caught.value.problems


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("os.system", "is not trusted; if you trust its code, set TKIT_TRUST=os"),
        ("transformer_kitty.nn.X", "is not trusted"),
        ("parts_for_tests_more.Recorder", "is not trusted"),
        ("builtins.eval", "is not trusted"),
        ("transformer_kit", "is not of the form package.module.Class"),
        ("transformer_kit.nn.position.rotary.Rotary.embed", "cannot be imported"),
        ("transformer_kit.cli.__main__.X", "is not of the form"),
        ("transformer_kit.nn..x", "is not of the form"),
        ("transformer_kit.nn.position.rotary.math", "is no Position"),
        ("transformer_kit.nn.position.rotary.Rotry", "did you mean 'Rotary'?"),
        ("transformer_kit.nn.norm.layernorm.LayerNorm", "is no Position"),
        ("parts_for_tests.canary", "is no Position"),
        ("parts_for_tests.Plain", "is no Position"),
        ("transformer_kit.nowhere.X", "cannot be imported: ModuleNotFoundError"),
    ],
)
def test_foreign_targets_are_refused_and_not_called(target: str, why: str) -> None:
    problems: list[str] = []
    assert resolve("model.position", target, Position, problems) is None
    assert len(problems) == 1
    assert problems[0].startswith("model.position._target_: ")
    assert why in problems[0]
    assert parts_for_tests.called == []


def test_a_package_must_be_named_to_be_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TKIT_TRUST")
    problems: list[str] = []
    assert resolve("model.position", "parts_for_tests.Recorder", Position, problems) is None
    assert "TKIT_TRUST=parts_for_tests" in problems[0]


def test_facts_are_taken_and_options_checked(plain: dict[str, Any]) -> None:
    model = build_model(plain | {"position": slot("Recorder", **OPTIONS)}, 13, 13)
    assert model.encoder.position.given == {"dim": 12, "head_dim": 4, "causal": False, "base": 3.0}
    assert model.decoder.position.given == {"dim": 12, "head_dim": 4, "causal": True, "base": 3.0}


def test_every_wrong_option_is_told(plain: dict[str, Any]) -> None:
    wrong = slot("Recorder", base="x", layout="c", dim=3, baze=1)
    found = refusals(plain | {"position": wrong})
    assert found == [
        "model.position.dim: is set by the builder (options of Recorder: base, layout, note)",
        "model.position.baze: unknown option; did you mean 'base'? (options of Recorder: base, layout, note)",
        "model.position.note: Recorder needs this option; it has no default",
        "model.position.base: expected a number, got 'x'",
        "model.position.layout: 'c' is not one of a, b",
    ]


def test_what_a_constructor_refuses_names_slot_and_class(plain: dict[str, Any]) -> None:
    wrong = slot("Recorder", **OPTIONS | {"base": -1})
    assert refusals(plain | {"position": wrong}) == ["model.position: Recorder: base must be above 0, not -1.0"]
    assert "takes any options" in refusals(plain | {"position": slot("Greedy")})[0]


def test_a_leaf_is_built_once_per_use(plain: dict[str, Any]) -> None:
    parts_for_tests.CountingNorm.made = 0
    norm = slot("CountingNorm", eps=1e-6, bias=True)
    pre = {"_target_": "transformer_kit.nn.residual.pre.PreNorm"}
    model = build_model(plain | {"norm": norm, "residual": pre}, 13, 13)
    assert (
        parts_for_tests.CountingNorm.made == 2 * 2 + 1 * 3 + 2
    )  # two an encoder layer, three a decoder layer, a last each
    assert len({id(module) for module in model.modules() if isinstance(module, parts_for_tests.CountingNorm)}) == 9


def test_parameters_equal_the_closed_formula(plain: dict[str, Any]) -> None:
    width, inner, vocabulary = 12, 7, 13
    attention, feedforward, norm = 4 * width**2, 2 * width * inner + inner + width, 2 * width
    blocks = 2 * (attention + feedforward + 2 * norm) + (2 * attention + feedforward + 3 * norm)
    expected = {"three_way": 1, "inputs": 2, "output": 2, "none": 3}
    for tie, tables in expected.items():
        model = build_model(plain | {"tie": tie}, vocabulary, vocabulary, device="meta")
        assert count_parameters(model) == blocks + tables * vocabulary * width, tie
    assert "source_embedding.weight" in dict(model.named_parameters())


def test_ties_and_vocabularies(plain: dict[str, Any]) -> None:
    assert "three_way needs one vocabulary" in refusals(plain, (13, 11))[0]
    model = build_model(plain | {"tie": "output"}, 11, 13, device="meta")
    assert (model.source_embedding.weight.shape[0], model.output()[0].shape[0]) == (11, 13)
    assert model.output()[0] is model.target_embedding.weight
    tied = build_model(plain, 13, 13, device="meta")
    assert tied.source_embedding is tied.target_embedding


def test_the_seed_decides_the_parameters(plain: dict[str, Any]) -> None:
    torch.manual_seed(3)
    first = build_model(plain, 13, 13)
    torch.manual_seed(3)
    second = build_model(plain, 13, 13)
    for name, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[name]), name


def test_objectives_are_built_the_same_way() -> None:
    options = compose("train", ["data=demo"], check=False).objective
    assert type(build_objective(options, specials=ANY_SPECIALS)).__name__ == "Translation"
    with pytest.raises(ConfigError, match="is no Objective"):
        build_objective(slot("Plain"), specials=ANY_SPECIALS)


SLOT_FILES = [
    (name, path) for name in BASES for path in sorted((package_folder("conf") / "model" / name).glob("*.yaml"))
]


@pytest.mark.parametrize(("name", "path"), SLOT_FILES, ids=[f"{name}-{path.stem}" for name, path in SLOT_FILES])
def test_a_slot_file_lists_every_option_and_no_constructor_has_defaults(name: str, path: Path) -> None:
    options = yaml.safe_load(path.read_text())
    problems: list[str] = []
    if "_target_" not in options:  # a file that builds on another one of its group
        base = next(item for item in options["defaults"] if item != "_self_")
        options = yaml.safe_load((path.parent / f"{base}.yaml").read_text()) | options
        del options["defaults"]
    made = part(f"model.{name}", options, BASES[name], FACTS[name], problems)
    assert problems == []
    assert made is not None
    parameters, _ = signature(made.kind, BASES[name])
    assert set(options) - {"_target_"} == set(parameters) - FACTS[name]
    assert [key for key, value in parameters.items() if value.default is not inspect.Parameter.empty] == []


def test_cross_attention_may_be_another_than_self_attention() -> None:
    """`model/decoder/cross_attention=gqa` leaves the decoder's self-attention and the encoder alone."""
    config = compose("train", ["data=demo", "model/size=tiny", "model/decoder/cross_attention=gqa"])
    model: Any = build_model(config.model, 11, 11, device="meta")
    blocks = model.decoder.blocks
    assert {block.cross_attention.num_kv_heads for block in blocks} == {2}
    assert {block.self_attention.num_kv_heads for block in (*blocks, *model.encoder.blocks)} == {4}
    with pytest.raises(ConfigError, match=r"model.decoder.cross_attention.*must divide|num_kv_heads=3: must divide"):
        compose(
            "train",
            ["data=demo", "model/decoder/cross_attention=gqa", "model.decoder.cross_attention.num_kv_heads=3"],
        )
