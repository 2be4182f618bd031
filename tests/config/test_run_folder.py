"""Run folders: names, locks, refusals, and the saved configuration."""

from __future__ import annotations

import copy
import functools
import multiprocessing
import os
import shutil
from pathlib import Path

import pytest

from transformer_kit.config.compose import compose
from transformer_kit.config.plain import typed
from transformer_kit.config.run_folder import open_run, read_result, run_name, run_path, write_text
from transformer_kit.config.saved import ADDED, ADDED_WHERE, COMPLETED, dump, load_plain, load_run
from transformer_kit.config.schema import Config
from transformer_kit.errors import ConfigError, RunError

SMALL = ("data=demo", "model/size=tiny")


@functools.cache
def composed(*overrides: str) -> Config:
    return compose("train", [*SMALL, *overrides], check=False)


def config(root: Path, *overrides: str) -> Config:
    """As composed with `run.root=<root>`, which takes longer."""
    made = composed(*overrides)
    data = made.plain()
    data["run"]["root"] = str(root)
    return typed(Config, data, made.source.overrides, [], check=False)


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        ([], "train"),
        (["+recipe=demo"], "demo"),
        (["+recipe=[demo,long]"], "demo-long"),
        (
            ["model/residual=pre", "model/position=rope", "+recipe=demo"],
            "demo+model.position=rope+model.residual=pre",
        ),
        (["+recipe=demo", "seed=2", "seed=3"], "demo+seed=3"),
        (["+recipe=demo", "+variant=modern"], "demo+variant=modern"),
        (
            [
                "+recipe=demo",
                "trainer.steps=7",
                "trainer.device=cpu",
                "trainer.threads=2",
                "trainer.log_every=1",
                "decoding=greedy",
                "decoding.beam=5",
                "run.root=x",
                "data.cache=y",
                "ablation.name=z",
                "hydra.verbose=1",
            ],
            "demo",
        ),
    ],
)
def test_names(overrides: list[str], name: str) -> None:
    assert run_name(overrides) == name


def test_long_and_odd_names_end_in_a_hash() -> None:
    long = run_name([f"model.encoder.key{number}=value" for number in range(20)])
    assert len(long) == 120
    assert long != run_name([f"model.encoder.key{number}=value" for number in range(21)])
    one, two = run_name(["tokenizer.path='a b'"]), run_name(["tokenizer.path='a#b'"])
    assert one.startswith("train+tokenizer.path=a_b-")
    assert one != two
    assert "/" not in run_name(["data.train=[{source:/x/y}]"])


def test_the_same_command_continues_the_same_run(tmp_path: Path) -> None:
    with open_run(config(tmp_path)) as folder:
        assert not folder.resumed
        assert folder.path == tmp_path / "train+data=demo+model.size=tiny"
        assert folder.result() is None
        folder.write_result({"bleu": 12.5})
    before = {path: path.stat().st_mtime_ns for path in folder.path.iterdir()}
    with open_run(config(tmp_path)) as again:
        assert again.resumed
        assert again.result() == {"bleu": 12.5}
    assert {path: path.stat().st_mtime_ns for path in folder.path.iterdir()} == before, "nothing is touched"


def test_free_options_may_change_and_are_saved(tmp_path: Path) -> None:
    with open_run(config(tmp_path)):
        pass
    with open_run(config(tmp_path, "trainer.steps=17", "decoding.beam=2")) as folder:
        assert folder.resumed
    assert load_plain(folder.path)["trainer"]["steps"] == 17
    assert load_plain(folder.path)["decoding"]["beam"] == 2


def test_another_configuration_is_refused_with_the_changed_keys(tmp_path: Path) -> None:
    with open_run(config(tmp_path, "run.name=x")) as folder:
        (folder.path / "model.safetensors").write_bytes(b"old")
    other = ("run.name=x", "model/position=rope", "seed=5")
    with pytest.raises(RunError) as caught, open_run(config(tmp_path, *other)):
        pass
    message = str(caught.value)
    assert "  seed: 1 -> 5\n" in message
    assert "  model.position.theta: (absent) -> 10000.0\n" in message
    assert "run.resume=changed" in message
    assert "trainer" not in message
    assert load_plain(folder.path)["seed"] == 1
    with open_run(config(tmp_path, *other, "run.resume=changed")) as resumed:
        assert resumed.resumed
        assert resumed.changed
        assert load_plain(folder.path)["seed"] == 1, "the old one stays until the new one is known to fit"
        resumed.accept()
        assert (folder.path / "model.safetensors").exists()
    assert load_plain(folder.path)["seed"] == 5
    with open_run(config(tmp_path, *other)) as same:  # resume=changed is no part of what is saved
        assert same.resumed
    with open_run(config(tmp_path, *other, "run.overwrite=true")) as anew:
        assert not anew.resumed
        assert not (folder.path / "model.safetensors").exists()


def test_a_run_that_failed_before_its_work_takes_a_corrected_configuration(tmp_path: Path) -> None:
    with open_run(config(tmp_path, "run.name=x", "tokenizer.vocab_size=99999")) as folder:
        folder.write_result({"status": "failed"})
        (folder.path / "train.log").write_text("too large\n")
    with open_run(config(tmp_path, "run.name=x", "tokenizer.vocab_size=500")):
        pass
    assert load_plain(folder.path)["tokenizer"]["vocab_size"] == 500
    (folder.path / "tokenizer").mkdir()
    with (
        pytest.raises(RunError, match=r"tokenizer\.vocab_size: 500 -> 600"),
        open_run(config(tmp_path, "run.name=x", "tokenizer.vocab_size=600")),
    ):
        pass


def test_a_folder_that_is_no_run_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("text")
    for more in ((), ("run.overwrite=true",)):
        with pytest.raises(RunError, match=r"config\.yaml"), open_run(config(tmp_path, "run.name=thesis", *more)):
            pass
    assert (tmp_path / "thesis" / "chapter.tex").read_text() == "text"
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot be made"), open_run(config(tmp_path, "run.name=file")):
        pass


def _second(root: Path, answers: multiprocessing.Queue[str]) -> None:
    try:
        with open_run(config(root)):
            answers.put("opened")
    except RunError as error:
        answers.put(str(error))


def test_the_second_process_is_refused_until_the_first_has_gone(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    answers: multiprocessing.Queue[str] = context.Queue()
    with open_run(config(tmp_path)):
        with pytest.raises(RunError, match="in use by another process"), open_run(config(tmp_path)):
            pass
        second = context.Process(target=_second, args=(tmp_path, answers))
        second.start()
        second.join()
        assert "in use by another process" in answers.get()
    _second(tmp_path, answers)
    assert answers.get() == "opened"


def test_what_is_begun_anew_stays_locked(tmp_path: Path) -> None:
    """The lock is a file of the folder that is emptied."""
    anew = config(tmp_path)
    anew = copy.deepcopy(anew)
    object.__setattr__(anew.run, "overwrite", True)
    for _ in range(2):
        with open_run(anew) as run:
            write_text(run.path / "x", "of the first")
            with pytest.raises(RunError, match="in use by another process"), open_run(anew):
                pass
            assert (run.path / "x").read_text() == "of the first"


def test_a_killed_process_leaves_no_lock(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        with open_run(config(tmp_path)):
            os._exit(9)
    os.waitpid(child, 0)
    with open_run(config(tmp_path)) as folder:
        assert folder.resumed


def test_a_run_is_read_back_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CORPORA", "/corpora")
    made = compose(
        "train", ["data.train=[{source: '${oc.env:CORPORA}/a', target: b}]", "tokenizer.path=t"], check=False
    )
    with open_run(made) as folder:
        pass
    monkeypatch.chdir("/")
    read = load_run(folder.path, check=False)
    assert (read.data.train[0].source, read.data.train[0].target) == ("/corpora/a", str(tmp_path / "b"))
    assert read.tokenizer == made.tokenizer
    assert read.model == made.model
    assert "${oc.env:CORPORA}" in (folder.path / "config.yaml").read_text()
    moved = tmp_path / "elsewhere"
    shutil.move(folder.path, moved)
    assert run_path(load_run(moved, check=False)) == moved


def test_a_run_takes_decoding_overrides_only(tmp_path: Path) -> None:
    with open_run(config(tmp_path)) as folder:
        pass
    read = load_run(folder.path, ["decoding=greedy", "decoding.batch_tokens=77", "trainer.device=cpu"], check=False)
    assert (read.decoding.beam, read.decoding.batch_tokens, read.trainer.device) == (1, 77, "cpu")
    with pytest.raises(ConfigError) as caught:
        load_run(folder.path, ["seed=3", "decoding.beem=2", "decoding.n_best=9", "decoding=greddy"], check=False)
    assert [line.partition(":")[0] for line in caught.value.problems] == [
        "decoding=greddy",
        "seed",
        "decoding.beem",
        "decoding.n_best",
    ]


def test_foreign_and_damaged_configurations(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    path = tmp_path / "run" / "config.yaml"
    path.parent.mkdir()
    for text, message in (
        (f"format: 1\nx: !!python/object/apply:os.system ['touch {canary}']\n", "cannot be read"),
        ("format: [1\n", "cannot be read"),
        ("just text", "says no format"),
        ("format: 99\n", "has format 99"),
    ):
        path.write_text(text)
        with pytest.raises(RunError, match=message):
            load_run(path.parent)
    with pytest.raises(RunError, match="is not a run folder"):
        load_run(tmp_path / "nowhere")
    with open_run(config(tmp_path)) as folder:
        pass
    text = (folder.path / "config.yaml").read_text()
    write_text(folder.path / "config.yaml", text.replace("transformer_kit.nn.norm.layernorm.LayerNorm", "os.system"))
    with pytest.raises(ConfigError, match=r"model\.norm\._target_: os\.system is not trusted"):
        load_run(folder.path)
    assert not canary.exists()


def test_results(tmp_path: Path) -> None:
    assert read_result(tmp_path) is None
    write_text(tmp_path / "result.json", "{broken")
    assert read_result(tmp_path) is None


@pytest.mark.parametrize("form", ADDED)
def test_a_run_of_an_older_format_still_loads(form: int, tmp_path: Path) -> None:
    """Without everything that came later it reads as the same configuration, with values that change nothing."""
    now = config(tmp_path, "trainer.spike=null").plain()
    old = copy.deepcopy(now) | {"format": form}
    later = [key for number, added in ADDED.items() if number >= form for key in added]
    later += [key for number, where in ADDED_WHERE.items() if number >= form for *_, added in where for key in added]
    for key in later:
        *parents, last = key.split(".")
        node = old
        for name in parents:
            node = node.get(name) or {}
        node.pop(last, None)
    for group in COMPLETED:
        del old[group]
    (tmp_path / "config.yaml").write_text(dump(old), encoding="utf-8")
    assert load_plain(tmp_path) == now
    assert load_run(tmp_path, check=False).model == config(tmp_path).model


@pytest.mark.parametrize(("name", "decays"), [("adamw", True), ("adam", False)])
def test_what_an_older_run_decayed(name: str, decays: bool, tmp_path: Path) -> None:
    """Before format 3 adamw decayed every table."""
    old = config(tmp_path).plain() | {"format": 2}
    old["optimizer"] = {"name": name, "betas": [0.9, 0.98], "eps": 1e-9, "weight_decay": 0.0}
    del old["objective"]["rdrop"]
    (tmp_path / "config.yaml").write_text(dump(old), encoding="utf-8")
    found = load_plain(tmp_path)
    assert found["optimizer"]["decay_tables"] is decays
    assert found["objective"]["rdrop"] == 0.0


def test_options_on_which_no_weights_depend_are_completed(tmp_path: Path) -> None:
    """A run that was saved before an option of generation came reads as with the shipped value, its own ones kept."""
    now = config(tmp_path).plain()
    old = copy.deepcopy(now)
    del old["generation"]["overflow"]
    old["generation"]["top_k"] = 17
    (tmp_path / "config.yaml").write_text(dump(old), encoding="utf-8")
    assert load_plain(tmp_path)["generation"] == now["generation"] | {"top_k": 17}
