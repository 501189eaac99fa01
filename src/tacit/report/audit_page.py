"""The result of an audit (``audit.json``), as a section of the report and as a page of its own: lower bounds, what is
proved and what was published on one scale. A lower bound above a claim is red."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tacit.report import figures, words
from tacit.report.markup import Column, Html, paragraph, section, table, tag
from tacit.report.page import ChartWriter, Sections, banner, footer, legend
from tacit.report.styles import AUDIT, Style

Line = Mapping[str, Any]

TITLE = "Privacy audit"
KINDS = {"gradient": "Worst-case people", "input": "Mislabelled people"}
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


@dataclass(frozen=True)
class Bounds:
    """One row of the scale: lower bounds and the claims that they are compared with (infinity: none)."""

    name: str
    epsilon: float
    fdp_epsilon: float
    estimate: float
    proved: float
    published: float | None
    refuted: bool

    @property
    def beats_published(self) -> bool:
        return self.published is not None and self.epsilon > self.published

    @property
    def beats_something(self) -> bool:
        """Whether the lower bound is above a claim."""
        return self.refuted or self.beats_published or self.epsilon > self.proved


def sections(audit: Mapping[str, Any], version: object = "") -> Sections:
    """The page of an audit."""
    lead = f"{audit['method']} · {words.counted(int(audit['rounds']), 'round')} · unit: {audit['unit']}"
    return Sections(
        title=str(audit["title"]),
        kicker="Privacy audit",
        lead=lead,
        parts=[part(audit, ChartWriter())],
        footer=footer(version),
    )


def part(audit: Mapping[str, Any], chart: ChartWriter) -> Html:
    """The section of an audit; nothing if there was none."""
    if not audit:
        return Html("")
    rows = [_bounds(audit, line) for line in audit.get("canaries") or ()]
    return section(
        TITLE,
        _verdict(audit, rows),
        legend(_legend(rows)) if rows else "",
        chart(figures.audit_scale(rows)) if rows else "",
        _canaries(audit, rows),
        _mechanism(audit),
        paragraph(OUTSIDE, class_="quiet"),
        name="audit",
    )


def _bounds(audit: Mapping[str, Any], line: Line) -> Bounds:
    published = [g.get("as_published") for g in audit.get("guarantees") or () if g.get("view") == line["view"]]
    claim = _number(published[0]["epsilon"]) if published and published[0] else None
    return Bounds(
        name=_name(audit, line),
        epsilon=_number(line["epsilon"]),
        fdp_epsilon=_number(line["fdp_epsilon"]),
        estimate=_number(line["estimate"]),
        proved=_number(line["proved"]),
        published=claim,
        refuted=bool(line["refuted"]),
    )


def _name(audit: Mapping[str, Any], line: Line) -> str:
    kind = KINDS.get(line["kind"], str(line["kind"])).replace("people", UNITS.get(str(audit.get("unit")), "units"))
    return f"{kind}, {SEEN.get(line['seen'], str(line['seen']))}"


def _verdict(audit: Mapping[str, Any], rows: Sequence[Bounds]) -> Html:
    tried = f"{words.counted(len(rows), 'view')} of one run with canaries, and " if rows else ""
    many = words.counted(sum(int(line["runs"]) for line in audit.get("mechanism") or ()), "run")
    how = paragraph(f"Tried: {tried}{many} of the method alone.")
    kind, said = VERDICTS[audit["verdict"]]
    beaten = paragraph("It did better than the published epsilon of the method allows.", class_="infinite")
    return banner(kind, said, how, *([beaten] if any(row.beats_published for row in rows) else []))


def _legend(rows: Sequence[Bounds]) -> list[tuple[str, Style]]:
    shown = [("At least", AUDIT["at least"]), ("At least, on a Gaussian curve", AUDIT["curve"])]
    shown += [("Estimate, no bound", AUDIT["estimate"]), ("Proved: at most", AUDIT["proved"])]
    published = any(row.published is not None for row in rows)
    return shown + ([("As published", AUDIT["published"])] if published else [])


def _canaries(audit: Mapping[str, Any], rows: Sequence[Bounds]) -> Html:
    lines = audit.get("canaries") or ()
    if not lines:
        return Html("")
    published = any(row.published is not None for row in rows)
    columns = [Column("Canaries and view"), Column("Right guesses", True), Column("At least", True)]
    columns += [
        Column("At least, on a Gaussian curve", True),
        Column("Estimate", True),
        Column("Proved: at most", True),
    ]
    columns += [Column("As published", True)] if published else []
    cells = [
        [
            row.name,
            f"{words.count(line['right'])} of {words.count(line['guesses'])}",
            _red(lower(row.epsilon), row.beats_something),
            _red(lower(row.fdp_epsilon), row.refuted),
            lower(row.estimate),
            words.epsilon(row.proved),
            *([_published(row)] if published else []),
        ]
        for row, line in zip(rows, lines, strict=True)
    ]
    first = lines[0]
    caption = (
        f"Epsilon at delta = {words.delta(first['delta'])}, from one run in which each of "
        f"{words.count(max(line['canaries'] for line in lines))} canaries was included with probability 1/2; "
        f"lower bounds at {100 * first['confidence']:g} % confidence"
    )
    return table(columns, cells, caption, stacked=True)


def _published(row: Bounds) -> object:
    return words.MISSING if row.published is None else _red(words.epsilon(row.published), row.beats_published)


def _mechanism(audit: Mapping[str, Any]) -> Html:
    lines = audit.get("mechanism") or ()
    if not lines:
        return Html("")
    columns = [Column("Seen by"), Column("Runs", True), Column("At least", True)]
    columns += [Column("At least, on a Gaussian curve", True), Column("Proved: at most", True)]
    columns += [Column("Hits at false alarms", True), Column("Allowed hits", True)]
    cells = [
        [
            words.view(line["view"]),
            words.count(line["runs"]),
            _red(lower(_number(line["epsilon"])), _number(line["epsilon"]) > _number(line["proved"])),
            lower(_number(line["gaussian_epsilon"])),
            words.epsilon(_number(line["proved"])),
            _red(f"{100 * line['hits']:.1f} % at {100 * line['false_alarms']:.1f} %", bool(line["refuted"])),
            f"{100 * line['most_hits']:.1f} %",
        ]
        for line in lines
    ]
    first = lines[0]
    caption = (
        f"One round of the method alone, on a small artificial federation at {first['noise']}, "
        f"with and without one {audit['unit']}; {100 * first['confidence']:g} % confidence"
    )
    return table(columns, cells, caption, stacked=True)


def lower(value: float) -> str:
    """A lower bound, rounded down: what is shown still holds."""
    return "∞" if math.isinf(value) else f"{math.floor(100 * value) / 100:.2f}"


def _red(text: str, wrong: bool) -> str | Html:
    return tag("strong", text, class_="infinite") if wrong else text


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else math.inf
