"""Pictures of the documentation, drawn with the shapes of :mod:`research.picture`.

curves(panels, spoken)     panels side by side with one legend: lines, with a band for the spread over seeds
lines(places, tracks, …)   means with deviations over named places
bars(names, values, …)     upright bars
rows(names, series, unit)  marks of several series in named rows; infinity is at the right edge
images(columns, images)    grey images
graph_grid(graphs, spoken) graphs as points and lines
shades(tables, spoken)     square tables of numbers as shades
"""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import numpy.typing as npt

from research.picture import WIDTH, Scale, document, text
from tacit.report.page import ACCENT, DANGER, DASHES, GRID, PALE, SOFT, Html, Style, join, line, mark, path, tag

LETTER = 7  # width of a letter, in pixels
PANEL_WIDTH, PANEL_HEIGHT = 400, 250
LEFT, RIGHT, TOP, BOTTOM = 56, 14, 30, 44
MOST_MARKS = 12  # a curve with more points is drawn without marks
SIDE, MARGIN, HEAD, FOOT = 190, 16, 26, 22
# shades of the smallest and the largest number; infinite numbers are white
LIGHT, DARK, NONE = (243, 247, 251), (8, 69, 122), 255


@dataclass(frozen=True)
class Curve:
    """One series: ``y`` over ``x``, with a band from ``low`` to ``high`` if given."""

    name: str
    style: Style
    x: Sequence[float]
    y: Sequence[float | None]
    low: Sequence[float | None] = ()
    high: Sequence[float | None] = ()


@dataclass(frozen=True)
class Panel:
    """One pair of axes. Logarithmic axes show positive numbers only."""

    title: str
    x_label: str
    curves: Sequence[Curve]
    log_x: bool = False
    log_y: bool = False


def curves(panels: Sequence[Panel], spoken: str) -> str:
    """``panels`` side by side with one legend below."""
    width = len(panels) * PANEL_WIDTH
    styles = {one.name: one.style for panel in panels for one in panel.curves}
    names, rows = legend(styles, LEFT, PANEL_HEIGHT + 8, width)
    drawn = [_panel(panel, index * PANEL_WIDTH) for index, panel in enumerate(panels)]
    return document(width, PANEL_HEIGHT + rows * 20 + 10, spoken, [*drawn, *names])


def _panel(panel: Panel, left: float) -> Html:
    xs = [value for one in panel.curves for value in one.x]
    ys = [value for one in panel.curves for value in (*one.y, *one.low, *one.high)]
    x = Scale.of(xs, left + LEFT, left + PANEL_WIDTH - RIGHT, log=panel.log_x, margin=0.02)
    y = Scale.of(ys, PANEL_HEIGHT - BOTTOM, TOP, log=panel.log_y)
    parts = [text(x.start, 18, panel.title, bold=True), *_ticks_left(y, x.start, x.end)]
    parts += [text(place, y.start + 16, label, "middle", SOFT) for place, label in x.ticks()]
    parts.append(line([(x.start, y.start), (x.end, y.start)], SOFT))
    parts.append(text((x.start + x.end) / 2, PANEL_HEIGHT - 8, panel.x_label, "middle", SOFT))
    parts += [_band(one, x, y) for one in panel.curves if one.low]
    return join([*parts, *(_curve(one, x, y) for one in panel.curves)])


def _curve(one: Curve, x: Scale, y: Scale) -> Html:
    """The line, broken where values are missing, and marks where there are few points."""
    points = [(x.place(a), y.place(b)) for a, b in zip(one.x, one.y, strict=True)]
    runs = [list(run) for drawn, run in groupby(points, key=lambda point: None not in point) if drawn]
    if not runs:
        return Html("")
    dash = DASHES.get(one.style.dash)
    drawn = path(runs, fill="none", stroke=one.style.color, stroke_width=2, stroke_dasharray=dash)
    few = len(one.x) <= MOST_MARKS
    return join([drawn, *(mark(*point, one.style, scale=0.6) for run in runs for point in run if few)], "")


def _band(one: Curve, x: Scale, y: Scale) -> Html:
    edges = [(x.place(a), y.place(low), y.place(high)) for a, low, high in zip(one.x, one.low, one.high, strict=True)]
    known = [edge for edge in edges if None not in edge]
    if len(known) < 2:
        return Html("")
    around = [(a, high) for a, _, high in known] + [(a, low) for a, low, _ in reversed(known)]
    return path([around], closed=True, fill=one.style.color, fill_opacity=0.14)


def _ticks_left(axis: Scale, left: float, right: float) -> list[Html]:
    shapes = [(line([(left, y), (right, y)]), text(left - 6, y + 4, label, "end", SOFT)) for y, label in axis.ticks()]
    return [shape for pair in shapes for shape in pair]


# ---- over named places


@dataclass(frozen=True)
class Track:
    """Means with deviations over named places; None where there is none."""

    name: str
    style: Style
    means: Sequence[float | None]
    deviations: Sequence[float]


def lines(places: Sequence[str], tracks: Sequence[Track], title: str, across: str, unit: str) -> str:
    """A line per track over ``places``, with its deviations; the legend is below the title."""
    left, right, height = 76, WIDTH - 16, 330
    names, rows = legend({track.name: track.style for track in tracks}, left, 38, WIDTH)
    bottom = height - 46
    ends = [
        mean + side * deviation
        for track in tracks
        for mean, deviation in zip(track.means, track.deviations, strict=True)
        if mean is not None
        for side in (-1, 1)
    ]
    axis = Scale.of(ends, bottom, 34 + 20 * rows)
    step = (right - left) / len(places)
    parts = [*names, *_frame(axis, left, right, title, across, unit, height)]
    parts += [text(left + step * (i + 0.5), bottom + 16, name, "middle", SOFT) for i, name in enumerate(places)]
    parts += [_track(track, left + step / 2, step, axis) for track in tracks]
    said = "; ".join(
        f"{track.name}: " + ", ".join("none" if mean is None else f"{mean:.3f}" for mean in track.means)
        for track in tracks
    )
    return document(WIDTH, height, f"{title}. {said} at {', '.join(places)}.", parts)


def _track(track: Track, first: float, step: float, axis: Scale) -> Html:
    spread, points = [], []
    for index, (mean, deviation) in enumerate(zip(track.means, track.deviations, strict=True)):
        if mean is None:
            continue
        x = first + step * index
        low, middle, high = (axis.place(mean + side * deviation) for side in (-1, 0, 1))
        points.append((x, middle))
        spread.append(line([(x, low), (x, high)], track.style.color, 1.5))
    joined = line(points, track.style.color, 2.5, track.style.dash)
    return join([joined, *spread, *(mark(*point, track.style, scale=0.8) for point in points)], "")


def bars(names: Sequence[str], values: Sequence[float], title: str, across: str, unit: str) -> str:
    """An upright bar for each of ``names``, which are in order."""
    left, right, height = 76, WIDTH - 16, 270
    bottom = height - 46
    axis = Scale.of([0.0, *values], bottom, 34, margin=0.0)
    step = (right - left) / len(names)
    every = math.ceil((LETTER * max(map(len, names)) + 8) / step)  # names that do not touch
    parts = _frame(axis, left, right, title, across, unit, height)
    for index, (name, value) in enumerate(zip(names, values, strict=True)):
        x, y = left + step * (index + 0.5), axis.place(value)
        corners = [(x - 0.4 * step, bottom), (x - 0.4 * step, y), (x + 0.4 * step, y), (x + 0.4 * step, bottom)]
        parts.append(path([corners], closed=True, fill=ACCENT))
        parts += [text(x, bottom + 16, name, "middle", SOFT)] if index % every == 0 else []
    said = "; ".join(f"{name}: {value:g}" for name, value in zip(names, values, strict=True))
    return document(WIDTH, height, f"{title}. {said}.", parts)


def _frame(axis: Scale, left: float, right: float, title: str, across: str, unit: str, height: float) -> list[Html]:
    return [
        text(12, 18, title, size=14, bold=True),
        *_ticks_left(axis, left, right),
        upward_text(14, (axis.start + axis.end) / 2, unit),
        text((left + right) / 2, height - 8, across, "middle", SOFT),
    ]


# ---- marks in rows


@dataclass(frozen=True)
class Mark:
    """A value on a row; ``wrong`` is red."""

    value: float
    wrong: bool = False


@dataclass(frozen=True)
class Marks:
    """One series of :func:`rows`: a mark for each row, None where there is none."""

    style: Style
    marks: Sequence[Mark | None]


def rows(
    names: Sequence[str],
    series: Mapping[str, Marks],
    unit: str,
    *,
    title: str = "",
    log: bool = False,
    from_zero: bool = False,
) -> str:
    """A row for each name with the marks of all series, and a legend; infinite values are at the right edge."""
    left, right, pitch = 240, WIDTH - 24, 30
    top = 58 if title else 34
    bottom = top + pitch * len(names)
    shown = [one.value for each in series.values() for one in each.marks if one is not None]
    axis = Scale.of([*shown, *([0.0] if from_zero else [])], left, right - 20, log=log)
    parts = [text(12, 18, title, size=14, bold=True)] if title else []
    for x, label in axis.ticks(8):
        parts += [line([(x, top), (x, bottom)]), text(x, bottom + 16, label, "middle", SOFT)]
    parts.append(text((left + right) / 2, bottom + 36, unit, "middle", SOFT))
    parts += legend({name: each.style for name, each in series.items()}, 14, top - 16, WIDTH)[0]
    for index, name in enumerate(names):
        y = top + pitch * (index + 0.5)
        parts += [text(left - 12, y + 4, name, "end"), line([(left, y), (right, y)])]
        for each in series.values():
            parts += _marked(each.marks[index], each.style, axis, y, right)
    spoken = "; ".join(
        f"{name}: " + ", ".join(_spoken(called, each.marks[index]) for called, each in series.items())
        for index, name in enumerate(names)
    )
    return document(WIDTH, bottom + 46, f"{title or unit}. {spoken}.", parts)


def _marked(one: Mark | None, style: Style, axis: Scale, y: float, right: float) -> list[Html]:
    if one is None:
        return []
    color = DANGER if one.wrong else style.color
    x = axis.place(one.value)
    if x is None:  # infinite
        return [mark(right, y, style, color), text(right + 8, y + 5, "∞", size=15)]
    return [mark(x, y, style, color)]


def _spoken(name: str, one: Mark | None) -> str:
    return f"{name} {'none' if one is None else f'{one.value:.3f}'}"


def legend(styles: Mapping[str, Style], left: float, top: float, width: float) -> tuple[list[Html], int]:
    """A sample of every style with its name, in rows of 20 pixels, and the number of rows."""
    parts: list[Html] = []
    x, row = left, 0
    for name, style in styles.items():
        needed = 62 + LETTER * len(name)
        if x > left and x + needed > width:
            x, row = left, row + 1
        y = top + 20 * row
        parts += [line([(x, y), (x + 34, y)], style.color, 2, style.dash), mark(x + 17, y, style, scale=0.6)]
        parts.append(text(x + 40, y + 4, name))
        x += needed
    return parts, row + 1 if styles else 0


def upward_text(x: float, y: float, words: str) -> Html:
    """Text turned by 90 degrees, for a vertical axis."""
    return tag(
        "text", words, text_anchor="middle", fill=SOFT, font_size=12, transform=f"translate({x:g} {y:g}) rotate(-90)"
    )


# ---- images


def images(columns: Sequence[str], rows: Sequence[Sequence[np.ndarray]], size: int = 112) -> str:
    """Grey images ``[height, width]`` (0 is white, 1 is black) in ``rows``, with a heading per column."""
    pitch = max(size + 20, (WIDTH - 20) // len(columns))
    parts = [
        text(10 + pitch * column + size / 2, 18 + 15 * index, words, "middle")
        for column, name in enumerate(columns)
        for index, words in enumerate(name.split("\n"))
    ]
    for row, found in enumerate(rows):
        for column, shown in enumerate(found):
            x, y = 10 + pitch * column, 44 + (size + 12) * row
            grey = np.round(255 * (1 - np.clip(np.nan_to_num(shown), 0, 1))).astype(np.uint8)
            parts.append(image(grey, x, y, size))
            parts.append(tag("rect", x=x, y=y, width=size, height=size, fill="none", stroke=GRID))
    return document(WIDTH, 56 + (size + 12) * len(rows), ", ".join(columns).replace("\n", " "), parts)


def image(pixels: np.ndarray, x: float, y: float, size: float) -> Html:
    """Pixels (see :func:`png`) as a square within an SVG."""
    source = "data:image/png;base64," + base64.b64encode(png(pixels)).decode()
    return tag("image", href=source, x=x, y=y, width=size, height=size, style="image-rendering: pixelated")


def png(pixels: np.ndarray) -> bytes:
    """Bytes ``[height, width]`` (grey) or ``[height, width, 3]`` (red, green, blue) as a PNG file."""
    height, width = pixels.shape[:2]
    # every line begins with its filter: none
    raw = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], axis=1).tobytes()
    header = struct.pack(">IIBBBBB", width, height, 8, 2 if pixels.ndim == 3 else 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(raw, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


# ---- networks


@dataclass(frozen=True)
class Graph:
    """``edges`` between nodes 0, 1, …, and the place of each node within the unit square."""

    title: str
    edges: Sequence[tuple[int, int]]
    places: Sequence[tuple[float, float]]
    note: str = ""


def in_a_circle(nodes: int) -> list[tuple[float, float]]:
    """Places of nodes on a circle, from the top on."""
    angles = [2 * math.pi * k / nodes for k in range(nodes)]
    return [(0.5 + 0.5 * math.sin(angle), 0.5 - 0.5 * math.cos(angle)) for angle in angles]


def graph_grid(shown: Sequence[Graph], spoken: str, columns: int = 4) -> str:
    """Graphs side by side, in rows."""
    rows = -(-len(shown) // columns)
    wide, high = SIDE + 2 * MARGIN, SIDE + HEAD + FOOT
    parts = [_graph(graph, (k % columns) * wide, (k // columns) * high) for k, graph in enumerate(shown)]
    return document(columns * wide, rows * high + MARGIN, spoken, parts)


def _graph(graph: Graph, left: float, top: float) -> Html:
    inside = SIDE - 12
    at = [(left + MARGIN + 6 + x * inside, top + HEAD + 6 + y * inside) for x, y in graph.places]
    node = Style(ACCENT)
    return join(
        [
            text(left + MARGIN, top + 18, graph.title, size=13, bold=True),
            *(line([at[first], at[second]], PALE, 1.2) for first, second in graph.edges),
            *(mark(*place, node, scale=0.6) for place in at),
            text(left + MARGIN, top + HEAD + SIDE + 15, graph.note, color=SOFT, size=11),
        ],
        "",
    )


@dataclass(frozen=True)
class Shades:
    """A square table of numbers, drawn as shades by their logarithm; infinite numbers are white."""

    title: str
    values: Sequence[Sequence[float]]
    note: str = ""


def shades(tables: Sequence[Shades], spoken: str, side: int = 260) -> str:
    """Tables side by side with one scale, which is drawn below."""
    known = [value for table in tables for row in table.values for value in row if 0 < value < math.inf]
    low, high = min(known), max(known)
    wide, top, steps = side + 2 * MARGIN, HEAD + side + FOOT + 10, 40
    parts = [_shades(table, place * wide, side, low, high) for place, table in enumerate(tables)]
    for step, shade in enumerate(_shade(np.linspace(0, 1, steps))):
        fill = "#" + "".join(f"{int(part):02x}" for part in shade)
        parts.append(tag("rect", x=MARGIN + 60 + step * 4, y=top, width=4.2, height=12, fill=fill))
    parts.append(text(MARGIN + 54, top + 11, f"{low:.2g}", "end", SOFT, size=11))
    parts.append(text(MARGIN + 66 + 4 * steps, top + 11, f"{high:.3g}   epsilon", color=SOFT, size=11))
    return document(max(len(tables) * wide, 320), top + 26, spoken, parts)


def _shades(table: Shades, left: float, side: float, low: float, high: float) -> Html:
    values = np.asarray(table.values, float)
    span = math.log(high / low) if high > low else 1.0
    finite = np.where(np.isfinite(values), values, high)
    shares = np.log(np.maximum(finite, low) / low) / span if high > low else np.ones_like(values)
    pixels = np.where(np.isfinite(values)[..., None], _shade(shares), NONE).astype(np.uint8)
    return join(
        [
            text(left + MARGIN, 18, table.title, size=13, bold=True),
            image(pixels, left + MARGIN, HEAD, side),
            text(left + MARGIN, HEAD + side + 16, table.note, color=SOFT, size=11),
        ],
        "",
    )


def _shade(shares: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Red, green and blue of shares between 0 and 1."""
    clipped = np.clip(np.asarray(shares, float), 0, 1)[..., None]
    return np.round(np.asarray(LIGHT) + (np.asarray(DARK) - np.asarray(LIGHT)) * clipped)
