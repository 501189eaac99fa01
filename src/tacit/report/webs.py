"""Networks as picture files: graphs as points and lines, and tables of numbers as shades. Plain SVG, as ``drawing``."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tacit.report.marks import picture
from tacit.report.styles import ACCENT, FONT, INK, PALE, SOFT

SIDE, MARGIN, HEAD, FOOT = 190, 16, 26, 22
# shades from few to much, and what is beyond them all
LIGHT, DARK = (243, 247, 251), (8, 69, 122)
NONE = 255


@dataclass(frozen=True)
class Web:
    """A graph: its name, ``edges`` between nodes 0, 1, …, and where each node stands, within the unit square."""

    title: str
    edges: Sequence[tuple[int, int]]
    places: Sequence[tuple[float, float]]
    note: str = ""


def in_a_circle(nodes: int) -> list[tuple[float, float]]:
    """Places of nodes on a circle, from the top on."""
    angles = [2 * math.pi * k / nodes for k in range(nodes)]
    return [(0.5 + 0.5 * math.sin(angle), 0.5 - 0.5 * math.cos(angle)) for angle in angles]


def webs(graphs: Sequence[Web], spoken: str, columns: int = 4) -> str:
    """Graphs side by side, in rows."""
    rows = -(-len(graphs) // columns)
    wide, high = SIDE + 2 * MARGIN, SIDE + HEAD + FOOT
    body = [_web(graph, (k % columns) * wide, (k // columns) * high) for k, graph in enumerate(graphs)]
    return _svg(columns * wide, rows * high + MARGIN, body, spoken)


def _web(graph: Web, left: float, top: float) -> str:
    def at(node: int) -> tuple[float, float]:
        x, y = graph.places[node]
        return left + MARGIN + 6 + x * (SIDE - 12), top + HEAD + 6 + y * (SIDE - 12)

    parts = [_text(left + MARGIN, top + 18, graph.title, INK, "start", 13, "600")]
    for first, second in graph.edges:
        (a, b), (c, d) = at(first), at(second)
        parts.append(f'<path d="M{a:.1f} {b:.1f}L{c:.1f} {d:.1f}" stroke="{PALE}" stroke-width="1.2"/>')
    for node in range(len(graph.places)):
        x, y = at(node)
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{ACCENT}"/>')
    parts.append(_text(left + MARGIN, top + HEAD + SIDE + 15, graph.note, SOFT, "start", 11))
    return "".join(parts)


@dataclass(frozen=True)
class Shades:
    """A square table of numbers, drawn as shades by their logarithm; infinite ones stay white."""

    title: str
    values: Sequence[Sequence[float]]
    note: str = ""


def shades(tables: Sequence[Shades], spoken: str, side: int = 260) -> str:
    """Tables side by side under one scale, which is drawn below."""
    known = [value for table in tables for row in table.values for value in row if 0 < value < math.inf]
    low, high = min(known), max(known)
    wide = side + 2 * MARGIN
    body = [_shades(table, place * wide, side, low, high) for place, table in enumerate(tables)]
    top = HEAD + side + FOOT + 10
    steps = 40
    for step, shade in enumerate(_shade(np.linspace(0, 1, steps))):
        fill = "#" + "".join(f"{int(part):02x}" for part in shade)
        body.append(f'<rect x="{MARGIN + 60 + step * 4}" y="{top}" width="4.2" height="12" fill="{fill}"/>')
    body.append(_text(MARGIN + 54, top + 11, f"{low:.2g}", SOFT, "end", 11))
    body.append(_text(MARGIN + 66 + 4 * steps, top + 11, f"{high:.3g}   epsilon", SOFT, "start", 11))
    return _svg(max(len(tables) * wide, 320), top + 26, body, spoken)


def _shades(table: Shades, left: float, side: float, low: float, high: float) -> str:
    values = np.asarray(table.values, float)
    span = math.log(high / low) if high > low else 1.0
    finite = np.where(np.isfinite(values), values, high)
    shares = np.log(np.maximum(finite, low) / low) / span if high > low else np.ones_like(values)
    pixels = np.where(np.isfinite(values)[..., None], _shade(shares), NONE).astype(np.uint8)
    return (
        _text(left + MARGIN, 18, table.title, INK, "start", 13, "600")
        + picture(pixels, left + MARGIN, HEAD, side)
        + _text(left + MARGIN, HEAD + side + 16, table.note, SOFT, "start", 11)
    )


def _shade(shares: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Red, green and blue of shares between 0 and 1."""
    clipped = np.clip(np.asarray(shares, float), 0, 1)[..., None]
    return np.round(np.asarray(LIGHT) + (np.asarray(DARK) - np.asarray(LIGHT)) * clipped)


def _text(x: float, y: float, words: str, color: str, anchor: str, size: int, weight: str = "400") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{color}" text-anchor="{anchor}" font-size="{size}" '
        f'font-weight="{weight}">{html.escape(words)}</text>'
    )


def _svg(width: float, height: float, body: Sequence[str], spoken: str) -> str:
    drawn = "\n".join(body)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" font-family="{FONT}" role="img" aria-label="{html.escape(spoken)}">\n'
        f'<rect width="{width:g}" height="{height:g}" fill="#ffffff"/>\n{drawn}\n</svg>\n'
    )
