"""Charts of all pages; nothing if there is nothing to draw.

A chart is a small JSON object within the page, of one of the kinds ``lines``, ``dots``, ``bars``, ``histogram`` and
``heat``. ``assets/charts.js`` draws it with Chart.js, and writes its data into a table that a reader can open. Values
are rounded to four digits, so a chart contains no more than its picture shows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tacit.report import words
from tacit.report.page import (
    ACCENT,
    DANGER,
    DASHES,
    MOST_LISTED,
    PALE,
    SOFT,
    Html,
    Style,
    both_ends,
    color_name,
    json_script,
    legend,
    style_of,
    tag,
)
from tacit.report.run_files import Evaluated, RunFiles, StoredScores

Figure = dict[str, Any]

FEW_SILOS = 8  # silos with a line of their own
MANY_SILOS = 60  # more silos have no row of their own in a chart
MIDDLE = "Middle 80 % of silos"  # the name of both edges of their band
MOST_CELLS = 10_000  # of a heat map
# numbers of a chart with lines: a long run is drawn at some of its rounds only, so that every page stays small
MOST_POINTS, MOST_POINTS_OF_A_LINE = 3000, 250
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
    """One line of a chart; ``low`` and ``high`` are the edges of a band around it."""

    name: str
    style: Style
    x: Sequence[float]
    y: Sequence[float | None]
    off: bool = False  # hidden until the reader chooses it in the legend
    low: Sequence[float | None] = ()
    high: Sequence[float | None] = ()


@dataclass(frozen=True)
class Marks:
    """Values in the rows of a chart. ``red`` rows stand out; ``hollow`` marks are not filled."""

    name: str
    style: Style
    values: Sequence[float | None]
    hollow: bool = False
    red: Sequence[bool] = ()


# ---- curves over rounds


def series_of(name: str, style: Style, curve: Iterable[Evaluated], metric: str, *, off: bool = False) -> Series | None:
    """The metric over rounds, or None if there are fewer than two points to join."""
    points = {point.round: point.metrics.get(metric) for point in curve}
    return Series(name, style, list(points), list(points.values()), off) if _two(points.values()) else None


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
    """Lines over rounds."""
    spoken = f"{words.metric(metric)} over rounds. {_spoken(series)}"
    return lines(series, words.metric(metric), spoken, ROUNDS, note=note)


def _spoken(series: Iterable[Series], at: str = "round ") -> str:
    """Where each line begins and ends."""
    said = []
    for one in series:
        values = [(x, value) for x, value in zip(one.x, one.y, strict=True) if value is not None]
        ends = ", ".join(f"{words.number(value)} at {at}{x:g}" for x, value in (values[:1] + values[-1:]))
        said += [f"{one.name}: {ends}."] if values else []
    return " ".join(said)


def silo_curves(run: RunFiles) -> Html:
    """The headline metric of silos over rounds: a line for each, or, of many, where most of them are, the best, the
    worst and one that the reader chooses."""
    metric, rounds = run.headline, [point.round for point in run.curve]
    values = {silo: [point.silos.get(silo, {}).get(metric) for point in run.curve] for silo in run.silos}
    values = {silo: column for silo, column in values.items() if _two(column)}
    overall = series_of("All silos", STYLES["federated"], run.curve, metric)
    if not values or overall is None:
        return Html("")
    caption = f"{words.metric(metric)} of each silo over rounds"
    spoken = (
        f"{words.metric(metric)} of {words.counted(len(values), 'silo')} over rounds; final values are in the table."
    )
    if len(values) <= FEW_SILOS:
        own = [Series(name, style_of(k + 1), rounds, column) for k, (name, column) in enumerate(values.items())]
        return lines([*own, overall], caption, spoken, ROUNDS, keyed=True)
    final = {silo: value for silo, column in values.items() if (value := column[-1]) is not None}
    ends = sorted(final, key=lambda silo: final[silo] * run.better(metric))
    listed = list(values) if len(values) <= MOST_LISTED else sorted(both_ends(ends))
    kept = thinned(len(rounds), MOST_POINTS // max(1, len(listed)))
    table = {silo: [rounded(values[silo][k]) for k in kept] for silo in listed}
    chosen = {"Worst": (ends[0], DANGER, "dash"), "Best": (ends[-1], "#00795a", "dashdot")} if len(ends) > 1 else {}
    series = [
        *(Series(f"{word}: {s}", Style(color, dash), rounds, values[s]) for word, (s, color, dash) in chosen.items()),
        overall,
    ]
    return lines(
        [*_quantiles(list(values.values()), rounds), *series],
        caption,
        spoken,
        ROUNDS,
        note=f"{words.counted(len(values), 'silo')}: most of them, their median, and the two ends.",
        keyed=True,
        extra={"x": [rounds[k] for k in kept], "series": table, "label": "Show a silo"},
    )


def _quantiles(values: Sequence[Sequence[float | None]], rounds: Sequence[int]) -> list[Series]:
    """The band of silos: its lower edge, its upper edge and the median."""
    by_round = [sorted(value for value in column if value is not None) for column in zip(*values, strict=True)]

    def quantile(name: str, share: float, style: Style) -> Series:
        found = [column[round(share * (len(column) - 1))] if column else None for column in by_round]
        return Series(name, style, rounds, found)

    edge = Style(PALE)
    return [
        quantile(MIDDLE, 0.1, edge),
        quantile(MIDDLE, 0.9, edge),
        quantile("Median silo", 0.5, Style(SOFT, "dash")),
    ]


def epsilon_curve(run: RunFiles) -> Html:
    """Epsilon so far over rounds, a line per view (views that cost the same share one), and the budget."""
    found: dict[tuple[float | None, ...], list[str]] = {}
    for view in dict.fromkeys(view for point in run.curve for view in point.epsilon):
        values = tuple(rounded(point.epsilon.get(view)) for point in run.curve)
        if _two(values):
            found.setdefault(values, []).append(view)
    if not found:
        return Html("")
    rounds = [point.round for point in run.curve]
    series = [
        Series(f"Against {', '.join(views)}", style_of(index), rounds, values)
        for index, (values, views) in enumerate(found.items())
    ]
    if run.budget is not None:
        series.append(Series("Budget", Style(DANGER, "dash"), [rounds[0], rounds[-1]], [run.budget, run.budget]))
    spoken, caption = f"Epsilon so far over rounds. {_spoken(series)}", "Privacy spent (epsilon so far)"
    return lines(
        series, caption, spoken, ROUNDS, {"zero": True}, note="What the rounds so far cost.", keyed=len(series) > 1
    )


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
    return _dots_by_silo(run, {**columns, "federated": run}, order, spoken)


def own_dots(run: RunFiles, shared: StoredScores, order: Sequence[str]) -> Html:
    """Each silo's own model and the one for all, on its held-out records: one row of dots per silo."""
    if len(order) > MANY_SILOS:
        return Html("")
    spoken = f"{words.metric(run.headline)} of each silo's own model and of one model for all."
    return _dots_by_silo(run, {"shared": shared, "federated": run}, order, spoken, "Own model")


def silo_dots(run: RunFiles, order: Sequence[str]) -> Html:
    """The final headline metric of each silo, without baselines."""
    values = [value for name in order if (value := run.silos[name].get(run.headline)) is not None]
    if len(values) < 2 or len(order) > MANY_SILOS:
        return histogram(values, f"{words.metric(run.headline)} over silos", words.metric(run.headline))
    spoken = f"Final {words.metric_in_sentence(run.headline)} of each silo."
    return _dots_by_silo(run, {"federated": run}, order, spoken)


def _dots_by_silo(
    run: RunFiles, columns: Mapping[str, StoredScores], order: Sequence[str], spoken: str, own: str = "Federation"
) -> Html:
    """A row of dots for all silos and for each: one dot per column, a grey line from the first (unless that is the
    pooled model) to the run's own, which is the last."""
    metric = run.headline
    values = {
        name: [scores.metrics.get(metric), *(scores.silos.get(silo, {}).get(metric) for silo in order)]
        for name, scores in columns.items()
    }
    marks = [
        Marks(own, STYLES[name], column)
        if name == "federated"
        else Marks(words.baseline(name), STYLES[name], column, hollow=True)
        for name, column in values.items()
    ]
    first = next(iter(values))
    linked = first in ("silo-only", "shared")
    return dots(
        ["All silos", *order],
        marks,
        f"{words.metric(metric)} by silo",
        f"{spoken} The numbers are in the table that follows.",
        words.metric(metric),
        spans=list(zip(values[first], values["federated"], strict=True)) if linked else (),
        notes=["", *(f"{words.about(run.test_records.get(silo))} test records" for silo in order)]
        if run.test_records
        else (),
    )


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
    edges = [rounded((start + index) * step) for index in range(len(counts) + 1)]
    spoken = f"{caption} over {words.counted(len(values), 'silo')}; the numbers are in the table."
    figure = {"kind": "histogram", "edges": edges, "values": counts, "x": unit, "y": "silos"}
    return chart(figure, caption, spoken, note=note)


# ---- a metric by decile, a sweep


def decile_lines(metric: str, deciles: Sequence[int], values: Sequence[float | None]) -> Html:
    """A metric by decile of the number of records a person holds."""
    if not _two(values):
        return Html("")
    spoken = f"{words.metric(metric)} by decile; the numbers are in the table."
    across = {"title": "decile of people, from few to many records", "whole": True}
    series = Series(words.metric(metric), STYLES["federated"], deciles, values)
    return lines([series], words.metric(metric), spoken, across)


def sweep_chart(name: str, across: str, series: Sequence[Series], note: str) -> Html:
    """Lines over a swept number; axes are logarithmic if the numbers span more than a factor of 20."""
    places = [value for one in series for value in one.x]
    x = {"title": across, **_scale(places), "whole": all(float(value).is_integer() for value in places)}
    y = {"format": "digits", **_scale([value for one in series for value in one.y if value is not None])}
    spoken = f"{name} over {across}. {_spoken(series, at='')}"
    return lines(series, name, spoken, x, y, note=words.sentence(note))


def _scale(values: Sequence[float]) -> Figure:
    """Logarithmic if the values span more than a factor of 20; from zero otherwise."""
    wide = bool(values) and min(values) > 0 and max(values) > 20 * min(values)
    return {"log": True} if wide else {"zero": True}


# ---- kinds of charts

ROUNDS = {"title": "round", "whole": True}


def lines(
    series: Sequence[Series],
    caption: str,
    spoken: str,
    x: Figure,
    y: Figure | None = None,
    *,
    note: str = "",
    keyed: bool = False,
    extra: Figure | None = None,
) -> Html:
    """Lines over numbers. ``keyed``: with a legend of their own. ``extra``: lines that the reader may choose from a
    list. Long lines are drawn at evenly spaced points, the first and the last among them."""
    most = min(MOST_POINTS_OF_A_LINE, max(2, MOST_POINTS // max(1, len(series))))
    drawn = [_line(one, most) for one in series]
    # series that lack x have that of the first
    drawn = [one if k == 0 or one["x"] != drawn[0]["x"] else one | {"x": None} for k, one in enumerate(drawn)]
    figure: Figure = {"kind": "lines", "series": drawn, "x": x, "y": y or {}}
    if extra:
        figure["extra"] = extra
    shown = legend({one.name: one.style for one in series}) if keyed else None
    return chart(figure, caption, spoken, note=note, key=shown)


def _line(one: Series, most: int) -> Figure:
    kept = thinned(len(one.x), most)
    return {
        **_look(one.name, one.style),
        "x": [rounded(one.x[k]) for k in kept],
        "y": [rounded(one.y[k]) for k in kept],
        **({"low": [rounded(one.low[k]) for k in kept]} if one.low else {}),
        **({"high": [rounded(one.high[k]) for k in kept]} if one.high else {}),
        **({"off": True} if one.off else {}),
    }


def thinned(points: int, most: int) -> list[int]:
    """At most ``most`` (two or more) evenly spaced indices, the first and the last among them."""
    steps = min(points, max(2, most)) - 1
    return sorted({round(k * (points - 1) / steps) for k in range(steps + 1)}) if steps > 0 else list(range(points))


def _look(name: str, style: Style) -> Figure:
    dash = [int(number) for number in DASHES.get(style.dash, "").split()]
    return {"name": name, "color": color_name(style.color), "dash": dash, "mark": style.symbol}


def dots(
    rows: Sequence[str],
    columns: Sequence[Marks],
    caption: str,
    spoken: str,
    unit: str,
    *,
    spans: Sequence[tuple[float | None, float | None]] = (),
    notes: Sequence[str] = (),
    zero: bool = False,
    wrap: bool = False,
    key: Html | None = None,
    note: str = "",
) -> Html:
    """A named row of marks for each of ``rows``, the first on top. ``spans``: a line in each row from one value to
    another; ``notes``: words for the hover box of each row; ``wrap``: long names have several lines."""
    if all(value is None for column in columns for value in column.values):
        return Html("")
    series = [
        _look(one.name, one.style)
        | {"values": [rounded(value) for value in one.values], "hollow": one.hollow}
        | ({"red": [index for index, is_red in enumerate(one.red) if is_red]} if any(one.red) else {})
        for one in columns
    ]
    figure: Figure = {"kind": "dots", "rows": list(rows), "series": series, "x": {"title": unit, "zero": zero}}
    if spans:
        figure["spans"] = [[rounded(one), rounded(other)] for one, other in spans]
    if notes:
        figure["notes"] = list(notes)
    if wrap:
        figure["wrap"] = True
    n = len(rows)
    pitch = 52 if wrap else 30 if n <= 13 else 24 if n <= 31 else 16
    return chart(figure, caption, spoken, max(150, pitch * n + 74), note=note, key=key)


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
    shown = [words.number(value) if value and value % 1 else words.count(value) for value in values[:12]]
    spoken = f"{caption}: " + "; ".join(map(": ".join, zip(labels, shown, strict=False))) + ("; …" if n > 12 else ".")
    figure = {
        "kind": "bars",
        "labels": list(labels),
        "values": [rounded(value) for value in values],
        "unit": unit,
        "sideways": sideways,
    }
    pitch = 28 if n <= 12 else 22 if n <= 30 else 15 if n <= MANY_SILOS else 900 / n
    return chart(figure, caption, spoken, round(pitch * n + 74) if sideways else 280, note=note)


def heatmap(
    rows: Sequence[str], columns: Sequence[str], values: Sequence[Sequence[float | None]], caption: str, unit: str,
    *, note: str = "", share: bool = False,
) -> Html:  # fmt: skip
    """A table of shades, with the numbers in the cells if they fit; nothing if it has very many cells. ``unit`` is the
    word after a number. ``share``: values are fractions of one."""
    n, m = len(rows), len(columns)
    known = [value for row in values for value in row if value is not None]
    if n * m > MOST_CELLS or not known:
        return Html("")
    whole = all(float(value).is_integer() for value in known)
    write = (lambda value: f"{100 * value:.0f} %") if share else words.count if whole else words.number
    shown = [write(value) for value in (min(known), max(known))]
    figure = {
        "kind": "heat",
        "rows": list(rows),
        "columns": list(columns),
        "values": [[rounded(value) for value in row] for row in values],
        "unit": unit,
        "share": share,
    }
    scale = f"Palest: {shown[0]}. Strongest colour: {shown[1]}."
    height = max(round(min(900, 110 + n * (34 if n <= 14 else 16))), 240)
    return chart(figure, caption, f"{caption}, {n} rows by {m} columns.", height, note=f"{note} {scale}".strip())


def chart(
    figure: Figure, caption: str, spoken: str, height: float = 300, *, note: str = "", key: Html | None = None
) -> Html:
    """A figure with its caption, legend, a description for screen readers (``spoken``), its height in pixels, and its
    data behind a summary."""
    return tag(
        "figure",
        tag("figcaption", tag("span", caption, class_="caption"), note and tag("span", note, class_="note")),
        key,
        tag("div", tag("canvas", role="img", aria_label=spoken), class_="chart", style=f"height:{height:g}px"),
        tag("details", tag("summary", "Data of this chart"), class_="data"),
        json_script(figure, data_chart=""),
    )


def rounded(value: float | None) -> float | None:
    """Four significant digits; whole numbers stay whole."""
    if value is None or float(value).is_integer():
        return None if value is None else int(value)
    return round(value, 3 - math.floor(math.log10(abs(value))))
