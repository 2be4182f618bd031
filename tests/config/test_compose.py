"""Overrides, recipes and folders to a configuration; every error before any work, all at once."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import yaml

from transformer_kit.config.compose import compose, hydra_arguments, parse
from transformer_kit.config.convert import MISSING
from transformer_kit.config.plain import with_env
from transformer_kit.config.points import compose_points, expand
from transformer_kit.config.saved import dump
from transformer_kit.config.schema import FORMAT, flatten
from transformer_kit.errors import ConfigError

TRAIN = "data.train=[{source: a.en, target: b.de}]"
SMALL = ("data=demo", "model/size=tiny")


def errors(*overrides: str, entry: str = "train", folders: tuple[Path, ...] = (), check: bool = False) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        compose(entry, list(overrides), folders, check=check)
    return caught.value.problems


@pytest.fixture
def user(tmp_path: Path) -> Path:
    """A user's folder: recipes, variants, and a group option."""
    for name in ("recipes", "variants", "optimizer"):
        (tmp_path / "conf" / name).mkdir(parents=True)
    folder = tmp_path / "conf"
    (folder / "recipes" / "mine.yaml").write_text(
        "defaults:\n  - override /data: demo\n  - override /model/size: tiny\n  - override /model/position: rope\n"
        "  - override /model/decoder/norm: rmsnorm\nseed: 7\ntrainer: {steps: 13}\n"
    )
    (folder / "recipes" / "child.yaml").write_text("defaults:\n  - mine\n  - _self_\ntrainer: {steps: 17}\n")
    (folder / "recipes" / "long.yaml").write_text("trainer: {steps: 1700}\n")
    (folder / "variants" / "modern.yaml").write_text(
        "defaults:\n  - override /model/norm: rmsnorm\n  - override /model/residual: pre\n"
    )
    (folder / "optimizer" / "slow.yaml").write_text("defaults: [adam, _self_]\nbetas: [0.5, 0.5]\neps: 1e-5\n")
    return folder


def test_values_are_typed_and_the_plain_form_is_complete() -> None:
    config = compose("train", [*SMALL, "trainer.steps=1e3", "model.position.base=5e4"], check=False)
    assert config.trainer.steps == 1000
    assert config.model.slot("position", "decoder")["base"] == 5e4
    plain = config.plain()
    assert next(iter(plain)) == "format"
    assert plain["format"] == FORMAT
    assert MISSING not in dict(flatten(plain)).values()
    assert yaml.safe_load(dump(plain)) == plain
    plain["trainer"]["steps"] = 0
    assert config.plain()["trainer"]["steps"] == 1000, "plain() hands out a copy"


def test_interpolations_are_resolved() -> None:
    config = compose("train", [*SMALL, "schedule=noam"], check=False)
    assert config.schedule.d_model == config.plain()["schedule"]["d_model"] == 128


def test_every_error_is_told_at_once() -> None:
    found = errors(
        "+recipe=nowhere",
        "trainer.stps=3",
        "trainer.steps=abc",
        "model/position=ropee",
        "model/postion=rope",
        "model.norm.eps=tiny",
        "model.dropout.residual=-1",
        "optimzer=adam",
        "foo",
        "seed=1,2",
        "data=demo",
        "tokenizer.joint=false",
        "run.name=???",
        check=True,
    )
    for expected in (
        "+recipe=nowhere: recipe has no 'nowhere'",
        "trainer.stps: unknown key; did you mean 'trainer.steps'?",
        "trainer.steps: expected an integer, got 'abc'",
        "model/position=ropee: model/position has no 'ropee'; did you mean 'rope'? (alibi, ",
        "model/postion=rope: there is no group 'model/postion'; did you mean 'model/position'?",
        "model.norm.eps: expected a number, got 'tiny'",
        "model.dropout.residual: a rate is at least 0 and below 1, got -1.0",
        "optimzer: unknown key; did you mean 'optimizer'?",
        "foo: expected KEY=VALUE",
        "seed=1,2: several values are a sweep: use `tkit ablate`",
        "run.name: needs a value",
        "model.tie: three_way shares one matrix",
    ):
        assert [line for line in found if line.startswith(expected)], (expected, found)
    assert len(found) == 12, found
    assert all("\n" not in line for line in found)


def test_what_must_hold_between_parts() -> None:
    found = errors(*SMALL, "tokenizer.joint=false", "model.num_heads=3")
    assert any(line.startswith("model.tie: three_way shares one matrix") for line in found)
    assert any(line.startswith("model.num_heads: d_model=128 does not divide into 3 heads") for line in found)


def test_constructors_are_asked_before_any_work() -> None:
    found = errors(
        *SMALL,
        "model/position=rope",
        "model.head_dim=3",
        "model.attention.num_kv_heads=3",
        "objective.chunk=0",
        check=True,
    )
    assert len(found) == 3
    assert "even" in found[0]
    assert "num_kv_heads=3" in found[1]
    assert "objective.chunk=0" in found[2]


TEXT = ("data=text", "data.train=[{text: a.txt}]", "data.length=32", "model/size=tiny", "tokenizer=char")
LABELS = ("data=labels", "data.train=[{tsv: a.tsv}]", "objective=classification", "model/size=tiny", "tokenizer=char")
CAUSAL = (*TEXT, "model=decoder_only", "objective=causal_lm")
MASKED = (*TEXT, "model=encoder_only", "objective=masked_lm", "tokenizer.mask=true")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((*CAUSAL, "objective=masked_lm"), ["objective: MaskedLM trains models", "objective: MaskedLM needs a mask"]),
        ((*CAUSAL, "objective=prefix_lm"), ["data: PrefixLM learns from pairs, these are documents"]),
        ((*CAUSAL, "model=t5_small"), ["objective: CausalLM trains models of the family decoder_only"]),
        ((*CAUSAL, "model=gpt22"), ["model=gpt22: model has no 'gpt22'; did you mean 'gpt2'?"]),
        ((*CAUSAL, "objective=causl"), ["objective=causl: objective has no 'causl'"]),
        ((*CAUSAL, "model/head=none"), ["model.head: this model has no output over a vocabulary"]),
        ((*MASKED, "model/head=none"), ["model.head: this model has no output over a vocabulary"]),
        ((*LABELS, "model=encoder_only", "model/head=none", "data.max_length=2000"), ["data.max_length=2000: makes"]),
        ((*CAUSAL, "init.from=''"), ["init.from: is empty"]),
        ((*CAUSAL, "trainer.best_metric=bleu"), ["trainer.best_metric: the validation of this run measures no bleu"]),
        ((*LABELS, "trainer.best_metric=perplexity"), ["trainer.best_metric: the validation of this run measures no"]),
        (("+recipe=demoo",), ["+recipe=demoo: recipe has no 'demoo'; did you mean 'demo'?"]),
        ((*SMALL, "trainer.validation.bleu=foo"), ["trainer.validation.bleu: must be one of bleu, "]),
        ((*CAUSAL, "tokenizer.joint=false"), ["tokenizer.joint: data.kind=documents has one side"]),
        ((*CAUSAL, "model.embedding.types=-1"), ["model.embedding.types: must be at least 0, got -1"]),
        ((*TEXT, "objective=denoising_t5", "tokenizer.sentinels=1"), ["objective: SpanCorruption needs at least 2"]),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_told_alone(given: tuple[str, ...], said: list[str]) -> None:
    """Nothing is said of options that nobody chose, and nothing is left for training to find."""
    found = [line for line in errors(*given, check=True) if not line.startswith("data.batch.tokens")]
    assert all(any(line.startswith(start) for start in said) for line in found), found
    assert found


@pytest.mark.parametrize(("size", "value"), [("d_model", 0), ("d_model", -4), ("d_ff", -1), ("num_heads", 0)])
def test_sizes_out_of_range_are_told_not_built(size: str, value: int) -> None:
    with pytest.raises(ConfigError) as caught:
        compose("train", ["data=demo", f"model.{size}={value}"])
    assert f"model.{size}: must be from 1 to 10,000,000, got {value}" in caught.value.problems


def test_each_error_in_words(user: Path) -> None:
    expected = {
        "recipe=mine": "recipe=mine: write +recipe=mine",
        "+model/position=rope": "+model/position=rope: write model/position=rope",
        "+trainer.steps=3": "+trainer.steps=3: trainer.steps is there already; write it without +",
        "+trainer.stepz=3": "trainer.stepz: unknown key; did you mean 'steps'?",
        "model.position=rope": "model.position: expected a class with options, got 'rope'; write model/position=NAME",
        "~seed": "seed: is missing from the configuration",
        "=3": "=3: no key before '='",
        "optimizer.eps=${nowhere}": "optimizer.eps: Interpolation key 'nowhere' not found",
        "run.name=../x": "run.name: '../x' must be the name of a folder inside run.root",
        "optimizer.betas=[2]": "optimizer.betas: must be two numbers",
        "decoding.n_best=9": "decoding.n_best: is 9, more than beam=4",
    }
    found = errors("data=demo", *expected, folders=(user,))
    for line in expected.values():
        assert len([one for one in found if one.startswith(line)]) == 1, (line, found)
    assert len(found) == len(expected), found
    assert errors("data=demo", f"format={FORMAT + 1}") == [
        f"format: this version reads format {FORMAT}, got {FORMAT + 1}"
    ]


def test_a_wrong_type_hides_nothing_beside_it() -> None:
    found = errors("data=demo", "trainer.steps=abc", "trainer.clip_norm=-1", "seed=-1")
    assert [line.partition(":")[0] for line in found] == ["trainer.steps", "trainer.clip_norm", "seed"]


def test_user_recipes_variants_and_options(user: Path) -> None:
    config = compose("train", ["+recipe=child", "+variant=modern", "optimizer=slow"], [user], check=True)
    assert (config.seed, config.trainer.steps, config.optimizer.betas) == (7, 17, [0.5, 0.5])
    assert config.model.position["_target_"].endswith("Rotary")
    assert config.model.residual["_target_"].endswith("PreNorm")
    assert config.source.overrides == ["+recipe=child", "+variant=modern", "optimizer=slow"]


def test_a_slot_of_the_decoder_alone(user: Path) -> None:
    config = compose("train", ["+recipe=mine", "model/decoder/position=alibi"], [user], check=True)
    assert config.model.slot("position", "encoder")["_target_"].endswith("Rotary")
    assert config.model.slot("position", "decoder")["_target_"].endswith("Alibi")
    assert config.model.slot("norm", "decoder")["_target_"].endswith("RMSNorm")
    assert config.model.slot("norm", "encoder")["_target_"].endswith("LayerNorm")


def test_several_recipes_and_later_folders_win(user: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert compose("train", ["+recipe=[mine,long]"], [user], check=False).trainer.steps == 1700
    (tmp_path / "other" / "recipes").mkdir(parents=True)
    (tmp_path / "other" / "recipes" / "long.yaml").write_text("trainer: {steps: 1900}\n")
    monkeypatch.setenv("TKIT_CONFIG_PATH", f"{user}{os.pathsep}")
    assert compose("train", ["+recipe=[mine,long]"], [tmp_path / "other"], check=False).trainer.steps == 1900
    assert compose("train", ["+recipe=[mine,long]"], check=False).trainer.steps == 1700


def test_wrong_folders_and_files(user: Path, tmp_path: Path) -> None:
    assert errors(folders=(tmp_path / "nowhere",)) == [f"--config-dir: there is no folder '{tmp_path / 'nowhere'}'"]
    (user / "optimizer" / "adam.yaml").write_text("name: adam\n")
    assert "has the name of a shipped one; rename it" in errors(folders=(user,))[0]
    (user / "optimizer" / "adam.yaml").unlink()
    (user / "recipes" / "broken.yaml").write_text("a: [1\n")
    assert str(user / "recipes" / "broken.yaml") in errors(folders=(user,))[0]


def test_environment_values_stay_unresolved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORPORA", "/corpora")
    monkeypatch.delenv("NOWHERE", raising=False)
    given = [
        "data.train=[{source: '${oc.env:CORPORA}/a.en', target: '${oc.env:NOWHERE,/x}/b.de'}]",
        "data.test=${data.train}",
    ]
    config = compose("train", given, check=True)
    assert (config.data.test[0].source, config.data.test[0].target) == ("/corpora/a.en", "/x/b.de")
    saved = config.plain()["data"]["test"][0]
    assert (saved["source"], saved["target"]) == ("${oc.env:CORPORA}/a.en", "${oc.env:NOWHERE,/x}/b.de")
    assert with_env(config.plain(), None)["data"]["test"][0]["target"] == "/x/b.de"
    several = "data.train=[{source: '${oc.env:NOWHERE}/a', target: '${oc.env:NOWHERE}/b'}]"
    with pytest.raises(ConfigError, match=r"source: the .* is not set \(also for data\.train\.0\.target\)$"):
        compose("train", [several, "data.valid=[]"], check=True)
    missing = "data.train.0.source: the environment variable NOWHERE is not set"
    wrong = "data.train=[{source: '${oc.env:NOWHERE}/a', target: b}]"
    assert errors(wrong, check=True) == [missing]
    assert compose("train", [wrong], check=False).plain()["data"]["train"][0]["source"] == "${oc.env:NOWHERE}/a"


@pytest.mark.parametrize(
    "name", ["a b/c=d,(1).txt", "x@y", "50%|#", "文件/ä.txt", "it's", "a:b", "[x]", "{y}", "k=v", "a\\b", "$HOME"]
)
def test_paths_with_special_characters(name: str) -> None:
    """Quoted for Hydra every path works; unquoted it works as well, or the message says how to quote."""
    problems: list[str] = []
    assert [item.value for item in parse([f'run.root="{name}"'], problems)] == [name]
    bare = parse([f"run.root={name}"], problems)
    if problems:
        assert re.search("'run.root=\"(…|a,b)\"'", problems[0]), problems
    else:
        assert bare[0].value == name or not isinstance(bare[0].value, str)  # [x] is a list: refused by its type


def test_paths_are_absolute_and_home_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    config = compose("train", [TRAIN, "run.root=~/r", "data.cache=../c", "tokenizer.path=文件, (1)#"], check=False)
    assert config.tokenizer.path == str(tmp_path / "文件, (1)#")
    assert config.data.train[0].source == config.plain()["data"]["train"][0]["source"] == str(tmp_path / "a.en")
    assert (config.run.root, config.data.cache) == ("/home/me/r", str(tmp_path.parent / "c"))


def test_points_of_a_sweep() -> None:
    assert expand(["a=1,2", "+variant=x,y", "b=3"]) == [
        ["a=1", "+variant=x", "b=3"],
        ["a=1", "+variant=y", "b=3"],
        ["a=2", "+variant=x", "b=3"],
        ["a=2", "+variant=y", "b=3"],
    ]
    assert expand(["a=range(1,4)", 'b="x,y"']) == [[f"a={n}", 'b="x,y"'] for n in (1, 2, 3)]
    assert expand([]) == [[]]
    with pytest.raises(ConfigError, match="no end of points"):
        expand(["a=interval(0,1)"])


def test_every_point_is_checked_before_the_first_starts() -> None:
    with pytest.raises(ConfigError) as caught:
        compose_points([*SMALL, "trainer.steps=3,0", "seed=-1"])
    assert caught.value.problems == [
        "seed: must be between 0 and 2^63 - 1, got -1",
        "trainer.steps: must be at least 1, not 0 [in data=demo model/size=tiny trainer.steps=0 seed=-1]",
    ]
    assert [config.seed for config in compose_points([*SMALL, "seed=3,5"])] == [3, 5]


def test_hydra_gets_what_was_parsed(user: Path) -> None:
    given = hydra_arguments(["run.name=文件", "seed=3"], [user])
    assert given == [f"hydra.searchpath=['file://{user}']", 'run.name="文件"', "seed=3"]


def test_other_entries_take_the_same_recipes() -> None:
    assert compose("tokenize", ["data=demo"], check=False).data.generate is not None
    ablation = compose("ablate", ["data=demo"], check=False)
    assert ablation.plain()["ablation"]["root"] == str(Path.cwd() / "ablations")


def test_a_configuration_without_data_can_be_looked_at() -> None:
    assert compose("train", [], check=False).data.train == []
    with pytest.raises(ConfigError, match=r"data\.train: no corpus is given"):
        compose("train", [])
