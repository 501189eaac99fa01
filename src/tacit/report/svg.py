"""Pictures as SVG files, without scripts: the shapes that all of them are made of, and marks in named rows.

Series differ by colour *and* by dash or symbol. The ``aria-label`` of a picture describes it to screen readers.
Values that are missing or not finite are not drawn, except by :func:`rows`, which puts infinity at the right edge.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tacit.report.markup import Html, join, tag
from tacit.report.styles import ACCENT, DANGER, FONT, GRID, INK, SOFT, Style

WIDTH = 760
LETTER = 7  # width of a letter, in pixels
DASHES = {"dash": "9 4", "dot": "2 4", "dashdot": "9 4 2 4", "longdash": "14 4", "longdashdot": "14 4 2 4"}
SYMBOLS = {
    "diamond": ((0, -7), (7, 0), (0, 7), (-7, 0)),
    "square": ((-5.5, -5.5), (5.5, -5.5), (5.5, 5.5), (-5.5, 5.5)),
    "triangle-up": ((0, -7), (7, 5), (-7, 5)),
    "triangle-down": ((0, 7), (7, -5), (-7, -5)),
    "cross": (
        (-2, -6),
        (2, -6),
        (2, -2),
        (6, -2),
        (6, 2),
        (2, 2),
        (2, 6),
        (-2, 6),
        (-2, 2),
        (-6, 2),
        (-6, -2),
        (-2, -2),
    ),
    "x": ((0, -3), (3, -6), (6, -3), (3, 0), (6, 3), (3, 6), (0, 3), (-3, 6), (-6, 3), (-3, 0), (-6, -3), (-3, -6)),
    "star": ((0, -7), (2, -2), (7, -2), (3, 1), (4, 6), (0, 3), (-4, 6), (-3, 1), (-7, -2), (-2, -2)),
}

Point = tuple[float, float]


@dataclass(frozen=True)
class Scale:
    """Maps numbers from ``low`` to ``high`` (logarithms if ``log``) to pixels from ``start`` to ``end``."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    @classmethod
    def of(
        cls, values: Iterable[float | None], start: float, end: float, *, log: bool = False, margin: float = 0.05
    ) -> Scale:
        """The axis that shows all ``values`` with a ``margin`` (a share of their span) at both ends."""
        kept = [_scaled(value, log) for value in values if value is not None and _drawable(value, log)]
        low, high = (min(kept), max(kept)) if kept else (0.0, 1.0)
        space = margin * (high - low) or (0.0 if high > low else 0.5)
        return cls(low - space, high + space, start, end, log)

    def place(self, value: float | None) -> float | None:
        """The pixel of ``value``; None if it cannot be drawn."""
        if value is None or not _drawable(value, self.log):
            return None
        return self.start + (_scaled(value, self.log) - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self, most: int = 5) -> list[tuple[float, str]]:
        """Pixels and labels of round numbers: powers of ten (with their 2 and 5 folds if few), or ``most`` steps."""
        if self.log:
            powers = range(math.floor(self.low), math.ceil(self.high) + 1)
            factors = (1, 2, 5) if self.high - self.low < 2.5 else (1,)
            values = [factor * 10.0**power for power in powers for factor in factors]
            values = [value for value in values if self.low <= math.log10(value) <= self.high]
        else:
            step = _round_step((self.high - self.low) / most)
            first = math.ceil(self.low / step - 1e-9)
            values = [number * step for number in range(first, math.floor(self.high / step + 1e-9) + 1)]
        return [(place, _label(value)) for value in values if (place := self.place(value)) is not None]


def _drawable(value: float, log: bool) -> bool:
    return math.isfinite(value) and (value > 0 or not log)


def _scaled(value: float, log: bool) -> float:
    return math.log10(value) if log else float(value)


def _round_step(least: float) -> float:
    """1, 2, 5 or 10 times a power of ten, not below ``least``."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))


def _label(tick: float) -> str:
    return f"{tick:,.0f}" if abs(tick) >= 1000 else f"{tick:.4g}"


# ---- shapes


def text(
    x: float, y: float, words: str, anchor: str = "start", color: str = INK, *, size: int = 12, bold: bool = False
) -> Html:
    weight = 600 if bold else None
    return tag("text", words, x=_at(x), y=_at(y), text_anchor=anchor, fill=color, font_size=size, font_weight=weight)


def upward_text(x: float, y: float, words: str) -> Html:
    """Text turned by 90 degrees, for a vertical axis."""
    return tag(
        "text", words, text_anchor="middle", fill=SOFT, font_size=12, transform=f"translate({x:g} {y:g}) rotate(-90)"
    )


def line(points: Sequence[Point], color: str = GRID, width: float = 1, dash: str = "solid") -> Html:
    """A line through ``points``."""
    return path([points], stroke=color, stroke_width=width, stroke_dasharray=DASHES.get(dash), fill="none")


def path(runs: Iterable[Sequence[Point]], *, closed: bool = False, **attributes: object) -> Html:
    """Lines through the points of each run; ``closed``: from the last back to the first."""
    drawn = "".join("M" + "L".join(f"{_at(x)} {_at(y)}" for x, y in run) + "Z" * closed for run in runs)
    return tag("path", d=drawn, **attributes)


def mark(x: float, y: float, style: Style, color: str = "", *, hollow: bool = False, scale: float = 1.0) -> Html:
    """The symbol of a style."""
    color = color or style.color
    look = {"fill": "#ffffff" if hollow else color, "stroke": color, "stroke_width": 2 if hollow else None}
    corners = SYMBOLS.get(style.symbol)
    if corners is None:
        return tag("circle", cx=_at(x), cy=_at(y), r=_at(6 * scale), **look)
    return path([[(x + scale * dx, y + scale * dy) for dx, dy in corners]], closed=True, **look)


def document(width: float, height: float, spoken: str, parts: Iterable[object]) -> str:
    """The file: ``parts`` on white; ``spoken`` describes the picture."""
    w, h = _at(width), _at(height)
    paper = tag("rect", width=w, height=h, fill="#ffffff")
    drawn = tag(
        "svg", "\n", join([paper, *parts]), xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {w} {h}",
        width=w, height=h, font_family=FONT, role="img", aria_label=spoken,
    )  # fmt: skip
    return f"{drawn}\n"


def _at(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")


# ---- marks in rows


@dataclass(frozen=True)
class Mark:
    """A value on a row, with a line of ``deviation`` to both sides. ``wrong`` is red, ``hollow`` is not filled."""

    value: float
    deviation: float = 0.0
    wrong: bool = False
    hollow: bool = False


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
    """A row for each name with the marks of all series; infinite values are at the right edge. Several series have a
    legend."""
    left, right, pitch = 240, WIDTH - 24, 30
    top = 34 if len(series) < 2 or not title else 58
    bottom = top + pitch * len(names)
    shown = [one for each in series.values() for one in each.marks if one is not None]
    ends = [end for one in shown for end in (one.value - one.deviation, one.value + one.deviation)]
    axis = Scale.of([*ends, *([0.0] if from_zero else [])], left, right - 20, log=log)
    parts: list[Html] = [text(12, 18, title, size=14, bold=True)] if title else []
    for x, label in axis.ticks(8):
        parts += [line([(x, top), (x, bottom)]), text(x, bottom + 16, label, "middle", SOFT)]
    parts.append(text((left + right) / 2, bottom + 36, unit, "middle", SOFT))
    if len(series) > 1:
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


def dots(marks: Sequence[tuple[str, Mark]], title: str, unit: str) -> str:
    """A row with one mark for each name."""
    return rows([name for name, _ in marks], {"": Marks(Style(ACCENT), [one for _, one in marks])}, unit, title=title)


def _marked(one: Mark | None, style: Style, axis: Scale, y: float, right: float) -> list[Html]:
    if one is None:
        return []
    color = DANGER if one.wrong else style.color
    x = axis.place(one.value)
    if x is None:  # infinite
        return [mark(right, y, style, color), text(right + 8, y + 5, "∞", size=15)]
    low, high = axis.place(one.value - one.deviation), axis.place(one.value + one.deviation)
    spread = [line([(low, y), (high, y)], color, 2)] if one.deviation and low is not None and high is not None else []
    return [*spread, mark(x, y, style, color, hollow=one.hollow)]


def _spoken(name: str, one: Mark | None) -> str:
    value = "none" if one is None else f"{one.value:.3f}" + (f" ± {one.deviation:.3f}" if one.deviation else "")
    return f"{name} {value}".strip()


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
