"""``local.html``: exact charts of private data, for the data holder only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tacit.report import figures, words
from tacit.report.markup import Column, Html, paragraph, section, table
from tacit.report.page import ChartWriter, Sections, banner, cards, footer, grid
from tacit.report.run_files import RunFiles

TALL = 30
MOST_BARS = 24
MOST_CLASSES = 5  # more columns do not fit on paper; the picture shows their shares


def sections(run: RunFiles, exact: dict[str, Any]) -> Sections:
    chart = ChartWriter()
    warning = banner(
        "danger",
        "Stays with the data holder",
        paragraph(
            "This page shows exact numbers of private data. No guarantee covers it. Do not send, attach or publish it; "
            "report.html is the page to share."
        ),
    )
    return Sections(
        title=run.title,
        kicker="Local data pictures · not for sharing",
        lead=words.in_one_line(run),
        banners=[warning],
        parts=[
            totals(exact),
            silos(exact, chart),
            people(exact, chart),
            overlap(exact, chart),
            deciles(run, exact, chart),
        ],
        footer=footer(run.environment.get("tacit")),
    )


def totals(exact: dict[str, Any]) -> Html:
    held = exact.get("silos") or []
    known = [
        ("Training records", exact.get("records"), ""),
        ("Test records", exact.get("test_records"), ""),
        ("People", exact.get("subjects"), ""),
        ("Silos", len(held) or None, ""),
        *_not_finite(exact.get("not_finite") or {}),
    ]
    return section(
        "The data", cards((name, words.count(n), note) for name, n, note in known if n is not None), name="data"
    )


def _not_finite(lost: dict[str, Any]) -> list[tuple[str, int, str]]:
    """How often training counted a value that is not finite as zero; nothing if it never did."""
    if not lost.get("times"):
        return []
    return [("Counted as zero", lost["times"], f"times that {lost['what']} was not finite, over all rounds")]


# ---- silos


def silos(exact: dict[str, Any], chart: ChartWriter) -> Html:
    held = exact.get("silos") or []
    if not held:
        return Html("")
    names = [str(silo.get("name")) for silo in held]
    classes = any(isinstance(silo.get("label"), list) for silo in held)
    records = [silo.get("records") for silo in held]
    return section(
        "Records by silo",
        chart(figures.bars(names, records, "Training records", "records", sideways=True)) if any(records) else "",
        chart(_class_shares(names, held, exact.get("classes") or [])) if classes else "",
        _silo_table(names, held, exact.get("classes") or []),
        name="silos",
    )


def _class_names(known: Sequence[str], count: int) -> list[str]:
    """Their declared names, or numbers with the word class."""
    shown = [str(name) for name in known] if len(known) == count else [str(index) for index in range(count)]
    return [f"Class {name}" if name.lstrip("-").isdigit() else name for name in shown]


def _silo_table(names: Sequence[str], held: Sequence[dict[str, Any]], known: Sequence[str]) -> Html:
    """Counts of each silo, and its labels: their mean, or the number of each class."""
    keys = {"records": "Training records", "subjects": "People", "test_records": "Test records"}
    present = {key: title for key, title in keys.items() if any(silo.get(key) is not None for silo in held)}
    labels = [silo.get("label") for silo in held]
    classes = max((len(label) for label in labels if isinstance(label, list)), default=0)
    mean = not classes and any(label is not None for label in labels)
    classes = classes if classes <= MOST_CLASSES else 0
    columns = [Column("Silo"), *(Column(title, True) for title in present.values())]
    columns += [Column(name, True) for name in (["Mean label"] if mean else _class_names(known, classes))]
    rows = [
        [name, *(words.count(silo.get(key)) for key in present), *_label_cells(label, classes, mean)]
        for name, silo, label in zip(names, held, labels, strict=True)
    ]
    return table(columns, rows, "Records, people and labels of each silo", tall=len(rows) > TALL)


def _label_cells(label: Any, classes: int, mean: bool) -> list[str]:
    if mean:
        return [words.number(label)]
    counts = label[:classes] if isinstance(label, list) else []
    return [words.count(value) for value in [*counts, *([None] * (classes - len(counts)))]]


def _class_shares(names: Sequence[str], held: Sequence[dict[str, Any]], known: Sequence[str]) -> figures.Chart:
    counts: list[list[int]] = [label if isinstance(label := silo.get("label"), list) else [] for silo in held]
    width = max(len(row) for row in counts)
    padded = [[*row, *([0] * (width - len(row)))] for row in counts]
    shares = [[value / sum(row) if sum(row) else None for value in row] for row in padded]
    return figures.heatmap(
        names,
        _class_names(known, width),
        shares,
        "Share of each class in a silo's records",
        "%{customdata[0]}<br>%{customdata[1]}: %{z:.1%}",
        share=True,
    )


# ---- people


def people(exact: dict[str, Any], chart: ChartWriter) -> Html:
    per_person = exact.get("records_per_subject") or {}
    spread = exact.get("silos_per_subject") or {}
    drawn = [
        _histogram(per_person, "records", "Records per person"),
        _histogram(spread, "silos", "Silos per person"),
    ]
    return section(
        "Records and silos of a person",
        grid([found for found in drawn if found], chart) if any(drawn) else "",
        name="people",
    )


def _histogram(counts: dict[str, list[int]], key: str, caption: str) -> figures.Chart | None:
    sizes, subjects = counts.get(key) or [], counts.get("subjects") or []
    if not sizes or not subjects:
        return None
    labels, values = binned(sizes, subjects)
    note = f"Number of people by their number of {key}."
    return figures.bars(labels, values, caption, "people", note=note)


def binned(sizes: Sequence[int], subjects: Sequence[int]) -> tuple[list[str], list[float | None]]:
    """One bar per size; if sizes are large, one bar per doubling: 1, 2, 3-4, 5-8, ..."""
    held = dict(zip(sizes, subjects, strict=True))
    largest = max(held)
    if largest <= MOST_BARS:
        span = range(min(held), largest + 1)
        return [words.count(size) for size in span], [held.get(size, 0) for size in span]
    labels: list[str] = []
    values: list[float | None] = []
    low, high = 0, 0
    while low <= largest:
        labels.append(words.count(high) if low == high else f"{words.count(low)}–{words.count(high)}")
        values.append(sum(number for size, number in held.items() if low <= size <= high))
        low, high = high + 1, max(1, 2 * high)
    return (labels[1:], values[1:]) if not values[0] else (labels, values)


def overlap(exact: dict[str, Any], chart: ChartWriter) -> Html:
    shared = exact.get("overlap") or []
    names = [str(silo.get("name")) for silo in exact.get("silos") or []]
    if not shared or len(names) != len(shared):
        return Html("")
    return section(
        "People in several silos",
        chart(
            figures.heatmap(
                names,
                names,
                shared,
                "People whom two silos share",
                "%{customdata[0]} and<br>%{customdata[1]}: %{z:,} people",
                note="On the diagonal: all people of a silo.",
            )
        ),
        name="overlap",
    )


# ---- people with few and with many records


def deciles(run: RunFiles, exact: dict[str, Any], chart: ChartWriter) -> Html:
    groups = exact.get("deciles") or []
    if not groups:
        return Html("")
    names = [m for m in run.metric_names if any((g.get("metrics") or {}).get(m) is not None for g in groups)]
    columns = [Column("Decile"), Column("People", True), Column("Test records", True)]
    columns += [Column(words.metric(name), True) for name in names]
    rows = [
        [
            str(group.get("decile")),
            words.count(group.get("subjects")),
            words.count(group.get("records")),
            *(words.number((group.get("metrics") or {}).get(name)) for name in names),
        ]
        for group in groups
    ]
    numbers = [int(group.get("decile") or 0) for group in groups]
    headline = [(group.get("metrics") or {}).get(run.headline) for group in groups]
    return section(
        "People with few and with many records",
        chart(figures.decile_lines(run.headline, numbers, headline)),
        table(columns, rows, "Test metrics by decile of the number of records a person holds"),
        name="deciles",
    )
