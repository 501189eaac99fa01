"""Pictures for pages that are not reports: small SVG files, drawn here, without scripts or fonts of their own.

``rows`` sets marks on one scale, a row for every case; ``lines`` draws curves; ``pictures`` shows small grey images
side by side.
"""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tacit.report.markup import Html, join, tag
from tacit.report.styles import DANGER, FONT, GRID, INK, SOFT, Style

WIDTH = 760
LEFT, RIGHT, TOP, BOTTOM = 230, 24, 44, 46


@dataclass(frozen=True)
class Mark:
    """A value on a row; ``wrong`` is drawn in red."""

    value: float
    wrong: bool = False


def rows(
    names: Sequence[str], series: Mapping[str, tuple[Style, Sequence[Mark | None]]], axis: str, *, log: bool = False
) -> str:
    """One row per name, one mark per series on it; infinite values stand at the right edge as an arrow."""
    finite = [m.value for _, marks in series.values() for m in marks if m is not None and math.isfinite(m.value)]
    scale = _Scale.over(finite, LEFT, WIDTH - RIGHT - 20, log)
    height = TOP + 46 * len(names) + BOTTOM
    parts = [_x_axis(scale, height, axis), _key(series)]
    for index, name in enumerate(names):
        y = TOP + 46 * index + 23
        parts.append(_text(LEFT - 12, y + 4, name, anchor="end"))
        parts.append(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, stroke=GRID))
        for style, marks in series.values():
            mark = marks[index]
            if mark is None:
                continue
            x = scale(mark.value) if math.isfinite(mark.value) else WIDTH - RIGHT
            parts.append(_symbol(x, y, style.symbol, DANGER if mark.wrong else style.color))
            if not math.isfinite(mark.value):
                parts.append(_text(x + 8, y + 5, "∞", size=15))
    return _svg(height, parts)


def lines(curves: Mapping[str, tuple[Style, Sequence[float], Sequence[float]]], across: str, up: str) -> str:
    """Curves over a common axis, from 0 or the smallest value."""
    scale = _Scale.over([x for _, xs, _ in curves.values() for x in xs], 64, WIDTH - RIGHT, log=False)
    rise = _Scale.over([y for _, _, ys in curves.values() for y in ys], 300 - BOTTOM, TOP, log=False)
    parts = [_x_axis(scale, 300, across), _key({name: (style, ()) for name, (style, _, _) in curves.items()})]
    for tick in rise.ticks():
        parts.append(tag("line", x1=64, x2=WIDTH - RIGHT, y1=rise(tick), y2=rise(tick), stroke=GRID))
        parts.append(_text(56, rise(tick) + 4, f"{tick:g}", anchor="end", color=SOFT))
    parts.append(_text(12, TOP - 8, up, color=SOFT, size=12))
    for style, xs, ys in curves.values():
        points = " ".join(f"{scale(x):.1f},{rise(y):.1f}" for x, y in zip(xs, ys, strict=True))
        parts.append(tag("polyline", points=points, fill="none", stroke=style.color, stroke_width=2.5))
        parts += [_symbol(scale(x), rise(y), style.symbol, style.color) for x, y in zip(xs, ys, strict=True)]
    return _svg(300, parts)


def pictures(columns: Sequence[str], images: Sequence[Sequence[np.ndarray]], size: int = 112) -> str:
    """Grey images ``[height, width]`` (0 is white, 1 is black), a row for each of ``images``, with a heading per
    column."""
    pitch = max(size + 20, (WIDTH - 20) // len(columns))
    parts = []
    for column, name in enumerate(columns):
        for index, line in enumerate(name.split("\n")):
            parts.append(_text(10 + pitch * column + size / 2, 18 + 15 * index, line, anchor="middle", size=12))
    for row, line_of in enumerate(images):
        for column, image in enumerate(line_of):
            x, y = 10 + pitch * column, 44 + (size + 12) * row
            grey = np.round(255 * (1 - np.clip(np.nan_to_num(image), 0, 1))).astype(np.uint8)
            parts.append(picture(grey, x, y, size))
            parts.append(tag("rect", x=x, y=y, width=size, height=size, fill="none", stroke=GRID))
    return _svg(56 + (size + 12) * len(images), parts)


def picture(pixels: np.ndarray, x: float, y: float, size: float) -> Html:
    """Pixels (see :func:`png`) as a square within an SVG."""
    source = "data:image/png;base64," + base64.b64encode(png(pixels)).decode()
    return tag("image", href=source, x=x, y=y, width=size, height=size, style="image-rendering: pixelated")


def png(pixels: np.ndarray) -> bytes:
    """Bytes ``[height, width]`` (grey) or ``[height, width, 3]`` (red, green, blue) as a PNG file."""
    height, width = pixels.shape[:2]
    lines = pixels.reshape(height, -1)
    # every line begins with its filter: none
    raw = np.concatenate([np.zeros((height, 1), np.uint8), lines], axis=1).tobytes()
    header = struct.pack(">IIBBBBB", width, height, 8, 2 if pixels.ndim == 3 else 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(raw, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


# -- parts


@dataclass(frozen=True)
class _Scale:
    """From values to places, linear or logarithmic."""

    low: float
    high: float
    start: float
    stop: float
    log: bool

    @classmethod
    def over(cls, values: Sequence[float], start: float, stop: float, log: bool) -> _Scale:
        largest = max(values, default=1.0) or 1.0
        if log:
            smallest = min((value for value in values if value > 0), default=0.1)
            return cls(10 ** math.floor(math.log10(smallest)), largest * 1.2, start, stop, True)
        return cls(0.0, largest * 1.04, start, stop, False)

    def __call__(self, value: float) -> float:
        if self.log:
            share = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.stop - self.start)

    def ticks(self) -> list[float]:
        """Powers of ten and their 2 and 5 folds, or about five round steps."""
        if self.log:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            return [m * 10.0**p for p in powers for m in (1, 2, 5) if self.low <= m * 10.0**p <= self.high]
        rough = self.high / 5
        unit = 10 ** math.floor(math.log10(rough))
        step = next(m * unit for m in (1, 2, 5, 10) if m * unit >= rough)
        return [step * i for i in range(int(self.high / step) + 1)]


def _x_axis(scale: _Scale, height: int, name: str) -> Html:
    base = height - BOTTOM + 6
    parts = []
    last = -math.inf
    for tick in scale.ticks():
        x = scale(tick)
        parts.append(tag("line", x1=x, x2=x, y1=TOP, y2=base, stroke=GRID))
        if x - last > 34:
            parts.append(_text(x, base + 16, f"{tick:g}", anchor="middle", color=SOFT))
            last = x
    parts.append(_text((scale.start + scale.stop) / 2, base + 34, name, anchor="middle", color=SOFT))
    return join(parts, "")


def _key(series: Mapping[str, tuple[Style, Sequence[object]]]) -> Html:
    """Names of the series with their marks, along the top."""
    widths = [30 + 7 * len(name) for name in series]
    starts = [max(14, WIDTH - RIGHT - sum(widths)) + sum(widths[:i]) for i in range(len(widths))]
    parts = []
    for x, (name, (style, _)) in zip(starts, series.items(), strict=True):
        parts += [_symbol(x, 18, style.symbol, style.color), _text(x + 11, 22, name, size=12)]
    return join(parts, "")


def _symbol(x: float, y: float, kind: str, color: str) -> Html:
    if kind == "diamond":
        return tag("path", d=f"M{x:.1f} {y - 7:.1f} l7 7 l-7 7 l-7 -7 Z", fill=color)
    if kind == "square":
        return tag("rect", x=f"{x - 5.5:.1f}", y=f"{y - 5.5:.1f}", width=11, height=11, fill=color)
    if kind in ("triangle-up", "triangle-down"):
        turn = 1 if kind == "triangle-up" else -1
        return tag("path", d=f"M{x:.1f} {y - 7 * turn:.1f} l7 {12 * turn} h-14 Z", fill=color)
    return tag("circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r=6, fill=color)


def _text(x: float, y: float, words: str, anchor: str = "start", color: str = INK, size: int = 13) -> Html:
    return tag("text", words, x=f"{x:.1f}", y=f"{y:.1f}", text_anchor=anchor, fill=color, font_size=size)


def _svg(height: int, parts: Sequence[Html]) -> str:
    paper = tag("rect", width=WIDTH, height=height, fill="#ffffff")
    body = join([paper, *parts])
    return str(
        tag(
            "svg",
            body,
            xmlns="http://www.w3.org/2000/svg",
            viewBox=f"0 0 {WIDTH} {height}",
            width=WIDTH,
            height=height,
            font_family=FONT,
        )
    )
