"""A federation and the simulator, one plan, one seed: how far apart their models are after three rounds.

    python -m benchmarks.federation_agreement [--out FOLDER] [--processes]

Every method that a server leads, in every exchange that it goes with, on the made table of the tests: three silos, a
logistic model. All parties are in one process, each with its own keys, and messages are carried as bytes.

With ``--processes`` a server, an analyzer and three silos on this machine, each with its own process and kit, do the
same on the built-in table (``tests/federation/test_exchanges.py``), and the matrix in ``docs/federation.md`` is
made anew. Cells whose test fails are missing from it, and the command ends with pytest's exit code.

apart     the largest difference of any number of the model, and of what silos keep of their own
largest   the largest number of the model, which started at zero
phases    messages to silos or to the analyzer, one after the other, in a round
sent      bytes that one silo sends in a round, at most
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import numpy as np

from tacit.families.shuffle.protocol import ANALYZER
from tacit.families.weighting.paillier import WeakKeyWarning
from tacit.methods import METHODS
from tacit.planning.claims import exchanges_for
from tests import made
from tests.engine.federated import EXCHANGES, Parties, flat, parties, planned, simulated

CELLS = [
    (name, exchange)
    for name, kind in METHODS.items()
    if not kind.info.pools
    for exchange in EXCHANGES
    if exchange in exchanges_for(kind.info)
]


def row(method: str, exchange: str) -> dict[str, Any]:
    plan, table = planned(made.experiment(), method, exchange), made.visits()
    frame = table[table.person < 20] if exchange == "weighted" else table
    federation = parties(plan, frame)
    phases: set[int] = set()
    sent: Counter[str] = Counter()

    def counted(party: str, step: int, answer: bytes) -> bytes:
        if federation.coordinator.done == 1:  # in the second round
            phases.add(step)
            sent[party] += len(answer)
        return answer

    outcome = federation.run(counted)
    simulation = simulated(plan, frame)
    mine, theirs = np.zeros(0), np.zeros(0)
    if plan.method.info.personal:
        mine, theirs = _own_models(federation), flat(simulation.states)
    shared = simulation.shared_model() if plan.method.info.personal else simulation.model()
    if shared is not None:
        mine, theirs = np.append(mine, flat(outcome.model)), np.append(theirs, flat(shared))
    return {
        "method": method,
        "exchange": exchange,
        "apart": float(np.abs(mine - theirs).max()),
        "largest": float(np.abs(theirs).max()),
        "phases": len(phases),
        "sent": max(size for party, size in sent.items() if party != ANALYZER),
    }


def _own_models(federation: Parties) -> np.ndarray:
    own = [federation.silos[name].silos.states for name in federation.names]
    return flat(jax.tree.map(lambda *leaves: np.concatenate(leaves), *own))


ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "federation.md"
BEGIN, END = "<!-- made by benchmarks.federation_agreement --processes -->\n", "<!-- end -->\n"


def on_processes() -> tuple[int, dict[tuple[str, str], float]]:
    """Pytest's exit code, and how far apart the models of every cell were."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "cells.jsonl"
        command = [sys.executable, "-m", "pytest", "-m", "slow", "tests/federation/test_exchanges.py"]
        code = subprocess.run(command, cwd=ROOT, env={**os.environ, "TACIT_CELLS": str(file)}, check=False).returncode
        rows = [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []
    return code, {(row["method"], row["exchange"]): row["furthest"] for row in rows}


def write_matrix(found: dict[tuple[str, str], float]) -> None:
    """The table of the page: a row for every method, a column for every exchange."""

    def cell(method: str, exchange: str) -> str:
        apart = found.get((method, exchange))
        return "–" if apart is None else f"{apart:.0e}" if apart else "0"

    lines = ["| method | " + " | ".join(EXCHANGES) + " |", "|---" * (1 + len(EXCHANGES)) + "|"]
    for method in dict.fromkeys(name for name, _ in CELLS if any(name == known for known, _ in found)):
        lines.append("| " + " | ".join([f"`{method}`", *(cell(method, exchange) for exchange in EXCHANGES)]) + " |")
    page = PAGE.read_text()
    before, after = page[: page.index(BEGIN) + len(BEGIN)], page[page.index(END) :]
    PAGE.write_text(before + "\n".join(lines) + "\n" + after)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--processes", action="store_true", help="on processes, and into docs/federation.md")
    chosen = parser.parse_args()
    if chosen.processes:
        code, found = on_processes()
        write_matrix(found)
        sys.exit(code)
    warnings.simplefilter("ignore", WeakKeyWarning)
    rows = []
    for method, exchange in CELLS:
        rows.append(row(method, exchange))
        print(json.dumps(rows[-1]), flush=True)
    lines = ["# A federation and the simulator", "", "| " + " | ".join(rows[0]) + " |", "|---" * len(rows[0]) + "|"]
    for found in rows:
        lines.append("| " + " | ".join(f"{v:.1e}" if isinstance(v, float) else str(v) for v in found.values()) + " |")
    chosen.out.mkdir(parents=True, exist_ok=True)
    (chosen.out / "federation_agreement.md").write_text("\n".join(lines) + "\n")
    (chosen.out / "federation_agreement.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
