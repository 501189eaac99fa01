"""The result of an audit (``audit.json``), as a section of the report and as a page of its own: lower bounds, what is
proved and what was published on one scale. A lower bound above a claim is red."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tacit.report import figures, words
from tacit.report.page import (
    ACCENT,
    INK,
    MISSING,
    Html,
    Page,
    Style,
    banner,
    legend,
    paragraph,
    section,
    table,
    tag,
)
from tacit.report.run_files import AUDIT as FILE
from tacit.report.run_files import epsilon_of, read_object

Line = Mapping[str, Any]
Row = tuple[dict[str, str], set[str]]  # cells by the title of their column, and those that are red

KINDS = {"gradient": "Worst-case {}", "input": "Mislabelled {}"}
SEEN = {
    "rounds": "every round's sum is seen",
    "uploads": "every silo's updates are seen",
    "final": "the final model is seen",
}
UNITS = {"subject": "people", "record": "records", "silo": "silos"}
# verdict -> kind of banner, what it says
VERDICTS = {
    "refuted": ("danger", "An attack did better than the proved guarantee allows: proof or code is wrong."),
    "doubtful": (
        "warning",
        "A lower bound is above what is proved, but not significantly: audit again with more canaries.",
    ),
    "not-refuted": ("promise", "No attack did better than the proved guarantee allows."),
    "nothing-claimed": ("warning", "Nothing is proved here, so nothing can be refuted."),
}
OUTSIDE = (
    "An audit trains on private records, and its result is released without noise: these numbers are outside the "
    "guarantee."
)
LOWER, CURVE, PROVED = "At least", "At least, on a Gaussian curve", "Proved: at most"
PUBLISHED, HITS = "As published", "Hits at false alarms"
# marks of the scale, by the key of a row
AUDIT = {
    "at least": Style(ACCENT),
    "curve": Style("#00795a", "dot", "diamond"),
    "estimate": Style("#a87b00", "dash", "triangle-up"),
    "proved": Style(INK, "solid", "square"),
    "published": Style("#a8487e", "dashdot", "triangle-down"),
}


@dataclass(frozen=True)
class Bounds:
    """One row of the scale: lower bounds and the claims that they are compared with (infinity: none)."""

    name: str
    line: Line
    epsilon: float
    fdp_epsilon: float
    estimate: float
    proved: float
    published: float | None

    @property
    def refuted(self) -> bool:
        return bool(self.line["refuted"])

    @property
    def beats_published(self) -> bool:
        return self.published is not None and self.epsilon > self.published

    @property
    def beats_something(self) -> bool:
        """Whether the lower bound is above a claim."""
        return self.refuted or self.beats_published or self.epsilon > self.proved


def write_audit(folder: Path) -> Path:
    """Write the page of an audit: ``audit.html`` next to its ``audit.json``."""
    audit = read_object(Path(folder) / FILE)
    page = Page(
        title=str(audit["title"]),
        kicker="Privacy audit",
        lead=f"{audit['method']} · {words.counted(int(audit['rounds']), 'round')} · unit: {audit['unit']}",
        parts=[part(audit)],
        version=version("tacit"),
    )
    return page.save(Path(folder) / "audit.html")


def part(audit: Line) -> Html:
    """The section of an audit."""
    rows, canaries, mechanism = _all_bounds(audit), audit.get("canaries") or (), audit.get("mechanism") or ()
    styles = {LOWER: "at least", CURVE: "curve", "Estimate, no bound": "estimate", PROVED: "proved"}
    styles |= {PUBLISHED: "published"} if any(row.published is not None for row in rows) else {}
    shown = [_verdict(audit, rows)]
    if canaries:
        first, most = canaries[0], max(line["canaries"] for line in canaries)
        caption = (
            f"Epsilon at delta = {words.delta(first['delta'])}, from one run in which each of {words.count(most)} "
            f"canaries was included with probability 1/2; lower bounds at {100 * first['confidence']:g} % confidence"
        )
        shown += [_scale(rows, styles), _table(canary_rows(audit), caption)]
    if mechanism:
        first = mechanism[0]
        caption = (
            f"One round of the method alone, on a small artificial federation at {first['noise']}, "
            f"with and without one {audit['unit']}; {100 * first['confidence']:g} % confidence"
        )
        shown.append(_table(mechanism_rows(audit), caption))
    return section("Privacy audit", *shown, paragraph(OUTSIDE, class_="quiet"), name="audit")


def _all_bounds(audit: Line) -> list[Bounds]:
    return [_bounds(audit, line) for line in audit.get("canaries") or ()]


def _bounds(audit: Line, line: Line) -> Bounds:
    published = [g.get("as_published") for g in audit.get("guarantees") or () if g.get("view") == line["view"]]
    kind = KINDS.get(line["kind"], str(line["kind"])).format(UNITS.get(str(audit.get("unit")), "units"))
    numbers = {key: epsilon_of(line[key]) for key in ("epsilon", "fdp_epsilon", "estimate", "proved")}
    claim = epsilon_of(published[0]["epsilon"]) if published and published[0] else None
    return Bounds(f"{kind}, {SEEN.get(line['seen'], str(line['seen']))}", line, **numbers, published=claim)


def _verdict(audit: Line, rows: Sequence[Bounds]) -> Html:
    tried = f"{words.counted(len(rows), 'view')} of one run with canaries, and " if rows else ""
    many = words.counted(sum(int(line["runs"]) for line in audit.get("mechanism") or ()), "run")
    kind, said = VERDICTS[audit["verdict"]]
    beaten = any(row.beats_published for row in rows)
    better = "It did better than the published epsilon of the method allows." if beaten else ""
    how = paragraph(f"Tried: {tried}{many} of the method alone.")
    return banner(kind, said, how, paragraph(better, class_="infinite"))


def _scale(rows: Sequence[Bounds], styles: Mapping[str, str]) -> Html:
    """Lower bounds, what is proved and what was published, a row for every kind of observation."""
    columns: dict[str, list[float | None]] = {
        "at least": [row.epsilon for row in rows],
        "curve": [row.fdp_epsilon for row in rows],
        "estimate": [row.estimate for row in rows],
        "proved": [row.proved for row in rows],
        "published": [row.published for row in rows],
    }
    red = {"at least": [row.beats_something for row in rows], "curve": [row.refuted for row in rows]}
    marks = [
        figures.Marks(name, AUDIT[key], [_finite(value) for value in columns[key]], red=red.get(key, ()))
        for name, key in styles.items()
    ]
    spoken = "Lower bounds on epsilon and what is proved. " + " ".join(
        f"{row.name}: at least {words.number(row.epsilon)}, proved at most {words.epsilon(row.proved)}." for row in rows
    )
    return figures.dots(
        [row.name for row in rows],
        marks[::-1],  # the first is drawn on top
        "Lower bounds and claims on one scale",
        spoken,
        "epsilon",
        zero=True,
        wrap=True,
        key=legend({name: AUDIT[key] for name, key in styles.items()}),
        note="Red: above a claim.",
    )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def canary_rows(audit: Line) -> list[Row]:
    """The experiment with canaries, by what was observed."""
    found = _all_bounds(audit)
    published = any(row.published is not None for row in found)
    rows = []
    for row in found:
        cells = {
            "Canaries and view": row.name,
            "Right guesses": f"{words.count(row.line['right'])} of {words.count(row.line['guesses'])}",
            LOWER: lower(row.epsilon),
            CURVE: lower(row.fdp_epsilon),
            "Estimate": lower(row.estimate),
            PROVED: words.epsilon(row.proved),
        }
        if published:
            cells[PUBLISHED] = MISSING if row.published is None else words.epsilon(row.published)
        red = {LOWER: row.beats_something, CURVE: row.refuted, PUBLISHED: row.beats_published}
        rows.append((cells, {title for title, is_red in red.items() if is_red}))
    return rows


def mechanism_rows(audit: Line) -> list[Row]:
    """The method alone, view by view."""
    rows = []
    for line in audit.get("mechanism") or ():
        epsilon, on_curve, proved = (epsilon_of(line[key]) for key in ("epsilon", "gaussian_epsilon", "proved"))
        cells = {
            "Seen by": words.view(line["view"]),
            "Runs": words.count(line["runs"]),
            LOWER: lower(epsilon),
            CURVE: lower(on_curve),
            PROVED: words.epsilon(proved),
            HITS: f"{100 * line['hits']:.1f} % at {100 * line['false_alarms']:.1f} %",
            "Allowed hits": f"{100 * line['most_hits']:.1f} %",
        }
        red = {LOWER: epsilon > proved, HITS: bool(line["refuted"])}
        rows.append((cells, {title for title, is_red in red.items() if is_red}))
    return rows


def _table(rows: Sequence[Row], caption: str) -> Html:
    def shown(text: str, is_red: bool) -> str | Html:
        return tag("strong", text, class_="infinite") if is_red else text

    written = [{title: shown(cell, title in red) for title, cell in cells.items()} for cells, red in rows]
    return table(written, caption, stacked=True)


def lower(value: float) -> str:
    """A lower bound, rounded down: what is shown still holds."""
    return "∞" if math.isinf(value) else f"{math.floor(100 * value) / 100:.2f}"
