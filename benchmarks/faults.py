"""Faults on a federation of real processes, one after the other, and the table of them in ``docs/faults.md``.

    python -m benchmarks.faults [--only WORDS]

Runs ``test_fault_matrix.py`` and ``test_machines.py`` of ``tests/federation`` (some seventy attempts at runs;
``--only`` is pytest's ``-k``) and replaces the lines of those faults in the table. A test that fails leaves its lines
as they were, and this command ends with pytest's exit code.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "faults.md"
RESULTS = ROOT / "benchmarks" / "results" / "faults.json"
MATRIX = [f"tests/federation/{name}.py" for name in ("test_fault_matrix", "test_machines")]
BEGIN, END = "<!-- made by benchmarks.faults -->\n", "<!-- end -->\n"
HEAD = "| what happens | what follows | lines of the server | of the silos | s |\n|---|---|---|---|---|\n"


def tested(only: str) -> tuple[int, list[dict[str, Any]]]:
    """Pytest's exit code, and a row for every fault that was tested."""
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows.jsonl"
        command = [sys.executable, "-m", "pytest", "-m", "slow", *MATRIX, *(["-k", only] if only else [])]
        code = subprocess.run(command, cwd=ROOT, env={**os.environ, "TACIT_FAULTS": str(rows)}, check=False).returncode
        return code, [json.loads(line) for line in rows.read_text().splitlines()] if rows.is_file() else []


def line(row: dict[str, Any]) -> str:
    """A row as the page shows it; silos that have the same lines together."""
    rounds = {party: " ".join(map(str, numbers)) or "none" for party, numbers in row["rounds"].items()}
    server = rounds.pop("server")
    silos: dict[str, list[str]] = {}
    for silo, listed in rounds.items():
        silos.setdefault(listed, []).append(silo)
    shown = [listed if len(silos) == 1 else f"{', '.join(who)}: {listed}" for listed, who in silos.items()]
    return f"| {row['fault']} | {row['follows']} | {server} | {'; '.join(shown)} | {row['seconds']:.0f} |\n"


def write(rows: list[dict[str, Any]]) -> None:
    """Replace these rows of the table, and keep the others."""
    known = json.loads(RESULTS.read_text()) if RESULTS.is_file() else []
    merged = {row["fault"]: row for row in (*known, *rows)}
    ordered = [merged[fault] for fault in sorted(merged)]
    RESULTS.write_text(json.dumps(ordered, indent=1) + "\n")
    page = PAGE.read_text()
    before, after = page[: page.index(BEGIN) + len(BEGIN)], page[page.index(END) :]
    PAGE.write_text(before + HEAD + "".join(map(line, ordered)) + after)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="which of them: pytest's -k")
    code, rows = tested(parser.parse_args().only)
    write(rows)
    sys.exit(code)


if __name__ == "__main__":
    main()
