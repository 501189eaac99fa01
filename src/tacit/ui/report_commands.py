"""``tacit report`` and ``tacit compare``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tacit.ui.arguments import Json, RunFolder
from tacit.ui.console import cell, json_value, show, show_json, show_line, table_of


def report(
    run: RunFolder,
    sheet: Annotated[bool, typer.Option("--sheet", help="Write the privacy sheet instead: one page to sign.")] = False,
    as_json: Json = False,
) -> None:
    """Regenerate the report of a run and print its path."""
    from tacit import report as pages

    kind, page = ("sheet", pages.write_sheet(run)) if sheet else ("report", pages.write(run))
    show_json({kind: str(page)}) if as_json else show_line(f"{kind:6}  {page}")


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN RUN…", help="Run folders.")],
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="The page to write.")] = None,
    as_json: Json = False,
) -> None:
    """Compare runs: print a table and write a page with curves."""
    from tacit import report as pages

    table = pages.comparison_table(runs)
    page = pages.compare(runs, out)
    if as_json:
        records = table.reset_index().to_dict("records")
        rows = [{name: json_value(value) for name, value in record.items()} for record in records]
        show_json({"runs": rows, "verdict": pages.verdict(runs), "report": str(page)})
        return
    shown = table_of("", *map(str, table.index))  # a run is a column: two or three fit any terminal
    for name in table.columns:
        shown.add_row(str(name), *map(cell, table[name]))
    show(shown)
    show(pages.verdict(runs), highlight=False)
    show_line(f"report  {page}")
