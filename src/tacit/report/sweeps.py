"""Page of a sweep: the noise that a target needs, or the epsilon of a given noise, over other settings."""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from tacit.planning.sweep import Axis, Point, Sweep
from tacit.privacy.terms import noise_text
from tacit.report import figures, words
from tacit.report.page import MISSING, Html, Page, Style, legend, paragraph, section, style_of, table

NAMES = {
    "rounds": "rounds",
    "clip": "clip",
    "sample_rate": "rate at which a record enters a batch",
    "subject_sample_rate": "rate at which a person enters a round",
    "silo_sample_rate": "rate at which a silo enters a round",
    "delta": "delta",
    "epsilon": "target epsilon",
    "noise_multiplier": "noise multiplier",
}
Read = Callable[[Point], float | None]


def sweep_page(sweep: Sweep, file: Path) -> Path:
    """Write the page of a sweep: a plot and its table."""
    noise = sweep.solves == "noise_multiplier"
    target = "" if sweep.target is None else f" for epsilon {sweep.target:g}"
    what = f"Noise needed{target}" if noise else "Epsilon of the given noise"
    at = "" if sweep.delta is None else f" · delta {words.delta(sweep.delta)}"
    views = ", ".join(words.view(view) for view in sweep.against)
    page = Page(
        title=f"{what}: {sweep.title}",
        kicker="Privacy plan",
        lead=f"{sweep.method} · {words.unit(sweep.unit, short=True)} protected from {views}{at} · no data was read",
        parts=[_plots(sweep), _numbers(sweep)],
        version=version("tacit"),
    )
    return page.save(Path(file))


def _plots(sweep: Sweep) -> Html:
    """One line per combination of the numbers that are not on the horizontal axis."""
    if all(len(axis.values) < 2 for axis in sweep.axes):
        return Html("")
    across = max(range(len(sweep.axes)), key=lambda index: len(sweep.axes[index].values))
    lines = _lines(sweep, across)
    styles = {name: style_of(index) for index, name in enumerate(lines)}
    noise = sweep.solves == "noise_multiplier"
    wanted: list[tuple[str, Read, str]] = (
        [("Noise multiplier", lambda point: point.noise_multiplier, "standard deviation of the noise over the clip")]
        if noise
        else [("Epsilon", lambda point: point.epsilon, "the largest over the views that bind; less is better")]
    )
    if any(axis.name == "clip" for axis in sweep.axes):
        note = "noise on every number of a sum"
        wanted.append(("Standard deviation", lambda point: point.std, note))
    if any(point.ratio is not None for point in sweep.points):
        note = "norm of one round's noise over the largest sum that clipping allows"
        wanted.append(("Noise over signal", lambda point: point.ratio, note))
    drawn = [
        figures.sweep_chart(name, _axis_name(sweep.axes[across]), _series(lines, across, read, styles), note)
        for name, read, note in wanted
    ]
    return section("The plot", legend(styles) if len(lines) > 1 else "", *drawn, name="plot")


def _lines(sweep: Sweep, across: int) -> dict[str, list[Point]]:
    """Points by the numbers that stay the same along a line, in words."""
    lines: dict[str, list[Point]] = {}
    for point in sweep.points:
        others = [
            f"{axis.name} {value:g}"
            for index, (axis, value) in enumerate(zip(sweep.axes, point.values, strict=True))
            if index != across
        ]
        lines.setdefault(", ".join(others) or sweep.method, []).append(point)
    return lines


def _series(lines: dict[str, list[Point]], across: int, read: Read, styles: dict[str, Style]) -> list[figures.Series]:
    found = []
    for name, points in lines.items():
        values = [(point.values[across], read(point)) for point in points]
        known = sorted((x, y) for x, y in values if y is not None and math.isfinite(y))
        found.append(figures.Series(name, styles[name], [x for x, _ in known], [y for _, y in known]))
    return found


def _axis_name(axis: Axis) -> str:
    return NAMES.get(axis.name, axis.name)


def rows(sweep: Sweep) -> list[dict[str, str]]:
    """A row per point, its cells by the title of their column."""
    ratio = any(point.ratio is not None for point in sweep.points)
    return [
        {
            **{axis.name: f"{value:g}" for axis, value in zip(sweep.axes, point.values, strict=True)},
            "Noise multiplier": noise_text(point.noise_multiplier),
            "Standard deviation": f"{point.std:.4g}",
            "Epsilon": words.epsilon(point.epsilon),
            **({"Noise over signal": MISSING if point.ratio is None else f"{point.ratio:.3g}"} if ratio else {}),
        }
        for point in sweep.points
    ]


def _numbers(sweep: Sweep) -> Html:
    note = (
        "Standard deviation: of the noise on every number of a sum. Noise over signal: the norm of one round's noise "
        "over the norm of the sum if every contribution has the norm of the clip and all have the same direction. "
        "Multipliers are rounded up: the shown value costs no more."
    )
    return section(
        "The numbers",
        table(rows(sweep), "Every point of the plot", words=[axis.name for axis in sweep.axes]),
        paragraph(note, class_="quiet"),
        name="numbers",
    )
