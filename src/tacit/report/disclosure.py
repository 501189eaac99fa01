"""Which files of a run folder may leave, and the folder ``share/`` with copies of them.

A file may leave if everything in it is public, or covered by the guarantee against the public. ``share/`` is made again
as a whole whenever the report or the sheet is written, and removed when a run is resumed, so that its files always
belong together. It holds copies: links would break, or lead back into the run folder, when the folder is sent.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tacit.engine import folder as files
from tacit.privacy import account
from tacit.privacy.ledger import place as place_of
from tacit.report import words
from tacit.report.model_card import CARD
from tacit.report.run_files import RunFiles

SHEET, STATEMENT, SIGNATURE = "sheet.html", "sheet.json", "sheet.sig"
REPORT, LOCAL_PAGE, AUDIT_PAGE = "report.html", "local.html", "audit.html"


NO_LEDGER = "There is no ledger that confirms the guarantee."


class Disclosure(NamedTuple):
    """Whether a file may leave, and why."""

    file: str
    may_leave: bool
    why: str


STAYS = {
    files.RESULT: "Names folders of this machine and holds all metrics; the sheet states what may be shared.",
    files.METRICS: "Times and metrics by round, which may depend on private records.",
    files.LOCAL: "Exact numbers about private records.",
    LOCAL_PAGE: "Exact numbers about private records.",
    files.DATA_KEY: "The key of the data fingerprint: with it, guesses of the data could be tested.",
    files.CHECKPOINT: "State of server and silos without noise.",
    files.PERSONAL: "The silos' own models, trained without noise: each stays with its silo.",
    files.CLOCK: "Times, which may depend on private records.",
    files.BASELINES: "Reference models and their metrics, without a guarantee.",
    "audit.json": "Results of attacks, computed from private records.",
    AUDIT_PAGE: "Results of attacks, computed from private records.",
}


def disclosures(place: Path, run: RunFiles, made: Sequence[str]) -> list[Disclosure]:
    """One for every file of the run folder, and for those that are being ``made``; those that may leave first."""
    present = {path.name for path in place.iterdir() if not path.name.startswith(".")} - {files.SHARE}
    names = sorted(present | set(made))
    return sorted((_judged(name, run) for name in names), key=lambda found: not found.may_leave)


def write_share(place: Path, run: RunFiles) -> None:
    """Make ``share/`` again, with copies of all files that may leave."""
    shared = leaving(place, run)
    draft, target = place / f".{files.SHARE}.draft", place / files.SHARE
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    for name in shared:
        content = shared_content(place, name)
        shutil.copyfile(place / name, draft / name) if content is None else (draft / name).write_bytes(content)
    shutil.rmtree(target, ignore_errors=True)
    draft.rename(target)


def leaving(place: Path, run: RunFiles) -> list[str]:
    """The files that may leave."""
    return [found.file for found in disclosures(place, run, ()) if found.may_leave and (place / found.file).is_file()]


def shared_content(place: Path, name: str) -> bytes | None:
    """What ``share/`` holds in place of a file; None: the file itself."""
    if name != files.PLAN:
        return None
    return words.without_folders((place / name).read_text(encoding="utf-8")).encode()


def ledger_problem(run: RunFiles) -> str | None:
    """Why the run's ledger does not confirm its guarantees; None if it does, or if the run has none."""
    if not run.private:
        return None
    if run.released.problem:
        return f"{words.sentence(run.released.problem)} Its guarantees rest on the result file alone."
    for line in run.guarantees:
        # the page shows corrected values instead of those that an earlier accounting recorded
        if run.correction or not run.released.releases or not line.finite or line.delta is None:
            continue
        # a place without a line in the ledger is unprotected
        event = run.released.spent.get(place_of(line.unit, line.view, line.relation))
        found = math.inf if event is None else account(event, line.delta).epsilon
        if found > line.epsilon * 1.001:
            return (
                f"The releases in it add up to epsilon {words.epsilon(found)} against {words.view(line.view)}, more "
                f"than the {words.epsilon(line.epsilon)} of the result file."
            )
    return None


def _judged(name: str, run: RunFiles) -> Disclosure:
    reason = _obstacle(name, run)
    return Disclosure(name, not reason, reason or _REASONS[name])


_REASONS = {
    files.PLAN: "Public settings. share/ holds it without the folders of its paths.",
    files.LEDGER: "What was released, in terms of the accountant; no record.",
    files.MODEL: "Covered by the guarantee against the public.",
    files.ENCODER: "Names of columns and public constants, or constants that the guarantee covers.",
    REPORT: "Its metrics are public or covered by the guarantee.",
    CARD: "Its metrics are public or covered by the guarantee.",
    SHEET: "States the guarantee; computed from the plan and the ledger.",
    STATEMENT: "The sheet for machines.",
    SIGNATURE: "The signature of the sheet.",
}


def _obstacle(name: str, run: RunFiles) -> str:
    """Why a file must stay; empty if it may leave."""
    if name not in _REASONS:
        return STAYS.get(name, "Not a file of Tacit.")
    if run.from_this_table:
        return f"Holds or follows from values of the private table: {', '.join(run.from_this_table)}."
    if name in (SHEET, STATEMENT, SIGNATURE):
        return ""
    if run.seed is not None:
        return "The run had a seed: who knows it can remove the noise."
    if run.private and (problem := ledger_problem(run) or ("" if run.released.releases else NO_LEDGER)):
        return problem
    constants = _constants(run)
    if name == files.ENCODER and constants == "per-silo":
        return "Holds constants of private records without noise."
    released = name in (files.MODEL, REPORT, CARD) or (name == files.ENCODER and constants in ("private", "paid"))
    if released and run.against("public") is None:
        return "Computed from private records, and there is no guarantee against the public."
    if name in (REPORT, CARD) and (uncovered := _uncovered(run)):
        return uncovered
    return ""


def _uncovered(run: RunFiles) -> str:
    if run.baselines or run.audit or run.shared is not None:
        return "Shows results of other models on private records, without a guarantee."
    if run.metric_names and run.evaluation.get("status") not in ("public", "paid"):
        return "Shows metrics that were computed on private records without noise."
    return ""


def _constants(run: RunFiles) -> str:
    return str((run.settings.get("data") or {}).get("standardize") or "")
