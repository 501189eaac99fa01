"""Still pictures for documents: small SVG files that need no script, made of the same colours and marks as the report.

Every picture says in its ``<title>`` what it shows, for those who cannot see it. Series differ by colour *and* by mark.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from tacit.report.markup import Html, join, tag
from tacit.report.styles import ACCENT, FONT, GRID, INK, SOFT, Style

WIDTH = 720
RIGHT, TOP, BOTTOM = 16, 34, 46
PITCH = 24  # between two rows of names
MOST_TICKS = 8
LETTER = 7  # width of a letter
DASHES = {"solid": None, "dash": "7 4", "dot": "2 4", "dashdot": "8 3 2 3", "longdash": "12 4"}


@dataclass(frozen=True)
class Row:
    """A named mean with its deviation; ``hollow`` marks say that something is not proved."""

    name: str
    mean: float
    deviation: float = 0.0
    hollow: bool = False


@dataclass(frozen=True)
class Track:
    """Means with deviations over named places, one after the other; None where there is none."""

    name: str
    style: Style
    means: Sequence[float | None]
    deviations: Sequence[float]


def dots(rows: Sequence[Row], title: str, unit: str) -> str:
    """A row per name, a mark at its mean, a line one deviation to both sides."""
    left, height = 240, TOP + PITCH * len(rows) + BOTTOM
    ends = [row.mean + side * row.deviation for row in rows for side in (-1, 1)]
    across = _Axis(min(ends), max(ends), left, WIDTH - RIGHT)
    bottom = height - BOTTOM
    drawn = [_ticks_below(across, TOP, bottom, unit)]
    for place, row in enumerate(rows):
        y = TOP + PITCH * (place + 0.5)
        drawn += [
            _text(row.name, left - 10, y + 4, "end", INK),
            _line(across(row.mean - row.deviation), y, across(row.mean + row.deviation), y, ACCENT, 2),
            tag("circle", cx=_at(across(row.mean)), cy=_at(y), r=5, stroke=ACCENT, stroke_width=2,
                fill="#ffffff" if row.hollow else ACCENT),
        ]  # fmt: skip
    said = "; ".join(f"{row.name}: {row.mean:.3f} ± {row.deviation:.3f}" for row in rows)
    return _picture(title, said, height, drawn)


def bars(names: Sequence[str], values: Sequence[float], title: str, across: str, unit: str) -> str:
    """An upright bar for each of ``names``, which are in order."""
    left, height = 76, 270
    bottom = height - BOTTOM
    upward = _Axis(0.0, max(values), bottom, TOP)
    step = (WIDTH - RIGHT - left) / len(names)
    every = math.ceil((LETTER * max(map(len, names)) + 8) / step)  # names that do not touch
    drawn = [_ticks_left(upward, left, unit)]
    for place, (name, value) in enumerate(zip(names, values, strict=True)):
        x = left + step * place
        drawn.append(tag("rect", x=_at(x + 0.1 * step), y=_at(upward(value)), width=_at(0.8 * step),
                         height=_at(bottom - upward(value)), fill=ACCENT))  # fmt: skip
        drawn += [_text(name, x + step / 2, bottom + 16)] if place % every == 0 else []
    drawn.append(_text(across, (left + WIDTH - RIGHT) / 2, height - 8))
    said = "; ".join(f"{name}: {value:g}" for name, value in zip(names, values, strict=True))
    return _picture(title, said, height, drawn)


def lines(places: Sequence[str], tracks: Sequence[Track], title: str, across: str, unit: str) -> str:
    """A line per track over ``places``, with its deviations, and its name in a row below the title."""
    left, height = 76, 330
    wide = 50 + 6.5 * max(len(track.name) for track in tracks)  # of a name with its mark
    columns = max(1, int((WIDTH - left) / wide))
    top, bottom = TOP + 20 * math.ceil(len(tracks) / columns), height - BOTTOM
    ends = [
        mean + side * deviation
        for track in tracks
        for mean, deviation in zip(track.means, track.deviations, strict=True)
        if mean is not None
        for side in (-1, 1)
    ]
    upward = _Axis(min(ends), max(ends), bottom, top)
    step = (WIDTH - RIGHT - left) / len(places)
    drawn = [_ticks_left(upward, left, unit), _text(across, (left + WIDTH - RIGHT) / 2, height - 8)]
    drawn += [_text(name, left + step * (place + 0.5), bottom + 16) for place, name in enumerate(places)]
    for number, track in enumerate(tracks):
        x, y = left + wide * (number % columns), TOP + 4 + 20 * (number // columns)
        drawn += [_line(x, y, x + 26, y, track.style.color, 2.5, track.style.dash), _mark(x + 13, y, track.style)]
        drawn.append(_text(track.name, x + 34, y + 4, "start", INK))
        drawn += _track(track, left + step / 2, step, upward)
    said = "; ".join(
        f"{track.name}: " + ", ".join("none" if mean is None else f"{mean:.3f}" for mean in track.means)
        for track in tracks
    )
    return _picture(title, f"{said} at {', '.join(places)}", height, drawn)


def _track(track: Track, first: float, step: float, upward: _Axis) -> list[Html]:
    color = track.style.color
    points = [
        (first + step * place, mean, deviation)
        for place, (mean, deviation) in enumerate(zip(track.means, track.deviations, strict=True))
        if mean is not None
    ]
    joined = [
        _line(x, upward(mean), other, upward(next_mean), color, 2.5, track.style.dash)
        for (x, mean, _), (other, next_mean, _) in pairwise(points)
    ]
    spread = [_line(x, upward(mean - d), x, upward(mean + d), color, 1.5) for x, mean, d in points]
    return [*joined, *spread, *(_mark(x, upward(mean), track.style) for x, mean, _ in points)]


class _Axis:
    """From numbers to places: a range in round steps around what is shown."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        span = (high - low) or abs(high) or 1.0
        self.step = _round_step(span / (MOST_TICKS - 2))
        self.low = math.floor(low / self.step + 1e-9) * self.step
        self.high = max(math.ceil(high / self.step - 1e-9) * self.step, self.low + self.step)
        self.start, self.end = start, end

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """Places and their labels."""
        decimals = max(0, -math.floor(math.log10(self.step) + 1e-9))
        count = round((self.high - self.low) / self.step)
        values = [self.low + self.step * k for k in range(count + 1)]
        return [(self(value), f"{value:,.{decimals}f}") for value in values]


def _round_step(least: float) -> float:
    """1, 2 or 5 times a power of ten, not below ``least``."""
    power = 10.0 ** math.floor(math.log10(least))
    return power * next(lead for lead in (1, 2, 5, 10) if lead * power >= least * (1 - 1e-9))


def _ticks_below(axis: _Axis, top: float, bottom: float, unit: str) -> Html:
    drawn = [part for x, name in axis.ticks for part in (_line(x, top, x, bottom), _text(name, x, bottom + 16))]
    return join([*drawn, _text(unit, (axis.start + axis.end) / 2, bottom + 36)], "")


def _ticks_left(axis: _Axis, left: float, unit: str) -> Html:
    drawn = [
        part
        for y, name in axis.ticks
        for part in (_line(left, y, WIDTH - RIGHT, y), _text(name, left - 8, y + 4, "end"))
    ]
    middle = (axis.start + axis.end) / 2
    turned = tag(
        "text", unit, x=0, y=0, text_anchor="middle", fill=SOFT, transform=f"translate(14 {middle:g}) rotate(-90)"
    )
    return join([*drawn, turned], "")


def _line(
    x: float, y: float, to_x: float, to_y: float, color: str = GRID, width: float = 1, dash: str = "solid"
) -> Html:
    return tag("line", x1=_at(x), y1=_at(y), x2=_at(to_x), y2=_at(to_y), stroke=color, stroke_width=width,
               stroke_dasharray=DASHES.get(dash))  # fmt: skip


def _mark(x: float, y: float, style: Style) -> Html:
    """The mark of a style at a place, as polygons around it."""
    polygons: dict[str, list[tuple[float, float]]] = {
        "diamond": [(0, -6), (6, 0), (0, 6), (-6, 0)],
        "square": [(-4.5, -4.5), (4.5, -4.5), (4.5, 4.5), (-4.5, 4.5)],
        "triangle-up": [(0, -6), (5.5, 4.5), (-5.5, 4.5)],
        "triangle-down": [(0, 6), (5.5, -4.5), (-5.5, -4.5)],
    }
    corners = polygons.get(style.symbol)
    if corners is None:
        return tag("circle", cx=_at(x), cy=_at(y), r=4.5, fill=style.color)
    points = " ".join(f"{_at(x + dx)},{_at(y + dy)}" for dx, dy in corners)
    return tag("polygon", points=points, fill=style.color)


def _text(words: str, x: float, y: float, anchor: str = "middle", color: str = SOFT) -> Html:
    return tag("text", words, x=_at(x), y=_at(y), text_anchor=anchor, fill=color)


def _at(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")


def _picture(title: str, said: str, height: float, drawn: Sequence[Html]) -> str:
    heading = tag("text", title, x=12, y=18, fill=INK, font_size=14, font_weight=600)
    paper = tag("rect", width=WIDTH, height=_at(height), fill="#ffffff")
    return tag(
        "svg", tag("title", f"{title}. {said}."), paper, heading, *drawn, xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDTH} {_at(height)}", width=WIDTH, height=_at(height), font_family=FONT, font_size=12,
    ) + "\n"  # fmt: skip
