"""Each recipe composes, builds and, shrunk by overrides, trains two steps; new recipes are found by themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from transformer_kit.config.build import build_model, build_objective, count_parameters
from transformer_kit.config.check import ANY_SPECIALS
from transformer_kit.config.compose import compose
from transformer_kit.config.schema import Config
from transformer_kit.config.sources import package_folder
from transformer_kit.console import NoProgress
from transformer_kit.data import synthetic
from transformer_kit.tasks.train import train

RECIPES = sorted(path.stem for path in package_folder("recipes").glob("*.yaml"))
SHRUNK = [
    *("model.d_model=14", "model.d_ff=22", "model.num_heads=1"),
    *("data.batch.tokens=300", "data.workers=1", "trainer.device=cpu", "trainer.steps=2"),
    *("trainer.accumulate_tokens=400", "trainer.validate_every=2", "trainer.save_every=1", "schedule.warmup=1"),
    *("decoding.beam=2", "decoding.max_extra=1"),
]


@pytest.fixture
def recipe(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    monkeypatch.setenv("TKIT_DATA", str(tmp_path / "no data"))
    name: str = request.param
    return name


def built(config: Config) -> int:
    """Parameters of the recipe's model, made on the meta device; the objective is made as well."""
    pieces = config.tokenizer.vocab_size or 69
    build_objective(config.objective, specials=ANY_SPECIALS)
    return count_parameters(build_model(config.model, pieces, pieces, device="meta"))


@pytest.mark.parametrize("recipe", RECIPES, indirect=True)
def test_composes_and_builds(recipe: str) -> None:
    config = compose("train", [f"+recipe={recipe}"])
    assert built(config) > 500_000
    text = (package_folder("recipes") / f"{recipe}.yaml").read_text("utf-8")
    assert text.startswith("# "), "a recipe says what it is, where its data come from and how its scores compare"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ninety training and two validation pairs; their prepared form is shared where recipes prepare them alike."""
    folder = tmp_path_factory.mktemp("corpus")
    splits = synthetic.corpus(1, {"train": 90, "valid": 0, "test": 0})
    for name, pairs in (("train", splits.train), ("valid", splits.train[:2])):
        (folder / f"{name}.en").write_text("".join(f"{pair.english}\n" for pair in pairs), "utf-8")
        (folder / f"{name}.de").write_text("".join(f"{pair.german}\n" for pair in pairs), "utf-8")
        labelled = "".join(f"{pair.english}\t{len(pair.english) % 2}\n" for pair in pairs)
        (folder / f"{name}.tsv").write_text(labelled, "utf-8")
    return folder


def texts(config: Config, corpus: Path) -> list[str]:
    """The small corpus in the form that a recipe reads."""
    items = {
        "pairs": "{{source: {0}/{1}.en, target: {0}/{1}.de}}",
        "documents": "{{text: {0}/{1}.en}}",
        "labels": "{{tsv: {0}/{1}.tsv}}",
    }
    item = items[config.data.kind]
    found = [f"data.{split}=[{item.format(corpus, split)}]" for split in ("train", "valid")]
    return [*found, "data.generate=null"] if config.data.kind == "pairs" else found


@pytest.mark.parametrize("recipe", RECIPES, indirect=True)
def test_trains_two_steps(recipe: str, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TKIT_DATA", "unused")
    whole = compose("train", [f"+recipe={recipe}"])
    places = [f"run.root={tmp_path}", f"data.cache={corpus}/prepared"]
    layers = [f"model.{stack}.layers=1" for stack in whole.model.stacks]
    pieces = [] if whole.tokenizer.vocab_size is None else ["tokenizer.vocab_size=420"]
    shrunk = [*SHRUNK, *layers, *pieces, *texts(whole, corpus), *places]
    trained = train(compose("train", [f"+recipe={recipe}", *shrunk]), NoProgress())
    assert trained.result["status"] == "complete"
    assert trained.result["step"] == 2
    assert (trained.folder / "model.safetensors").is_file()
    assert trained.result["scores"]["loss"] > 0


def test_the_modern_model_has_the_size_of_the_base_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TKIT_DATA", "unused")
    base, modern = (compose("train", [f"+recipe={name}"]) for name in ("base_ende", "modern_ende"))
    assert built(modern) == pytest.approx(built(base), rel=0.01)
    kinds = [
        modern.model.slot(slot, "decoder")["_target_"].rsplit(".", 1)[-1] for slot in ("residual", "norm", "position")
    ]
    assert kinds == ["PreNorm", "RMSNorm", "Rotary"]
    model = build_model(modern.model, 5, 5, device="meta")
    assert not [name for name, _ in model.named_parameters() if name.endswith("bias")]


# Vaswani et al. 2017: sections 5 and 6, tables 2 and 3.
PAPER = {
    "base_ende": (512, 2048, 8, 0.1, 100_000, 5),
    "base_enfr": (512, 2048, 8, 0.1, 100_000, 5),
    "big_ende": (1024, 4096, 16, 0.3, 300_000, 20),
    "big_enfr": (1024, 4096, 16, 0.1, 300_000, 20),
}


@pytest.mark.parametrize("recipe", PAPER, indirect=True)
def test_the_papers_settings(recipe: str) -> None:
    config = compose("train", [f"+recipe={recipe}"])
    model, trainer = config.model, config.trainer
    d_model, d_ff, heads, dropout, steps, averaged = PAPER[recipe]
    assert (model.d_model, model.d_ff, model.num_heads, model.key_width) == (d_model, d_ff, heads, 64)
    assert (model.encoder.layers, model.decoder.layers, model.tie) == (6, 6, "three_way")
    assert vars(model.dropout) == {"embedding": dropout, "residual": dropout, "attention": 0.0, "feedforward": 0.0}
    assert (trainer.steps, trainer.average.kind, trainer.average.count) == (steps, "last", averaged)
    assert trainer.final == "average"
    assert trainer.keep_last >= averaged
    assert trainer.accumulate_tokens == 25_000
    assert trainer.clip_norm is None
    assert (config.schedule.name, config.schedule.factor, config.schedule.warmup) == ("noam", 1.0, 4000)
    assert config.schedule.d_model == d_model
    assert (config.optimizer.name, config.optimizer.betas, config.optimizer.eps) == ("adam", [0.9, 0.98], 1e-9)
    assert config.objective["label_smoothing"] == 0.1
    penalty = config.decoding.length_penalty
    assert (config.decoding.beam, penalty.kind, penalty.alpha, config.decoding.max_extra) == (4, "gnmt", 0.6, 50)
    assert config.data.target_language == recipe[-2:]


@pytest.mark.parametrize("recipe", ["base_ende_t2t"], indirect=True)
def test_what_tensor2tensor_does_otherwise(recipe: str) -> None:
    config = compose("train", [f"+recipe={recipe}"])
    assert config.model.residual["_target_"].endswith(".PreNorm")
    assert config.model.position["layout"] == "concatenated"
    assert vars(config.model.dropout) == dict.fromkeys(("embedding", "residual", "attention", "feedforward"), 0.1)
    assert (config.schedule.factor, config.schedule.warmup, config.optimizer.betas) == (2.0, 8000, [0.9, 0.997])
    assert config.objective["smoothing_over"] == "others"
    assert config.trainer.accumulate_tokens == 8 * 4096
