"""Charts, as plain plotly figures (``{"data": [...], "layout": {...}}``).

Nothing here imports plotly: the page draws the figures with plotly.js, and the tests check them against plotly's
schema. Values are rounded to four digits, so a figure tells no more than its picture.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from tacit.report import words
from tacit.report.run_files import Evaluated, Metrics, RunFiles
from tacit.report.styles import ACCENT, BLUES, DANGER, FONT, GRID, INK, PALE, RUN_STYLES, SOFT, STYLES, Style

if TYPE_CHECKING:
    from tacit.report.audit_page import Bounds

Figure = dict[str, Any]

MANY_SILOS = 60


@dataclass(frozen=True)
class Chart:
    """A figure with what it needs on the page: a caption, words for those who cannot see it, and a height in pixels."""

    figure: Figure
    caption: str
    spoken: str
    height: int = 280
    note: str = ""


@dataclass(frozen=True)
class Series:
    """One line of a curve chart."""

    name: str
    style: Style
    rounds: Sequence[int]
    values: Sequence[float | None]


# ---- curves over rounds


def series_of(name: str, style: Style, curve: Iterable[Evaluated], metric: str) -> Series | None:
    """The metric over rounds, or None where there are fewer than two points to join."""
    points = [(point.round, point.metrics.get(metric)) for point in curve]
    if sum(value is not None for _, value in points) < 2:
        return None
    return Series(name, style, [number for number, _ in points], [value for _, value in points])


def metric_curve(run: RunFiles, metric: str) -> Chart | None:
    """The federation's metric over rounds, baselines laid over it; None where there is no curve."""
    main = series_of("Federation", STYLES["federated"], run.curve, metric)
    if main is None:
        return None
    others = [_baseline_series(run, name, metric, main.rounds) for name in run.baselines]
    return curve_chart(
        metric, [series for series in others if series] + [main], words.sentence(words.metric_note(run, metric))
    )


def _baseline_series(run: RunFiles, name: str, metric: str, rounds: Sequence[int]) -> Series | None:
    """The baseline's own curve, else its final value as a level line."""
    baseline, style = run.baselines[name], STYLES.get(name, Style(SOFT, "dash", "x"))
    series = series_of(words.baseline(name), style, baseline.curve, metric)
    value = baseline.metrics.get(metric)
    if series is None and value is not None:
        series = Series(words.baseline(name), style, [rounds[0], rounds[-1]], [value, value])
    return series


def curve_chart(metric: str, series: Sequence[Series], note: str = "", height: int = 300) -> Chart:
    """Lines over rounds with one hover box."""
    traces = [_line(one) for one in series]
    values = [value for one in series for value in one.values]
    layout = _layout(hovermode="x unified", xaxis=_rounds_axis(), yaxis=_metric_axis(values))
    spoken = f"{words.metric(metric)} over rounds. " + " ".join(_spoken(one) for one in series)
    return Chart({"data": traces, "layout": layout}, words.metric(metric), spoken, height, note)


def _spoken(series: Series) -> str:
    values = [(number, value) for number, value in zip(series.rounds, series.values, strict=True) if value is not None]
    (first, start), (last, end) = values[0], values[-1]
    return f"{series.name}: {words.number(start)} at round {first}, {words.number(end)} at round {last}."


def _line(series: Series) -> dict[str, Any]:
    few = len(series.rounds) <= 12
    return {
        "type": "scatter",
        "mode": "lines+markers" if few else "lines",
        "name": plain(series.name, 40),
        "x": list(series.rounds),
        "y": [rounded(value) for value in series.values],
        "connectgaps": True,
        "line": {"color": series.style.color, "dash": series.style.dash, "width": 2.5},
        "marker": {"symbol": series.style.symbol, "size": 7, "color": series.style.color},
        "hovertemplate": "%{y}",
    }


def silo_curves(run: RunFiles) -> Chart | None:
    """The headline metric of every silo over rounds: thin lines, or bands where there are very many silos."""
    metric = run.headline
    names = [name for name in run.silos if _points(run.curve, name, metric) >= 2]
    overall = series_of("All silos", STYLES["federated"], run.curve, metric)
    if not names or overall is None:
        return None
    rounds = [point.round for point in run.curve]
    many = len(names) > MANY_SILOS
    traces = _bands(run, names, metric, rounds) if many else [_thin(run, name, metric, rounds) for name in names]
    layout = _layout(
        hovermode="x unified" if many else "closest",
        xaxis=_rounds_axis(),
        yaxis=_metric_axis(overall.values),
    )
    note = (
        "Blue: all silos. Grey: the middle 80 % and the median of silos."
        if many
        else "Blue: all silos. Grey: one line per silo."
    )
    spoken = (
        f"{words.metric(metric)} of {words.counted(len(names), 'silo')} over rounds; final values are in the table."
    )
    figure = {"data": [*traces, _line(overall)], "layout": layout}
    return Chart(figure, f"{words.metric(metric)} of each silo over rounds", spoken, 320, note)


def _points(curve: Iterable[Evaluated], silo: str, metric: str) -> int:
    return sum(point.silos.get(silo, {}).get(metric) is not None for point in curve)


def _thin(run: RunFiles, silo: str, metric: str, rounds: Sequence[int]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": plain(silo, 60),
        "x": list(rounds),
        "y": [rounded(point.silos.get(silo, {}).get(metric)) for point in run.curve],
        "connectgaps": True,
        "line": {"color": "#aab4bf", "width": 1.3},
        "hovertemplate": "%{fullData.name}<br>round %{x}: %{y}<extra></extra>",
    }


def _bands(run: RunFiles, names: Sequence[str], metric: str, rounds: Sequence[int]) -> list[dict[str, Any]]:
    values = [
        sorted(v for name in names if (v := point.silos.get(name, {}).get(metric)) is not None) for point in run.curve
    ]

    def quantile(share: float) -> list[float | None]:
        return [rounded(column[round(share * (len(column) - 1))]) if column else None for column in values]

    base = {"type": "scatter", "mode": "lines", "x": list(rounds), "hovertemplate": "%{y}", "connectgaps": True}
    edge = {"width": 0, "color": PALE}
    return [
        base | {"name": "10 % of silos below", "y": quantile(0.1), "line": edge},
        base
        | {
            "name": "10 % above",
            "y": quantile(0.9),
            "line": edge,
            "fill": "tonexty",
            "fillcolor": "rgba(150,162,175,.25)",
        },
        base | {"name": "Median silo", "y": quantile(0.5), "line": {"width": 1.5, "color": SOFT, "dash": "dash"}},
    ]


# ---- silos side by side


def joining_dots(run: RunFiles, order: Sequence[str]) -> Chart | None:
    """Each silo alone, in the federation and with all records pooled: one row of dots per silo, all silos on top."""
    metric = run.headline
    if len(order) > MANY_SILOS and "silo-only" in run.baselines:
        return _gain_histogram(run)
    columns: dict[str, tuple[Metrics, Mapping[str, Metrics]]] = {
        name: (run.baselines[name].metrics, run.baselines[name].silos)
        for name in ("silo-only", "pooled")
        if name in run.baselines
    }
    columns["federated"] = (run.metrics, run.silos)
    spoken = f"{words.metric(metric)} of each silo alone, in the federation and with all records pooled."
    return _dots_by_silo(columns, order, metric, "silo-only", spoken)


def own_dots(run: RunFiles, order: Sequence[str]) -> Chart | None:
    """Each silo's own model beside the one for everybody, on its held-out records: one row of dots per silo."""
    if run.shared is None or len(order) > MANY_SILOS:
        return None
    columns: dict[str, tuple[Metrics, Mapping[str, Metrics]]] = {
        "shared": (run.shared.metrics, run.shared.silos),
        "federated": (run.metrics, run.silos),
    }
    spoken = f"{words.metric(run.headline)} of each silo's own model and of one model for everybody."
    return _dots_by_silo(columns, order, run.headline, "shared", spoken)


def _dots_by_silo(
    columns: Mapping[str, tuple[Metrics, Mapping[str, Metrics]]],
    order: Sequence[str],
    metric: str,
    linked: str,
    spoken: str,
) -> Chart | None:
    """A row of dots for all silos and for each: one dot per column, a line from that of ``linked`` to the run's own."""
    rows = ["All silos", *order]
    values = {
        name: [overall.get(metric), *(silos.get(silo, {}).get(metric) for silo in order)]
        for name, (overall, silos) in columns.items()
    }
    if all(value is None for column in values.values() for value in column):
        return None
    links = _links(values[linked], values["federated"]) if linked in values else []
    traces = [_dots(name, rows, column) for name, column in values.items()]
    shown = [value for column in values.values() for value in column]
    layout, height = _rows_layout(rows, _metric_axis(shown, words.metric(metric)))
    spoken = f"{spoken} The numbers are in the table that follows."
    return Chart({"data": links + traces, "layout": layout}, f"{words.metric(metric)} by silo", spoken, height)


def silo_dots(run: RunFiles, order: Sequence[str]) -> Chart | None:
    """The final headline metric of each silo, without baselines."""
    values = [run.silos[name].get(run.headline) for name in order]
    if sum(value is not None for value in values) < 2:
        return None
    if len(order) > MANY_SILOS:
        caption = f"{words.metric(run.headline)} over silos"
        return histogram([value for value in values if value is not None], caption, words.metric(run.headline))
    rows = ["All silos", *order]
    layout, height = _rows_layout(rows, _metric_axis(values, words.metric(run.headline)))
    trace = _dots("federated", rows, [run.metrics.get(run.headline), *values])
    spoken = f"Final {words.metric_in_sentence(run.headline)} of each silo; the numbers are in the table."
    return Chart({"data": [trace], "layout": layout}, f"{words.metric(run.headline)} by silo", spoken, height)


def _dots(name: str, rows: Sequence[str], values: Sequence[float | None]) -> dict[str, Any]:
    style = STYLES[name]
    label = "Federation" if name == "federated" else words.baseline(name)
    return {
        "type": "scatter",
        "mode": "markers",
        "name": label,
        "x": [rounded(value) for value in values],
        "y": list(range(len(values))),
        "customdata": [plain(row, 60) for row in rows],
        "marker": {
            "color": style.color if name == "federated" else "#ffffff",
            "symbol": style.symbol,
            "size": 11 if len(values) <= 31 else 8,
            "line": {"color": style.color, "width": 2},
        },
        "hovertemplate": "%{customdata}<br>" + label + ": %{x}<extra></extra>",
    }


def _links(start: Sequence[float | None], end: Sequence[float | None]) -> list[dict[str, Any]]:
    """A grey line from each silo's value alone to its value together."""
    x: list[float | None] = []
    y: list[float | None] = []
    for row, (one, other) in enumerate(zip(start, end, strict=True)):
        if one is not None and other is not None:
            x += [rounded(one), rounded(other), None]
            y += [row, row, None]
    line = {"color": PALE, "width": 3}
    return [{"type": "scatter", "mode": "lines", "x": x, "y": y, "line": line, "hoverinfo": "skip"}]


def _rows_layout(rows: Sequence[str], xaxis: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """A named row per silo, the first for all of them. As tall as a printed page at most."""
    n = len(rows)
    pitch = 30 if n <= 13 else 24 if n <= 31 else 14.5
    yaxis = _axis(range=[n - 0.4, -0.6], zeroline=False)
    yaxis |= {
        "tickvals": list(range(n)),
        "ticktext": [f"<b>{plain(rows[0], 24)}</b>", *(plain(row, 24) for row in rows[1:])],
        "tickfont": {"size": 12 if n <= 31 else 10 if n <= 45 else 9, "color": INK},
    }
    divider = {
        "type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 0.5, "y1": 0.5, "line": {"color": PALE, "width": 1},
    }  # fmt: skip
    layout = _layout(hovermode="closest", xaxis=xaxis, yaxis=yaxis, shapes=[divider])
    layout["margin"]["b"] = 44
    return layout, round(pitch * n + 74)


def _gain_histogram(run: RunFiles) -> Chart | None:
    """Very many silos: how many gain how much by joining."""
    alone, metric = run.baselines["silo-only"].silos, run.headline
    pairs = [(values.get(metric), alone.get(name, {}).get(metric)) for name, values in run.silos.items()]
    gains = [together - before for together, before in pairs if together is not None and before is not None]
    better = "right" if run.better(metric) > 0 else "left"
    note = f"Together minus alone; silos to the {better} of zero gain by joining."
    caption = f"Change in {words.metric_in_sentence(metric)} by joining"
    return histogram(gains, caption, "change", note) if len(gains) > 1 else None


def histogram(values: Sequence[float], caption: str, unit: str, note: str = "", bins: int = 24) -> Chart:
    """How many silos lie in each of equal steps. Zero, where it is inside, is an edge between two bars."""
    low, high = min(values), max(values)
    step = (high - low) / bins or 1.0
    start = math.floor(low / step)
    counts = [0] * (math.floor(high / step) - start + 1)
    for value in values:
        counts[math.floor(value / step) - start] += 1
    edges = [(start + index) * step for index in range(len(counts) + 1)]
    spans = [f"{words.number(one)} to {words.number(other)}" for one, other in pairwise(edges)]
    trace = {
        "type": "bar",
        "x": [rounded(edge + step / 2) for edge in edges[:-1]],
        "y": counts,
        "width": rounded(step * 0.92),
        "marker": {"color": ACCENT},
        "customdata": spans,
        "hovertemplate": "%{customdata}: %{y:,} silos<extra></extra>",
    }
    x = _axis(title=unit, showgrid=False, zeroline=low < 0 < high, tickformat=digits(values)) | {"zerolinecolor": INK}
    layout = _layout(xaxis=x, yaxis=_axis(title="silos", rangemode="tozero"))
    layout["margin"]["b"] = 44
    spoken = f"{caption} over {words.counted(len(values), 'silo')}; the numbers are in the table."
    return Chart({"data": [trace], "layout": layout}, caption, spoken, note=note)


def bars(
    labels: Sequence[str],
    values: Sequence[float | None],
    caption: str,
    unit: str,
    *,
    sideways: bool = False,
    note: str = "",
) -> Chart:
    """Bars from zero: upright for ordered categories, sideways for names."""
    n = len(labels)
    position = list(range(n))
    shown = [rounded(value) for value in values]
    shortest = 24 if sideways else 14
    names: dict[str, Any] = {"tickvals": position, "ticktext": [plain(label, shortest) for label in labels]}
    trace = {
        "type": "bar",
        "orientation": "h" if sideways else "v",
        "x": shown if sideways else position,
        "y": position if sideways else shown,
        "marker": {"color": ACCENT},
        "customdata": [plain(label, 60) for label in labels],
        "hovertemplate": "%{customdata}: %{" + ("x" if sideways else "y") + ":,} " + unit + "<extra></extra>",
    }
    amount = _axis(title=unit, rangemode="tozero", tickformat=",~")
    if sideways:
        readable: dict[str, Any] = names if n <= MANY_SILOS else {"showticklabels": False}
        place = _axis(range=[n - 0.4, -0.6], showgrid=False, zeroline=False, **readable)
        layout, height = _layout(xaxis=amount, yaxis=place, bargap=0.35), _bar_height(n)
    else:
        few = names if n <= 24 else {}
        place = _axis(showgrid=False, zeroline=False, autotickangles=[0, 60, 90], **few)
        layout, height = _layout(xaxis=place, yaxis=amount, bargap=0.25), 280
    layout["margin"]["b"] = 44
    spoken = f"{caption}: " + "; ".join(
        f"{label}: {words.number(value) if value and value % 1 else words.count(value)}"
        for label, value in list(zip(labels, values, strict=True))[:12]
    )
    return Chart({"data": [trace], "layout": layout}, caption, spoken + ("; …" if n > 12 else "."), height, note)


def _bar_height(n: int) -> int:
    return round((28 if n <= 12 else 22 if n <= 30 else 14.5 if n <= MANY_SILOS else 840 / n) * n + 74)


def heatmap(
    rows: Sequence[str], columns: Sequence[str], values: Sequence[Sequence[float | None]], caption: str, hover: str,
    *, note: str = "", share: bool = False,
) -> Chart:  # fmt: skip
    """A table of shades, with the numbers in the cells where they fit. ``share``: values are fractions of one."""
    n, m = len(rows), len(columns)
    fits = n <= 14 and m <= 12
    trace: dict[str, Any] = {
        "type": "heatmap",
        "z": [[rounded(value) for value in row] for row in values],
        "x": list(range(m)),
        "y": list(range(n)),
        "colorscale": BLUES,
        "showscale": not fits,
        "colorbar": {"thickness": 10, "outlinewidth": 0},
        "xgap": 2 if fits else 0,
        "ygap": 2 if fits else 0,
        "customdata": [[[plain(row, 60), plain(column, 60)] for column in columns] for row in rows],
        "hovertemplate": hover + "<extra></extra>",
    }
    if fits:
        trace |= {"texttemplate": "%{z:.0%}" if share else "%{z:,}", "textfont": {"size": 11}}
    names = n <= MANY_SILOS and m <= MANY_SILOS
    x = _axis(showgrid=False, zeroline=False, ticks="", side="top", tickangle=-45 if m > 4 else 0)
    y = _axis(showgrid=False, zeroline=False, ticks="", autorange="reversed")
    x |= (
        {"tickvals": list(range(m)), "ticktext": [plain(c, 14) for c in columns]}
        if names
        else {"showticklabels": False}
    )
    y |= {"tickvals": list(range(n)), "ticktext": [plain(r, 20) for r in rows]} if names else {"showticklabels": False}
    for axis, size in ((x, m), (y, n)):
        if names and size > 14:
            axis["tickfont"] = {"size": 9}
    height = round(min(900, 110 + n * (34 if fits else 16)))
    layout = _layout(hovermode="closest", xaxis=x, yaxis=y)
    return Chart(
        {"data": [trace], "layout": layout}, caption, f"{caption}, {n} rows by {m} columns.", max(height, 240), note
    )


def decile_lines(metric: str, deciles: Sequence[int], values: Sequence[float | None]) -> Chart | None:
    """A metric by decile of the number of records a person holds."""
    if sum(value is not None for value in values) < 2:
        return None
    trace = _line(Series(words.metric(metric), STYLES["federated"], deciles, values))
    trace["hovertemplate"] = "decile %{x}: %{y}<extra></extra>"
    axis = _axis(title="decile of people, from few to many records", dtick=1, showgrid=False)
    layout = _layout(xaxis=axis, yaxis=_metric_axis(values))
    layout["margin"]["b"] = 44
    spoken = f"{words.metric(metric)} by decile; the numbers are in the table."
    return Chart({"data": [trace], "layout": layout}, words.metric(metric), spoken)


# ---- plans


@dataclass(frozen=True)
class Curve:
    """One line over any number."""

    name: str
    style: Style
    x: Sequence[float]
    y: Sequence[float]


def sweep_chart(name: str, across: str, curves: Sequence[Curve], note: str) -> Chart:
    """Lines over a swept number; axes are logarithmic where the numbers span more than a factor of 20."""
    traces = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": plain(curve.name, 60),
            "x": [rounded(value) for value in curve.x],
            "y": [rounded(value) for value in curve.y],
            "line": {"color": curve.style.color, "dash": curve.style.dash, "width": 2.5},
            "marker": {"symbol": curve.style.symbol, "size": 7, "color": curve.style.color},
            "hovertemplate": "%{y:.4~g}",
        }
        for curve in curves
    ]
    x = _axis(across, **_scale([value for curve in curves for value in curve.x]))
    y = _axis(**_scale([value for curve in curves for value in curve.y]))
    layout = _layout(hovermode="x unified", xaxis=x | {"showgrid": False}, yaxis=y)
    layout["margin"]["b"] = 44
    spoken = f"{name} over {across}. " + " ".join(
        f"{curve.name}: {words.number(curve.y[0])} at {curve.x[0]:g}, {words.number(curve.y[-1])} at {curve.x[-1]:g}."
        for curve in curves
        if curve.x
    )
    return Chart({"data": traces, "layout": layout}, name, spoken, 340, words.sentence(note))


def _scale(values: Sequence[float]) -> dict[str, Any]:
    """Logarithmic with 1-2-5 ticks where the values span more than a factor of 20; from zero otherwise."""
    if values and min(values) > 0 and max(values) > 20 * min(values):
        return {"type": "log", "dtick": "D2" if max(values) < 2000 * min(values) else 1, "tickformat": "~g"}
    return {"rangemode": "tozero", "tickformat": "~g"}


def epsilon_curve(run: RunFiles) -> Chart | None:
    """Epsilon so far over rounds, a line per view (views that cost the same share one), and the budget."""
    lines: dict[tuple[float | None, ...], list[str]] = {}
    rounds = [point.round for point in run.curve]
    for view in dict.fromkeys(view for point in run.curve for view in point.epsilon):
        values = tuple(rounded(point.epsilon.get(view)) for point in run.curve)
        if sum(value is not None for value in values) >= 2:
            lines.setdefault(values, []).append(view)
    if not lines:
        return None
    series = [
        Series(", ".join(views), RUN_STYLES[index % len(RUN_STYLES)], rounds, values)
        for index, (values, views) in enumerate(lines.items())
    ]
    traces = [_line(one) for one in series]
    shown = [value for one in series for value in one.values]
    layout = _layout(hovermode="x unified", xaxis=_rounds_axis(), yaxis=_metric_axis(shown) | {"rangemode": "tozero"})
    whom = "; ".join(f"{one.style.dash} line: {one.name}" for one in series) if len(series) > 1 else series[0].name
    note = f"What the rounds so far cost, against: {whom}."
    if run.budget is not None:
        note += f" Red: the budget, {run.budget:g}."
        layout["shapes"] = [
            {
                "type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": run.budget, "y1": run.budget,
                "line": {"color": DANGER, "width": 1.5, "dash": "dash"},
            }
        ]  # fmt: skip
        top = max([run.budget, *(value for value in shown if value is not None)])
        layout["yaxis"] |= {"range": [0, 1.05 * top]}
    spoken = "Epsilon so far over rounds. " + " ".join(_spoken(one) for one in series)
    return Chart({"data": traces, "layout": layout}, "Privacy spent (epsilon so far)", spoken, 300, note)


# ---- audits

AUDIT = {
    "at least": Style(ACCENT),
    "curve": Style("#00795a", "dot", "diamond"),
    "estimate": Style("#b98a00", "dash", "triangle-up"),
    "proved": Style(INK, "solid", "square"),
    "published": Style("#a8487e", "dashdot", "triangle-down"),
}


def audit_scale(rows: Sequence[Bounds]) -> Chart:
    """Lower bounds, what is proved and what was published, a row for every way of looking."""
    columns: dict[str, tuple[str, list[float | None]]] = {
        "proved": ("proved, at most", [_finite(row.proved) for row in rows]),
        "published": ("as published", [None if row.published is None else _finite(row.published) for row in rows]),
        "estimate": ("estimate, no bound", [_finite(row.estimate) for row in rows]),
        "curve": ("at least, on a Gaussian curve", [_finite(row.fdp_epsilon) for row in rows]),
        "at least": ("at least", [_finite(row.epsilon) for row in rows]),
    }
    wrong = {"at least": [row.beats_something for row in rows], "curve": [row.refuted for row in rows]}
    traces = [
        {
            "type": "scatter",
            "mode": "markers",
            "x": [rounded(value) for value in values],
            "y": list(range(len(rows))),
            "customdata": [plain(row.name, 80) for row in rows],
            "marker": {
                "symbol": AUDIT[key].symbol,
                "size": 12,
                "color": [DANGER if red else AUDIT[key].color for red in wrong.get(key, [False] * len(rows))],
                "line": {"color": "#ffffff", "width": 1},
            },
            "hovertemplate": "%{customdata}<br>" + name + ": %{x}<extra></extra>",
        }
        for key, (name, values) in columns.items()
        if any(value is not None for value in values)
    ]
    known = [value for _, values in columns.values() for value in values if value is not None]
    x = _axis(
        "epsilon",
        rangemode="tozero",
        tickformat="~g",
        range=[-0.03 * max(known, default=1.0), 1.05 * max(known, default=1.0)],
    )
    y = _axis(range=[len(rows) - 0.4, -0.6], zeroline=False)
    y |= {
        "tickvals": list(range(len(rows))),
        "ticktext": [plain(row.name, 60).replace(", ", ",<br>") for row in rows],
        "tickfont": {"size": 12, "color": INK},
    }
    layout = _layout(hovermode="closest", xaxis=x, yaxis=y)
    layout["margin"]["b"] = 44
    spoken = "Lower bounds on epsilon beside what is proved. " + " ".join(
        f"{row.name}: at least {words.number(row.epsilon)}, proved at most {words.epsilon(row.proved)}." for row in rows
    )
    figure = {"data": traces, "layout": layout}
    return Chart(figure, "Lower bounds and claims on one scale", spoken, 74 + 52 * len(rows), "Red: above a claim.")


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


# ---- shared


def plain(text: str, longest: int) -> str:
    """Text as plotly shows it letter by letter: markup is escaped, long names are shortened in the middle."""
    flat = " ".join(text.split())
    if len(flat) > longest:
        keep = longest - 1
        flat = flat[: math.ceil(keep * 0.6)] + "…" + flat[-math.floor(keep * 0.4) :]
    return html.escape(flat, quote=False)


def rounded(value: float | None) -> float | None:
    """Four significant digits; whole numbers stay whole."""
    if value is None or value == 0 or float(value).is_integer():
        return value
    return round(value, 3 - math.floor(math.log10(abs(value))))


def digits(values: Iterable[float | None]) -> str:
    """A tick format with as many decimals as the spread of the values needs, the same on every tick."""
    known = [value for value in values if value is not None]
    spread = max(known, default=0) - min(known, default=0)
    if not spread or spread > 100:
        return ",~r"
    step = spread / 8  # plotly draws about this many ticks
    return f",.{max(0, -math.floor(math.log10(step)))}f"


def _axis(title: str = "", **settings: Any) -> dict[str, Any]:
    axis: dict[str, Any] = {
        "fixedrange": True,
        "gridcolor": GRID,
        "zerolinecolor": GRID,
        "automargin": True,
        "tickfont": {"size": 12, "color": SOFT},
    }
    if title:
        axis["title"] = {"text": title, "font": {"size": 12, "color": SOFT}, "standoff": 8}
    return axis | settings


def _metric_axis(values: Iterable[float | None], title: str = "") -> dict[str, Any]:
    """Ticks as fine as the spread needs, and hover boxes as precise as the tables."""
    known = [value for value in values if value is not None]
    hover = ",.3f" if max(map(abs, known), default=0) < 10 else ",.4~r"
    return _axis(title, tickformat=digits(known), hoverformat=hover)


def _rounds_axis() -> dict[str, Any]:
    """Rounds, whole. The prefix stands on the first tick and in the hover box, and saves the axis a title."""
    return _axis(showgrid=False, tickprefix="round ", showtickprefix="first", tickformat="~d", nticks=6)


def _layout(**settings: Any) -> dict[str, Any]:
    return {
        "font": {"family": FONT, "size": 13, "color": INK},
        "margin": {"l": 12, "r": 16, "t": 8, "b": 32},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "showlegend": False,
        "dragmode": False,
        "hoverlabel": {"bgcolor": "#ffffff", "bordercolor": PALE, "font": {"color": INK, "size": 13}},
    } | settings
