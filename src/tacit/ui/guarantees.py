"""Guarantees and results of runs on the console."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer
from rich.table import Table

from tacit.errors import Forbidden, UserError
from tacit.ui.console import plain_table, show, show_json, show_line, table_of

if TYPE_CHECKING:
    from tacit.engine import Run

# what `tacit run --json` prints of a result
PRINTED = (
    "title",
    "run",
    "status",
    "rounds",
    "guarantees",
    "noise_multiplier",
    "metrics",
    "shared",
    "baselines",
    "seconds",
)


def seed_warning(what: str) -> str:
    return f"The {what} a seed: anyone who knows it can regenerate the noise. The model must not be published."


def show_finished(finished: Run, as_json: bool) -> None:
    """The result of a run, and the exit code for how it ended."""
    if as_json:
        show_json({**{key: finished.result[key] for key in PRINTED}, "report": str(finished.report)})
    else:
        show_run(finished)
    if finished.result["status"] == "stopped":
        raise typer.Exit(130)
    if finished.result["status"] == "budget":
        done = finished.result["rounds"]
        problem = f"round {done + 1} of {finished.result['rounds_planned']} would exceed it"
        fix = f"the model of round {done} is kept in {finished.path}; plan fewer rounds or more noise"
        raise Forbidden("budget-exhausted", "privacy.budget", problem, fix)
    if finished.result["status"] == "diverged":
        problem = f"the model was no longer finite by round {finished.result['rounds']}"
        raise UserError("diverged", "train", problem, "lower method.local_learning_rate or train.server_learning_rate")


def show_run(finished: Run) -> None:
    """Metrics with the references, guarantees, and the path of the report."""
    from tacit.report.words import no_metrics

    result = finished.result
    if result["status"] == "stopped":
        show_line(f"stopped after round {result['rounds']}; continue with --resume {finished.path}", "yellow")
    if any(value is not None for value in result["metrics"].values()):
        show(metrics_table(result))
    else:
        show(no_metrics(result["evaluation"]), "yellow", highlight=False)
    show_guarantees(result["guarantees"])
    if any(line["epsilon"] != "inf" for line in result["guarantees"]):
        if result["evaluation"]["status"] == "outside-guarantee" and result["metrics"]:
            show("Metrics were computed on private records: they are outside the guarantee.", "yellow")
        if result["seed"] is not None:
            show(seed_warning("run had"), "red")
    show_line(f"run     {finished.path}")
    show_line(f"report  {finished.report}")


def metrics_table(result: dict[str, Any]) -> Table:
    """A row per metric, and one for the worst silo if silos have models of their own. Scores of models of one silo
    each cannot be ranked against each other: ranking metrics of such models are compared by their average over silos,
    in an extra row."""
    from tacit.report.words import worst_silo

    for_all = {"shared model": result["shared"]} if result.get("shared") else {}
    columns = {result["method"]["label"]: result, **for_all, **result["baselines"]}
    own = {"silo-only"} | ({result["method"]["label"]} if result["personal"] else set())
    averaged = [name for name in result["over_silos"] if own & columns.keys()]
    errors = result["evaluation"].get("standard_errors") or {}
    table = table_of("held-out", *columns)
    for metric in result["metrics"]:
        shared = {
            name: None if metric in averaged and name in own else scores["metrics"].get(metric)
            for name, scores in columns.items()
        }
        first, *others = map(_metric, shared.values())
        table.add_row(metric, f"{first} ± {errors[metric]:.4f}" if metric in errors else first, *others)
        if metric in averaged:
            by_silo = [scores.get("over_silos", {}).get(metric) for scores in columns.values()]
            table.add_row("  mean of silos", *map(_metric, by_silo))
        if for_all and metric == result["task"]["headline"]:
            better = 1 if result["task"]["higher_is_better"][metric] else -1
            worst = [worst_silo(scores["silos"], metric, better) for scores in columns.values()]
            table.add_row("  worst silo", *(_metric(None if end is None else end[1]) for end in worst))
    return table


def _metric(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def show_guarantees(guarantees: list[dict[str, Any]], *, rests_on: bool = False) -> None:
    """Who is protected from whom at which epsilon; infinite ones in red, with the reason below."""
    from tacit.privacy import View
    from tacit.privacy.statement import epsilon_text

    infinite = [line for line in guarantees if line["epsilon"] == "inf"]
    if len(infinite) == len(guarantees):
        views = ", ".join(line["view"] for line in guarantees)
        reason = guarantees[0]["assumptions"][0] if guarantees else ""
        show(f"No privacy guarantee: epsilon = infinity for {views} ({reason})", "red")
    else:
        published = any(line["as_published"] for line in guarantees)
        headings = ("protects", "from", "that is", "epsilon", "delta", "relation", "sampling")
        table = table_of(*headings, *(["as published"] if published else []))
        for line in guarantees:
            cells = [line["unit"], line["view"], View.parse(line["view"]).who]
            cells += [epsilon_text(float(line["epsilon"])), f"{line['delta']:g}", line["relation"], line["sampling"]]
            cells += [_as_published(line)] if published else []
            table.add_row(*cells, style="red" if line in infinite else None)
        show(table)
        for line in infinite:
            reason = line["assumptions"][0] if line["assumptions"] else "nothing is proved"
            show(f"{line['view']}: epsilon = infinity, because {reason}", "red")
    for line in guarantees:
        if line["as_published"]:
            verdict = f"as published, {line['view']}: {_as_published(line)}"
            show(f"{verdict}; {line['as_published']['reason']}", "yellow")
    linked = [line for line in guarantees if line.get("linkage")]
    if linked:
        each = ", ".join(f"{line['view']} {epsilon_text(float(line['linkage']['epsilon']))}" for line in linked)
        show(f"A person with {linked[0]['linkage']['pseudonyms']} unlinked identifiers: epsilon {each}")
    assumptions = dict.fromkeys(text for line in guarantees if line not in infinite for text in line["assumptions"])
    if rests_on and assumptions:
        show("This rests on:")
        listed = plain_table()
        for text in assumptions:
            listed.add_row(" -", text)
        show(listed)


def _as_published(line: dict[str, Any]) -> str:
    """``10.73 (valid)``, ``(only if)``, ``(not valid)``."""
    from tacit.privacy.statement import epsilon_text

    found = line["as_published"]
    if not found:
        return "–"
    words = {"yes": "valid", "only-if": "only if", "no": "not valid"}
    return f"{epsilon_text(float(found['epsilon']))} ({words[found['valid']]})"
