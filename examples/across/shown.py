"""Results as tables and pictures. A result is a dictionary, as run.py keeps it:

label, settings, seeds, rounds             who, with what, how often, and the rounds of the curves
metrics                                    name -> ``[seed][point]``
proved, published                          epsilon so far at every point; "inf" where nothing is proved
constant                                   the accuracy of always giving the more frequent answer
refused                                    instead of all that: why it cannot run
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scenes import Figure, Scene

from research.plots import Curve, Panel, curves
from research.study import band, spread
from tacit.report import words
from tacit.report.page import RUN_STYLES, Style

Found = Mapping[str, Any]
DIGITS = {"accuracy": 4}  # where frauds are rare, the third says nothing
# one style per method, the same in all figures
NAMES = ("uldp-avg-w", "uldp-avg", "uldp-sgd", "uldp-group-8", "fedavg", "uldp-naive", "uldp-group-max")
FIXED = {
    **dict(zip(NAMES, RUN_STYLES, strict=False)),
    **dict.fromkeys(("uldp-group-median", "uldp-group-2"), RUN_STYLES[7]),
    "uldp-avg-w, momentum": Style("#6a3fb5", "longdashdot"),
}


def section(figure: Figure, scene: Scene, found: Sequence[Found], picture: Path, page: Path) -> list[str]:
    """A panel on the page: its picture (written to ``picture``) and its table."""
    ran = [one for one in found if "refused" not in one]
    lines = [f"### {scene.title}", ""]
    if ran:
        text = over_rounds(figure, scene, ran) if figure.over == "round" else over_setting(figure, scene, ran)
        picture.parent.mkdir(parents=True, exist_ok=True)
        picture.write_text(text, encoding="utf-8")
        lines += [f"![{figure.title}, {scene.title}]({picture.relative_to(page.parent).as_posix()})", ""]
        lines += [*table(figure, ran), ""]
        if (constant := ran[0]["constant"]) is not None and "accuracy" in figure.metrics:
            lines += [f"Always giving the more frequent answer has accuracy {constant:.4f}.", ""]
    return [*lines, *not_run(found)]


def not_run(found: Sequence[Found]) -> list[str]:
    """Who cannot run, and why: methods with the same reason together."""
    reasons: dict[str, list[str]] = {}
    for one in found:
        if "refused" in one:
            # field: problem; fix
            problem = one["refused"].split(": ", 1)[-1].split(";")[0]
            reasons.setdefault(problem, []).append(f"`{one['label']}`")
    return [line for problem, names in reasons.items() for line in (f"Not run: {', '.join(names)}: {problem}.", "")]


def table(figure: Figure, found: Sequence[Found]) -> list[str]:
    """The last point of every curve: mean and deviation over seeds, epsilon, settings."""
    header = [
        "method",
        *(words.metric(name) for name in figure.metrics),
        "proved ε",
        "ε as published",
        "seeds",
        "settings",
    ]
    rows = [header, ["---"] * len(header)]
    for one in found:
        metrics = [spread([run[-1] for run in one["metrics"][name]], DIGITS.get(name, 3)) for name in figure.metrics]
        rows.append([f"`{name_of(figure, one)}`", *metrics, *costs(one), str(len(one["seeds"])), told(one["settings"])])
    return [f"| {' | '.join(row)} |" for row in rows]


def costs(one: Found) -> tuple[str, str]:
    proved, paper = float(one["proved"][-1]), one["published"][-1]
    return words.epsilon(proved), "–" if paper is None else words.published_epsilon(paper)


def told(settings: Mapping[str, Any]) -> str:
    """Settings in short: the last part of a name, and its value."""
    flat = {key: value for key, value in settings.items() if not isinstance(value, dict)}
    for value in settings.values():
        flat |= value if isinstance(value, dict) else {}
    return ", ".join(f"{key.split('.')[-1].replace('_', ' ')} {value}" for key, value in flat.items())


def name_of(figure: Figure, one: Found) -> str:
    return one["label"] if figure.over == "round" else f"{one['label']}, q = {one['over']:g}"


def over_rounds(figure: Figure, scene: Scene, found: Sequence[Found]) -> str:
    """The metric, epsilon as proved and as published, over rounds; bands are one deviation over the seeds."""
    metric = figure.metrics[0]
    left = [curve(one, style(one, place), metric) for place, one in enumerate(found)]
    panels = [Panel(f"{words.metric(metric)}: {scene.title}", "round", left)]
    for kind, title in (("proved", "Proved epsilon so far (not drawn: ∞)"), ("published", "The same as published")):
        lines = [
            Curve(one["label"], style(one, place), one["rounds"], [None if v is None else float(v) for v in one[kind]])
            for place, one in enumerate(found)
        ]
        panels.append(Panel(title, "round", lines, log_y=True))
    return curves(panels, f"{words.metric(metric)} and epsilon over rounds; final values are in the table.")


def over_setting(figure: Figure, scene: Scene, found: Sequence[Found]) -> str:
    """The last value of the metric, and epsilon proved and published, over a setting."""
    metric, rates = figure.metrics[0], [one["over"] for one in found]
    last = [[run[-1] for run in one["metrics"][metric]] for one in found]
    means, (low, high) = [statistics.mean(values) for values in last], band(last)
    costs = {"proved": RUN_STYLES[0], "published": RUN_STYLES[1]}
    panels = [
        Panel(
            f"{words.metric(metric)}: {scene.title}",
            "rate q",
            [Curve(found[0]["label"], FIXED["uldp-sgd"], rates, means, low, high)],
        ),
        Panel(
            "Epsilon",
            "rate q",
            [
                Curve(f"epsilon, {name}", look, rates, [float(one[name][-1]) for one in found])
                for name, look in costs.items()
            ],
        ),
    ]
    return curves(panels, f"{words.metric(metric)} and epsilon over the rate; the values are in the table.")


def curve(one: Found, look: Style, metric: str) -> Curve:
    """The mean over seeds, with a band of one standard deviation."""
    runs = list(zip(*one["metrics"][metric], strict=True))
    if any(value is None for values in runs for value in values):
        return Curve(one["label"], look, one["rounds"], [None] * len(runs))
    return Curve(one["label"], look, one["rounds"], [statistics.mean(values) for values in runs], *band(runs))


def style(one: Found, place: int) -> Style:
    return FIXED.get(one["label"], RUN_STYLES[place % len(RUN_STYLES)])
