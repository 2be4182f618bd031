"""Charts by matplotlib, which is imported when one is made: it belongs to the extra `plot`."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

from transformer_kit.errors import RunError
from transformer_kit.logs import get_logger
from transformer_kit.tasks.plot import Chart, Curve, Panel

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

log = get_logger(__name__)

FORMATS = ("png", "svg", "pdf")
COLOURS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#555555",
)  # Okabe and Ito's, told apart by all
TITLES = {
    "bleu": "BLEU",
    "lr": "learning rate",
    "grad_norm": "gradient norm, before clipping",
    "nll": "negative log-likelihood",
    "tokens_per_second": "target tokens/s",
}
AXES = {"steps": "updates", "tokens": "target tokens", "hours": "hours"}
NORM_TITLES = {
    "gradient": "gradient norm, before clipping",
    "weight": "weight norm",
    "update": "update norm / weight norm",
    "activation": "activation RMS",
}
MOST_MODULES = 18  # in a legend
LINEAR = ("lr", "bleu", "accuracy", "tokens_per_second", "padding_efficiency")  # whatever their range
WIDE = 20.0  # a panel whose values span more than this factor has a logarithmic axis
STYLE: dict[Any, Any] = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": "medium",
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "svg.hashsalt": "tkit",  # equal runs, equal file
}


def draw(chart: Chart) -> Figure:
    """A picture of small multiples: one panel for each metric, one colour for each run.

    The training is a thin line, validations are a thicker one with dots.

    Raises:
        RunError: matplotlib is not installed.
    """
    figure, axes = _figure(len(chart.panels))
    for panel, one in zip(chart.panels, axes, strict=False):
        _draw_panel(one, panel, len(chart.labels))
        _label_x(one, chart.axis)
    _legend(figure, chart)
    return figure


def draw_norms(charts: Sequence[Chart]) -> Figure:
    """A row of panels for each run: the norms of its modules, from the first (dark) to the last (light).

    Raises:
        RunError: matplotlib is not installed.
    """
    columns = max(len(chart.panels) for chart in charts)
    figure, axes = _figure(len(charts) * columns, 2 if len(charts) == 1 else columns)
    for row, chart in enumerate(charts):
        colours = _shades(len(chart.labels))
        for panel, one in zip(chart.panels, axes[row * columns :], strict=False):
            for curve in panel.curves:
                one.plot(curve.x, curve.y, color=colours[curve.run], linewidth=1.2, gid=chart.labels[curve.run])
            values = [value for curve in panel.curves for value in curve.y]
            if is_wide(values):
                set_log(one, values)
            one.set_title(NORM_TITLES.get(panel.metric, panel.metric), loc="left")
            _label_x(one, chart.axis)
        for empty in axes[row * columns + len(chart.panels) : (row + 1) * columns]:
            empty.set_axis_off()
        corner = axes[min(1, columns - 1) if len(charts) == 1 else (row + 1) * columns - 1]
        _norms_legend(corner, chart, colours, len(charts) > 1)
    if len(charts) == 1:
        figure.suptitle(_cut(charts[0].title), fontsize="medium")
    return figure


def _norms_legend(axes: Axes, chart: Chart, colours: Sequence[Any], several: bool) -> None:
    """The modules of one run, to the right of its row; the middle ones of a deep model are left out."""
    from matplotlib.lines import Line2D

    shown = list(zip(chart.labels, colours, strict=True))
    if len(shown) > MOST_MODULES:
        step = math.ceil(len(shown) / MOST_MODULES)
        shown = [*shown[:-1:step], shown[-1]]
    handles = [Line2D([], [], color=colour, label=name) for name, colour in shown]
    title = _cut(chart.title) if several else None
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.02, 1.0), fontsize="x-small", title=title,
                title_fontsize="x-small", frameon=False)  # fmt: skip


def _shades(count: int) -> list[Any]:
    import matplotlib

    return [matplotlib.colormaps["viridis"](0.9 * number / max(1, count - 1)) for number in range(count)]


def save(figure: Figure, out: BinaryIO, kind: str) -> None:
    """Write a picture; a warning says it where the font lacks characters of the names.

    Args:
        kind: one of `FORMATS`.
    """
    import matplotlib

    with matplotlib.rc_context(STYLE), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        figure.savefig(out, format=kind, dpi=150, metadata=None if kind == "png" else {_DATE[kind]: None})
    said = dict.fromkeys(str(each.message) for each in told if issubclass(each.category, UserWarning))
    if any(_UNKNOWN in text for text in said):
        log.warning("matplotlib's font lacks characters of the names, which are drawn as boxes: give --label")
    for text in said:
        if _UNKNOWN not in text:
            log.warning("matplotlib: %s", text)


_UNKNOWN = "missing from font"  # in what matplotlib warns of
_DATE = {"svg": "Date", "pdf": "CreationDate"}


def short(value: float) -> str:
    """A number for an axis: 2000 -> 2k, 1500000 -> 1.5M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.4g}{letter}"
    return f"{value:.4g}"


def is_wide(values: Iterable[float]) -> bool:
    """Whether values are best seen on a logarithmic axis."""
    found = list(values)
    return bool(found) and min(found) > 0 and max(found) / min(found) > WIDE


def palette(count: int) -> list[Any]:
    """Colours for so many runs."""
    import matplotlib

    if count <= len(COLOURS):
        return list(COLOURS[:count])
    return [matplotlib.colormaps["turbo"]((number + 0.5) / count) for number in range(count)]


def _label_x(axes: Axes, axis: str) -> None:
    axes.set_xlabel(AXES[axis])
    axes.xaxis.set_major_formatter(lambda value, _: short(value))


def _figure(panels: int, columns: int | None = None) -> tuple[Figure, list[Axes]]:
    """A figure with so many panels, in so many columns, or in as many as look well."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise RunError(
            "a picture needs matplotlib: pip install 'transformer-kit[plot]', or matplotlib itself"
        ) from None
    columns = columns or (panels if panels <= 3 else 2 if panels == 4 else 3)
    rows = math.ceil(panels / columns)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(max(5.5, 4.0 * columns), 3.0 * rows + 0.5), layout="constrained")
        axes = list(figure.subplots(rows, columns, squeeze=False).flat)
        for empty in axes[panels:]:
            empty.set_axis_off()
    return figure, axes[:panels]


def _draw_panel(axes: Axes, panel: Panel, runs: int) -> None:
    colours = palette(runs)
    pale = any(curve.kind == "validation" for curve in panel.curves)  # beside validations, training stands back
    for curve in panel.curves:
        _draw_curve(axes, curve, colours[curve.run], pale)
    axes.set_title(TITLES.get(panel.metric, panel.metric.replace("_", " ")), loc="left")
    if panel.metric == "accuracy":
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    elif panel.metric not in LINEAR and is_wide(value for curve in panel.curves for value in curve.y):
        set_log(axes, [value for curve in panel.curves for value in curve.y])
    else:
        axes.yaxis.set_major_formatter(lambda value, _: short(value))


def set_log(axes: Axes, values: Sequence[float]) -> None:
    """A logarithmic y axis with numbers that can be read: 1, 2, 5, 10, …, or powers of ten over a long range."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_yscale("log")
    long = max(values) / min(values) > 1e4
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0,) if long else (1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(lambda value, _: short(value))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _draw_curve(axes: Axes, curve: Curve, colour: Any, pale: bool) -> None:
    trained = curve.kind == "train"
    dots = "o" if len(curve.x) == 1 or (not trained and len(curve.x) <= 60) else ""
    axes.plot(
        curve.x,
        curve.y,
        color=colour,
        linewidth=1.1 if trained else 1.8,
        alpha=0.5 if trained and pale else 1.0,
        marker=dots,
        markersize=3.5,
        gid=f"{curve.kind} {curve.run}",
    )
    if curve.low:
        axes.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.15, linewidth=0)


def _legend(figure: Figure, chart: Chart) -> None:
    """The runs by colour, what is thin and what is thick, below all panels; one run is the title."""
    from matplotlib.lines import Line2D

    kinds = [kind for kind in ("train", "validation") if any(c.kind == kind for p in chart.panels for c in p.curves)]
    alone = len(chart.labels) == 1
    colours = palette(len(chart.labels))
    grey = colours[0] if alone else "#555555"
    shown = (
        [] if alone else [Line2D([], [], color=c, label=_cut(n)) for c, n in zip(colours, chart.labels, strict=True)]
    )
    if len(kinds) == 2:
        thick = {"linewidth": 1.8, "marker": "o", "markersize": 3.5}
        shown += [
            Line2D([], [], color=grey, label=kind, **({"linewidth": 1.1, "alpha": 0.5} if kind == "train" else thick))
            for kind in kinds
        ]
    if chart.title:
        figure.suptitle(_cut(chart.title), fontsize="medium")
    if shown:
        widest = max(len(str(line.get_label())) for line in shown)
        columns = max(1, min(len(shown), int(figure.get_figwidth() * 11 / (widest + 6))))
        figure.legend(handles=shown, loc="outside lower center", ncols=columns, frameon=False)


def _cut(label: str) -> str:
    """A label of no more than 70 characters, in which a dollar sign is one and begins no formula."""
    short_enough = label if len(label) <= 70 else f"{label[:40]}…{label[-29:]}"
    return short_enough.replace("$", r"\$")
