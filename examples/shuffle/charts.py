"""Line charts as plain SVG: every line differs by colour, dash and marker, in the palette of Tacit's reports."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

from tacit.report.figures import FONT, GRID, INK, RUN_STYLES, SOFT, Style

WIDTH, HEIGHT = 720, 400
LEFT, TOP, RIGHT, BOTTOM = 64, 44, 200, 52
CROSS = [
    *((-0.45, -1.3), (0.45, -1.3), (0.45, -0.45), (1.3, -0.45), (1.3, 0.45), (0.45, 0.45)),
    *((0.45, 1.3), (-0.45, 1.3), (-0.45, 0.45), (-1.3, 0.45), (-1.3, -0.45), (-0.45, -0.45)),
]
STYLES = [*RUN_STYLES, Style("#6b4fb3", "dashdot", "pentagon")]
DASHES = {"solid": "", "dash": "8 4", "dot": "2 3", "dashdot": "8 3 2 3", "longdash": "12 4", "longdashdot": "12 3 2 3"}


@dataclass(frozen=True)
class Line:
    """One line: its name in the legend and its points; those that are not finite are left out."""

    name: str
    x: Sequence[float]
    y: Sequence[float]


@dataclass(frozen=True)
class Axis:
    """What is measured, and whether by ratios."""

    label: str
    log: bool = False

    def ticks(self, values: Sequence[float]) -> list[float]:
        """Round numbers that cover ``values``."""
        low, high = min(values), max(values)
        if self.log:
            first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
            decades = range(first, max(last, first + 1) + 1)
            leads = (1,) if len(decades) > 3 else (1, 2, 5)
            marks = [lead * 10.0**power for power in decades for lead in leads]
            below = max((mark for mark in marks if mark <= low * 1.001), default=marks[0])
            above = min((mark for mark in marks if mark >= high * 0.999), default=marks[-1])
            return [mark for mark in marks if below <= mark <= above]
        step = 10.0 ** math.floor(math.log10(max(high - low, 1e-9) / 4))
        step *= next(factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= 6)
        return [step * k for k in range(math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9) + 1)]

    def place(self, value: float, ticks: Sequence[float]) -> float:
        """Where a value lies between the outermost ticks, from 0 to 1."""
        if self.log:
            return math.log(value / ticks[0]) / math.log(ticks[-1] / ticks[0])
        return (value - ticks[0]) / (ticks[-1] - ticks[0])


def chart(title: str, x: Axis, y: Axis, lines: Sequence[Line]) -> str:
    """The chart as an SVG document."""
    points = [
        [(a, b) for a, b in zip(line.x, line.y, strict=True) if math.isfinite(a) and math.isfinite(b)] for line in lines
    ]
    across, up = x.ticks([a for own in points for a, _ in own]), y.ticks([b for own in points for _, b in own])
    wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def at(a: float, b: float) -> tuple[float, float]:
        return LEFT + wide * x.place(a, across), TOP + high * (1 - y.place(b, up))

    body = [f'<text x="{LEFT}" y="24" font-size="15" font-weight="600" fill="{INK}">{html.escape(title)}</text>']
    for mark in across:
        left, _ = at(mark, up[0])
        body.append(_rule(left, TOP, left, TOP + high))
        body.append(_text(left, TOP + high + 18, f"{mark:g}", "middle"))
    for mark in up:
        _, height = at(across[0], mark)
        body.append(_rule(LEFT, height, LEFT + wide, height))
        body.append(_text(LEFT - 8, height + 4, f"{mark:g}", "end"))
    body.append(_text(LEFT + wide / 2, HEIGHT - 12, x.label, "middle"))
    turned = f'transform="rotate(-90 16 {TOP + high / 2})"'
    body.append(_text(16, TOP + high / 2, y.label, "middle", turned))
    for number, (line, own) in enumerate(zip(lines, points, strict=True)):
        style = STYLES[number % len(STYLES)]
        body.append(_line([at(a, b) for a, b in own], style))
        height = TOP + 8 + 20 * number
        body.append(_line([(WIDTH - RIGHT + 14, height), (WIDTH - RIGHT + 44, height)], style, ends=False))
        body.append(_marker(WIDTH - RIGHT + 29, height, style))
        body.append(_text(WIDTH - RIGHT + 52, height + 4, line.name, "start"))
    spoken = html.escape(f"{title}: {', '.join(line.name for line in lines)}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'role="img" aria-label="{spoken}" font-family="{html.escape(FONT)}">\n'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>\n' + "\n".join(body) + "\n</svg>\n"
    )


def _rule(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{GRID}"/>'


def _text(x: float, y: float, words: str, anchor: str, more: str = "") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {place} font-size="12" fill="{SOFT}" {more}>{html.escape(words)}</text>'


def _line(points: Sequence[tuple[float, float]], style: Style, ends: bool = True) -> str:
    path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
    dash = f' stroke-dasharray="{DASHES[style.dash]}"' if DASHES[style.dash] else ""
    drawn = f'<polyline points="{path}" fill="none" stroke="{style.color}" stroke-width="2"{dash}/>'
    return drawn + "".join(_marker(a, b, style) for a, b in points) if ends else drawn


def _marker(x: float, y: float, style: Style) -> str:
    shapes = {
        "circle": [_around(t / 16, 1.0) for t in range(16)],
        "diamond": [(0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)],
        "square": [(-1, -1), (1, -1), (1, 1), (-1, 1)],
        "triangle-up": [(0, -1.2), (1.1, 0.9), (-1.1, 0.9)],
        "triangle-down": [(0, 1.2), (1.1, -0.9), (-1.1, -0.9)],
        "pentagon": [_around(t / 5, 1.2) for t in range(5)],
        "star": [_around(t / 10, (1.5, 0.6)[t % 2]) for t in range(10)],
        "cross": CROSS,
        "x": [(0.71 * (a - b), 0.71 * (a + b)) for a, b in CROSS],
    }
    corners = shapes[style.symbol]
    path = " ".join(f"{x + 3.5 * a:.1f},{y + 3.5 * b:.1f}" for a, b in corners)
    return f'<polygon points="{path}" fill="{style.color}"/>'


def _around(turn: float, size: float) -> tuple[float, float]:
    """The point after this part of a turn from the top."""
    return size * math.sin(2 * math.pi * turn), -size * math.cos(2 * math.pi * turn)
