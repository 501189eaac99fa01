"""``report.html``: a run in the order in which people ask. How good, what is promised, is joining worth it, how it got
there, silo by silo, and what exactly was run. Uses :class:`RunFiles` only, so it cannot show what is private."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tacit.names import SECTIONS, load
from tacit.report import audit_page, figures, local_page, sheet, sheet_page, words
from tacit.report.figures import STYLES
from tacit.report.model_card import write_card
from tacit.report.page import (
    MISSING,
    MOST_LISTED,
    Html,
    Page,
    Style,
    banner,
    both_ends,
    bullets,
    cards,
    facts,
    grid,
    join,
    legend,
    paragraph,
    section,
    table,
    tag,
    text,
)
from tacit.report.run_files import Metrics, RunFiles, StoredScores, read_object, read_run

SELECTED_ROUNDS = 11
STAYS = (
    "Every silo keeps its own model. It is trained on that silo's records without noise: no guarantee on this page "
    "covers it, and it must not leave the silo. Only the shared model is released."
)


def write(run: Path) -> Path:
    """Write ``report.html`` into the run folder, ``local.html`` where exact numbers are present, the model card, the
    privacy sheet, and the folder ``share/`` of files that may leave.

    Returns the path of ``report.html``.
    """
    files = read_run(run := Path(run))
    if (exact := run / "local.json").exists():
        local_page.page(files, read_object(exact)).save(run / "local.html")
    page(files).save(run / "report.html")
    write_card(run)
    sheet_page.write_sheet(run)
    return run / "report.html"


def page(run: RunFiles) -> Page:
    parts = [
        headline(run),
        own_models(run),
        joining(run),
        rounds(run),
        silos(run),
        sheet.section_of(run),
        *(load(name)(getattr(run, key)) for key, name in SECTIONS.items() if getattr(run, key)),
        audit_page.part(run.audit) if run.audit else Html(""),
        experiment(run),
        environment(run),
    ]
    return words.page_of(run, "Federated learning report", parts, sheet.banners(run))


def headline(run: RunFiles) -> Html:
    """The guarantees and the metrics."""
    numbers = cards(
        (words.metric(name), _card_number(run, name), _card_note(run, name))
        for name in run.metric_names
        if run.metrics.get(name) is not None
    )
    without = paragraph(words.no_metrics(run.evaluation), class_="quiet")
    status = paragraph(words.evaluation(run), class_="quiet")
    return section("The result", promise(run), numbers or without, status, name="result")


def _card_number(run: RunFiles, name: str) -> str:
    value = run.metrics.get(name)
    return words.hidden(value, _noise_of(run, name)) or words.number(value)


def _noise_of(run: RunFiles, name: str) -> float | None:
    return (run.evaluation.get("standard_errors") or {}).get(name)


def _card_note(run: RunFiles, name: str) -> Html:
    start = run.curve[0].metrics.get(name) if len(run.curve) > 1 and run.curve[0].round == 0 else None
    trained = f"Before training: {words.number(start)}." if start is not None else ""
    error = _noise_of(run, name)
    noisy = f"Standard error of its noise: {words.number(error)}." if error is not None else ""
    return join([words.metric_note(run, name), noisy, trained], "<br>")


def promise(run: RunFiles) -> Html:
    """The guarantees in sentences; the sheet with all details comes later."""
    warnings = (words.not_to_publish(run), words.unconfirmed(run), *run.warnings)
    note = join([paragraph(words.seed(run)), *(paragraph(text, class_="infinite") for text in warnings)])
    nothing = words.no_promise(run)
    if nothing:
        consequence = "Anyone who sees the model, or the messages behind it, may learn about the people in the data."
        return banner("danger", nothing, paragraph(consequence), note)
    lines = [tag("span", words.promise(line), class_=None if line.finite else "infinite") for line in run.guarantees]
    where = paragraph(tag("a", "The privacy sheet: what this rests on, and what it means", href="#privacy"))
    return banner("promise", sheet.opening(run), bullets(lines), note, tag("div", where, class_="on-screen"))


# ---- two models for every silo


def own_models(run: RunFiles) -> Html:
    """Each silo's own model and the shared model; nothing if all silos use the same one."""
    shared, metric, better = run.shared, run.headline, run.better(run.headline)
    if shared is None:
        return Html("")
    order = _best_first(run)

    def row(name: object, own: float | None, one: float | None) -> dict[str, object]:
        numbers = {"Own model": words.number(own), "Shared model": words.number(one)}
        return {"Silo": name, **_tested(run, name), **numbers, "Difference": words.difference(own, one)}

    ends = [words.worst_silo(scores.silos, metric, better) for scores in (run, shared)]
    rows = [
        row(tag("strong", "All silos"), run.metrics.get(metric), shared.metrics.get(metric)),
        row(tag("strong", "Worst silo"), *(end and end[1] for end in ends)),
        *(row(name, run.silos[name].get(metric), shared.silos.get(name, {}).get(metric)) for name in both_ends(order)),
    ]
    caption = f"{words.metric(metric)} on each silo's held-out records ({words.which_is_better(run, metric)})"
    series = {"Own model": STYLES["federated"], words.baseline("shared"): STYLES["shared"]}
    return section(
        "Own models or one shared model",
        paragraph(" ".join(words.own_against_shared(run, shared)), class_="answer"),
        paragraph(STAYS),
        legend(series) if len(order) <= figures.MANY_SILOS else "",
        figures.own_dots(run, shared, order),
        table(rows, caption),
        _left_out(order),
        _outside(run),
        name="own",
    )


def joining(run: RunFiles) -> Html:
    title = "Is joining worth it?"
    if not run.baselines:
        return section(title, paragraph(*_why_not_measured(run), class_="quiet"), name="joining")
    alone = run.baselines.get("silo-only")
    order = list(run.silos) if alone is None else _best_first(run, alone)
    answer = words.is_joining_worth_it(run)
    return section(
        title,
        paragraph(*answer[:1], class_="answer"),
        bullets(answer[1:], class_="plain"),
        paragraph("One run on one test set: small differences may be chance." if answer else "", class_="quiet"),
        legend(_series(run)) if len(order) <= figures.MANY_SILOS else "",
        figures.joining_dots(run, order),
        _joining_table(run, both_ends(order)),
        _left_out(order),
        name="joining",
    )


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


def _series(run: RunFiles) -> dict[str, Style]:
    known = {words.baseline(name): style for name, style in STYLES.items() if name in run.baselines}
    return {"Federation": STYLES["federated"], **known}


def _best_first(run: RunFiles, alone: StoredScores | None = None) -> list[str]:
    """Silos by their value, or by their gain over what they reach ``alone``; those without a number last."""

    def rank(name: str) -> tuple[bool, float]:
        value = run.silos[name].get(run.headline)
        before = 0.0 if alone is None else alone.silos.get(name, {}).get(run.headline)
        return (True, 0.0) if value is None or before is None else (False, (before - value) * run.better(run.headline))

    return sorted(run.silos, key=rank)


def _tested(run: RunFiles, silo: object) -> dict[str, object]:
    """The cell with a silo's number of test records; none if the run does not state them."""
    return {"Test records": words.about(run.test_records.get(str(silo)))} if run.test_records else {}


def _left_out(order: Sequence[str]) -> Html:
    """Which silos a table leaves out, if any."""
    said = f"Of {words.counted(len(order), 'silo')}, the table shows the first and the last {MOST_LISTED // 2}."
    where = "The file result.json has the final metrics of all."
    return paragraph(f"{said} {where}" if len(order) > MOST_LISTED else "", class_="quiet")


def _joining_table(run: RunFiles, order: list[str]) -> Html:
    """The dots as numbers, with the change by joining."""
    alone, pooled = run.baselines.get("silo-only"), run.baselines.get("pooled")

    def of(scores: StoredScores | None, silo: str | None) -> Metrics:
        return {} if scores is None else scores.metrics if silo is None else scores.silos.get(silo, {})

    def row(silo: str | None) -> Mapping[str, object]:
        value, old, ideal = (of(scores, silo).get(run.headline) for scores in (run, alone, pooled))
        change = _change(value, old, run.better(run.headline))
        return {
            "Silo": tag("strong", "All silos") if silo is None else silo,
            **_tested(run, silo),
            "Federation": words.number(value),
            **({"Alone": words.number(old), "Change by joining": change} if alone else {}),
            **({"All pooled": words.number(ideal)} if pooled else {}),
        }

    better = words.which_is_better(run, run.headline)
    return table(map(row, [None, *order]), f"{words.metric(run.headline)} with and without joining ({better})")


def _change(together: float | None, alone: float | None, better: int) -> Html:
    """The change by joining, as a number and as a word."""
    side = words.side(together, alone, better)
    if side is None:
        return text(MISSING)
    word, kind = {1: ("helped", " helped"), -1: ("better alone", " hurt"), 0: ("level", "")}[side]
    return join([words.difference(together, alone), tag("span", word, class_=f"change{kind}")], " ")


# ---- round by round, silo by silo


def rounds(run: RunFiles) -> Html:
    charts = [found for name in run.metric_names if (found := figures.metric_curve(run, name))]
    if not charts:
        said = "Fewer than two rounds were evaluated, so there is no curve to draw." if run.metric_names else ""
        return section("Round by round", paragraph(said, class_="quiet"), name="rounds")
    return section(
        "Round by round",
        legend(_series(run)) if run.baselines else "",
        grid(charts),
        _outside(run),
        figures.epsilon_curve(run),
        _selected_rounds(run),
        name="rounds",
    )


def _outside(run: RunFiles) -> Html:
    """A reminder next to metrics that the guarantee does not cover."""
    return paragraph(words.metrics_outside(run), class_="quiet")


def _selected_rounds(run: RunFiles) -> Html:
    """The curves in numbers, at about ten rounds from first to last."""
    last = len(run.curve) - 1
    steps = min(SELECTED_ROUNDS - 1, last)
    chosen = [run.curve[index] for index in sorted({round(step * last / steps) for step in range(steps + 1)})]
    timed = any(point.seconds is not None for point in chosen)
    views = dict.fromkeys(view for point in run.curve for view in point.epsilon)

    def epsilon(value: float | None) -> str:
        return "∞" if value is None else words.epsilon(value)

    rows = [
        {
            "Round": words.count(point.round),
            **{words.metric(name): words.number(point.metrics.get(name)) for name in run.metric_names},
            **{f"Epsilon, {view}": epsilon(point.epsilon.get(view)) for view in views},
            **({"Time since start": words.duration(point.seconds)} if timed else {}),
        }
        for point in chosen
    ]
    return tag("details", tag("summary", "The curves in numbers"), table(rows, "The federation at selected rounds"))


def silos(run: RunFiles) -> Html:
    if not run.silos:
        return Html("")
    names = [m for m in run.metric_names if any(values.get(m) is not None for values in run.silos.values())]
    if not names:
        return section("Silo by silo", paragraph("No metric could be computed for single silos.", class_="quiet"))
    many = len(run.silos) > MOST_LISTED
    order = _best_first(run) if many else list(run.silos)
    listed = both_ends(order)
    rows = [
        {"Silo": silo, **_tested(run, silo), **{words.metric(name): words.number(values.get(name)) for name in names}}
        for silo, values in [(tag("strong", "All silos"), run.metrics), *((name, run.silos[name]) for name in listed)]
    ]
    whose = "the federation's model" if run.shared is None else "the silos' own models"
    undefined = any(values.get(name) is None for values in run.silos.values() for name in names)
    note = f"{MISSING} stands where a metric is undefined, for example where a silo's test set has one class only."
    return section(
        "Silo by silo",
        "" if run.baselines or run.shared else figures.silo_dots(run, _best_first(run)),
        figures.silo_curves(run),
        table(rows, f"Final metrics of {whose} on each silo's test set{', the best first' if many else ''}"),
        _left_out(order),
        _outside(run),
        paragraph(note if undefined else "", class_="quiet"),
        name="silos",
    )


# ---- what was run


def experiment(run: RunFiles) -> Html:
    size = run.model.get("parameters")
    file = words.without_folders(run.plan)
    shown = tag("pre", tag("code", file), tabindex="0", aria_label="Experiment file")
    return section(
        "The experiment",
        facts(
            [
                ("Method", run.method.get("name")),
                ("What it does", join([run.method.get("about"), run.method.get("paper")], " · ")),
                ("Model", run.model.get("name")),
                ("Parameters", words.count(size) if isinstance(size, int) else None),
                ("Task", run.task),
                ("Data", run.source),
                ("Rounds", f"{words.count(run.rounds)} of {words.count(run.rounds_planned)} planned"),
                ("Seed", "none: secure randomness" if run.seed is None else str(run.seed)),
                ("Run", run.name),
            ]
        ),
        *([tag("h3", "Experiment file"), shown] if run.plan else []),
        name="experiment",
    )


def environment(run: RunFiles) -> Html:
    order = [name for name in run.seconds if name not in words.WORK] + list(words.WORK)
    names = {"tacit": "Tacit", "jax": "JAX", "numpy": "NumPy"}
    spent = facts(
        (words.WORK.get(name, name), words.duration(run.seconds[name])) for name in order if name in run.seconds
    )
    machine = facts((names.get(name, name.capitalize()), value) for name, value in run.environment.items())
    return section(
        "Time and environment",
        tag("div", spent, machine, class_="pair") if spent or machine else "",
        name="environment",
    )
