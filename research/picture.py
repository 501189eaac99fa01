"""SVG pictures for documents: their shapes and axes, and marks on rows.

A picture is a file without scripts. Its ``aria-label`` describes it to screen readers. Values that are missing or not
finite are not drawn.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tacit.report.page import ACCENT, FONT, INK, SOFT, Html, Style, join, line, mark, pixels, tag

WIDTH = 760


@dataclass(frozen=True)
class Mark:
    """A value on a row, with a line of ``deviation`` to both sides; ``hollow`` is not filled."""

    value: float
    deviation: float = 0.0
    hollow: bool = False


def dots(marks: Sequence[tuple[str, Mark]], title: str, unit: str) -> str:
    """A row with one mark for each name."""
    left, right, top, pitch = 240, WIDTH - 24, 34, 30
    bottom = top + pitch * len(marks)
    axis = Scale.of([one.value + side * one.deviation for _, one in marks for side in (-1, 1)], left, right - 20)
    parts = [text(12, 18, title, size=14, bold=True), text((left + right) / 2, bottom + 36, unit, "middle", SOFT)]
    for x, label in axis.ticks(8):
        parts += [line([(x, top), (x, bottom)]), text(x, bottom + 16, label, "middle", SOFT)]
    for index, (name, one) in enumerate(marks):
        y = top + pitch * (index + 0.5)
        parts += [text(left - 12, y + 4, name, "end"), line([(left, y), (right, y)])]
        low, middle, high = (axis.place(one.value + side * one.deviation) for side in (-1, 0, 1))
        if low is not None and middle is not None and high is not None:
            parts += [line([(low, y), (high, y)], ACCENT, 2)] if one.deviation else []
            parts.append(mark(middle, y, Style(ACCENT), hollow=one.hollow))
    spoken = "; ".join(
        f"{name}: {one.value:.3f}" + (f" ± {one.deviation:.3f}" if one.deviation else "") for name, one in marks
    )
    return document(WIDTH, bottom + 46, f"{title}. {spoken}.", parts)


# ---- shapes


def text(
    x: float, y: float, words: str, anchor: str = "start", color: str = INK, *, size: int = 12, bold: bool = False
) -> Html:
    weight = 600 if bold else None
    return tag(
        "text", words, x=pixels(x), y=pixels(y), text_anchor=anchor, fill=color, font_size=size, font_weight=weight
    )


def document(width: float, height: float, spoken: str, parts: Iterable[object]) -> str:
    """The file: ``parts`` on white; ``spoken`` describes the picture."""
    w, h = pixels(width), pixels(height)
    paper = tag("rect", width=w, height=h, fill="#ffffff")
    drawn = tag(
        "svg", "\n", join([paper, *parts]), xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {w} {h}",
        width=w, height=h, font_family=FONT, role="img", aria_label=spoken,
    )  # fmt: skip
    return f"{drawn}\n"


# ---- axes


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
