"""Pages: the report of a run folder, a comparison of runs, the privacy sheet, an audit, a sweep.

``report.html`` is made from what may be shared; ``local.html`` from ``local.json``, the exact numbers that stay with
the data holder. They are read and written separately, so no exact number can get into the page to share.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from tacit.planning.sweep import Sweep

__all__ = [
    "compare",
    "comparison_table",
    "sweep_page",
    "verdict",
    "write",
    "write_audit",
    "write_sheet",
]


def write(run: Path) -> Path:
    """Write ``report.html`` into the run folder, and ``local.html`` where exact numbers are present.

    Returns the path of ``report.html``.
    """
    from tacit.report import local_page, summary
    from tacit.report.run_files import read_object, read_run

    files = read_run(run := Path(run))
    if (exact := run / "local.json").exists():
        local_page.page(files, read_object(exact)).save(run / "local.html")
    return summary.page(files).save(run / "report.html")


def compare(runs: Sequence[Path], out: Path | None = None) -> Path:
    """Write one page that compares runs; by default ``comparison.html`` next to the first run."""
    from tacit.report import comparison

    page = comparison.page(comparison.read_runs(runs))
    return page.save(Path(out) if out else Path(runs[0]).resolve().parent / "comparison.html")


def comparison_table(runs: Sequence[Path]) -> pd.DataFrame:
    """One row per run: what it is, its final metrics, its guarantees (``epsilon [unit, view]``) and its cost."""
    from tacit.report import comparison

    return comparison.table(comparison.read_runs(runs))


def verdict(runs: Sequence[Path]) -> str:
    """Which run is best, in a sentence or two; or why none can be called the best."""
    from tacit.report import comparison

    return comparison.best_sentence(comparison.read_runs(runs))


def write_sheet(run: Path, out: Path | None = None) -> Path:
    """Write the privacy sheet of a run, one page to sign; by default ``sheet.html`` in the run folder."""
    from tacit.report import sheet
    from tacit.report.run_files import read_run

    return sheet.page(read_run(Path(run))).save(Path(out) if out else Path(run) / "sheet.html")


def write_audit(folder: Path) -> Path:
    """Write the page of an audit: ``audit.html`` next to its ``audit.json``."""
    from importlib.metadata import version

    from tacit.report import audit_page
    from tacit.report.run_files import AUDIT, read_object

    return audit_page.page(read_object(Path(folder) / AUDIT), version("tacit")).save(Path(folder) / "audit.html")


def sweep_page(sweep: Sweep, file: Path) -> Path:
    """Write a planner's sweep as a page with a plot and its table."""
    from tacit.report import sweeps

    return sweeps.page(sweep).save(Path(file))
