"""Comparison of runs: a table and a page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacit.errors import UserError
from tacit.report import figures, words
from tacit.report.page import (
    MISSING,
    Html,
    Page,
    bullets,
    grid,
    join,
    legend,
    paragraph,
    section,
    style_of,
    table,
    tag,
)
from tacit.report.run_files import RunFiles, read_run

if TYPE_CHECKING:
    import pandas as pd

MOST_DRAWN = 8  # lines that a reader can tell apart
COST = ["delta", "train_seconds", "total_seconds"]
Named = dict[str, RunFiles]


def compare(runs: Sequence[Path], out: Path | None = None) -> Path:
    """Write one page that compares runs; by default ``comparison.html`` next to the first run."""
    return page(read_runs(runs)).save(Path(out) if out else Path(runs[0]).resolve().parent / "comparison.html")


def comparison_table(runs: Sequence[Path]) -> pd.DataFrame:
    """One row per run: what it is, its final metrics, its guarantees and its cost. ``epsilon [unit, view]`` is infinity
    if there is no guarantee, missing if not stated."""
    import pandas as pd

    rows = {name: _row(run) for name, run in read_runs(runs).items()}
    frame = pd.DataFrame.from_dict(rows, orient="index").rename_axis("run")
    # columns that only later runs have were added last; cost stays at the end
    return frame[[*(column for column in frame if column not in COST), *COST]]


def verdict(runs: Sequence[Path]) -> str:
    """Which run is best, in a sentence or two; or why none can be called the best."""
    return best_sentence(read_runs(runs))


def read_runs(paths: Sequence[Path]) -> Named:
    """Runs by the name of their folder, with a number if two have the same name."""
    if not paths:
        raise UserError("missing", "runs", "no run given", "name at least one run folder")
    named: Named = {}
    for path in map(Path, paths):
        name, number = path.resolve().name, 2
        while name in named:
            name, number = f"{path.resolve().name} ({number})", number + 1
        named[name] = read_run(path)
    return named


def _row(run: RunFiles) -> dict[str, Any]:
    deltas = [line.delta for line in run.guarantees if line.finite and line.delta is not None]
    return {
        "title": run.title,
        "method": run.label or None,
        "model": run.model.get("name"),
        "status": run.status,
        "rounds": run.rounds,
        **{name: math.nan if run.metrics.get(name) is None else run.metrics[name] for name in run.metric_names},
        **{f"epsilon [{line.unit}, {line.view}]": line.epsilon for line in run.guarantees},
        "delta": max(deltas, default=math.nan),
        "train_seconds": run.seconds.get("train", math.nan),
        "total_seconds": run.seconds.get("total", math.nan),
    }


def page(runs: Named) -> Page:
    return Page(
        title=f"{words.counted(len(runs), 'run')} side by side",
        kicker="Comparison of federated learning runs",
        lead=" · ".join(dict.fromkeys(run.title for run in runs.values())),
        parts=[_results(runs), _curves(runs), _cost(runs)],
        version=next(iter(runs.values())).environment.get("tacit"),
    )


def _metric_names(runs: Named) -> list[str]:
    return list(dict.fromkeys(name for run in runs.values() for name in run.metric_names))


def _results(runs: Named) -> Html:
    titles = {run.title for run in runs.values()}
    same = not different_data(runs)
    best = {name: _leaders(runs, name) if same else [] for name in _metric_names(runs)}

    def shown(label: str, run: RunFiles, name: str) -> Html | str:
        value = words.number(run.metrics.get(name))
        return tag("strong", value) if label in best[name] else value

    rows = [
        {
            "Run": join([tag("span", label), len(titles) > 1 and tag("span", run.title, class_="note")], "<br>"),
            "Method": run.label or MISSING,
            **{words.metric(name): shown(label, run, name) for name in best},
            "Guarantee": _guarantee_cell(run),
            "Rounds": _rounds_cell(run),
            "Time": words.duration(run.seconds.get("total")),
        }
        for label, run in runs.items()
    ]
    bold = "; the best of each metric is bold" if same else ""
    caption = f"Final metrics, guarantees and cost{bold}"
    return section(
        "Results",
        paragraph(best_sentence(runs), class_="answer"),
        paragraph("One run each: small differences may be chance." if same else "", class_="quiet"),
        table(rows, caption, words=("Method", "Guarantee"), stacked=True),
        name="results",
    )


def _guarantee_cell(run: RunFiles) -> Html:
    if not run.private:
        return tag("span", "none (ε = ∞)", class_="infinite")
    lines = []
    for line in run.guarantees:
        at = f"{words.epsilon(line.epsilon)} at δ = {words.delta(line.delta)}" if line.finite else "∞"
        said = f"ε = {at}: {words.unit(line.unit, short=True)}, from {words.view(line.view)}"
        lines.append(said if line.finite else tag("span", said, class_="infinite"))
    return bullets(lines)


def _rounds_cell(run: RunFiles) -> str | Html:
    if run.status == "finished":
        return words.count(run.rounds)
    done = f"{words.count(run.rounds)} of {words.count(run.rounds_planned)}"
    return join([done, tag("span", run.status, class_="note")], "<br>")


def _leaders(runs: Named, metric: str) -> list[str]:
    """The best runs, to the digits that the page shows; none if fewer than two have the metric."""
    shown = {label: value for label, run in runs.items() if (value := run.metrics.get(metric)) is not None}
    if len(shown) < 2:
        return []
    better = next(run.better(metric) for run in runs.values() if metric in run.metrics)
    top = max(shown.values(), key=lambda value: value * better)
    return [label for label, value in shown.items() if words.number(value) == words.number(top)]


def different_data(runs: Named) -> list[str]:
    """Settings in which the runs' test data differ; empty if they were tested on the same records."""
    tested = [run.test_data for run in runs.values()]
    return [key for key in tested[0] if any(other[key] != tested[0][key] for other in tested)]


def best_sentence(runs: Named) -> str:
    """Which run leads, in one sentence or two; or why none of them can be called the best."""
    differ = different_data(runs)
    if differ:
        why = " (another seed holds out other people)" if differ == ["seed"] else ""
        return (
            f"These runs were not tested on the same data: {', '.join(differ)} differ{'s' if len(differ) == 1 else ''}"
            f"{why}. Their metrics cannot be compared, and none of them is called the best."
        )
    headlines = {run.headline for run in runs.values()}
    if len(headlines) > 1:
        return "These runs have different headline metrics, so none of them is called the best."
    headline, first = headlines.pop(), next(iter(runs.values()))
    leaders = _leaders(runs, headline)
    if not leaders:
        return "There is no metric that two of these runs share."
    others = {name: _leaders(runs, name) for name in words.judges(first.task, headline, first.metrics)[1:]}
    differing = [name for name, found in others.items() if found and not set(found) & set(leaders)]
    if not differing:
        return _lead(runs, headline, leaders)
    rest = " ".join(_lead(runs, name, others[name]) for name in differing)
    return f"The metrics disagree. {_lead(runs, headline, leaders)} {rest}"


def _lead(runs: Named, metric: str, leaders: list[str]) -> str:
    name, value = words.metric_in_sentence(metric), words.number(runs[leaders[0]].metrics[metric])
    if len(leaders) == len(runs):
        return f"By {name} all runs are level ({value})."
    if len(leaders) > 1:
        return f"By {name}, {' and '.join(leaders)} lead with {value}."
    return f"By {name}, {leaders[0]} leads with {value}."


def _curves(runs: Named) -> Html:
    styles = {label: style_of(index) for index, label in enumerate(runs)}
    drawn = _best(runs)
    charts = []
    for metric in _metric_names(runs):
        found = [
            figures.series_of(label, styles[label], run.curve, metric, off=label not in drawn)
            for label, run in runs.items()
        ]
        if series := [one for one in found if one]:
            run = next(run for run in runs.values() if run.has_number(metric))
            charts.append(figures.curve_chart(metric, series, words.metric_note(run, metric)))
    note = f"{MOST_DRAWN} runs are drawn. A click on a name hides or shows its run." if len(drawn) < len(runs) else ""
    key = [paragraph(note, class_="quiet"), legend(styles, off=runs.keys() - drawn)]
    return section("Round by round", *([*key, grid(charts)] if charts else []), name="rounds")


def _best(runs: Named) -> set[str]:
    """The runs that are drawn at first: of many, those with the best headline metric."""

    def rank(label: str) -> float:
        run = runs[label]
        value = run.metrics.get(run.headline)
        return math.inf if value is None else -value * run.better(run.headline)

    return set(runs if len(runs) <= MOST_DRAWN else sorted(runs, key=rank)[:MOST_DRAWN])


def _cost(runs: Named) -> Html:
    timed = {label: run.seconds["total"] for label, run in runs.items() if "total" in run.seconds}
    if not timed:
        return Html("")
    parts = [name for name in words.WORK if any(name in run.seconds for run in runs.values())]
    rows = [
        {"Run": label, **{words.WORK[name]: words.duration(run.seconds.get(name)) for name in parts}}
        for label, run in runs.items()
    ]
    picture = figures.bars(list(timed), list(timed.values()), "Total time", "seconds", sideways=True)
    return section("Cost", picture if len(timed) > 1 else "", table(rows, "Time by part of the work"), name="cost")
