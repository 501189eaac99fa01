"""``report.html``: a run in the order in which people ask. How good, what is promised, is joining worth it, how it got
there, silo by silo, and what exactly was run. Uses :class:`RunFiles` only, so it cannot show what is private."""

from __future__ import annotations

from collections.abc import Mapping

from tacit.names import SECTIONS, load
from tacit.report import audit_page, figures, sheet, words
from tacit.report.markup import Column, Html, bullets, facts, join, paragraph, section, table, tag, text
from tacit.report.page import ChartWriter, Sections, banner, cards, footer, grid, legend
from tacit.report.run_files import Metrics, RunFiles
from tacit.report.styles import STYLES, Style

TALL = 30
SELECTED_ROUNDS = 11


def sections(run: RunFiles) -> Sections:
    chart = ChartWriter()
    return Sections(
        title=run.title,
        kicker="Federated learning report",
        lead=words.in_one_line(run),
        banners=_banners(run),
        parts=[
            headline(run),
            own_models(run, chart),
            joining(run, chart),
            rounds(run, chart),
            silos(run, chart),
            sheet.section_of(run),
            *(load(name)(getattr(run, key), chart) for key, name in SECTIONS.items() if getattr(run, key)),
            audit_page.part(run.audit, chart),
            experiment(run),
            environment(run),
        ],
        footer=footer(run.environment.get("tacit")),
    )


def _banners(run: RunFiles) -> list[Html]:
    """Warnings at the top of the page."""
    stop, problem = words.stopped(run), sheet.ledger_problem(run)
    heading = "Stopped by its privacy budget" if run.status == "budget" else "Stopped early"
    return [
        *([banner("danger", "The ledger does not confirm this run", paragraph(problem))] if problem else []),
        *([banner("danger", "Corrected guarantee", paragraph(run.correction))] if run.correction else []),
        *([banner("warning", heading, paragraph(stop))] if stop else []),
    ]


# ---- headline


def headline(run: RunFiles) -> Html:
    """The guarantees and the metrics."""
    numbers = cards(
        (words.metric(name), words.number(run.metrics.get(name)), _card_note(run, name))
        for name in run.metric_names
        if run.metrics.get(name) is not None
    )
    if not numbers:
        numbers = paragraph(words.no_metrics(run.evaluation), class_="quiet")
    status = words.evaluation(run)
    return section(
        "The result", promise(run), numbers, paragraph(status, class_="quiet") if status else "", name="result"
    )


def _card_note(run: RunFiles, name: str) -> Html:
    before = run.curve[0] if run.curve and run.curve[0].round == 0 and len(run.curve) > 1 else None
    start = before.metrics.get(name) if before else None
    trained = f"Before training: {words.number(start)}." if start is not None else ""
    error = (run.evaluation.get("standard_errors") or {}).get(name)
    noisy = f"Standard error of its noise: {words.number(error)}." if error is not None else ""
    return join([words.sentence(words.metric_note(run, name)), noisy, trained], "<br>")


def promise(run: RunFiles) -> Html:
    """The guarantees in sentences; the sheet with all details comes later."""
    seed = words.seed(run)
    never = words.not_to_publish(run)
    note = join([paragraph(seed) if seed else "", paragraph(never, class_="infinite") if never else ""])
    where = paragraph(tag("a", "The privacy sheet: what this rests on, and what it means", href="#privacy"))
    where = tag("div", where, class_="on-screen")
    nothing = words.no_promise(run.guarantees)
    if nothing:
        consequence = "Anyone who sees the model, or the messages behind it, may learn about the people in the data."
        return banner("danger", nothing, paragraph(consequence), note)
    lines = [tag("span", words.promise(line), class_=None if line.finite else "infinite") for line in run.guarantees]
    return banner("promise", sheet.opening(run), bullets(lines), note, where)


# ---- own models


STAYS = (
    "Every silo keeps its own model. It is trained on that silo's records without noise: no guarantee on this page "
    "covers it, and it must not leave the silo. Only the shared model is released."
)


def own_models(run: RunFiles, chart: ChartWriter) -> Html:
    """Each silo's own model and the shared model; nothing if all silos use the same one."""
    if run.shared is None:
        return Html("")
    order = _by_value(run)
    series = [("Own model", STYLES["federated"]), (words.baseline("shared"), STYLES["shared"])]
    few = len(order) <= figures.MANY_SILOS
    return section(
        "Own models or one shared model",
        paragraph(" ".join(words.own_against_shared(run)), class_="answer"),
        paragraph(STAYS),
        legend(series) if few else "",
        chart(figures.own_dots(run, order)),
        own_table(run, order),
        _outside(run),
        name="own",
    )


def own_table(run: RunFiles, order: list[str]) -> Html:
    """The dots as numbers, with a row for the worst silo."""
    assert run.shared is not None
    metric, better = run.headline, run.better(run.headline)

    def row(name: object, own: float | None, shared: float | None) -> list[object]:
        return [name, words.number(own), words.number(shared), words.difference(own, shared)]

    ends = [words.worst_silo(silos, metric, better) for silos in (run.silos, run.shared.silos)]
    worst = [None if end is None else end[1] for end in ends]
    rows = [
        row(tag("strong", "All silos"), run.metrics.get(metric), run.shared.metrics.get(metric)),
        row(tag("strong", "Worst silo"), *worst),
        *(row(name, run.silos[name].get(metric), _of(run.shared.silos, name).get(metric)) for name in order),
    ]
    columns = [Column("Silo"), Column("Own model", True), Column("Shared model", True), Column("Difference", True)]
    caption = f"{words.metric(metric)} on each silo's held-out records ({_better(run, metric)})"
    return table(columns, rows, caption, tall=len(rows) > TALL)


# ---- is joining worth it?


def _why_not_measured(run: RunFiles) -> tuple[str | Html, ...]:
    if run.evaluation.get("held_out") == "elsewhere":
        return (
            "Not measured: on a federation all records stay where they are. A silo can train on its own and compare.",
        )
    return (
        "Not measured in this run. Run the experiment again with ",
        tag("code", "--baselines"),
        " to see what each silo reaches alone and what pooling all records would give.",
    )


def joining(run: RunFiles, chart: ChartWriter) -> Html:
    title = "Is joining worth it?"
    if not run.baselines:
        return section(title, paragraph(*_why_not_measured(run), class_="quiet"), name="joining")
    order = by_gain(run)
    answer = words.is_joining_worth_it(run)
    return section(
        title,
        paragraph(" ".join(answer), class_="answer") if answer else "",
        paragraph("One run on one test set: small differences may be chance.", class_="quiet") if answer else "",
        legend(_series(run)) if len(order) <= figures.MANY_SILOS else "",
        chart(figures.joining_dots(run, order)),
        joining_table(run, order),
        name="joining",
    )


def _series(run: RunFiles) -> list[tuple[str, Style]]:
    known = [(words.baseline(name), STYLES[name]) for name in STYLES if name in run.baselines]
    return [("Federation", STYLES["federated"]), *known]


def by_gain(run: RunFiles) -> list[str]:
    """Silos by their gain, the largest first; those without a comparison last."""
    alone = run.baselines["silo-only"].silos if "silo-only" in run.baselines else {}

    def loss(name: str) -> tuple[bool, float]:
        together, before = run.silos[name].get(run.headline), alone.get(name, {}).get(run.headline)
        if together is None or before is None:
            return (True, 0.0)
        return (False, (before - together) * run.better(run.headline))

    return sorted(run.silos, key=loss)


def joining_table(run: RunFiles, order: list[str]) -> Html:
    """The dots as numbers, with the change by joining."""
    alone, pooled = run.baselines.get("silo-only"), run.baselines.get("pooled")
    columns = [Column("Silo"), Column("Federation", True)]
    columns += [Column("Alone", True), Column("Change by joining", True)] if alone else []
    columns += [Column("All pooled", True)] if pooled else []

    def row(name: object, together: Metrics, before: Metrics, ideal: Metrics) -> list[object]:
        value, old = together.get(run.headline), before.get(run.headline)
        cells: list[object] = [name, words.number(value)]
        if alone:
            cells += [words.number(old), _change(value, old, run.better(run.headline))]
        return cells + ([words.number(ideal.get(run.headline))] if pooled else [])

    rows = [
        row(tag("strong", "All silos"), run.metrics, alone.metrics if alone else {}, pooled.metrics if pooled else {}),
        *(
            row(
                name,
                run.silos[name],
                _of(alone.silos if alone else {}, name),
                _of(pooled.silos if pooled else {}, name),
            )
            for name in order
        ),
    ]
    caption = f"{words.metric(run.headline)} with and without joining ({_better(run, run.headline)})"
    return table(columns, rows, caption, tall=len(rows) > TALL)


def _of(silos: Mapping[str, Metrics], name: str) -> Metrics:
    return silos.get(name, {})


def _change(together: float | None, alone: float | None, better: int) -> Html:
    """The change by joining, as a number and as a word."""
    side = words.side(together, alone, better)
    if side is None:
        return text(words.MISSING)
    word = {1: "helped", -1: "better alone", 0: "level"}[side]
    kind = {1: " helped", -1: " hurt", 0: ""}[side]
    return join([words.difference(together, alone), tag("span", word, class_=f"change{kind}")], " ")


def _better(run: RunFiles, metric: str) -> str:
    return "higher is better" if run.better(metric) > 0 else "lower is better"


# ---- curves


def rounds(run: RunFiles, chart: ChartWriter) -> Html:
    charts = [found for name in run.metric_names if (found := figures.metric_curve(run, name))]
    if not charts:
        said = "Fewer than two rounds were evaluated, so there is no curve to draw." if run.metric_names else ""
        return section("Round by round", paragraph(said, class_="quiet") if said else "", name="rounds")
    return section(
        "Round by round",
        legend(_series(run)) if run.baselines else "",
        grid(charts, chart),
        _outside(run),
        chart(figures.epsilon_curve(run)),
        selected_rounds(run),
        name="rounds",
    )


def _outside(run: RunFiles) -> Html:
    """A reminder next to metrics that the guarantee does not cover."""
    note = words.metrics_outside(run)
    return paragraph(note, class_="quiet") if note else Html("")


def selected_rounds(run: RunFiles) -> Html:
    """The curves in numbers, at about ten rounds from first to last."""
    last = len(run.curve) - 1
    steps = min(SELECTED_ROUNDS - 1, last)
    chosen = sorted({round(step * last / steps) for step in range(steps + 1)})
    timed = any(run.curve[index].seconds is not None for index in chosen)
    columns = [Column("Round"), *(Column(words.metric(name), True) for name in run.metric_names)]
    views = list(dict.fromkeys(view for point in run.curve for view in point.epsilon))
    columns += [Column(f"Epsilon, {view}", True) for view in views]
    columns += [Column("Time since start", True)] if timed else []
    rows = []
    for index in chosen:
        point = run.curve[index]
        time = [words.duration(point.seconds)] if timed else []
        rows.append(
            [
                words.count(point.round),
                *(words.number(point.metrics.get(name)) for name in run.metric_names),
                *(words.epsilon(value) if (value := point.epsilon.get(v)) is not None else "∞" for v in views),
                *time,
            ]
        )
    inner = table(columns, rows, "The federation at selected rounds")
    return tag("details", tag("summary", "The curves in numbers"), inner)


# ---- silo by silo


def silos(run: RunFiles, chart: ChartWriter) -> Html:
    if not run.silos:
        return Html("")
    names = [m for m in run.metric_names if any(values.get(m) is not None for values in run.silos.values())]
    if not names:
        return section("Silo by silo", paragraph("No metric could be computed for single silos.", class_="quiet"))
    columns = [Column("Silo"), *(Column(words.metric(name), True) for name in names)]
    rows = [
        [tag("strong", "All silos"), *(words.number(run.metrics.get(name)) for name in names)],
        *([silo, *(words.number(values.get(name)) for name in names)] for silo, values in run.silos.items()),
    ]
    whose = "the federation's model" if run.shared is None else "the silos' own models"
    return section(
        "Silo by silo",
        "" if run.baselines or run.shared else chart(figures.silo_dots(run, _by_value(run))),
        chart(figures.silo_curves(run)),
        table(columns, rows, f"Final metrics of {whose} on each silo's test set", tall=len(rows) > TALL),
        _outside(run),
        _undefined_note(run, names),
        name="silos",
    )


def _by_value(run: RunFiles) -> list[str]:
    def worst_last(name: str) -> tuple[bool, float]:
        value = run.silos[name].get(run.headline)
        return (value is None, -(value or 0.0) * run.better(run.headline))

    return sorted(run.silos, key=worst_last)


def _undefined_note(run: RunFiles, names: list[str]) -> Html:
    if all(values.get(name) is not None for values in run.silos.values() for name in names):
        return Html("")
    return paragraph(
        f"{words.MISSING} stands where a metric is undefined, for example where a silo's test set has one class only.",
        class_="quiet",
    )


# ---- what was run


def experiment(run: RunFiles) -> Html:
    method = join([run.method.get("about") or "", run.method.get("paper") or ""], " · ")
    size = run.model.get("parameters")
    return section(
        "The experiment",
        facts(
            [
                ("Method", run.method.get("name")),
                ("What it does", method),
                ("Model", run.model.get("name")),
                ("Parameters", words.count(size) if isinstance(size, int) else None),
                ("Task", run.task),
                ("Data", run.source),
                ("Rounds", f"{words.count(run.rounds)} of {words.count(run.rounds_planned)} planned"),
                ("Seed", "none: secure randomness" if run.seed is None else str(run.seed)),
                ("Run", run.name),
            ]
        ),
        tag("h3", "Experiment file") if run.plan else "",
        tag("pre", tag("code", words.without_folders(run.plan)), tabindex="0", aria_label="Experiment file")
        if run.plan
        else "",
        name="experiment",
    )


def environment(run: RunFiles) -> Html:
    known = [(label, words.duration(run.seconds[name])) for name, label in words.WORK.items() if name in run.seconds]
    others = [(name, words.duration(value)) for name, value in run.seconds.items() if name not in words.WORK]
    names = {"tacit": "Tacit", "jax": "JAX", "numpy": "NumPy"}
    machine = [
        (names.get(name, name.capitalize()), str(value)) for name, value in run.environment.items() if value is not None
    ]
    if not (known or others or machine):
        return Html("")
    return section(
        "Time and environment",
        tag("div", facts(others + known), facts(machine), class_="pair"),
        name="environment",
    )
