"""Charts, as figures of plotly (``{"data": [...], "layout": {...}}``) within the page; nothing if there is nothing to
draw.

Nothing here imports plotly: the page draws the figures with plotly.js, and the tests check them against plotly's
schema. Values are rounded to four digits, so a figure contains no more than its picture shows.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tacit.report import words
from tacit.report.page import ACCENT, DANGER, FONT, GRID, INK, PALE, RUN_STYLES, SOFT, Html, Style, json_script, tag
from tacit.report.run_files import Evaluated, RunFiles, StoredScores

Figure = dict[str, Any]

MANY_SILOS = 60
BLUES = [[0, "#f3f7fb"], [0.5, "#7fb0d6"], [1, "#08457a"]]
STYLES = {
    "federated": Style(ACCENT),
    "silo-only": Style("#c2570c", "dash", "diamond"),
    "pooled": Style("#4a4f57", "dot", "square"),
    "fedavg": Style("#00795a", "dashdot", "triangle-up"),
    "local-record": Style("#a8487e", "longdash", "cross"),
    "shared": Style("#4a4f57", "dot", "square"),
}


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
    points = {point.round: point.metrics.get(metric) for point in curve}
    return Series(name, style, list(points), list(points.values())) if _two(points.values()) else None


def _two(values: Iterable[float | None]) -> bool:
    """Whether there are two points to draw."""
    return sum(value is not None for value in values) >= 2


def metric_curve(run: RunFiles, metric: str) -> Html:
    """The federation's metric over rounds, with the baselines: their curve, or their final value as a level line."""
    main = series_of("Federation", STYLES["federated"], run.curve, metric)
    if main is None:
        return Html("")
    series = []
    for name, baseline in run.baselines.items():
        style, value = STYLES.get(name, Style(SOFT, "dash", "x")), baseline.metrics.get(metric)
        found = series_of(words.baseline(name), style, baseline.curve, metric)
        if found is None and value is not None:
            found = Series(words.baseline(name), style, [main.x[0], main.x[-1]], [value, value])
        series += [found] if found else []
    return curve_chart(metric, [*series, main], words.metric_note(run, metric))


def curve_chart(metric: str, series: Sequence[Series], note: str = "") -> Html:
    """Lines over rounds with one hover box."""
    y = _metric_axis(value for one in series for value in one.y)
    spoken = f"{words.metric(metric)} over rounds. {_spoken(series)}"
    lines = map(line, series)
    return chart(lines, words.metric(metric), spoken, _rounds_axis(), y, 300, note, unified=True)


def _spoken(series: Iterable[Series], at: str = "round ") -> str:
    """Where each line begins and ends."""
    said = []
    for one in series:
        values = [(x, value) for x, value in zip(one.x, one.y, strict=True) if value is not None]
        ends = ", ".join(f"{words.number(value)} at {at}{x:g}" for x, value in (values[:1] + values[-1:]))
        said += [f"{one.name}: {ends}."] if values else []
    return " ".join(said)


def silo_curves(run: RunFiles) -> Html:
    """The headline metric of every silo over rounds: thin lines, or bands if there are very many silos."""
    metric, rounds = run.headline, [point.round for point in run.curve]
    values = {silo: [point.silos.get(silo, {}).get(metric) for point in run.curve] for silo in run.silos}
    values = {silo: column for silo, column in values.items() if _two(column)}
    overall = series_of("All silos", STYLES["federated"], run.curve, metric)
    if not values or overall is None:
        return Html("")
    if many := len(values) > MANY_SILOS:
        traces, grey = _bands(list(values.values()), rounds), "the middle 80 % and the median of silos"
    else:
        thin = {"line": {"color": "#aab4bf", "width": 1.3}, "connectgaps": True}
        thin["hovertemplate"] = "%{fullData.name}<br>round %{x}: %{y}<extra></extra>"
        traces = [_scatter("lines", rounds, column, name=plain(silo, 60), **thin) for silo, column in values.items()]
        grey = "one line per silo"
    return chart(
        [*traces, line(overall)],
        f"{words.metric(metric)} of each silo over rounds",
        f"{words.metric(metric)} of {words.counted(len(values), 'silo')} over rounds; final values are in the table.",
        _rounds_axis(),
        _metric_axis(overall.y),
        320,
        f"Blue: all silos. Grey: {grey}.",
        unified=many,
    )


def _bands(values: Sequence[Sequence[float | None]], rounds: Sequence[int]) -> list[Figure]:
    by_round = [sorted(value for value in column if value is not None) for column in zip(*values, strict=True)]

    def quantile(name: str, share: float, **look: Any) -> Figure:
        found = [column[round(share * (len(column) - 1))] if column else None for column in by_round]
        return _scatter("lines", rounds, found, name=name, hovertemplate="%{y}", connectgaps=True, **look)

    edge = {"width": 0, "color": PALE}
    return [
        quantile("10 % of silos below", 0.1, line=edge),
        quantile("10 % above", 0.9, line=edge, fill="tonexty", fillcolor="rgba(150,162,175,.25)"),
        quantile("Median silo", 0.5, line={"width": 1.5, "color": SOFT, "dash": "dash"}),
    ]


def epsilon_curve(run: RunFiles) -> Html:
    """Epsilon so far over rounds, a line per view (views that cost the same share one), and the budget."""
    lines: dict[tuple[float | None, ...], list[str]] = {}
    for view in dict.fromkeys(view for point in run.curve for view in point.epsilon):
        values = tuple(rounded(point.epsilon.get(view)) for point in run.curve)
        if _two(values):
            lines.setdefault(values, []).append(view)
    if not lines:
        return Html("")
    series = [
        Series(", ".join(views), RUN_STYLES[index % len(RUN_STYLES)], [point.round for point in run.curve], values)
        for index, (values, views) in enumerate(lines.items())
    ]
    shown = [value for one in series for value in one.y if value is not None]
    y = _metric_axis(shown) | {"rangemode": "tozero"}
    whom = "; ".join(f"{one.style.dash} line: {one.name}" for one in series) if len(series) > 1 else series[0].name
    note, shapes = f"What the rounds so far cost, against: {whom}.", []
    if run.budget is not None:
        note += f" Red: the budget, {run.budget:g}."
        shapes = [_across(run.budget, DANGER, 1.5, dash="dash")]
        y["range"] = [0, 1.05 * max(run.budget, *shown)]
    spoken, caption = f"Epsilon so far over rounds. {_spoken(series)}", "Privacy spent (epsilon so far)"
    return chart(map(line, series), caption, spoken, _rounds_axis(), y, 300, note, unified=True, shapes=shapes)


# ---- silos side by side


def joining_dots(run: RunFiles, order: Sequence[str]) -> Html:
    """Each silo alone, in the federation and with all records pooled: one row of dots per silo, all silos on top."""
    alone, metric = run.baselines.get("silo-only"), run.headline
    if len(order) > MANY_SILOS and alone is not None:  # how many gain how much by joining
        pairs = [(values.get(metric), alone.silos.get(name, {}).get(metric)) for name, values in run.silos.items()]
        gains = [together - before for together, before in pairs if together is not None and before is not None]
        better = "right" if run.better(metric) > 0 else "left"
        note = f"Together minus alone; silos to the {better} of zero gain by joining."
        return histogram(gains, f"Change in {words.metric_in_sentence(metric)} by joining", "change", note)
    columns = {name: run.baselines[name] for name in ("silo-only", "pooled") if name in run.baselines}
    spoken = f"{words.metric(metric)} of each silo alone, in the federation and with all records pooled."
    return _dots_by_silo({**columns, "federated": run}, order, metric, spoken)


def own_dots(run: RunFiles, shared: StoredScores, order: Sequence[str]) -> Html:
    """Each silo's own model and the one for all, on its held-out records: one row of dots per silo."""
    if len(order) > MANY_SILOS:
        return Html("")
    spoken = f"{words.metric(run.headline)} of each silo's own model and of one model for all."
    return _dots_by_silo({"shared": shared, "federated": run}, order, run.headline, spoken)


def silo_dots(run: RunFiles, order: Sequence[str]) -> Html:
    """The final headline metric of each silo, without baselines."""
    values = [value for name in order if (value := run.silos[name].get(run.headline)) is not None]
    if len(values) < 2 or len(order) > MANY_SILOS:
        return histogram(values, f"{words.metric(run.headline)} over silos", words.metric(run.headline))
    spoken = f"Final {words.metric_in_sentence(run.headline)} of each silo."
    return _dots_by_silo({"federated": run}, order, run.headline, spoken)


def _dots_by_silo(columns: Mapping[str, StoredScores], order: Sequence[str], metric: str, spoken: str) -> Html:
    """A row of dots for all silos and for each: one dot per column, a grey line from the first (unless that is the
    pooled model) to the run's own, which is the last."""
    rows = ["All silos", *order]
    values = {
        name: [scores.metrics.get(metric), *(scores.silos.get(silo, {}).get(metric) for silo in order)]
        for name, scores in columns.items()
    }
    every = [value for column in values.values() for value in column]
    if all(value is None for value in every):
        return Html("")
    n = len(rows)
    traces = [_dots(name, rows, column) for name, column in values.items()]
    first = next(iter(values))
    if first in ("silo-only", "shared"):
        traces.insert(0, _links(values[first], values["federated"]))
    y = rows_axis([f"<b>{plain(rows[0], 24)}</b>", *(plain(row, 24) for row in order)])
    y["tickfont"] = {"size": 12 if n <= 31 else 10 if n <= 45 else 9, "color": INK}
    return chart(
        traces,
        f"{words.metric(metric)} by silo",
        f"{spoken} The numbers are in the table that follows.",
        _metric_axis(every, words.metric(metric)),
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
    return marks("Federation" if own else words.baseline(name), rows, values, marker)


def marks(name: str, rows: Sequence[str], values: Sequence[float | None], marker: Figure) -> Figure:
    """One mark per row."""
    hover = "%{customdata}<br>" + name + ": %{x}<extra></extra>"
    named = {"name": name, "customdata": [plain(row, 80) for row in rows], "hovertemplate": hover}
    return _scatter("markers", values, range(len(rows)), marker=marker, **named)


def _links(start: Sequence[float | None], end: Sequence[float | None]) -> Figure:
    """A grey line from each silo's first value to its second."""
    known = [(row, *ends) for row, ends in enumerate(zip(start, end, strict=True)) if None not in ends]
    x = [value for _, one, other in known for value in (one, other, None)]
    y = [value for row, *_ in known for value in (row, row, None)]
    return _scatter("lines", x, y, line={"color": PALE, "width": 3}, hoverinfo="skip")


def histogram(values: Sequence[float], caption: str, unit: str, note: str = "") -> Html:
    """How many silos are in each of equal steps. Zero, if it is inside, is an edge between two bars."""
    if len(values) < 2:
        return Html("")
    low, high = min(values), max(values)
    step = (high - low) / 24 or 1.0
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
    x = axis(unit, showgrid=False, zeroline=low < 0 < high, tickformat=digits(values), zerolinecolor=INK)
    spoken = f"{caption} over {words.counted(len(values), 'silo')}; the numbers are in the table."
    return chart([trace], caption, spoken, x, axis("silos", rangemode="tozero"), note=note)


def bars(
    labels: Sequence[str],
    values: Sequence[float | None],
    caption: str,
    unit: str,
    *,
    sideways: bool = False,
    note: str = "",
) -> Html:
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
    amount = axis(unit, rangemode="tozero", tickformat=",~")
    shown = [words.number(value) if value and value % 1 else words.count(value) for value in values[:12]]
    spoken = f"{caption}: " + "; ".join(map(": ".join, zip(labels, shown, strict=False))) + ("; …" if n > 12 else ".")
    if sideways:
        place = rows_axis([plain(label, 24) for label in labels], showgrid=False)
        height = round((28 if n <= 12 else 22 if n <= 30 else 14.5 if n <= MANY_SILOS else 840 / n) * n + 74)
        return chart([trace], caption, spoken, amount, place, height, note, bargap=0.35)
    few = _named([plain(label, 14) for label in labels]) if n <= 24 else {}
    place = axis(showgrid=False, zeroline=False, autotickangles=[0, 60, 90], **few)
    return chart([trace], caption, spoken, place, amount, note=note, bargap=0.25)


def heatmap(
    rows: Sequence[str], columns: Sequence[str], values: Sequence[Sequence[float | None]], caption: str, hover: str,
    *, note: str = "", share: bool = False,
) -> Html:  # fmt: skip
    """A table of shades, with the numbers in the cells if they fit. ``share``: values are fractions of one."""
    n, m = len(rows), len(columns)
    fits, names = n <= 14 and m <= 12, max(n, m) <= MANY_SILOS
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

    def side(labels: Sequence[str], longest: int, **settings: Any) -> Figure:
        found = _named([plain(label, longest) for label in labels]) if names else {"showticklabels": False}
        small = {"tickfont": {"size": 9}} if names and len(labels) > 14 else {}
        return axis(showgrid=False, zeroline=False, ticks="", **settings) | found | small

    x = side(columns, 14, side="top", tickangle=-45 if m > 4 else 0)
    y = side(rows, 20, autorange="reversed")
    height = max(round(min(900, 110 + n * (34 if fits else 16))), 240)
    return chart([trace], caption, f"{caption}, {n} rows by {m} columns.", x, y, height, note)


def decile_lines(metric: str, deciles: Sequence[int], values: Sequence[float | None]) -> Html:
    """A metric by decile of the number of records a person holds."""
    if not _two(values):
        return Html("")
    trace = line(
        Series(words.metric(metric), STYLES["federated"], deciles, values), hover="decile %{x}: %{y}<extra></extra>"
    )
    x = axis("decile of people, from few to many records", dtick=1, showgrid=False)
    spoken = f"{words.metric(metric)} by decile; the numbers are in the table."
    return chart([trace], words.metric(metric), spoken, x, _metric_axis(values))


def sweep_chart(name: str, across: str, series: Sequence[Series], note: str) -> Html:
    """Lines over a swept number; axes are logarithmic if the numbers span more than a factor of 20."""
    traces = [line(one, 60, "%{y:.4~g}", mode="lines+markers") for one in series]
    x = axis(across, showgrid=False, **_scale([value for one in series for value in one.x]))
    y = axis(**_scale([value for one in series for value in one.y if value is not None]))
    spoken = f"{name} over {across}. {_spoken(series, at='')}"
    return chart(traces, name, spoken, x, y, 340, words.sentence(note), unified=True)


def _scale(values: Sequence[float]) -> Figure:
    """Logarithmic with 1-2-5 ticks if the values span more than a factor of 20; from zero otherwise."""
    if values and min(values) > 0 and max(values) > 20 * min(values):
        return {"type": "log", "dtick": "D2" if max(values) < 2000 * min(values) else 1, "tickformat": "~g"}
    return {"rangemode": "tozero", "tickformat": "~g"}


# ---- what all charts are made of


def chart(
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
) -> Html:
    """A chart with its caption, a description for screen readers (``spoken``), and its height in pixels. ``unified``:
    one hover box for all lines at a place."""
    settings = {
        "font": {"family": FONT, "size": 13, "color": INK},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "showlegend": False,
        "dragmode": False,
        "hoverlabel": {"bgcolor": "#ffffff", "bordercolor": PALE, "font": {"color": INK, "size": 13}},
        "margin": {"l": 12, "r": 16, "t": 8, "b": 44 if "title" in xaxis else 32},
        "hovermode": "x unified" if unified else "closest",
        "xaxis": xaxis,
        "yaxis": yaxis,
    }
    return tag(
        "figure",
        tag("figcaption", tag("span", caption, class_="caption"), note and tag("span", note, class_="note")),
        tag("div", class_="chart", role="img", aria_label=spoken, style=f"height:{height}px"),
        json_script({"data": list(traces), "layout": settings | layout}, data_chart=""),
    )


def _scatter(mode: str, x: Iterable[float | None], y: Iterable[float | None], **others: Any) -> Figure:
    return {"type": "scatter", "mode": mode, "x": list(map(rounded, x)), "y": list(map(rounded, y)), **others}


def line(series: Series, longest: int = 40, hover: str = "%{y}", mode: str = "") -> Figure:
    look = {
        "name": plain(series.name, longest),
        "connectgaps": True,
        "line": {"color": series.style.color, "dash": series.style.dash, "width": 2.5},
        "marker": {"symbol": series.style.symbol, "size": 7, "color": series.style.color},
        "hovertemplate": hover,
    }
    return _scatter(mode or ("lines+markers" if len(series.x) <= 12 else "lines"), series.x, series.y, **look)


def _across(y: float, color: str, width: float, **line: Any) -> Figure:
    """A level line through the whole chart."""
    return {
        "type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": y, "y1": y,
        "line": {"color": color, "width": width, **line},
    }  # fmt: skip


def _named(labels: Sequence[str]) -> Figure:
    """Names instead of numbers on an axis."""
    return {"tickvals": list(range(len(labels))), "ticktext": list(labels)}


def rows_axis(labels: Sequence[str], **settings: Any) -> Figure:
    """A named row for each of ``labels``, from the top; no names if there are very many."""
    names = _named(labels) if len(labels) <= MANY_SILOS + 1 else {"showticklabels": False}
    return axis(range=[len(labels) - 0.4, -0.6], zeroline=False, **names) | settings


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


def axis(title: str = "", **settings: Any) -> Figure:
    named = {"title": {"text": title, "font": {"size": 12, "color": SOFT}, "standoff": 8}} if title else {}
    return {
        "fixedrange": True,
        "gridcolor": GRID,
        "zerolinecolor": GRID,
        "automargin": True,
        "tickfont": {"size": 12, "color": SOFT},
        **named,
        **settings,
    }


def _metric_axis(values: Iterable[float | None], title: str = "") -> Figure:
    """Ticks as fine as the spread needs, and hover boxes as precise as the tables."""
    known = [value for value in values if value is not None]
    hover = ",.3f" if max(map(abs, known), default=0) < 10 else ",.4~r"
    return axis(title, tickformat=digits(known), hoverformat=hover)


def _rounds_axis() -> Figure:
    """Rounds, whole. The prefix stands on the first tick and in the hover box, and saves the axis a title."""
    return axis(showgrid=False, tickprefix="round ", showtickprefix="first", tickformat="~d", nticks=6)
