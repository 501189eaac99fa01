"""``local.html``: exact charts of private data, for the data holder only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tacit.report import figures, words
from tacit.report.page import MOST_LISTED, Html, Page, banner, cards, grid, paragraph, section, table
from tacit.report.run_files import RunFiles

MOST_BARS = 24
MOST_PAIRS = 30
MOST_CLASSES = 5  # more columns do not fit on paper; the picture shows their shares
STAYS = (
    "This page shows exact numbers of private data. No guarantee covers it. Do not send, attach or publish it; "
    "report.html is the page to share."
)


def page(run: RunFiles, exact: dict[str, Any]) -> Page:
    banners = [banner("danger", "Stays with the data holder", paragraph(STAYS))]
    parts = [totals(exact), silos(run, exact), people(exact), overlap(exact), deciles(run, exact)]
    return words.page_of(run, "Local data pictures · not for sharing", parts, banners)


def totals(exact: dict[str, Any]) -> Html:
    known = {
        "Training records": exact.get("records"),
        "Test records": exact.get("test_records"),
        "People": exact.get("subjects"),
        "Silos": len(exact.get("silos") or []) or None,
    }
    shown = [(name, words.count(number), "") for name, number in known.items() if number is not None]
    lost = exact.get("not_finite") or {}
    if lost.get("times"):
        note = f"times that {lost['what']} was not finite, over all rounds"
        shown.append(("Counted as zero", words.count(lost["times"]), note))
    return section("The data", cards(shown), name="data")


# ---- silos


def silos(run: RunFiles, exact: dict[str, Any]) -> Html:
    every = exact.get("silos") or []
    held = (
        sorted(every, key=lambda silo: -(silo.get("records") or 0))[:MOST_LISTED] if len(every) > MOST_LISTED else every
    )
    cut = f"Of {words.counted(len(every), 'silo')}, the {MOST_LISTED} with most records are shown."
    names = [str(silo.get("name")) for silo in held]
    return section(
        "Records by silo",
        _sizes(every),
        _class_shares(names, held, exact.get("classes") or []),
        _silo_table(run, names, held, exact.get("classes") or []) if held else "",
        paragraph(cut if len(held) < len(every) else "", class_="quiet"),
        name="silos",
    )


def _sizes(held: Sequence[dict[str, Any]]) -> Html:
    """Training records of each silo, or, for many silos, a histogram of them."""
    records = [int(silo.get("records") or 0) for silo in held]
    if not any(records):
        return Html("")
    if len(held) > figures.MANY_SILOS:
        return figures.histogram(records, "Training records over silos", "training records")
    names = [str(silo.get("name")) for silo in held]
    return figures.bars(names, records, "Training records", "records", sideways=True)


def _class_names(known: Sequence[str], count: int) -> list[str]:
    """Their declared names, or numbers with the word class."""
    shown = [str(name) for name in known] if len(known) == count else [str(index) for index in range(count)]
    return [f"Class {name}" if name.lstrip("-").isdigit() else name for name in shown]


def _class_counts(held: Sequence[dict[str, Any]]) -> list[list[int]]:
    """Records per class of each silo, all of one length; empty if labels have no classes."""
    counts = [label if isinstance(label := silo.get("label"), list) else [] for silo in held]
    width = max(map(len, counts), default=0)
    return [[*row, *([0] * (width - len(row)))] for row in counts] if width else []


def _silo_table(run: RunFiles, names: Sequence[str], held: Sequence[dict[str, Any]], known: Sequence[str]) -> Html:
    """Counts of each silo, its final metric, and its labels: their mean, or the number of each class."""
    keys = {"records": "Training records", "subjects": "People", "test_records": "Test records"}
    present = {key: title for key, title in keys.items() if any(silo.get(key) is not None for silo in held)}
    rows: list[dict[str, object]] = [
        {"Silo": name, **{title: words.count(silo.get(key)) for key, title in present.items()}}
        for name, silo in zip(names, held, strict=True)
    ]
    scores = {name: value for name in names if (value := run.silos.get(name, {}).get(run.headline)) is not None}
    for row, name in zip(rows, names, strict=True) if scores else ():
        row[words.metric(run.headline)] = words.number(scores.get(name))
    classes = _class_counts(held)
    for row, silo, counts in zip(rows, held, classes or [[]] * len(held), strict=True):
        if 0 < len(counts) <= MOST_CLASSES:
            row |= zip(_class_names(known, len(counts)), map(words.count, counts), strict=True)
        elif not counts and any(other.get("label") is not None for other in held):
            row["Mean label"] = words.number(silo.get("label"))
    return table(rows, "Records, people and labels of each silo")


def _class_shares(names: Sequence[str], held: Sequence[dict[str, Any]], known: Sequence[str]) -> Html:
    counts = _class_counts(held)
    if not counts:
        return Html("")
    return figures.heatmap(
        names,
        _class_names(known, len(counts[0])),
        [[value / sum(row) if sum(row) else None for value in row] for row in counts],
        "Share of each class in a silo's records",
        "of the records",
        share=True,
    )


# ---- people


def people(exact: dict[str, Any]) -> Html:
    drawn = [_histogram(exact.get(f"{key}_per_subject") or {}, key) for key in ("records", "silos")]
    return section("Records and silos of a person", grid([found for found in drawn if found]), name="people")


def _histogram(counts: dict[str, list[int]], key: str) -> Html:
    sizes, subjects = counts.get(key) or [], counts.get("subjects") or []
    if not sizes or not subjects:
        return Html("")
    labels, values = binned(sizes, subjects)
    note = f"Number of people by their number of {key}."
    return figures.bars(labels, values, f"{key.capitalize()} per person", "people", note=note)


def binned(sizes: Sequence[int], subjects: Sequence[int]) -> tuple[list[str], list[int]]:
    """One bar per size; if sizes are large, one bar per doubling: 1, 2, 3-4, 5-8, ..."""
    held = dict(zip(sizes, subjects, strict=True))
    largest = max(held, default=0)
    if largest <= MOST_BARS:
        span = range(min(held, default=1), largest + 1)
        return [words.count(size) for size in span], [held.get(size, 0) for size in span]
    labels: list[str] = []
    values: list[int] = []
    low, high = 0, 0
    while low <= largest:
        labels.append(words.count(high) if low == high else f"{words.count(low)}–{words.count(high)}")
        values.append(sum(number for size, number in held.items() if low <= size <= high))
        low, high = high + 1, max(1, 2 * high)
    return (labels[1:], values[1:]) if not values[0] else (labels, values)


def overlap(exact: dict[str, Any]) -> Html:
    shared = exact.get("overlap") or []
    names = [str(silo.get("name")) for silo in exact.get("silos") or []]
    if not shared or len(names) != len(shared):
        return Html("")
    note = "On the diagonal: all people of a silo."
    caption = "People whom two silos share"
    many = len(names) > figures.MANY_SILOS
    shades = Html("") if many else figures.heatmap(names, names, shared, caption, "people", note=note)
    return section("People in several silos", shades or _pairs(names, shared, caption), name="overlap")


def _pairs(names: Sequence[str], shared: Sequence[Sequence[int]], caption: str) -> Html:
    """The pairs of silos that share most people, where a picture of all pairs would be unreadable."""
    pairs = [(shared[i][j], i, j) for i in range(len(names)) for j in range(i)]
    rows = [
        {"Silo": names[j], "Other silo": names[i], "People": words.count(people)}
        for people, i, j in sorted(pairs, key=lambda pair: -pair[0])[:MOST_PAIRS]
        if people
    ]
    listed = f"{caption}: the {len(rows)} largest of {words.counted(len(pairs), 'pair')}"
    return table(rows, listed, words=("Other silo",))


def deciles(run: RunFiles, exact: dict[str, Any]) -> Html:
    groups = exact.get("deciles") or []
    if not groups:
        return Html("")
    found = [group.get("metrics") or {} for group in groups]
    names = [name for name in run.metric_names if any(metrics.get(name) is not None for metrics in found)]
    rows = [
        {
            "Decile": str(group.get("decile")),
            "People": words.count(group.get("subjects")),
            "Test records": words.count(group.get("records")),
            **{words.metric(name): words.number(metrics.get(name)) for name in names},
        }
        for group, metrics in zip(groups, found, strict=True)
    ]
    numbers = [int(group.get("decile") or 0) for group in groups]
    return section(
        "People with few and with many records",
        figures.decile_lines(run.headline, numbers, [metrics.get(run.headline) for metrics in found]),
        table(rows, "Test metrics by decile of the number of records a person holds"),
        name="deciles",
    )
