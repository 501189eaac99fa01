"""The page of all cells, docs/neighbours.md, from the results of the tests:

TACIT_NEIGHBOURS=results.jsonl pytest tests/neighbours/test_neighbours.py
python -m tests.neighbours.page results.jsonl
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.neighbours import reports
from tests.neighbours.cells import WORLDS, Cell, cells, planned
from tests.neighbours.checks import Place, Verdict, told
from tests.neighbours.shifts import unprotected

PAGE = Path(__file__).parents[2] / "docs" / "neighbours.md"

ABOUT = """# Neighbouring tables

Read this page to see which guarantees are checked on the whole path from the table to the release.

For every cell below, a test runs two tables that differ in one unit with the same coins and the same noise: loading,
hold-out, caps, numbering, local work, exchange and, in a federation, missing silos. It compares by how much the release
of each view changes with what the accountant is told. A number is the largest change found over the largest change
accounted for, in units of the noise measured in the release; it must not exceed 1 by more than the error of measuring
the noise (2 to 12 %). Where people report for themselves, it is the number of reports that change, of which 1 is
accounted for.

- `not printed`: no finite guarantee is printed for this cell.

## Limits

- Paid statistics and metrics are in `tests/neighbours/test_paid.py`. Surveys have a test of the query alone
  (`tests/families/test_survey_questions.py`), none that begins with the table.
- Adaptive clips and coalitions of two silos (`silos:2`; `-` elsewhere) are checked in the simulator and the plain
  exchange, for some methods.
- The view `server` of the pairwise exchange is checked on the sum, not on the single messages.
- Sampling of single records is checked for a subject whose companions contribute nothing: their coins are drawn by
  position, so they differ between two tables.
- The loader refuses a table that leaves a silo without a training record, or no record to test on. That refusal depends
  on the data and is not part of any guarantee.

## Cells

`tests/neighbours` holds the worlds and the tests. A test fails if a method or exchange of the registries is missing
here. To write this page from the results of the tests:

```sh
TACIT_NEIGHBOURS=results.jsonl pytest tests/neighbours/test_neighbours.py
python -m tests.neighbours.page results.jsonl
```

Each cell shows the results of the relations zero-out and replace, `zero-out / replace`, or one text if they are equal.
"""


class Row(NamedTuple):
    """A unit, relation and view of a method in an exchange and an engine."""

    method: str
    exchange: str
    engine: str
    unit: str
    relation: str
    view: str


class Line(NamedTuple):
    """What is printed in one line of the table of a method."""

    exchange: str
    engine: str
    unit: str


RELATIONS = ("zero-out", "replace")
NOT_PRINTED, NOT_CHECKED, NO_VIEW = "not printed", "not checked", "-"


def rows() -> dict[Row, str | None]:
    """All rows, from the registries; with the text of those that have no number: no guarantee is printed, or no world
    looks at it."""
    found: dict[Row, str | None] = {}
    for cell in cells():
        plan = reports.planned(cell.method) if cell.world == "reports" else planned(cell)
        world = WORLDS.get(cell.world)
        for place, event in told(plan).items():
            row = Row(*cell[:3], *place)
            found.setdefault(row, NOT_PRINTED)
            if not unprotected(event) and found[row] is not None:
                found[row] = None if world is None or world.looks_at(place) else NOT_CHECKED
    return found


def merged(found: Mapping[Cell, Mapping[Place, Verdict]]) -> dict[Row, str]:
    """The worst that was found in any world, as text."""
    worst: dict[Row, Verdict] = {}
    broken: set[Row] = set()
    for cell, results in found.items():
        for place, verdict in results.items():
            row = Row(*cell[:3], *place)
            worst[row] = worst.get(row, Verdict(None)).worse(verdict)
            if not verdict.holds:
                broken.add(row)

    def text(row: Row) -> str:
        ratio = worst[row].ratio if row in worst else None
        return "fails" if row in broken else NOT_CHECKED if ratio is None else f"{ratio:.2f}"

    return {row: without or text(row) for row, without in rows().items()}


def written(results: Mapping[Row, str]) -> str:
    """The page: a table for each method."""
    return ABOUT + "".join(_table(method, results) for method in dict.fromkeys(row.method for row in results))


def _table(method: str, results: Mapping[Row, str]) -> str:
    mine = {row[1:]: text for row, text in results.items() if row.method == method}
    views = list(dict.fromkeys(row[-1] for row in mine))
    head = ["exchange", "engine", "unit", *views]
    lines = ["", f"### {method}", "", _line(head), "|" + "---|" * len(head)]
    for line in dict.fromkeys(Line(*row[:3]) for row in mine):
        parts = [[mine.get((*line, relation, view), NO_VIEW) for relation in RELATIONS] for view in views]
        lines.append(_line([*line, *(pair[0] if len(set(pair)) == 1 else " / ".join(pair) for pair in parts)]))
    return "\n".join(lines) + "\n"


def _line(parts: Iterable[str]) -> str:
    return f"| {' | '.join(parts)} |"


def read(text: str) -> dict[Row, str]:
    """The rows of a page."""
    found: dict[Row, str] = {}
    for table in text.split("\n### ")[1:]:
        method, *lines = table.splitlines()
        head, _, *rest = ([part.strip() for part in line.strip("|").split("|")] for line in lines if line)
        for line in rest:
            for view, result in zip(head[3:], line[3:], strict=True):
                if result == NO_VIEW:
                    continue
                texts = result.split(" / ") if " / " in result else [result] * len(RELATIONS)
                found |= {
                    Row(method, *line[:3], relation, view): one for relation, one in zip(RELATIONS, texts, strict=True)
                }
    return found


def record(file: Path, cell: Cell, found: Mapping[Place, Verdict]) -> None:
    """Add the results of one cell to a file."""
    results = [[*place, verdict.ratio, verdict.tolerance] for place, verdict in found.items()]
    with file.open("a") as lines:
        lines.write(json.dumps({"cell": list(cell), "results": results}) + "\n")


def main(file: Path) -> None:
    found: dict[Cell, dict[Place, Verdict]] = {}
    for line in map(json.loads, file.read_text().splitlines()):
        found[Cell(*line["cell"])] = {Place(*one[:3]): Verdict(*one[3:]) for one in line["results"]}
    missing = [cell for cell in cells() if cell not in found]
    if missing:
        raise SystemExit(f"no results of {len(missing)} cells: {', '.join(map(str, missing))}")
    PAGE.write_text(written(merged(found)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
