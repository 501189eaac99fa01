"""The guarantee for the person who signs for a run: a section of the report, and the first part of the privacy sheet.

What the best attacker could make of it, by view; epsilon and its factor; assumptions; what is not covered. Limits on
attackers are computed from the releases in the ledger.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tacit.privacy import Guarantee, View
from tacit.privacy.ledger import place
from tacit.privacy.terms import NOT_COVERED, RELATIONS, UNITS, Sheet, SheetRow, noise_text, percent, sentence
from tacit.privacy.terms import sheet as statement
from tacit.report import words
from tacit.report.disclosure import ledger_problem
from tacit.report.page import MISSING, Html, banner, bullets, facts, paragraph, section, table, tag
from tacit.report.run_files import RunFiles, StatedGuarantee, epsilon_of

TITLE = "Privacy sheet"
LIMITS = ("Right guesses (a coin: 50 %)", "Found at 0.1 % false alarms", "Found at 1 % false alarms")


def opening(run: RunFiles) -> str:
    """The guarantee of the first view that has one, in a sentence."""
    first = next(line for line in run.guarantees if line.finite)
    proved = _proved(first)
    return words.promise(first) if proved is None else sentence(proved)


def section_of(run: RunFiles) -> Html:
    """The sheet as a part of the report."""
    if not run.guarantees:
        return Html("")
    parts = (paragraph(meaning(made_sheet(run))), *body(run), numbers(run))
    return section(TITLE, *parts, name="privacy", class_="sheet")


def banners(run: RunFiles) -> list[Html]:
    """Warnings at the top of a page."""
    heading, stop = words.stopped(run) or ("", "")
    warnings = [
        ("danger", "The ledger does not confirm this run", ledger_problem(run)),
        ("danger", "Corrected guarantee", run.correction),
        ("warning", heading, stop),
        ("warning", "Cap kept by looking across silos", words.seen_across_silos(run)),
    ]
    return [banner(kind, title, paragraph(said)) for kind, title, said in warnings if said]


# ---- the parts


def body(run: RunFiles) -> list[Html]:
    """Who sees what, what it rests on, and what it does not cover."""
    made = made_sheet(run)
    assumed = made.assumptions if made else dict.fromkeys(a for g in run.guarantees for a in g.assumptions)
    not_covered = (made.not_covered if made else NOT_COVERED) if run.private else ()
    lists = {"It rests on": map(words.capital, assumed), "It does not cover": not_covered}
    written = {title: bullets(items) for title, items in lists.items()}
    return [
        _views(run, made),
        _reasons(run.guarantees),
        paragraph(_large(run.guarantees), class_="quiet"),
        tag(
            "div",
            *(tag("div", tag("h3", title), items) for title, items in written.items() if items),
            class_="pair lists",
        ),
    ]


def _views(run: RunFiles, made: Sheet | None) -> Html:
    """Epsilon by view. Columns without content are left out."""
    rows = {str(row.guarantee.view): row for row in made.rows} if made else {}
    published = any(line.as_published for line in run.guarantees)
    cells = [
        {
            "From whom": words.view(line.view),
            "Who is protected": words.unit(line.unit, short=True),
            **(_limits(rows.get(line.view)) if run.private else {}),
            "Epsilon": tag("strong", words.epsilon(line.epsilon), class_=None if line.finite else "infinite"),
            "Delta": words.delta(line.delta) if line.finite else MISSING,
            **({"As published": _published(line)} if published else {}),
        }
        for line in run.guarantees
    ]
    meaning = ", and the most that the best attacker could make of it" if run.private else ""
    return table(cells, f"Who sees what{meaning}", words=("Who is protected", "As published"), stacked=True)


def _limits(row: SheetRow | None) -> dict[str, str]:
    found = [] if row is None else [row.right_guesses, *row.limits.tpr_at_fpr.values()]
    shown = map(percent, found) if found else [MISSING] * len(LIMITS)
    return dict(zip(LIMITS, shown, strict=True))


def _published(line: StatedGuarantee) -> str | Html:
    published = line.as_published
    if published is None:
        return MISSING
    return tag("span", words.as_published(published), class_="infinite" if published.valid == "no" else None)


def _reasons(lines: Sequence[StatedGuarantee]) -> Html:
    """Reasons for infinite epsilons; a reason that several views share is given once."""
    found: dict[str, list[str]] = {}
    for line in lines:
        if not line.finite and line.assumptions:
            found.setdefault(line.assumptions[0], []).append(words.view(line.view))
    items = [
        tag("span", f"Nothing is promised against {_and(views)}: {reason}.", class_="infinite")
        for reason, views in found.items()
    ]
    return bullets(items, class_="plain")


def meaning(made: Sheet | None) -> str:
    """The limits on attackers in a sentence, for the first view that has one."""
    row = next((row for row in made.rows if row.guarantee.finite), None) if made else None
    return "" if row is None else row.meaning


def _large(lines: Sequence[StatedGuarantee]) -> str:
    first = next((line for line in lines if line.finite), None)
    if first is None or first.epsilon <= 10:
        return ""
    return "An epsilon this large is hard to interpret; the shares above are what it allows."


def _linked(run: RunFiles) -> str:
    known = {line.view: line.linked for line in run.guarantees if line.linked is not None}
    return ", ".join(f"epsilon {words.epsilon(value)} ({words.view(view)})" for view, value in known.items())


def numbers(run: RunFiles) -> Html:
    """How the guarantees were computed."""
    first = next((line for line in run.guarantees if line.finite), None)
    if first is None:
        return Html("")
    sigma, clip, deviation = run.noise_multiplier, run.clip, run.noise_deviation
    noise = [
        "" if sigma is None else f"multiplier {noise_text(sigma)}",
        "" if clip is None else f"clip {clip:g}",
        "" if deviation is None else f"standard deviation {deviation:.4g} on every number of a sum",
    ]
    sampling = dict.fromkeys(line.sampling for line in run.guarantees if line.finite and line.sampling)
    accountants = dict.fromkeys(line.accountant for line in run.guarantees if line.finite and line.accountant)
    return facts(
        [
            ("Neighbouring data", words.RELATIONS.get(first.relation, first.relation)),
            ("Secret sampling", ", ".join(sampling)),
            ("A person with two unlinked identifiers", _linked(run)),
            ("Accountant", "; ".join(words.ACCOUNTANTS.get(name, name) for name in accountants)),
            ("Noise", ", ".join(part for part in noise if part)),
            ("Budget", "" if run.budget is None else f"epsilon {run.budget:g}"),
            ("Budget file", _budget_file(run)),
            ("Ledger", _ledger(run)),
        ]
    )


def _budget_file(run: RunFiles) -> str:
    """The budget file that the run shares with others, and what they had spent when it ended."""
    shared = run.budget_file
    if not shared:
        return ""
    name, others = str(shared.get("name")), int(shared.get("other_runs") or 0)
    if not others:
        return f"{name}; when this run ended, no other run was in it"
    spent = [
        f"against {words.view(view)}, epsilon {words.epsilon(epsilon_of(found.get('others')))} by the others, "
        f"{words.epsilon(epsilon_of(found.get('all')))} with this run"
        for view, found in shared.get("epsilon", {}).items()
    ]
    return f"{name}, shared with {words.counted(others, 'other run')}; when this run ended: {'; '.join(spent)}"


def _ledger(run: RunFiles) -> str:
    released = run.released
    if released.problem or not released.releases:
        return released.problem or ""
    return (
        f"{words.counted(released.releases, 'release')} written down before they were made; chain verified, "
        f"ends with {released.head[:16]}"
    )


# ---- from the run folder to a statement


def made_sheet(run: RunFiles) -> Sheet | None:
    """The sheet of all guarantees that can be read."""
    proved = [found for line in run.guarantees if (found := _proved(line))]
    if not proved:
        return None
    spent = {} if ledger_problem(run) else run.released.spent
    events = {str(line.view): spent.get(place(line.unit, line.view, line.relation)) for line in proved}
    return statement(
        proved,
        seeded=run.seed is not None,
        events={view: event for view, event in events.items() if event is not None},
        evaluation=str(run.evaluation.get("status") or "") if run.metric_names else "none",
        references=bool(run.baselines),
    )


def _proved(line: StatedGuarantee) -> Guarantee | None:
    """The guarantee as a value of ``tacit.privacy``; None if the folder has names that it does not know."""
    unit = next((unit for unit in UNITS if unit == line.unit), None)
    relation = next((relation for relation in RELATIONS if relation == line.relation), None)
    try:
        view = View.parse(line.view)
    except ValueError:
        return None
    if unit is None or relation is None or (line.delta is None and line.finite) or math.isnan(line.epsilon):
        return None
    return Guarantee(
        unit, relation, view, line.sampling, line.epsilon, line.delta or 0.0, line.accountant, line.assumptions
    )


def _and(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
