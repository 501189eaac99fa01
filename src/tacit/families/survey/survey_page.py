"""``survey.html``: the answers of a survey with their intervals, and what is guaranteed."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from tacit.report import figures, words
from tacit.report.page import ACCENT, Html, Page, Style, banner, bullets, paragraph, section, table
from tacit.report.run_files import StatedGuarantee

if TYPE_CHECKING:
    from tacit.families.survey.ask import Survey

SEEDED = "The survey has a seed: anyone who knows it can remove the noise. Its answers must not be published."
NOISE = {"central": "noise by a trusted server", "local": "every person randomises the answer"}


def write_page(survey: Survey, file: Path) -> Path:
    """Write the page of a survey."""
    at = f" · delta {words.delta(survey.delta)}" if survey.delta else ""
    page = Page(
        title=survey.column,
        kicker="Survey",
        lead=f"{words.count(survey.people)} people · epsilon {survey.epsilon:g}{at} · {NOISE[survey.place]}",
        parts=[_answers(survey), _guarantees(survey)],
        banners=[banner("danger", "Reproducible noise", paragraph(SEEDED))] if survey.seed is not None else [],
        version=version("tacit"),
    )
    return page.save(file)


def _answers(survey: Survey) -> Html:
    what = "share of people" if survey.kind == "shares" else "mean over people"
    spans = [(answer.low, answer.high) for answer in survey.answers]
    intervals = [f"{answer.low:.4g} to {answer.high:.4g}" for answer in survey.answers]
    rows = [
        {
            "Answer": answer.answer,
            "Estimate": f"{answer.estimate:.4g}",
            "Standard error": f"{answer.standard_error:.2g}",
            "95 % interval": interval,
        }
        for answer, interval in zip(survey.answers, intervals, strict=True)
    ]
    spoken = "; ".join(f"{row['Answer']}: {row['Estimate']}, 95 % interval {row['95 % interval']}" for row in rows)
    other = "local" if survey.place == "central" else "central"
    return section(
        "The answers",
        figures.dots(
            [answer.answer for answer in survey.answers],
            [figures.Marks("Estimate", Style(ACCENT), [answer.estimate for answer in survey.answers])],
            f"{words.capital(what)}, with 95 % intervals",
            f"Estimates with 95 % intervals. {spoken}.",
            what,
            spans=spans,
            notes=[f"95 % interval: {interval}" for interval in intervals],
        ),
        table(rows, f"{words.capital(what)}; errors and intervals are those of the noise alone"),
        paragraph(
            f"Standard error at this epsilon: about {survey.expected_error:.2g} here, {survey.other_error:.2g} with "
            f"noise in the other place ({other}).",
            class_="quiet",
        ),
        name="answers",
    )


def _guarantees(survey: Survey) -> Html:
    stated = [StatedGuarantee(**guarantee.as_dict()) for guarantee in survey.guarantees]
    assumed = dict.fromkeys(assumption for line in stated if line.finite for assumption in line.assumptions)
    return section(
        "What is guaranteed",
        bullets(words.promise(line) for line in stated),
        paragraph("It rests on:") if assumed else "",
        bullets(map(words.capital, assumed), class_="plain"),
        name="privacy",
    )
