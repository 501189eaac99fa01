"""The page of all cells: ``python -m tests.neighbours.page [method …]`` runs the harness, writes docs/neighbours.md."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.neighbours import reports
from tests.neighbours.cells import Cell, cells, planned, verdicts
from tests.neighbours.checks import Place, Verdict, told

PAGE = Path(__file__).parents[2] / "docs" / "neighbours.md"

ABOUT = """# Neighbouring tables

Read this page to see which guarantees are checked on the whole path from the table to the release.

For every cell below, a test runs two tables that differ in one unit with the same coins and the same noise: loading,
hold-out, caps, numbering, local work, exchange and, in a federation, missing silos. It compares by how much the release
of each view changes with what the accountant is told. A number is the largest change found over the largest change
accounted for, in units of the noise measured in the release; it must not exceed 1 by more than the error of measuring
the noise (2 to 12 %). Where people report for themselves, it is the number of reports that change, of which 1 is
accounted for.

- `not printed`: no finite guarantee exists for this cell.

## Limits

- Adaptive clips, paid statistics and metrics, and surveys are not in these worlds; they have tests of their own.
- The view `server` of the pairwise exchange is checked on the sum, not on the single messages.
- Sampling of single records is checked for a subject whose companions contribute nothing: their coins are drawn by
  position, so they differ between two tables.
- The loader refuses a table that leaves a silo without a training record, or no record to test on. That refusal depends
  on the data and is not part of any guarantee.

## Cells

`tests/neighbours` holds the worlds and the test. A method or exchange that it does not know makes the test fail.

| method | exchange | engine | unit | relation | view | result |
|---|---|---|---|---|---|---|
"""


class Row(NamedTuple):
    """A line of the page, without its result."""

    method: str
    exchange: str
    engine: str
    unit: str
    relation: str
    view: str


def rows() -> Iterator[Row]:
    """All lines of the page, from the registries."""
    seen = {}
    for cell in cells():
        plan = reports.planned(cell.method) if cell.world == "reports" else planned(cell)
        for place in told(plan):
            seen[Row(*cell[:3], *place)] = None
    yield from seen


def merged(found: Mapping[Cell, Mapping[Place, Verdict]]) -> dict[Row, str]:
    """The worst that was found in any world, as text."""
    worst: dict[Row, Verdict] = {}
    broken: dict[Row, str] = {}
    for cell, results in found.items():
        for place, verdict in results.items():
            row = Row(*cell[:3], *place)
            worst[row] = worst.get(row, Verdict(None)).worse(verdict)
            if not verdict.holds:
                broken[row] = "fails"
    return {row: broken.get(row) or _text(worst.get(row, Verdict(None))) for row in rows()}


def _text(verdict: Verdict) -> str:
    return "not printed" if verdict.ratio is None else f"{verdict.ratio:.2f}"


def written(results: Mapping[Row, str]) -> str:
    return ABOUT + "".join(f"| {' | '.join((*row, text))} |\n" for row, text in results.items())


def read(text: str) -> dict[Row, str]:
    lines = text.partition("|---|")[2].splitlines()[1:]
    parts = ([part.strip() for part in line.strip("|").split("|")] for line in lines if line.startswith("|"))
    return {Row(*line[:-1]): line[-1] for line in parts}


def main(methods: Sequence[str]) -> None:
    """All methods, or some: the others keep what the page says of them."""
    found = {}
    for cell in (cell for cell in cells() if not methods or cell.method in methods):
        found[cell] = verdicts(cell)
        finite = [verdict for verdict in found[cell].values() if verdict.ratio is not None]
        largest = max((verdict.ratio or 0.0 for verdict in finite), default=0.0)
        print(f"{cell}: {largest:.3f}{'' if all(v.holds for v in finite) else ' BROKEN'}", flush=True)
    before = read(PAGE.read_text()) if methods else {}
    results = {row: before.get(row, text) if row.method not in methods else text for row, text in merged(found).items()}
    PAGE.write_text(written(results))


if __name__ == "__main__":
    main(sys.argv[1:])
