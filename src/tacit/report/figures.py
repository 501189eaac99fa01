"""Charts, as plain plotly figures (``{"data": [...], "layout": {...}}``).

Nothing here imports plotly: the page draws the figures with plotly.js, and the tests check them against plotly's
schema. Values are rounded to four digits, so a figure contains no more than its picture shows.
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
from tacit.report.styles import ACCENT, AUDIT, BLUES, DANGER, FONT, GRID, INK, PALE, RUN_STYLES, SOFT, STYLES, Style

if TYPE_CHECKING:
    from tacit.report.audit_page import Bounds

Figure = dict[str, Any]
Scores = tuple[Metrics, Mapping[str, Metrics]]  # over all silos, and of each

MANY_SILOS = 60


@dataclass(frozen=True)
class Chart:
    """A figure with a caption, a description for screen readers (``spoken``), and a height in pixels."""

    figure: Figure
    caption: str
    spoken: str
    height: int = 280
    note: str = ""


@dataclass(frozen=True)
class Series:
    """One line of a chart."""

    name: str
    style: Style
    x: Sequence[float]
    y: Sequence[float | None]


# ---- curves over rounds


def series_of(name: str, style: Style, curve: Iterable[Evaluated], metric: str) -> Series | None:
    """The metric over rounds, or None if there are fewer than two points to join."""
    points = [(point.round, point.metrics.get(metric)) for point in curve]
    if sum(value is not None for _, value in points) < 2:
        return None
    return Series(name, style, [number for number, _ in points], [value for _, value in points])


def metric_curve(run: RunFiles, metric: str) -> Chart | None:
    """The federation's metric over rounds, with the baselines; None if there is no curve."""
    main = series_of("Federation", STYLES["federated"], run.curve, metric)
    if main is None:
        return None
    others = [_baseline_series(run, name, metric, main.x) for name in run.baselines]
    note = words.sentence(words.metric_note(run, metric))
    return curve_chart(metric, [series for series in others if series] + [main], note)


def _baseline_series(run: RunFiles, name: str, metric: str, rounds: Sequence[float]) -> Series | None:
    """The baseline's own curve, else its final value as a level line."""
    baseline, style = run.baselines[name], STYLES.get(name, Style(SOFT, "dash", "x"))
    series = series_of(words.baseline(name), style, baseline.curve, metric)
    value = baseline.metrics.get(metric)
    if series is None and value is not None:
        series = Series(words.baseline(name), style, [rounds[0], rounds[-1]], [value, value])
    return series


def curve_chart(metric: str, series: Sequence[Series], note: str = "", height: int = 300) -> Chart:
    """Lines over rounds with one hover box."""
    axis = _metric_axis(value for one in series for value in one.y)
    spoken = f"{words.metric(metric)} over rounds. " + " ".join(map(_spoken, series))
    return _chart(map(_line, series), words.metric(metric), spoken, _rounds_axis(), axis, height, note, unified=True)


def _spoken(series: Series) -> str:
    values = [(number, value) for number, value in zip(series.x, series.y, strict=True) if value is not None]
    (first, start), (last, end) = values[0], values[-1]
    return f"{series.name}: {words.number(start)} at round {first}, {words.number(end)} at round {last}."


def _line(series: Series, longest: int = 40, hover: str = "%{y}", **others: Any) -> Figure:
    return {
        "type": "scatter",
        "mode": "lines+markers" if len(series.x) <= 12 else "lines",
        "name": plain(series.name, longest),
        "x": [rounded(value) for value in series.x],
        "y": [rounded(value) for value in series.y],
        "connectgaps": True,
        "line": {"color": series.style.color, "dash": series.style.dash, "width": 2.5},
        "marker": {"symbol": series.style.symbol, "size": 7, "color": series.style.color},
        "hovertemplate": hover,
    } | others


def silo_curves(run: RunFiles) -> Chart | None:
    """The headline metric of every silo over rounds: thin lines, or bands if there are very many silos."""
    metric = run.headline
    names = [name for name in run.silos if _points(run.curve, name, metric) >= 2]
    overall = series_of("All silos", STYLES["federated"], run.curve, metric)
    if not names or overall is None:
        return None
    rounds = [point.round for point in run.curve]
    many = len(names) > MANY_SILOS
    traces = _bands(run, names, metric, rounds) if many else [_thin(run, name, metric, rounds) for name in names]
    grey = "the middle 80 % and the median of silos" if many else "one line per silo"
    silos = words.counted(len(names), "silo")
    return _chart(
        [*traces, _line(overall)],
        f"{words.metric(metric)} of each silo over rounds",
        f"{words.metric(metric)} of {silos} over rounds; final values are in the table.",
        _rounds_axis(),
        _metric_axis(overall.y),
        320,
        f"Blue: all silos. Grey: {grey}.",
        unified=many,
    )


def _points(curve: Iterable[Evaluated], silo: str, metric: str) -> int:
    return sum(point.silos.get(silo, {}).get(metric) is not None for point in curve)


def _thin(run: RunFiles, silo: str, metric: str, rounds: Sequence[int]) -> Figure:
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


def _bands(run: RunFiles, names: Sequence[str], metric: str, rounds: Sequence[int]) -> list[Figure]:
    values = [
        sorted(v for name in names if (v := point.silos.get(name, {}).get(metric)) is not None) for point in run.curve
    ]

    def quantile(share: float) -> list[float | None]:
        return [rounded(column[round(share * (len(column) - 1))]) if column else None for column in values]

    base = {"type": "scatter", "mode": "lines", "x": list(rounds), "hovertemplate": "%{y}", "connectgaps": True}
    edge = {"width": 0, "color": PALE}
    fill = {"fill": "tonexty", "fillcolor": "rgba(150,162,175,.25)"}
    return [
        base | {"name": "10 % of silos below", "y": quantile(0.1), "line": edge},
        base | {"name": "10 % above", "y": quantile(0.9), "line": edge} | fill,
        base | {"name": "Median silo", "y": quantile(0.5), "line": {"width": 1.5, "color": SOFT, "dash": "dash"}},
    ]


# ---- silos side by side


def joining_dots(run: RunFiles, order: Sequence[str]) -> Chart | None:
    """Each silo alone, in the federation and with all records pooled: one row of dots per silo, all silos on top."""
    if len(order) > MANY_SILOS and "silo-only" in run.baselines:
        return _gain_histogram(run)
    columns: dict[str, Scores] = {
        name: (run.baselines[name].metrics, run.baselines[name].silos)
        for name in ("silo-only", "pooled")
        if name in run.baselines
    }
    columns["federated"] = (run.metrics, run.silos)
    spoken = f"{words.metric(run.headline)} of each silo alone, in the federation and with all records pooled."
    return _dots_by_silo(columns, order, run.headline, "silo-only", spoken)


def own_dots(run: RunFiles, order: Sequence[str]) -> Chart | None:
    """Each silo's own model and the one for all, on its held-out records: one row of dots per silo."""
    if run.shared is None or len(order) > MANY_SILOS:
        return None
    columns = {"shared": (run.shared.metrics, run.shared.silos), "federated": (run.metrics, run.silos)}
    spoken = f"{words.metric(run.headline)} of each silo's own model and of one model for all."
    return _dots_by_silo(columns, order, run.headline, "shared", spoken)


def silo_dots(run: RunFiles, order: Sequence[str]) -> Chart | None:
    """The final headline metric of each silo, without baselines."""
    values = [value for name in order if (value := run.silos[name].get(run.headline)) is not None]
    if len(values) < 2:
        return None
    if len(order) > MANY_SILOS:
        return histogram(values, f"{words.metric(run.headline)} over silos", words.metric(run.headline))
    spoken = f"Final {words.metric_in_sentence(run.headline)} of each silo."
    return _dots_by_silo({"federated": (run.metrics, run.silos)}, order, run.headline, "", spoken)


def _dots_by_silo(
    columns: Mapping[str, Scores], order: Sequence[str], metric: str, linked: str, spoken: str
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
    n = len(rows)
    y = _rows_axis([f"<b>{plain(rows[0], 24)}</b>", *(plain(row, 24) for row in order)])
    y["tickfont"] = {"size": 12 if n <= 31 else 10 if n <= 45 else 9, "color": INK}
    return _chart(
        links + traces,
        f"{words.metric(metric)} by silo",
        f"{spoken} The numbers are in the table that follows.",
        _metric_axis((value for column in values.values() for value in column), words.metric(metric)),
        y,
        round((30 if n <= 13 else 24 if n <= 31 else 14.5) * n + 74),
        shapes=[_across(0.5, PALE, 1)],
    )


def _dots(name: str, rows: Sequence[str], values: Sequence[float | None]) -> Figure:
    style, own = STYLES[name], name == "federated"
    marker = {
        "color": style.color if own else "#ffffff",
        "symbol": style.symbol,
        "size": 11 if len(values) <= 31 else 8,
        "line": {"color": style.color, "width": 2},
    }
    return _marks("Federation" if own else words.baseline(name), rows, values, marker)


def _marks(name: str, rows: Sequence[str], values: Sequence[float | None], marker: Figure) -> Figure:
    """One mark per row."""
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": [rounded(value) for value in values],
        "y": list(range(len(rows))),
        "customdata": [plain(row, 80) for row in rows],
        "marker": marker,
        "hovertemplate": "%{customdata}<br>" + name + ": %{x}<extra></extra>",
    }


def _links(start: Sequence[float | None], end: Sequence[float | None]) -> list[Figure]:
    """A grey line from each silo's value alone to its value together."""
    x: list[float | None] = []
    y: list[float | None] = []
    for row, (one, other) in enumerate(zip(start, end, strict=True)):
        if one is not None and other is not None:
            x += [rounded(one), rounded(other), None]
            y += [row, row, None]
    line = {"color": PALE, "width": 3}
    return [{"type": "scatter", "mode": "lines", "x": x, "y": y, "line": line, "hoverinfo": "skip"}]


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
    """How many silos are in each of equal steps. Zero, if it is inside, is an edge between two bars."""
    low, high = min(values), max(values)
    step = (high - low) / bins or 1.0
    start = math.floor(low / step)
    counts = [0] * (math.floor(high / step) - start + 1)
    for value in values:
        counts[math.floor(value / step) - start] += 1
    edges = [(start + index) * step for index in range(len(counts) + 1)]
    trace = {
        "type": "bar",
        "x": [rounded(edge + step / 2) for edge in edges[:-1]],
        "y": counts,
        "width": rounded(step * 0.92),
        "marker": {"color": ACCENT},
        "customdata": [f"{words.number(one)} to {words.number(other)}" for one, other in pairwise(edges)],
        "hovertemplate": "%{customdata}: %{y:,} silos<extra></extra>",
    }
    x = _axis(unit, showgrid=False, zeroline=low < 0 < high, tickformat=digits(values), zerolinecolor=INK)
    spoken = f"{caption} over {words.counted(len(values), 'silo')}; the numbers are in the table."
    return _chart([trace], caption, spoken, x, _axis("silos", rangemode="tozero"), note=note)


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
    trace = {
        "type": "bar",
        "orientation": "h" if sideways else "v",
        "x" if sideways else "y": [rounded(value) for value in values],
        "y" if sideways else "x": list(range(n)),
        "marker": {"color": ACCENT},
        "customdata": [plain(label, 60) for label in labels],
        "hovertemplate": "%{customdata}: %{" + ("x" if sideways else "y") + ":,} " + unit + "<extra></extra>",
    }
    amount = _axis(unit, rangemode="tozero", tickformat=",~")
    spoken = f"{caption}: " + "; ".join(
        f"{label}: {words.number(value) if value and value % 1 else words.count(value)}"
        for label, value in list(zip(labels, values, strict=True))[:12]
    )
    spoken += "; …" if n > 12 else "."
    if sideways:
        place = _rows_axis([plain(label, 24) for label in labels], showgrid=False)
        height = round((28 if n <= 12 else 22 if n <= 30 else 14.5 if n <= MANY_SILOS else 840 / n) * n + 74)
        return _chart([trace], caption, spoken, amount, place, height, note, bargap=0.35)
    few = _named([plain(label, 14) for label in labels]) if n <= 24 else {}
    place = _axis(showgrid=False, zeroline=False, autotickangles=[0, 60, 90], **few)
    return _chart([trace], caption, spoken, place, amount, note=note, bargap=0.25)


def heatmap(
    rows: Sequence[str], columns: Sequence[str], values: Sequence[Sequence[float | None]], caption: str, hover: str,
    *, note: str = "", share: bool = False,
) -> Chart:  # fmt: skip
    """A table of shades, with the numbers in the cells if they fit. ``share``: values are fractions of one."""
    n, m = len(rows), len(columns)
    fits = n <= 14 and m <= 12
    trace: Figure = {
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

    def axis(labels: Sequence[str], longest: int, **settings: Any) -> Figure:
        found = _named([plain(label, longest) for label in labels]) if names else {"showticklabels": False}
        small = {"tickfont": {"size": 9}} if names and len(labels) > 14 else {}
        return _axis(showgrid=False, zeroline=False, ticks="", **settings) | found | small

    x = axis(columns, 14, side="top", tickangle=-45 if m > 4 else 0)
    y = axis(rows, 20, autorange="reversed")
    height = max(round(min(900, 110 + n * (34 if fits else 16))), 240)
    return _chart([trace], caption, f"{caption}, {n} rows by {m} columns.", x, y, height, note)


def decile_lines(metric: str, deciles: Sequence[int], values: Sequence[float | None]) -> Chart | None:
    """A metric by decile of the number of records a person holds."""
    if sum(value is not None for value in values) < 2:
        return None
    series = Series(words.metric(metric), STYLES["federated"], deciles, values)
    trace = _line(series, hover="decile %{x}: %{y}<extra></extra>")
    axis = _axis("decile of people, from few to many records", dtick=1, showgrid=False)
    spoken = f"{words.metric(metric)} by decile; the numbers are in the table."
    return _chart([trace], words.metric(metric), spoken, axis, _metric_axis(values))


# ---- plans


def sweep_chart(name: str, across: str, series: Sequence[Series], note: str) -> Chart:
    """Lines over a swept number; axes are logarithmic if the numbers span more than a factor of 20."""
    traces = [_line(one, 60, "%{y:.4~g}", mode="lines+markers") for one in series]
    x = _axis(across, showgrid=False, **_scale([value for one in series for value in one.x]))
    y = _axis(**_scale([value for one in series for value in one.y if value is not None]))
    spoken = f"{name} over {across}. " + " ".join(
        f"{one.name}: {words.number(one.y[0])} at {one.x[0]:g}, {words.number(one.y[-1])} at {one.x[-1]:g}."
        for one in series
        if one.x
    )
    return _chart(traces, name, spoken, x, y, 340, words.sentence(note), unified=True)


def _scale(values: Sequence[float]) -> Figure:
    """Logarithmic with 1-2-5 ticks if the values span more than a factor of 20; from zero otherwise."""
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
    shown = [value for one in series for value in one.y if value is not None]
    axis = _metric_axis(shown) | {"rangemode": "tozero"}
    whom = "; ".join(f"{one.style.dash} line: {one.name}" for one in series) if len(series) > 1 else series[0].name
    note, shapes = f"What the rounds so far cost, against: {whom}.", {}
    if run.budget is not None:
        note += f" Red: the budget, {run.budget:g}."
        shapes = {"shapes": [_across(run.budget, DANGER, 1.5, dash="dash")]}
        axis["range"] = [0, 1.05 * max(run.budget, *shown)]
    spoken = "Epsilon so far over rounds. " + " ".join(map(_spoken, series))
    caption = "Privacy spent (epsilon so far)"
    return _chart(map(_line, series), caption, spoken, _rounds_axis(), axis, 300, note, unified=True, **shapes)


# ---- audits


def audit_scale(rows: Sequence[Bounds]) -> Chart:
    """Lower bounds, what is proved and what was published, a row for every kind of observation."""
    columns: dict[str, tuple[str, list[float | None]]] = {
        "proved": ("proved, at most", [row.proved for row in rows]),
        "published": ("as published", [row.published for row in rows]),
        "estimate": ("estimate, no bound", [row.estimate for row in rows]),
        "curve": ("at least, on a Gaussian curve", [row.fdp_epsilon for row in rows]),
        "at least": ("at least", [row.epsilon for row in rows]),
    }
    wrong = {"at least": [row.beats_something for row in rows], "curve": [row.refuted for row in rows]}
    traces, known = [], [0.0]
    for key, (name, values) in columns.items():
        finite = [value if value is not None and math.isfinite(value) else None for value in values]
        known += [value for value in finite if value is not None]
        colors = [DANGER if red else AUDIT[key].color for red in wrong.get(key, [False] * len(rows))]
        marker = {"symbol": AUDIT[key].symbol, "size": 12, "color": colors, "line": {"color": "#ffffff", "width": 1}}
        if any(value is not None for value in finite):
            traces.append(_marks(name, [row.name for row in rows], finite, marker))
    most = max(known) or 1.0
    x = _axis("epsilon", rangemode="tozero", tickformat="~g", range=[-0.03 * most, 1.05 * most])
    y = _rows_axis([plain(row.name, 60).replace(", ", ",<br>") for row in rows], tickfont={"size": 12, "color": INK})
    spoken = "Lower bounds on epsilon beside what is proved. " + " ".join(
        f"{row.name}: at least {words.number(row.epsilon)}, proved at most {words.epsilon(row.proved)}." for row in rows
    )
    height = 74 + 52 * len(rows)
    return _chart(traces, "Lower bounds and claims on one scale", spoken, x, y, height, "Red: above a claim.")


# ---- shared


def _chart(
    traces: Iterable[Figure],
    caption: str,
    spoken: str,
    xaxis: Figure,
    yaxis: Figure,
    height: int = 280,
    note: str = "",
    *,
    unified: bool = False,
    **layout: Any,
) -> Chart:
    """``unified``: one hover box for all lines at a place."""
    margin = {"l": 12, "r": 16, "t": 8, "b": 44 if "title" in xaxis else 32}
    settings = {"hovermode": "x unified" if unified else "closest", "xaxis": xaxis, "yaxis": yaxis}
    figure = {"data": list(traces), "layout": {**_LAYOUT, "margin": margin, **settings, **layout}}
    return Chart(figure, caption, spoken, height, note)


_LAYOUT: Figure = {
    "font": {"family": FONT, "size": 13, "color": INK},
    "paper_bgcolor": "rgba(0,0,0,0)",
    "plot_bgcolor": "rgba(0,0,0,0)",
    "showlegend": False,
    "dragmode": False,
    "hoverlabel": {"bgcolor": "#ffffff", "bordercolor": PALE, "font": {"color": INK, "size": 13}},
}


def _across(y: float, color: str, width: float, **line: Any) -> Figure:
    """A level line through the whole chart."""
    return {
        "type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": y, "y1": y,
        "line": {"color": color, "width": width, **line},
    }  # fmt: skip


def _named(labels: Sequence[str]) -> Figure:
    """Names instead of numbers on an axis."""
    return {"tickvals": list(range(len(labels))), "ticktext": list(labels)}


def _rows_axis(labels: Sequence[str], **settings: Any) -> Figure:
    """A named row for each of ``labels``, from the top; no names if there are very many."""
    names = _named(labels) if len(labels) <= MANY_SILOS + 1 else {"showticklabels": False}
    return _axis(range=[len(labels) - 0.4, -0.6], zeroline=False, **names) | settings


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
