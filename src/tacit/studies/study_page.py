"""The page of a study: results, plots, differences, chosen settings, and what the numbers do not cover."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from tacit.models import higher_is_better
from tacit.report import figures, words
from tacit.report.annexes import TUNING
from tacit.report.page import (
    MISSING,
    MOST_LISTED,
    Html,
    Page,
    Style,
    banner,
    bullets,
    grid,
    legend,
    paragraph,
    section,
    style_of,
    table,
    tag,
)
from tacit.studies.outcomes import CONFIDENCE, CellOutcome, Difference, shown_value

if TYPE_CHECKING:
    from tacit.studies.study import Study
    from tacit.studies.study_file import StudyOptions

# words for what the privacy sheet has no word for
TUNED = {
    "public": "On records that the study file declares public.",
    "not-stated": "This study chooses no settings, and its experiment does not state how they were chosen.",
}
MOST_PANELS = 24


def page(study: Study) -> Page:
    """The page of what is finished so far."""
    found = study.outcomes()
    options = study.planned.options
    lead = (
        f"{words.counted(len(options.contenders), 'contender')} · {words.counted(len(options.seeds), 'seed')} · "
        f"{study.finished} of {words.counted(len(study.planned.expected), 'training')} finished"
    )
    return Page(
        title=study.title,
        kicker="Study",
        lead=lead,
        banners=[_tuning(study)],
        parts=[
            _results(study, found),
            section("Plots", *charts(study), name="plots"),
            _differences(study.differences(), study.metric),
            _choices(found, study.metric),
            _refused(study),
            _limits(options),
        ],
        version=version("tacit"),
    )


def tuning_words(status: str) -> str:
    """How settings were chosen, as the privacy sheet says it."""
    return TUNED.get(status) or TUNING[status]


def _tuning(study: Study) -> Html:
    kind = "warning" if study.tuning == "not-accounted" else "note"
    if study.tuning != "not-accounted":
        return banner(kind, f"Tuning: {study.tuning}", paragraph(tuning_words(study.tuning)))
    return banner(
        kind,
        "Tuning: not-accounted",
        paragraph(tuning_words(study.tuning)),
        paragraph(
            "Settings were chosen by training on a part of the training subjects and scoring on the others. "
            "The printed epsilon covers one training with fixed settings. It does not cover the choice of these "
            "settings, unless the records are public."
        ),
    )


def _results(study: Study, found: Sequence[CellOutcome]) -> Html:
    several = len({one.guarantee.unit for one in found}) > 1
    rows = [
        {
            "Contender": one.cell.contender,
            **{name: str(shown_value(value)) for name, value in one.cell.point.items()},
            words.metric(study.metric): _spread(one),
            "Seeds": str(len(one.lines)),
            "Proved epsilon": words.epsilon(one.guarantee.epsilon) + (f" ({one.guarantee.unit})" if several else ""),
            "As published": _published(one),
            "Settings": _settings(one.settings),
        }
        for one in found
    ]
    better = "higher is better" if higher_is_better(study.metric) else "lower is better"
    caption = f"Mean ± standard deviation over seeds, on held-out records; {better}"
    unit = f" for one {found[0].guarantee.unit}" if found and not several else ""
    note = f"Epsilon is that of one training{unit}, against the first view of the experiment."
    return section(
        "Results",
        table(rows, caption, words=("Settings",), stacked=True) if rows else paragraph("No contender is finished yet."),
        paragraph(note if rows else "", class_="quiet"),
        name="results",
    )


def _spread(one: CellOutcome) -> str:
    if one.mean is None:
        return f"not finite in {sum(map(math.isnan, one.scores))} of {len(one.scores)}"
    return words.number(one.mean) + ("" if one.deviation is None else f" ± {words.number(one.deviation)}")


def _published(one: CellOutcome) -> str:
    published = one.guarantee.as_published
    return MISSING if published is None else words.published_epsilon(published.epsilon)


def _settings(settings: Mapping[str, Any]) -> str:
    """Chosen settings; keys without their section where that is clear."""
    listed = (f"{key.rpartition('.')[2]} {value:g}" if isinstance(value, float) else f"{key.rpartition('.')[2]} {value}"
              for key, value in settings.items())  # fmt: skip
    return ", ".join(listed) or MISSING


# ---- plots


def charts(study: Study) -> list[Html]:
    """A panel for every combination of the axes that are not drawn: lines with bands over the axis with the most
    numbers, or rows of dots where no axis has two."""
    found = study.outcomes()
    names = [contender.name for contender in study.planned.options.contenders]
    styles = {name: style_of(index) for index, name in enumerate(names)}
    across = _across(study.planned.options)
    panels: dict[str, list[CellOutcome]] = {}
    for one in found:
        others = [f"{name} {shown_value(value)}" for name, value in one.cell.point.items() if name != across]
        panels.setdefault(", ".join(others), []).append(one)
    drawn = [
        _dots(study, title, mine) if across is None else _lines(study, title, mine, across, styles)
        for title, mine in list(panels.items())[:MOST_PANELS]
    ]
    if not found:
        return []
    more = f"{MOST_PANELS} of {len(panels)} panels are drawn." if len(panels) > MOST_PANELS else ""
    key = legend(styles) if across is not None else Html("")
    return [paragraph(more, class_="quiet"), key, grid(drawn)]


def _across(options: StudyOptions) -> str | None:
    """The axis with the most numbers; None where no axis has two."""
    numeric = {axis.name: len(axis.values) for axis in options.axes
               if all(isinstance(value, int | float) for value in axis.values)}  # fmt: skip
    name = max(numeric, key=lambda one: numeric[one], default=None)
    return name if name is not None and numeric[name] > 1 else None


def _lines(study: Study, title: str, found: Sequence[CellOutcome], across: str, styles: Mapping[str, Style]) -> Html:
    series = []
    for name, style in styles.items():
        mine = sorted((one for one in found if one.cell.contender == name and one.mean is not None),
                      key=lambda one: one.cell.point[across])  # fmt: skip
        if mine:
            pairs = [(one.mean or 0.0, one.deviation or 0.0) for one in mine]
            wide = any(deviation for _, deviation in pairs)
            series.append(figures.Series(
                name, style, [float(one.cell.point[across]) for one in mine], [mean for mean, _ in pairs],
                low=[mean - deviation for mean, deviation in pairs] if wide else (),
                high=[mean + deviation for mean, deviation in pairs] if wide else (),
            ))  # fmt: skip
    caption = words.metric(study.metric) + (f": {title}" if title else "")
    places = [x for one in series for x in one.x]
    x: dict[str, Any] = {"title": across}
    if places and min(places) > 0 and max(places) > 5 * min(places):
        x["log"] = True
    spoken = f"{caption} over {across}; the numbers are in the table."
    return figures.lines(series, caption, spoken, x, note="Mean over seeds; band: one standard deviation.")


def _dots(study: Study, title: str, found: Sequence[CellOutcome]) -> Html:
    caption = words.metric(study.metric) + (f": {title}" if title else "")
    known = [one for one in found if one.mean is not None]
    spans = [((one.mean or 0.0) - (one.deviation or 0.0), (one.mean or 0.0) + (one.deviation or 0.0)) for one in known]
    return figures.dots(
        [one.cell.contender for one in known],
        [figures.Marks("mean over seeds", style_of(0), [one.mean for one in known])],
        caption,
        f"{caption} of every contender; the numbers are in the table.",
        words.metric(study.metric),
        spans=spans,
        note="Line: one standard deviation to each side.",
    )


# ---- differences, choices, limits


def _differences(found: Sequence[Difference], metric: str) -> Html:
    rows = [
        {
            "Contender": one.contender,
            **{name: str(shown_value(value)) for name, value in one.point.items()},
            "Difference": _signed(one.mean),
            **_interval(one),
            "Seeds": str(len(one.values)),
        }
        for one in found
    ]
    if not rows:
        return Html("")
    caption = f"{words.metric(metric)} minus that of {found[0].reference}, seed by seed at the same point"
    note = (
        f"Interval: {CONFIDENCE:.0%} for the mean difference, Student's t over seeds. Where the same people are "
        "held out under every seed, it covers chance in training and noise, not another sample of people."
    )
    return section("Paired differences", table(rows, caption), paragraph(note, class_="quiet"), name="differences")


def _interval(one: Difference) -> dict[str, str]:
    if one.low is None or one.high is None:
        return {"Interval": MISSING, "Zero is": MISSING}
    inside = "inside" if one.low <= 0 <= one.high else "outside"
    return {"Interval": f"{_signed(one.low)} to {_signed(one.high)}", "Zero is": inside}


def _signed(value: float) -> str:
    return words.difference(value, 0.0)


def _choices(found: Sequence[CellOutcome], metric: str) -> Html:
    rows = [
        {
            "Contender": one.cell.contender,
            **{name: str(shown_value(value)) for name, value in one.cell.point.items()},
            "Settings": _settings(settings),
            words.metric(metric): words.number(value),
            "Chosen": "yes" if settings == one.settings else "",
        }
        for one in found
        for settings, value in one.judged
    ]
    if not rows:
        return Html("")
    cut = f" The first {MOST_LISTED} of {len(rows)} rows." if len(rows) > MOST_LISTED else ""
    caption = f"Scores on held-out training subjects, by which settings were chosen.{cut}"
    shown = table(rows[:MOST_LISTED], caption, words=("Settings", "Chosen"))
    return section(
        "Choice of settings", tag("details", tag("summary", "All settings of the grids"), shown), name="choices"
    )


def _refused(study: Study) -> Html:
    listed = [
        f"{one['contender']}{_at(one['point'])}{_at(one['settings'])}: {one['reason']}"
        for one in study.status()["refused"]
    ]
    return section("Not trained", bullets(listed[:MOST_LISTED]), name="refused")


def _at(values: Mapping[str, Any]) -> str:
    return f" ({_settings(values)})" if values else ""


def _limits(options: StudyOptions) -> Html:
    return section(
        "Limits",
        bullets(
            [
                "Trainings have seeds: anyone with a seed can regenerate the noise. No model of a study is kept.",
                "Metrics are computed on held-out records without noise. They are outside every guarantee.",
                "A study keeps no ledger. The epsilon of a row is that of one training, not of the whole study.",
                f"Seeds of the results: {', '.join(map(str, options.seeds))}; of the choices: "
                f"{', '.join(map(str, options.choose.seeds))}.",
            ]
        ),
        name="limits",
    )
