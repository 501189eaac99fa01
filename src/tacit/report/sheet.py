"""The privacy sheet for the person who signs for a run: a section of the report, and a page of its own.

The guarantee in one sentence; epsilon by view, and what it allows an attacker; assumptions; what is not covered. Limits
on attackers are computed from the releases in the ledger.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tacit.planning.preview import noise_text
from tacit.privacy import Event, Guarantee, View, account
from tacit.privacy.ledger import place
from tacit.privacy.statement import NOT_COVERED, Sheet, SheetRow, percent, sentence
from tacit.privacy.statement import sheet as statement
from tacit.privacy.terms import RELATIONS, UNITS
from tacit.report import words
from tacit.report.markup import Column, Html, bullets, facts, join, paragraph, table, tag
from tacit.report.page import Sections, banner, footer
from tacit.report.run_files import RunFiles, StatedGuarantee

TITLE = "Privacy sheet"


def opening(run: RunFiles) -> str:
    """The guarantee of the first view that has one, in a sentence."""
    first = next(line for line in run.guarantees if line.finite)
    proved = _proved(first)
    return words.promise(first) if proved is None else sentence(proved)


def section_of(run: RunFiles) -> Html:
    """The sheet as a part of the report."""
    if not run.guarantees:
        return Html("")
    return tag("section", tag("h2", TITLE), join(_body(run, opens=False)), id="privacy", class_="sheet")


def sections(run: RunFiles) -> Sections:
    """The sheet as a page to print and sign."""
    stop, problem = words.stopped(run), ledger_problem(run)
    return Sections(
        title=run.title,
        kicker=TITLE,
        lead=words.in_one_line(run),
        banners=[
            *([banner("danger", "The ledger does not confirm this run", paragraph(problem))] if problem else []),
            *([banner("danger", "Corrected guarantee", paragraph(run.correction))] if run.correction else []),
            *([banner("warning", "Not all rounds were run", paragraph(stop))] if stop else []),
        ],
        parts=[
            tag("section", tag("h2", "What is promised"), join(_body(run, opens=True)), class_="sheet"),
            _signature(),
        ],
        footer=footer(run.environment.get("tacit")),
    )


def ledger_problem(run: RunFiles) -> str | None:
    """Why the run's ledger does not confirm its guarantees; None if it does, or if the run has none."""
    if not any(line.finite for line in run.guarantees):
        return None
    if run.released.problem:
        return f"{words.sentence(run.released.problem)} Its guarantees rest on the result file alone."
    for line in run.guarantees:
        # the page shows corrected values instead of those that an earlier accounting recorded
        if run.correction or not run.released.releases or not line.finite or line.delta is None:
            continue
        # a place without a line in the ledger is unprotected
        event = run.released.spent.get(place(line.unit, line.view, line.relation))
        found = math.inf if event is None else account(event, line.delta).epsilon
        if found > line.epsilon * 1.001:
            return (
                f"The releases in it add up to epsilon {words.epsilon(found)} against {words.view(line.view)}, more "
                f"than the {words.epsilon(line.epsilon)} of the result file."
            )
    return None


# ---- the parts


def _body(run: RunFiles, *, opens: bool) -> list[Html]:
    """``opens``: the page begins with the sheet, so the guarantee comes first."""
    made = _statement(run)
    nothing = words.no_promise(run.guarantees)
    first = [] if not opens else [paragraph(nothing or opening(run), class_="answer infinite" if nothing else "answer")]
    return [
        *first,
        *(_seed(run) if opens else []),
        _views(run, made),
        _reasons(run.guarantees),
        _meaning(made),
        tag("div", _rests_on(run, made), _not_covered(run, made), class_="pair lists"),
        _numbers(run),
    ]


def _seed(run: RunFiles) -> list[Html]:
    said = " ".join(line for line in (words.seed(run), words.not_to_publish(run)) if line)
    return [paragraph(said, class_="infinite")] if said else []


def _views(run: RunFiles, made: Sheet | None) -> Html:
    """Epsilon by view. Columns without content are left out."""
    rows = {str(row.guarantee.view): row for row in made.rows} if made else {}
    some = any(line.finite for line in run.guarantees)
    columns = [Column("From whom"), Column("Who is protected"), Column("Epsilon", True), Column("Delta", True)]
    columns += [Column("Right guesses (a coin: 50 %)", True)] if some else []
    columns += [Column("Found at 0.1 % false alarms", True), Column("Found at 1 % false alarms", True)] if some else []
    published = any(line.as_published for line in run.guarantees)
    columns += [Column("As published")] if published else []
    cells = [
        [
            words.view(line.view),
            words.unit(line.unit, short=True),
            tag("strong", words.epsilon(line.epsilon), class_=None if line.finite else "infinite"),
            words.delta(line.delta) if line.finite else words.MISSING,
            *(_limits(rows.get(line.view)) if some else []),
            *([_published(line)] if published else []),
        ]
        for line in run.guarantees
    ]
    caption = "Who sees what, and the most that the best attacker could make of it"
    return table(columns, cells, caption if some else "Who sees what", stacked=True)


def _limits(row: SheetRow | None) -> list[str]:
    if row is None:
        return [words.MISSING] * 3
    return [percent(row.right_guesses), *(percent(limit.true_positives) for limit in row.limits)]


def _published(line: StatedGuarantee) -> str | Html:
    published = line.as_published
    if published is None:
        return words.MISSING
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
    return bullets(items, class_="plain") if items else Html("")


def _meaning(made: Sheet | None) -> Html:
    """The limits on attackers in a sentence, for the first view that has one."""
    row = next((row for row in made.rows if row.guarantee.finite), None) if made else None
    if row is None:
        return Html("")
    words_ = paragraph(row.meaning)
    if row.guarantee.epsilon > 10:
        note = "An epsilon this large is hard to interpret; the shares above are what it allows."
        return join([words_, paragraph(note, class_="quiet")])
    return words_


def _rests_on(run: RunFiles, made: Sheet | None) -> Html:
    assumed = made.assumptions if made else tuple(dict.fromkeys(a for g in run.guarantees for a in g.assumptions))
    return tag("div", tag("h3", "It rests on"), bullets(map(_capital, assumed))) if assumed else Html("")


def _not_covered(run: RunFiles, made: Sheet | None) -> Html:
    if not any(line.finite for line in run.guarantees):
        return Html("")
    return tag("div", tag("h3", "It does not cover"), bullets(made.not_covered if made else NOT_COVERED))


def _linked(run: RunFiles) -> str:
    known = {line.view: line.linked for line in run.guarantees if line.linked is not None}
    return ", ".join(f"epsilon {words.epsilon(value)} ({words.view(view)})" for view, value in known.items())


def _numbers(run: RunFiles) -> Html:
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
            ("Neighbouring data", words.relation(first.relation) if first.relation else ""),
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
        f"against {words.view(view)}, epsilon {_any_epsilon(found.get('others'))} by the others, "
        f"{_any_epsilon(found.get('all'))} with this run"
        for view, found in shared.get("epsilon", {}).items()
    ]
    return f"{name}, shared with {words.counted(others, 'other run')}; when this run ended: {'; '.join(spent)}"


def _any_epsilon(value: object) -> str:
    return words.epsilon(float(value) if isinstance(value, int | float) else math.inf)


def _ledger(run: RunFiles) -> str:
    released = run.released
    if released.problem or not released.releases:
        return released.problem or ""
    return (
        f"{words.counted(released.releases, 'release')} written down before they were made; chain verified, "
        f"ends with {released.head[:16]}"
    )


def _signature() -> Html:
    lines = [
        tag("div", tag("span", name), class_="line") for name in ("Name and office", "Place and date", "Signature")
    ]
    return tag("section", *lines, class_="signature", aria_label="Signature")


# ---- from the run folder to a statement


def _statement(run: RunFiles) -> Sheet | None:
    """The sheet of all guarantees that can be read."""
    proved = [found for line in run.guarantees if (found := _proved(line))]
    if not proved:
        return None
    return statement(
        proved,
        seeded=run.seed is not None,
        events={} if ledger_problem(run) else _events(run, proved),
        evaluation=str(run.evaluation.get("status") or "") if run.metric_names else "none",
        references=bool(run.baselines),
    )


def _events(run: RunFiles, lines: Sequence[Guarantee]) -> dict[str, Event]:
    spent = run.released.spent
    return {str(g.view): event for g in lines if (event := spent.get(place(g.unit, g.view, g.relation))) is not None}


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


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
