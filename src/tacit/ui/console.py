"""What commands print: text, tables and progress bars, JSON, errors; plans, sweeps, guarantees and results of runs."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console, RenderableType
from rich.table import Table

from tacit.errors import Forbidden, UserError
from tacit.escape import escaped

if TYPE_CHECKING:
    from rich.progress import Progress

    from tacit.engine import Run
    from tacit.planning.claims import Once
    from tacit.planning.preview import NoiseToSignal, Outlook
    from tacit.planning.sweep import Sweep

# Names and values come from users: square brackets in them are text, never markup.
console = Console(markup=False)
errors = Console(stderr=True, soft_wrap=True, markup=False)
# letters of the line of a progress bar that are not the bar, its name and the round: two metrics and the times
REST = len("balanced_accuracy 0.712  accuracy 0.723") + len("0:00:00 left 0:00:00") + 4
# what `tacit run --json` prints of a result
PRINTED = (
    *("title", "run", "status", "rounds", "guarantees", "noise_multiplier", "metrics", "warnings", "shared"),
    *("task", "baselines"),
)
# the colour of a verdict
LIGHTS = {"good": "green", "uncertain": "yellow", "hopeless": "red"}
RELEASED = {"statistics": "constants for standardising", "evaluation": "metrics of the final model"}


def show(content: RenderableType, style: str | None = None, **options: Any) -> None:
    """Print text or a table, wrapped at the width of the terminal."""
    console.print(content, style=style, **options)


def show_line(text: str, style: str | None = None) -> None:
    """Print one line as it is: never wrapped, numbers not coloured."""
    console.print(text, style=style, soft_wrap=True, highlight=False)


def show_untrusted(line: str, style: str | None = None) -> None:
    """Print a line with text of other parties; characters that do not print are escaped."""
    show_line(escaped(line), style)


def show_json(content: Any) -> None:
    print(json.dumps(content, indent=1))


def show_error(line: str) -> None:
    errors.print(f"error  {escaped(' '.join(line.split()))}", style="red", highlight=False)


def warn(line: str) -> None:
    """Print a warning to the error stream."""
    errors.print(line, style="yellow")


def table_of(*columns: str) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for i, column in enumerate(columns):
        table.add_column(column, no_wrap=i == 0)
    return table


def show_rows(rows: Sequence[tuple[Mapping[str, str], object]]) -> None:
    """Rows as (cells by the title of their column, whether the row is red); nothing if there are none."""
    if rows:
        table = table_of(*rows[0][0])
        table.columns[0].no_wrap = False
        for cells, is_red in rows:
            table.add_row(*cells.values(), style="red" if is_red else None)
        show(table)


def show_pairs(pairs: Iterable[tuple[str, str]]) -> None:
    """Names and values in two columns."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="dim")
    for pair in pairs:
        table.add_row(*pair)
    show(table)


class Bars:
    """A progress bar per training: the round, the metrics and the seconds left. It stays on screen when it is done."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress: Progress | None = None

    def begin(self, what: str, rounds: int, done: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import TextColumn as Text

        rest = max(12, len(what)) + len(f"{rounds}/{rounds}") + REST
        self._progress = Progress(
            Text("{task.description:12}"),
            BarColumn(bar_width=max(1, min(28, self._console.width - rest))),
            MofNCompleteColumn(),
            Text("{task.fields[metrics]}"),
            TimeElapsedColumn(),
            Text("left"),
            TimeRemainingColumn(),
            console=self._console,
        )
        self._task = self._progress.add_task(what, total=rounds, completed=done, metrics="compiling")
        self._progress.start()

    def advance(self, number: int, metrics: Mapping[str, float | None]) -> None:
        from tacit.engine.evaluate import shown

        if self._progress is not None:
            self._progress.update(self._task, completed=number, metrics=shown(metrics))

    def end(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


# ---- results of runs, and guarantees


def seed_warning(what: str) -> str:
    return f"The {what} a seed: anyone who knows it can regenerate the noise. The model must not be published."


def show_finished(finished: Run, as_json: bool) -> None:
    """The result of a run, and the exit code for how it ended."""
    if as_json:
        show_json({**{key: finished.result[key] for key in (*PRINTED, "seconds")}, "report": str(finished.report)})
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
    for warning in result["warnings"]:
        show(warning, "yellow", highlight=False)
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
    from tacit.report.words import hidden, worst_silo

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
        if metric in errors:
            first = hidden(result["metrics"][metric], errors[metric]) or f"{first} ± {errors[metric]:.4f}"
        table.add_row(metric, first, *others)
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
    from tacit.privacy.terms import epsilon_text

    infinite = [line for line in guarantees if line["epsilon"] == "inf"]
    if len(infinite) == len(guarantees):
        views = ", ".join(line["view"] for line in guarantees)
        reason = guarantees[0]["assumptions"][0] if guarantees else ""
        show(f"No privacy guarantee: epsilon = infinity for {views} ({reason})", "red")
    else:
        published = any(line["as_published"] for line in guarantees)
        rows = [
            {
                "protects": line["unit"],
                "from": line["view"],
                "that is": View.parse(line["view"]).who,
                "epsilon": epsilon_text(float(line["epsilon"])),
                "delta": f"{line['delta']:g}",
                "relation": line["relation"],
                "sampling": line["sampling"],
                **({"as published": _as_published(line)} if published else {}),
            }
            for line in guarantees
        ]
        show_rows([(row, line in infinite) for row, line in zip(rows, guarantees, strict=True)])
        for line in infinite:
            reason = line["assumptions"][0] if line["assumptions"] else "nothing is proved"
            show(f"{line['view']}: epsilon = infinity, because {reason}", "red")
    unconfirmed = [line for line in guarantees if line.get("valid") == "only-if"]
    if unconfirmed:
        show(f"Only if: {unconfirmed[0]['assumptions'][0]}", "yellow")
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
        show_pairs([(" -", text) for text in assumptions])


def _as_published(line: dict[str, Any]) -> str:
    """``10.73 (valid)``, ``(only if)``, ``(not valid)``."""
    from tacit.privacy.terms import epsilon_text

    found = line["as_published"]
    if not found:
        return "–"
    words = {"yes": "valid", "only-if": "only if", "no": "not valid"}
    return f"{epsilon_text(float(found['epsilon']))} ({words[found['valid']]})"


# ---- plans and sweeps


def show_outlook(outlook: Outlook) -> None:
    """A plan: noise, guarantees with their assumptions, budget."""
    made = outlook.plan
    show(made.title, "bold")
    show(f"{made.label}: {made.method.info.summary}; {made.rounds} rounds")
    if outlook.noise is not None:
        _show_noise(outlook.noise, outlook.plan.local_epsilon)
    for once, epsilon in outlook.once:
        _show_once(once, epsilon)
    finite = any(guarantee.finite for guarantee in outlook.guarantees)
    if finite:
        against = [guarantee for guarantee in outlook.guarantees if guarantee.view in made.promise.against]
        said = (against or outlook.guarantees)[0]  # the one that the sentence is about
        show(f"\n{outlook.promise}\n", "bold" if said.finite else "red", highlight=False)
    show_guarantees([guarantee.as_dict() for guarantee in outlook.guarantees], rests_on=True)
    if made.experiment.seed is not None and finite:
        show(seed_warning("experiment has"), "red")
    for part in (*outlook.parts.values(), outlook.over_silos):
        if part is not None:
            show(f"\n{part.words}", highlight=False)
    if outlook.rounds_within_budget is not None:
        _show_budget(outlook)
    for warning in made.warnings:
        show(f"\n{warning}", "yellow", highlight=False)
    if outlook.verdict is not None:
        show(f"\n{outlook.verdict.words}", LIGHTS[outlook.verdict.light], highlight=False)


def _show_noise(noise: NoiseToSignal, local_epsilon: float | None) -> None:
    from tacit.privacy.terms import noise_text

    origin = "solved for the target" if noise.solved else "given"
    rows = [
        ("noise multiplier", f"{noise_text(noise.multiplier)} ({origin}), {noise.place}"),
        ("standard deviation", f"{noise.std:.4g} on every number of a sum = {noise.origin}"),
    ]
    if local_epsilon is not None:
        rows.insert(0, ("local epsilon", f"{local_epsilon:.4g} ({origin}), of one person's messages by themselves"))
    if noise.norm is not None:
        rows.append(("norm of the noise", f"{noise.norm:.4g} over {noise.parameters:,} numbers"))
    if noise.largest is not None:
        largest = f"norm {noise.largest:.4g} = {noise.units} x clip ({noise.clips}), all in the same direction"
        rows.append(("largest possible sum", largest))
    if noise.step is not None:
        moved = f"{noise.step:.3g} = train.server_learning_rate ({noise.rate:g}) x that sum / {noise.divisor:,g}"
        rows.append(("step along it", moved))
    if noise.ratio is not None:
        rows.append(("noise over signal", f"{noise.ratio:.3g} at best in one round; averaging over rounds helps"))
    show_pairs(rows)


def _show_once(once: Once, epsilon: float) -> None:
    from tacit.privacy.terms import epsilon_text

    whose = "about held-out people only" if once.apart else "within the guarantees below"
    noise = f"noise multiplier {once.noise_multiplier:g}, epsilon {epsilon_text(epsilon)} by themselves"
    show(f"Released once: {RELEASED[once.mechanism]}, {noise}, {whose}.", highlight=False)


def _show_budget(outlook: Outlook) -> None:
    fit, rounds = outlook.rounds_within_budget, outlook.plan.rounds
    start = f"Budget: epsilon {outlook.budget:g} allows "
    if fit == rounds:
        show(f"{start}all {rounds} rounds.")
    else:
        rest = "the run stops there and keeps that model (the table above is for all rounds)"
        show(f"{start}{fit} of {rounds} rounds; {rest}.", "yellow")


def show_sweep(sweep: Sweep) -> None:
    """A row per point."""
    from tacit.report.sweeps import rows

    target = "" if sweep.target is None else f" for epsilon {sweep.target:g}"
    what = f"noise needed{target}" if sweep.solves == "noise_multiplier" else "epsilon of the given noise"
    at = "" if sweep.delta is None else f" at delta {sweep.delta:g}"
    show(sweep.title, "bold")
    show(f"{sweep.method}: {what}{at}, one {sweep.unit} against {', '.join(sweep.against)}")
    infinite = [math.isinf(point.epsilon) for point in sweep.points]
    show_rows(list(zip(rows(sweep), infinite, strict=True)))
    show(f"{len(sweep.points)} points in {sweep.seconds:.1f} s", "dim")
