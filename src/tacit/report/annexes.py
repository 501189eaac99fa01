"""What the privacy sheet shows next to the guarantee: published values of epsilon, a glossary, and the points of two
checklists, each answered by the run or left to the controller."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tacit.privacy.terms import FLOATING_POINT
from tacit.report import words
from tacit.report.run_files import RunFiles

TO_ANSWER = "To be answered by the controller."


class Practice(NamedTuple):
    """A published value of epsilon. ``source`` is a key of the bibliography."""

    epsilon: float
    who: str
    what: str
    unit: str
    source: str


PRACTICE = (
    Practice(2.64, "Google, 2020", "mobility reports", "one person and day", "Aktay et al. 2020"),
    Practice(4.0, "Apple, 2017", "emoji suggestions (local noise)", "one device and day", "Apple 2017"),
    Practice(
        8.9, "Google, 2022", "keyboard model for Spanish, delta 10⁻¹⁰", "one device", "McMahan and Thakurta 2022"
    ),
    Practice(
        17.14, "US Census Bureau, 2021", "2020 Census redistricting data, persons, delta 10⁻¹⁰", "one person",
        "US Census Bureau 2021",
    ),
)  # fmt: skip
NOT_A_LIMIT = (
    "Units and periods differ: the list shows what others have published, not what is safe. "
    "One day's epsilon adds up over days."
)

GLOSSARY: Mapping[str, str] = {
    "Clip": "The largest length of what one person may add; longer contributions are scaled down.",
    "Delta": "A probability that is added to the bound of epsilon. It should be far below 1 / number of people.",
    "Epsilon": "The bound on how much one person changes the probability of any result; the factor is e^epsilon. "
    "Smaller is more private; infinity promises nothing.",
    "Fingerprint": "A hash by which a file is recognised. That of the data is keyed (HMAC-SHA-256): without the key, "
    "which stays with the data holder, no guess of the data can be tested.",
    "Ledger": "The list of all releases, each written before it was made. Each line holds a hash of the line before.",
    "Release": "Anything computed from private records that leaves the party that holds them.",
    "Right guesses": "The best attacker's share of right answers to the question whether one person's data were used, "
    "if both answers were equally likely. A coin reaches 50 %.",
    "Silo": "An organisation that holds records.",
    "Unit": "Who is protected: one record, one person with all records in all silos, or one silo.",
    "View": "Who looks, and what that party sees.",
}

GOVERNANCE: Mapping[str, str] = {
    "controllers": "Controllers",
    "purpose": "Purpose",
    "legal_basis": "Legal basis",
    "data_categories": "Categories of data",
    "recipients": "Recipients",
    "retention": "Retention",
    "contact": "Contact",
    "tuning": "How settings were chosen",
}
TUNING: Mapping[str, str] = {
    "none": "Before any result on these records was known.",
    "private": "By results with noise, which the ledger or the budget file counts.",
    "not-accounted": "By results on these records that no guarantee counts: this choice is not covered.",
}


class CheckPoint(NamedTuple):
    """A point of a checklist; no answer: it is left to the controller."""

    topic: str
    asks: str
    answer: str = ""


def governance(run: RunFiles) -> dict[str, str]:
    """What ``[governance]`` says, by key; empty where it says nothing."""
    found = {key: run.governance.get(key) or "" for key in GOVERNANCE}
    said = {key: "; ".join(map(str, value)) if isinstance(value, list) else str(value) for key, value in found.items()}
    return said | {"tuning": TUNING.get(said["tuning"], said["tuning"])}


def nist(run: RunFiles, cumulative: str) -> list[CheckPoint]:
    """The points of NIST SP 800-226 (2025): the layers of its pyramid from top to bottom, and its hazards."""
    first = next((line for line in run.guarantees if line.finite), None)
    unit = words.capital(words.unit(first.unit)) + "." if first else ""
    accountants = dict.fromkeys(
        words.ACCOUNTANTS.get(line.accountant, line.accountant) for line in run.guarantees if line.finite
    )
    return [
        CheckPoint("Epsilon and delta", "How strong is the guarantee?", " ".join(map(words.promise, run.guarantees))),
        CheckPoint("Unit of privacy", "Who is protected as a whole?", unit),
        CheckPoint(
            "Definition",
            "Which variant, which neighbouring data sets?",
            f"(epsilon, delta)-differential privacy; {words.RELATIONS.get(first.relation, first.relation)}."
            if first
            else "",
        ),
        CheckPoint("Composition", "What do all releases cost together?", cumulative),
        CheckPoint(
            "Algorithm and its correctness",
            "Which mechanism, and who has proved it?",
            f"{run.label}: {str(run.method.get('about') or 'not described').rstrip('.')}. "
            f"Source: {run.method.get('paper') or 'none'}. "
            f"Bounds: {'; '.join(accountants) or 'none'}. The specification in the documentation has the proofs.",
        ),
        CheckPoint("Utility", "Is the result accurate enough for the purpose?"),
        CheckPoint("Bias", "Does noise or the data disadvantage groups of people?"),
        CheckPoint("Trust model", "Which parties see data or results without protection?", _trust(run)),
        CheckPoint("Query model", "What can be asked of the data?", _queries(run)),
        CheckPoint(
            "Tuning of settings",
            "Were settings chosen by looking at the data?",
            governance(run)["tuning"],
        ),
        CheckPoint("Randomness", "Where does the noise come from?", _randomness(run)),
        CheckPoint("Floating point", "Can rounding of noise leak data?", _floats(run)),
        CheckPoint(
            "Side channels",
            "Do times or sizes of messages leak data?",
            "Not covered by the guarantee. The guarantee is about released models, constants and metrics.",
        ),
        CheckPoint("Data security and access control", "Who can reach the records, the keys and the run folder?"),
        CheckPoint("Exposure by collection", "Were the records collected lawfully, and only as many as needed?"),
    ]


def dpia(run: RunFiles, risk: str, cumulative: str) -> list[CheckPoint]:
    """The points of a data-protection impact assessment (GDPR Art. 35)."""
    said = governance(run)
    categories = f" Data: {said['data_categories']}." if said["data_categories"] else ""
    processing = (
        f"{words.in_one_line(run)}.{categories} Records stayed with their silos."
        if run.evaluation.get("held_out") == "elsewhere"
        else f"{words.in_one_line(run)}.{categories} All records were in one place (simulation)."
    )
    who = [f"{GOVERNANCE[key]}: {said[key]}." for key in ("controllers", "recipients", "retention") if said[key]]
    measures = [
        "Contributions are clipped and noise is added." if run.private else "No noise was added.",
        "Every release is in the ledger before it is made." if run.released.releases else "",
        f"Budget: epsilon {run.budget:g}." if run.budget is not None else "",
        "share/ holds only files that may leave.",
    ]
    return [
        CheckPoint("Art. 35(7)(a)", "Description of the processing", processing),
        CheckPoint("Art. 35(7)(a)", "Purposes", said["purpose"]),
        CheckPoint("Art. 35(7)(a)", "Controllers, recipients, retention", " ".join(who)),
        CheckPoint("Art. 35(7)(a)", "Legitimate interest of the controller, where applicable"),
        CheckPoint("Art. 35(7)(b)", "Legal basis", said["legal_basis"]),
        CheckPoint("Art. 35(7)(b)", "Necessity and proportionality"),
        CheckPoint(
            "Art. 35(7)(c)", "Risk that the result reveals a person", " ".join(filter(None, (risk, cumulative)))
        ),
        CheckPoint("Art. 35(7)(c)", "Other risks to rights and freedoms"),
        CheckPoint("Art. 35(7)(d)", "Measures of this run", " ".join(filter(None, measures))),
        CheckPoint("Art. 35(7)(d)", "Other safeguards and security measures"),
        CheckPoint("Art. 35(2)", "Advice of the data protection officer"),
        CheckPoint("Art. 35(9)", "Views of data subjects, where appropriate"),
        CheckPoint("Art. 36", "Prior consultation of the supervisory authority, if risk stays high"),
    ]


def _trust(run: RunFiles) -> str:
    trusted = [words.view(line.view) for line in run.guarantees if not line.finite]
    protected = [words.view(line.view) for line in run.guarantees if line.finite]
    parts = [
        f"Protected from: {'; '.join(protected)}." if protected else "",
        f"Trusted, because nothing is promised against: {'; '.join(trusted)}." if trusted else "",
    ]
    return " ".join(filter(None, parts))


def _queries(run: RunFiles) -> str:
    releases = (
        f"{words.counted(run.released.releases, 'release')} in the ledger" if run.released.releases else "no ledger"
    )
    return f"None: one training with a fixed plan, {releases}."


def _randomness(run: RunFiles) -> str:
    if run.seed is not None:
        return "From a seed: the noise can be regenerated, so the model must not be published."
    return "From the operating system, without a seed."


def _floats(run: RunFiles) -> str:
    finite = [line for line in run.guarantees if line.finite]
    if any(FLOATING_POINT in line.assumptions for line in finite):
        return "The noise is drawn in floating point; its least significant bits are not covered."
    return "The noise is drawn in whole steps of a grid." if finite else ""
