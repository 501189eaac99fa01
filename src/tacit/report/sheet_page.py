"""The privacy sheet: everything that it states, as values (``sheet.json``) and as a page (``sheet.html``)."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacit.engine import folder as files
from tacit.engine.folder import plain_values
from tacit.engine.learner import write_bytes
from tacit.errors import UserError
from tacit.privacy import account, attack_limits, spent
from tacit.privacy.ledger import place as place_of
from tacit.privacy.terms import factor_text, percent, unit_word
from tacit.report import annexes, sheet, words
from tacit.report.annexes import GLOSSARY, GOVERNANCE, NOT_A_LIMIT, PRACTICE, TO_ANSWER, CheckPoint
from tacit.report.disclosure import SHEET, SIGNATURE, STATEMENT, disclosures, shared_content, write_share
from tacit.report.page import Html, Page, cards, facts, paragraph, section, table, tag
from tacit.report.run_files import RunFiles, StatedGuarantee, epsilon_of, read_ledger, read_run
from tacit.report.signing import check_signable, hashes, is_current, key_name

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

FORMAT = "tacit-sheet-1"
THIS_RUN_ONLY = "this run only"
Lines = Sequence[Mapping[str, Any]]


def write_sheet(
    place: Path, *, others: Sequence[Path] = (), key: Ed25519PrivateKey | None = None, accepted: Sequence[str] = ()
) -> Path:
    """Write the privacy sheet of a run and the folder ``share/``; the path of the page.

    ``others`` are runs on the same data, whose ledgers count in the cumulative epsilon. With a ``key`` the sheet is
    signed; ``accepted`` names views without a guarantee, and ``seed``, that the signer accepts. Without a key, a
    signature stays as long as all signed files do, and is removed otherwise.
    """
    place, run = Path(place), read_run(Path(place))
    if key is None and not others and is_current(place, run):
        write_share(place, run)
        return place / SHEET
    if key is not None:
        check_signable(run, accepted)
    made = (SHEET, STATEMENT) if key is None else (SHEET, STATEMENT, SIGNATURE)
    stated = state(place, run, others, made)
    if key is not None:
        stated |= {"signer": key_name(key), "accepted": list(accepted)}
    (place / SIGNATURE).unlink(missing_ok=True)
    page(run, stated).save(place / SHEET)
    if key is not None:
        stated["signed_files"] = hashes(place, run)
    content = json.dumps(stated, indent=1).encode()
    write_bytes(place / STATEMENT, content)
    if key is not None:
        write_bytes(place / SIGNATURE, key.sign(content))
    write_share(place, run)
    return place / SHEET


def state(
    place: Path, run: RunFiles, others: Sequence[Path] = (), written: Sequence[str] = (SHEET, STATEMENT)
) -> dict[str, Any]:
    """Everything that the sheet states, in plain values; ``written``: the files that it becomes."""
    made, spent_so_far = sheet.made_sheet(run), cumulative(place, run, others)
    limits = {str(row.guarantee.view): row for row in made.rows} if made else {}
    risk = sheet.meaning(made)
    stated = {
        "format": FORMAT,
        "title": run.title,
        "run": run.name,
        "about": words.in_one_line(run),
        "status": run.status,
        "run_date": run.date or None,
        "sheet_date": datetime.now(UTC).isoformat(timespec="seconds"),
        "tacit": run.environment.get("tacit"),
        "people_declared": _people(run),
        "fingerprints": _fingerprints(place, run),
        "governance": {key: said or None for key, said in annexes.governance(run).items()},
        "promise": words.no_promise(run) or sheet.opening(run),
        "meaning": risk or None,
        "guarantees": [
            {
                **line.model_dump(include={"view", "unit", "relation", "sampling", "accountant", "delta"}),
                "right_guesses": row.right_guesses if (row := limits.get(line.view)) else None,
                "found_at_false_alarms": {str(rate): found for rate, found in row.limits.tpr_at_fpr.items()}
                if row
                else {},
                "epsilon": line.epsilon,
                "factor": math.exp(min(line.epsilon, 700)) if line.finite else math.inf,
                "assumptions": list(line.assumptions),
            }
            for line in run.guarantees
        ],
        "cumulative": spent_so_far.as_dict(),
        "rests_on": list(made.assumptions) if made else [],
        "not_covered": list(made.not_covered) if made and run.private else [],
        "notes": [said for said in _notes(run) if said],
        "practice": [known._asdict() for known in PRACTICE],
        "files": [found._asdict() for found in disclosures(place, run, written)],
        "nist_sp_800_226": _as_dicts(annexes.nist(run, spent_so_far.sentence)),
        "gdpr_art_35": _as_dicts(annexes.dpia(run, risk, spent_so_far.sentence)),
        "glossary": dict(GLOSSARY),
    }
    plain: dict[str, Any] = plain_values(stated)
    return plain


def _as_dicts(points: Iterable[CheckPoint]) -> list[dict[str, str]]:
    return [{"point": point.topic, "asks": point.asks, "answer": point.answer or TO_ANSWER} for point in points]


def _notes(run: RunFiles) -> list[str | None]:
    return [
        sheet.ledger_problem(run),
        run.correction,
        *(words.stopped(run) or ()),
        words.seen_across_silos(run),
        words.seed(run),
        words.not_to_publish(run),
    ]


def _people(run: RunFiles) -> int | None:
    """The declared number of people; of old folders, what the experiment says."""
    subjects = (run.settings.get("data") or {}).get("subjects")
    given = subjects.get("count") if isinstance(subjects, dict) else None
    return run.people if run.people is not None else given


def _fingerprints(place: Path, run: RunFiles) -> dict[str, str | None]:
    """SHA-256 of the plan, as ``share/`` holds it, of the ledger and of the model; the keyed hash of the data."""
    from hashlib import sha256

    def of(name: str) -> str | None:
        file = place / name
        return sha256(shared_content(place, name) or file.read_bytes()).hexdigest() if file.is_file() else None

    kept = {"plan": of(files.PLAN), "ledger": of(files.LEDGER), "model": of(files.MODEL)}
    return {**kept, "data_hmac": run.data_fingerprint or None}


# ---- all runs on the data


@dataclass(frozen=True)
class Cumulative:
    """What all runs on a data set cost together. ``scope``: what links them; ``limits``: right guesses by view."""

    scope: str
    runs: int
    epsilon: Mapping[str, float]
    limits: Mapping[str, float]

    def as_dict(self) -> dict[str, Any]:
        return {"scope": self.scope, "runs": self.runs, "epsilon": self.epsilon, "right_guesses": self.limits}

    @property
    def sentence(self) -> str:
        costs = [
            f"epsilon {words.epsilon(found)} against {words.view(view)}"
            + (f" (right guesses: at most {percent(self.limits[view])})" if view in self.limits else "")
            for view, found in self.epsilon.items()
        ]
        cost = f": {'; '.join(costs)}" if costs else ""
        return f"{words.capital(self.scope)}{cost}."


def cumulative(place: Path, run: RunFiles, others: Sequence[Path] = ()) -> Cumulative:
    """By the budget file and the ledgers of ``others``; else by what the run noted of its budget file when it ended;
    else of this run alone."""
    name, lines = _linked(place, run, others)
    runs = len({line["run"] for line in lines})
    finite = [line for line in run.guarantees if line.finite and line.delta is not None]
    if runs > 1:
        found = {line.view: _spent(line, lines) for line in finite}
        epsilon = {view: total for view, (total, _) in found.items()}
        return Cumulative(
            f"all {runs} runs in {name}", runs, epsilon, {view: most for view, (_, most) in found.items()}
        )
    noted = run.budget_file
    if noted.get("other_runs"):
        total = {view: epsilon_of(found.get("all")) for view, found in noted.get("epsilon", {}).items()}
        runs = int(noted["other_runs"]) + 1
        return Cumulative(f"all {runs} runs in {noted.get('name')}, when this one ended", runs, total, {})
    why = f"no other run is in {noted['name']}" if noted else "no budget file links it with other runs on this data set"
    return Cumulative(f"{THIS_RUN_ONLY}, {why}", 1, {line.view: line.epsilon for line in finite}, {})


def _linked(place: Path, run: RunFiles, others: Sequence[Path]) -> tuple[str, Lines]:
    """The lines of all runs that a budget file or ``others`` link with this one, and what links them."""
    budget = (run.settings.get("privacy") or {}).get("budget_file")
    shared = Path(budget) if isinstance(budget, str) and Path(budget).is_file() else None
    for other in others:
        if not (other / files.LEDGER).is_file():
            raise UserError("wrong-file", "--with", f"'{other}' has no ledger", "name a run folder")
    books = [*([shared] if shared else []), *(folder / files.LEDGER for folder in (place, *others))]
    lines: list[Mapping[str, Any]] = []
    for book in books:
        found, problem = read_ledger(book)
        if problem and book != place / files.LEDGER:
            raise UserError("ledger-damaged", str(book), problem, "restore it from a backup")
        known = {line["run"] for line in lines}
        lines += [line for line in found if line["run"] not in known]
    names = [*([f"budget file {shared.name}"] if shared else []), *(["their ledgers"] if others else [])]
    return " and ".join(names), lines


def _spent(line: StatedGuarantee, lines: Lines) -> tuple[float, float]:
    """Epsilon of all lines at the place of a guarantee, and the share of right guesses that they allow."""
    assert line.delta is not None
    event = spent(lines, place_of(line.unit, line.view, line.relation))
    found = account(event, line.delta).epsilon
    if not math.isfinite(found):
        return found, 1.0
    return found, (1 + attack_limits(event, pair=(found, line.delta)).advantage) / 2


# ---- the page


def page(run: RunFiles, stated: Mapping[str, Any]) -> Page:
    """The sheet as a page to print and sign."""
    nothing = words.no_promise(run)
    promised = section(
        "What is promised",
        paragraph(nothing, class_="answer infinite"),
        _headline(stated),
        paragraph(stated["meaning"] if run.private else ""),
        paragraph("" if nothing else stated["promise"]),
        paragraph(" ".join(filter(None, (words.seed(run), words.not_to_publish(run)))), class_="infinite"),
        *sheet.body(run),
        class_="sheet",
    )
    parts = [
        promised,
        _signature(),
        _identity(stated),
        section("How it was computed", sheet.numbers(run), class_="sheet annex"),
        _practice(run),
        _files(stated),
        _points(
            "Annex A. NIST SP 800-226", "Guidelines for evaluating differential privacy", stated["nist_sp_800_226"]
        ),
        _points("Annex B. Impact assessment", "GDPR Art. 35", stated["gdpr_art_35"]),
        section("Glossary", facts(GLOSSARY.items()), class_="sheet annex"),
    ]
    return words.page_of(run, sheet.TITLE, parts, sheet.banners(run))


def _headline(stated: Mapping[str, Any]) -> Html:
    """The attacker's success first, the factor second: against the first view that has a guarantee."""
    found = next((line for line in stated["guarantees"] if line["epsilon"] != "inf"), None)
    if found is None or found["right_guesses"] is None:
        return Html("")
    unit, who = unit_word(found["unit"]), words.view(found["view"])
    coin = f"whether the data of one {unit} were used, by {who}; a coin: 50 %"
    return cards(
        [
            ("Right guesses, at most", percent(found["right_guesses"]), coin),
            ("Factor, at most", factor_text(found["epsilon"]), "on the probability of any result (e^epsilon)"),
            ("Epsilon", words.epsilon(found["epsilon"]), f"at delta {words.delta(found['delta'])}"),
        ]
    )


def _signature() -> Html:
    names = ("Name and office", "Place and date", "Signature")
    lines = [tag("div", tag("span", name), class_="line") for name in names]
    return tag("section", *lines, class_="signature", aria_label="Signature")


def _identity(stated: Mapping[str, Any]) -> Html:
    prints, people, signer = stated["fingerprints"], stated["people_declared"], stated.get("signer")
    data = prints["data_hmac"]
    keyed = "HMAC-SHA-256; its key, data.key, stays with the data holder, so that no other party can test guesses"
    governance = [(GOVERNANCE[key], said or tag("em", TO_ANSWER)) for key, said in stated["governance"].items()]
    return section(
        "Responsibility and identification",
        facts(governance),
        tag("h3", "This run"),
        facts(
            [
                ("Run", f"{stated['run']} ({stated['status']})"),
                ("Run ended", stated["run_date"]),
                ("Sheet written", stated["sheet_date"]),
                ("People", "not declared" if people is None else f"{words.count(people)} (declared, not counted)"),
                ("All runs on this data set", _total_sentence(stated["cumulative"])),
                ("Plan", prints["plan"] and f"SHA-256 {prints['plan']}"),
                ("Ledger", prints["ledger"] and f"SHA-256 {prints['ledger']}"),
                ("Model", prints["model"] and f"SHA-256 {prints['model']}"),
                ("Data", f"{data} ({keyed})" if data else "no fingerprint: the records were not in one place"),
                ("Signed with key", signer and f"{signer} (Ed25519, in sheet.sig)"),
                ("Accepted by the signer", ", ".join(stated.get("accepted", ()))),
            ]
        ),
        class_="sheet annex",
    )


def _total_sentence(total: Mapping[str, Any]) -> str:
    """The sentence of a total that is given in plain values."""
    epsilon = {view: epsilon_of(found) for view, found in total["epsilon"].items()}
    return Cumulative(total["scope"], total["runs"], epsilon, total["right_guesses"]).sentence


def _practice(run: RunFiles) -> Html:
    """Published values of epsilon by size, with those of this run among them."""
    finite = [line for line in run.guarantees if line.finite]
    if not finite:
        return Html("")
    rows = [
        (known.epsilon, [known.who, known.what, known.unit, f"{known.epsilon:g}", known.source]) for known in PRACTICE
    ]
    for epsilon in dict.fromkeys(line.epsilon for line in finite):  # views of one epsilon share a row
        lines = [line for line in finite if line.epsilon == epsilon]
        what = f"against {' and '.join(words.view(line.view) for line in lines)}"
        rows.append((epsilon, ["This run", what, words.unit(lines[0].unit), words.epsilon(epsilon), ""]))
    titles = ("Who", "What", "Protects", "Epsilon", "Source")
    ordered = [dict(zip(titles, row, strict=True)) for _, row in sorted(rows, key=lambda pair: pair[0])]
    return section(
        "Epsilon in practice",
        paragraph(NOT_A_LIMIT, class_="quiet"),
        table(ordered, "Published values, and this run", words=("What", "Protects", "Source"), stacked=True),
        class_="sheet annex",
    )


def _files(stated: Mapping[str, Any]) -> Html:
    rows = [
        {"File": tag("code", found["file"]), "May leave": "yes" if found["may_leave"] else "no", "Why": found["why"]}
        for found in stated["files"]
    ]
    note = "The folder share/ holds copies of the files that may leave, and nothing else."
    return section(
        "What may leave",
        paragraph(note, class_="quiet"),
        table(rows, "Files of the run folder", words=("May leave", "Why"), stacked=True),
        class_="sheet annex",
    )


def _points(title: str, caption: str, points: Iterable[Mapping[str, str]]) -> Html:
    rows = [
        {
            "Point": point["point"],
            "Question": point["asks"],
            "Answer": tag("em", TO_ANSWER) if point["answer"] == TO_ANSWER else point["answer"],
        }
        for point in points
    ]
    return section(title, table(rows, caption, words=("Question", "Answer"), stacked=True), class_="sheet annex")
