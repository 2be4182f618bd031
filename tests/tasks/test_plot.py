"""Curves: what is read, where it is placed, what is drawn, and the file."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from transformer_kit.cli.app import make_app
from transformer_kit.errors import ConfigError, RunError
from transformer_kit.tasks.figure import draw, draw_norms, is_wide, short
from transformer_kit.tasks.plot import MOST_POINTS, chart, names_of, norms, positions, read_runs
from transformer_kit.tasks.train import Trained

BLEU, LOSSES = [10.5, 20.5], [4.0, 3.0, 2.5, 2.25]


def row(kind: str, step: int, **values: Any) -> dict[str, Any]:
    return {"kind": kind, "step": step, **values}


def rows(shift: float = 0.0) -> list[dict[str, Any]]:
    """Two validations and four rows of training, of 100 tokens and 2 seconds for an update."""
    found = []
    for at, loss in enumerate(LOSSES, 1):
        facts = {"tokens": 1000 * at, "tokens_per_second": 50.0, "lr": 0.1 / at, "samples": "00ff"}
        found.append(row("train", 10 * at, loss=loss + shift, **facts))
        if at % 2 == 0:
            found.append(row("validation", 10 * at, loss=loss + 1 + shift, bleu=BLEU[at // 2 - 1], seconds=5.0))
    return found


def write(
    folder: Path, found: list[dict[str, Any]], *, seed: int = 1, end: str = "", status: str | None = None
) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(f"format: 3\nseed: {seed}\nrun: {{name: {folder.name}}}\n")
    (folder / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in found) + end)
    if status is not None:
        (folder / "result.json").write_text(json.dumps({"status": status}))
    return folder


def tkit(*words: object) -> Any:
    return CliRunner().invoke(make_app(), ["plot", *map(str, words)])


def test_drawn_is_what_was_logged(tmp_path: Path) -> None:
    folder = write(tmp_path / "x", rows(), end='{"kind": "train", "st', status="complete")
    picture = draw(chart(read_runs([folder]), "steps"))
    axes = {one.get_title(loc="left"): one for one in picture.axes if one.has_data()}
    assert list(axes) == ["loss", "BLEU", "learning rate", "target tokens/s"]
    train, valid = axes["loss"].lines
    assert [list(line.get_xdata()) for line in (train, valid)] == [[10, 20, 30, 40], [20, 40]]
    assert [list(line.get_ydata()) for line in (train, valid)] == [LOSSES, [4.0, 3.25]]
    assert train.get_linewidth() < valid.get_linewidth()
    assert [list(line.get_ydata()) for line in axes["BLEU"].lines] == [BLEU]
    assert axes["loss"].get_xlabel() == "updates"
    assert picture.get_suptitle() == "x"
    assert [text.get_text() for text in picture.legends[0].get_texts()] == ["train", "validation"]


def test_several_runs_by_colour_and_what_differs(tmp_path: Path) -> None:
    names = ["demo+model.residual=pre", "demo+model.residual=post", "demo"]
    folders = [write(tmp_path / name, rows(at)) for at, name in enumerate(names)]
    (folders[0] / "result.json").write_text('{"status": "failed"}')
    (folders[1] / "result.json").write_text('{"status": "complete"}')
    picture = draw(chart(read_runs(folders), "steps", ["loss"]))
    shown = [text.get_text() for text in picture.legends[0].get_texts()]
    assert shown == ["model.residual=pre (failed)", "model.residual=post", "demo (unfinished)", "train", "validation"]
    lines = picture.axes[0].lines
    assert [line.get_gid() for line in lines] == [f"{kind} {n}" for n in range(3) for kind in ("train", "validation")]
    assert len({line.get_color() for line in lines}) == 3
    assert [line.get_ydata()[0] for line in lines[::2]] == [4.0, 5.0, 6.0]


@pytest.mark.parametrize(
    ("folders", "names"),
    [
        (["r/base_1", "r/base_2"], ["base_1", "base_2"]),
        (["r/demo+a=1+b=2", "r/demo+b=2+c=3", "r/demo+b=2"], ["a=1", "c=3", "demo"]),
        (["r/x", "s/x"], ["r/x", "s/x"]),
        (["r/demo+a=1"], ["demo+a=1"]),
    ],
)
def test_names(folders: list[str], names: list[str]) -> None:
    assert names_of([Path(folder) for folder in folders]) == names


def test_places_on_the_axis() -> None:
    found = rows()
    assert positions(found, "steps") == [10, 20, 20, 30, 40, 40]
    assert positions(found, "tokens") == [1000, 2000, 2000, 3000, 4000, 4000]
    assert positions([row("norms", 15), *found], "tokens")[0] == 1500
    seconds = [place * 3600 for place in positions(found, "hours")]  # 20 s for each 1000 tokens, 5 s a validation
    assert seconds == pytest.approx([20, 45, 45, 65, 90, 90])
    told = [one | {"elapsed": 36.0 * at} for at, one in enumerate(found, 1)]
    assert positions(told[-1:], "hours") == pytest.approx([0.06])


def test_seeds_are_one_band(tmp_path: Path) -> None:
    folders = [write(tmp_path / f"s{seed}", rows(seed), seed=seed, status="complete") for seed in (1, 2, 6)]
    other = write(tmp_path / "other", rows(), status="complete")
    (other / "config.yaml").write_text("format: 3\nseed: 1\nmodel: {d_model: 7}\n")
    found = chart(read_runs([*folders, other]), "steps", ["loss"], seeds=True)
    assert found.labels == ["s1 and 2 more", "other"]
    named = read_runs([*folders, other], ["base"] * 3 + ["wide"])
    assert chart(named, "steps", ["loss"], seeds=True).labels == ["base", "wide"]
    train = found.panels[0].curves[0]
    assert train.y == pytest.approx([loss + 3 for loss in LOSSES])
    assert train.low == pytest.approx([loss + 1 for loss in LOSSES])
    assert train.high == pytest.approx([loss + 6 for loss in LOSSES])
    assert len(draw(found).axes[0].collections) == 2  # the band of each kind


def test_a_long_curve_is_averaged(tmp_path: Path) -> None:
    count = 3 * MOST_POINTS
    folder = write(tmp_path / "x", [row("train", step, loss=float(step)) for step in range(1, count + 1)])
    (curve,) = chart(read_runs([folder]), "steps").panels[0].curves
    assert len(curve.x) == MOST_POINTS
    assert curve.x[:2] == curve.y[:2] == [2.0, 5.0]


def test_wide_ranges_are_logarithmic(tmp_path: Path) -> None:
    found = [row("train", at, loss=9.0 - at, perplexity=10.0**at, lr=10.0**-at) for at in range(1, 5)]
    picture = draw(chart(read_runs([write(tmp_path / "x", found)]), "steps"))
    scales = {one.get_title(loc="left"): one.get_yscale() for one in picture.axes if one.has_data()}
    assert scales == {"loss": "linear", "perplexity": "log", "learning rate": "linear"}
    assert not is_wide([0.0, 100.0])
    assert not is_wide([])
    assert [short(value) for value in (0.0005, 2000, 1.5e6, 12.5)] == ["0.0005", "2k", "1.5M", "12.5"]


def test_values_that_are_no_numbers_leave_a_gap(tmp_path: Path) -> None:
    folder = write(tmp_path / "x", [row("train", 1, loss=None), row("train", 2, loss=3.0), row("train", 3)])
    assert chart(read_runs([folder]), "steps").panels[0].curves[0].x == [2.0]


@pytest.mark.parametrize(("kind", "begin"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_files(tmp_path: Path, kind: str, begin: bytes) -> None:
    folder, out = write(tmp_path / "x", rows()), tmp_path / f"o.{kind}"
    done = tkit(folder, "-o", out)
    assert (done.exit_code, done.stdout) == (0, f"{out}\n")
    first = out.read_bytes()
    assert first.startswith(begin)
    assert tkit(folder, "-o", out).exit_code == 0
    assert out.read_bytes() == first, "equal runs, equal file"


@pytest.mark.parametrize(
    ("name", "told"),
    [("a $x_1$ b", False), (r"$\frac{", False), (r"\$ & <b> %d", False), ("_x", False), ("日本", True)],
)
def test_names_are_drawn_as_they_are(tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, told: bool) -> None:
    folders, labels = [write(tmp_path / each, rows(), status="complete") for each in "xy"], [name, "other"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for count in (1, 2):
            given = [word for label in labels[:count] for word in ("--label", label)]
            done = tkit(*folders[:count], *given, "-o", tmp_path / "o.svg", "--metric", "bleu")
            assert done.exit_code == 0, done.output
    figure = draw(chart(read_runs(folders, labels), "steps", ["bleu"]))
    texts = [text for legend in figure.legends for text in legend.get_texts()]
    assert texts[0]._preprocess_math(texts[0].get_text()) == (name, False)
    assert ("give --label" in caplog.text) == told
    assert caplog.text.count("matplotlib") == (2 if told else 0), "one line for each picture"


def test_a_real_run(trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = tkit(trained.folder, "--x", "tokens", "--metric", "bleu", "--metric", "padding_efficiency")
    assert (done.exit_code, done.stdout) == (0, "curves.png\n")
    assert (tmp_path / "curves.png").stat().st_size > 5000


def test_what_cannot_be_drawn_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder, silent = write(tmp_path / "x", rows()), write(tmp_path / "silent", [])
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match="empty is not a run folder"):
        read_runs([folder, tmp_path / "empty"])
    with pytest.raises(RunError, match=r"silent has logged nothing yet: its metrics\.jsonl is missing or holds no row"):
        read_runs([silent])
    assert [run.name for run in read_runs([folder, silent])] == ["x"]
    with pytest.raises(ConfigError, match=r"--metric blue: logged are .*bleu.*; did you mean 'bleu'\?"):
        chart(read_runs([folder]), "steps", ["blue"])
    with pytest.raises(ConfigError, match="one for each run, 1 and not 2"):
        read_runs([folder], ["a", "b"])
    wrong = tkit(folder, "-o", tmp_path / "metrics.jsonl")
    assert wrong.exit_code == 2
    assert "ends in .png, .svg, .pdf" in wrong.stderr


def test_without_matplotlib_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = tkit(write(tmp_path / "x", rows()), "-o", tmp_path / "o.png")
    assert done.exit_code == 1
    assert (
        done.stderr == "error: a picture needs matplotlib: pip install 'transformer-kit[plot]', or matplotlib itself\n"
    )
    assert not (tmp_path / "o.png").exists()


def test_norms_by_module(tmp_path: Path) -> None:
    names = ["embedding", "encoder.blocks.0", "encoder.blocks.10", "encoder.blocks.2", "encoder.final_norm"]
    watched = [
        row("norms", step, **{f"{kind}/{name}": size * step for kind in ("gradient", "weight") for name in names})
        for step, size in ((2, 1.0), (4, 3.0))
    ]
    folder = write(tmp_path / "x", [row("train", 2, loss=1.0), *watched], status="complete")
    (found,) = norms(read_runs([folder]), "steps")
    assert found.labels == [
        "embedding",
        "encoder.blocks.0",
        "encoder.blocks.2",
        "encoder.blocks.10",
        "encoder.final_norm",
    ]
    picture = draw_norms([found, found])
    assert [one.get_title(loc="left") for one in picture.axes] == [
        "gradient norm, before clipping",
        "weight norm",
    ] * 2
    lines = {line.get_gid(): line for line in picture.axes[1].lines}
    assert list(lines["encoder.blocks.10"].get_xdata()) == [2, 4]
    assert list(lines["encoder.blocks.10"].get_ydata()) == [2, 12]
    out = tmp_path / "n.svg"
    assert tkit(folder, "--norms", "-o", out).exit_code == 0
    assert out.is_file()
    assert tkit(folder, "--norms", "--seeds", "-o", out).exit_code == 2
    assert "loss" in [panel.metric for panel in chart(read_runs([folder]), "steps").panels]
    with pytest.raises(RunError, match=r"y has logged no norms: train with trainer\.watch=N"):
        norms(read_runs([write(tmp_path / "y", rows())]), "steps")
