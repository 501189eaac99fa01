"""Curves as a picture file: plain SVG for pages that cannot run a script, such as documentation.

A drawing is a row of panels with one legend below. Every series differs by colour *and* by dash or marker, in the
styles of ``figures``. A shaded band shows the spread over seeds. Nothing is drawn where a value is missing or not
finite: an infinite epsilon belongs into the table beside the picture.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from tacit.report.styles import FONT, GRID, INK, SOFT, Style

DASHES = {"solid": "", "dash": "9 4", "dot": "2 4", "dashdot": "9 4 2 4", "longdash": "14 4", "longdashdot": "14 4 2 4"}

PANEL_WIDTH, PANEL_HEIGHT = 400, 250
LEFT, RIGHT, TOP, BOTTOM = 56, 14, 30, 44
LEGEND_ROW, LETTER = 20, 6.6
MOST_MARKERS = 12  # a curve with more points than that has lines alone


@dataclass(frozen=True)
class Line:
    """One series: ``y`` over ``x``, with the band from ``low`` to ``high`` around it where there is one."""

    name: str
    style: Style
    x: Sequence[float]
    y: Sequence[float | None]
    low: Sequence[float | None] = ()
    high: Sequence[float | None] = ()


@dataclass(frozen=True)
class Panel:
    """One pair of axes. ``log_x`` and ``log_y`` ask for logarithmic ones, on which only positive numbers are drawn."""

    title: str
    x_label: str
    lines: Sequence[Line]
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True)
class _Axis:
    """Where numbers from ``low`` to ``high`` lie between the pixels ``start`` and ``end``."""

    low: float
    high: float
    start: float
    end: float
    log: bool

    @classmethod
    def of(cls, values: Iterable[float | None], start: float, end: float, log: bool, margin: float) -> _Axis:
        """The axis that shows all ``values`` with a ``margin`` (a share of their span) at both ends."""
        kept = [_scaled(value, log) for value in values if value is not None and _drawable(value, log)]
        low, high = (min(kept), max(kept)) if kept else (0.0, 1.0)
        space = margin * (high - low) or (0.0 if high > low else 0.5)
        return cls(low - space, high + space, start, end, log)

    def place(self, value: float | None) -> float | None:
        """The pixel of ``value``; None where it cannot be drawn."""
        if value is None or not _drawable(value, self.log):
            return None
        return self.start + (_scaled(value, self.log) - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Round numbers within the axis: powers of ten (and 2, 5 times them where there are few), or equal steps."""
        if self.log:
            powers = range(math.floor(self.low), math.ceil(self.high) + 1)
            factors = (1, 2, 5) if self.high - self.low < 2.5 else (1,)
            marks = [factor * 10.0**power for power in powers for factor in factors]
            return [mark for mark in marks if self.low <= math.log10(mark) <= self.high]
        step = _round_step((self.high - self.low) / 5)
        first = math.ceil(self.low / step - 1e-9)
        return [number * step for number in range(first, math.floor(self.high / step + 1e-9) + 1)]


def drawing(panels: Sequence[Panel], spoken: str) -> str:
    """The SVG of ``panels`` side by side; ``spoken`` is what it shows, for those who cannot see it."""
    legend = {line.name: line.style for panel in panels for line in panel.lines}
    width = len(panels) * PANEL_WIDTH
    names, rows = _legend(legend, width)
    height = PANEL_HEIGHT + rows * LEGEND_ROW + 10
    body = "".join(_panel(panel, index * PANEL_WIDTH) for index, panel in enumerate(panels))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="{FONT}" font-size="12" role="img" aria-label="{html.escape(spoken)}">\n'
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>\n{body}{names}</svg>\n'
    )


def _panel(panel: Panel, offset: float) -> str:
    xs = [value for line in panel.lines for value in line.x]
    ys = [value for line in panel.lines for value in (*line.y, *line.low, *line.high)]
    x = _Axis.of(xs, offset + LEFT, offset + PANEL_WIDTH - RIGHT, panel.log_x, margin=0.02)
    y = _Axis.of(ys, PANEL_HEIGHT - BOTTOM, TOP, panel.log_y, margin=0.05)
    parts = [_text(offset + LEFT, 18, panel.title, INK, "start", "600")]
    parts += _grid(x, y)
    parts.append(_text((x.start + x.end) / 2, PANEL_HEIGHT - 8, panel.x_label, SOFT, "middle"))
    parts += [_band(line, x, y) for line in panel.lines if line.low]
    parts += [_curve(line, x, y) for line in panel.lines]
    return "\n".join(part for part in parts if part) + "\n"


def _grid(x: _Axis, y: _Axis) -> list[str]:
    parts = []
    for tick in y.ticks():
        height = y.place(tick)
        parts.append(f'<path d="M{x.start:.1f} {height:.1f}H{x.end:.1f}" stroke="{GRID}"/>')
        parts.append(_text(x.start - 6, (height or 0) + 4, _label(tick), SOFT, "end"))
    for tick in x.ticks():
        parts.append(_text(x.place(tick) or 0, y.start + 16, _label(tick), SOFT, "middle"))
    parts.append(f'<path d="M{x.start:.1f} {y.start:.1f}H{x.end:.1f}" stroke="{SOFT}"/>')
    return parts


def _curve(line: Line, x: _Axis, y: _Axis) -> str:
    """The line, broken where values are missing, and markers where there are few points."""
    points = [(x.place(a), y.place(b)) for a, b in zip(line.x, line.y, strict=True)]
    runs = [list(run) for drawn, run in groupby(points, key=lambda point: None not in point) if drawn]
    path = "".join("M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in run) for run in runs)
    if not path:
        return ""
    style = line.style
    dash = f' stroke-dasharray="{DASHES[style.dash]}"' if DASHES[style.dash] else ""
    marks = [point for run in runs for point in run] if len(line.x) <= MOST_MARKERS else []
    dots = "".join(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{style.color}"/>' for a, b in marks)
    return f'<path d="{path}" fill="none" stroke="{style.color}" stroke-width="2"{dash}/>{dots}'


def _band(line: Line, x: _Axis, y: _Axis) -> str:
    edges = [
        (x.place(a), y.place(low), y.place(high)) for a, low, high in zip(line.x, line.low, line.high, strict=True)
    ]
    known = [edge for edge in edges if None not in edge]
    if len(known) < 2:
        return ""
    upper = "L".join(f"{a:.1f} {high:.1f}" for a, _, high in known)
    lower = "L".join(f"{a:.1f} {low:.1f}" for a, low, _ in reversed(known))
    return f'<path d="M{upper}L{lower}Z" fill="{line.style.color}" fill-opacity="0.14"/>'


def _legend(names: dict[str, Style], width: float) -> tuple[str, int]:
    """A sample of each style with its name, row by row, and how many rows there are."""
    parts, left, row = [], float(LEFT), 0
    for name, style in names.items():
        needed = 44 + LETTER * len(name) + 18
        if left > LEFT and left + needed > width:
            left, row = float(LEFT), row + 1
        height = PANEL_HEIGHT + row * LEGEND_ROW + 12
        dash = f' stroke-dasharray="{DASHES[style.dash]}"' if DASHES[style.dash] else ""
        sample = f'<path d="M{left:.0f} {height - 4}h34" stroke="{style.color}" stroke-width="2"{dash}/>'
        parts.append(sample + _text(left + 40, height, name, INK, "start"))
        left += needed
    return "\n".join(parts) + "\n", row + 1 if names else 0


def _text(x: float, y: float, words: str, color: str, anchor: str, weight: str = "400") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" fill="{color}" text-anchor="{anchor}" font-weight="{weight}"'
    return f"<text {place}>{html.escape(words)}</text>"


def _drawable(value: float, log: bool) -> bool:
    return math.isfinite(value) and (value > 0 or not log)


def _scaled(value: float, log: bool) -> float:
    return math.log10(value) if log else float(value)


def _round_step(size: float) -> float:
    """The smallest of 1, 2, 5, 10, 20 … (times a power of ten) that is not below ``size``."""
    power = 10.0 ** math.floor(math.log10(size))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= size * (1 - 1e-9))


def _label(tick: float) -> str:
    return f"{tick:,.0f}" if abs(tick) >= 1000 else f"{tick:.4g}"
