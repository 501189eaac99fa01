"""What the commands print: tables and sentences for people, JSON for programs.

Heavy imports happen inside the functions, so that ``tacit --help`` answers at once.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from tacit.escape import escaped

if TYPE_CHECKING:
    from tacit.audit import Audit
    from tacit.engine import Run
    from tacit.ledger_check import Checked, Cost, Total
    from tacit.planner import NoiseToSignal, Outlook, PaidOnce, Sweep
    from tacit.surveys import Survey

# Names and values come from people: square brackets in them are text, never markup.
console = Console(markup=False)
errors = Console(stderr=True, soft_wrap=True, markup=False)

_SEEDED = "The experiment has a seed: whoever knows it can regenerate the noise. The model must not be published."


def print_run(finished: Run) -> None:
    """The outcome in a few lines: metrics beside the references, what is promised, where the page is."""
    from tacit.report.words import no_metrics

    result = finished.result
    if result["status"] == "stopped":
        text = f"stopped after round {result['rounds']}; go on with --resume {finished.path}"
        console.print(text, style="yellow", soft_wrap=True)
    if any(value is not None for value in result["metrics"].values()):
        console.print(metrics_table(result))
    else:
        console.print(no_metrics(result["evaluation"]), style="yellow", highlight=False)
    print_guarantees(result["guarantees"])
    _print_caveats(result)
    console.print(f"run     {finished.path}", soft_wrap=True)
    console.print(f"report  {finished.report}", soft_wrap=True)


def metrics_table(result: dict[str, Any]) -> Table:
    """A row per metric, and one for the worst silo where silos have models of their own. Scores of models of one silo
    each cannot be ranked against each other: where there are any, ranking metrics are compared by their average over
    silos, on a row of its own."""
    from tacit.report.words import worst_silo

    for_all = {"one for everybody": result["shared"]} if result.get("shared") else {}
    columns = {result["method"]["label"]: result, **for_all, **result["baselines"]}
    own = {"silo-only"} | ({result["method"]["label"]} if result["personal"] else set())
    averaged = [name for name in result["over_silos"] if own & columns.keys()]
    errors = result["evaluation"].get("standard_errors") or {}
    table = columns_of("held-out", *columns)
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


def print_guarantees(guarantees: list[dict[str, Any]], *, rests_on: bool = False) -> None:
    """Who is protected from whom at which epsilon; what is infinite is red, with its reason below."""
    from tacit.privacy import View
    from tacit.privacy.statement import epsilon_text

    infinite = [line for line in guarantees if line["epsilon"] == "inf"]
    if len(infinite) == len(guarantees):
        views = ", ".join(line["view"] for line in guarantees)
        reason = guarantees[0]["assumptions"][0] if guarantees else ""
        console.print(f"No privacy guarantee: epsilon = infinity for {views} ({reason})", style="red")
    else:
        published = any(line["as_published"] for line in guarantees)
        headings = ("protects", "from", "that is", "epsilon", "delta", "relation", "sampling")
        table = columns_of(*headings, *(["as published"] if published else []))
        for line in guarantees:
            cells = [line["unit"], line["view"], View.parse(line["view"]).who]
            cells += [epsilon_text(float(line["epsilon"])), f"{line['delta']:g}", line["relation"], line["sampling"]]
            cells += [_as_published(line)] if published else []
            table.add_row(*cells, style="red" if line in infinite else None)
        console.print(table)
        for line in infinite:
            reason = line["assumptions"][0] if line["assumptions"] else "nothing is proved"
            console.print(f"{line['view']}: epsilon = infinity, because {reason}", style="red")
    for line in guarantees:
        if line["as_published"]:
            verdict = f"as published, {line['view']}: {_as_published(line)}"
            console.print(f"{verdict}; {line['as_published']['reason']}", style="yellow")
    linked = [line for line in guarantees if line.get("linkage")]
    if linked:
        each = ", ".join(f"{line['view']} {epsilon_text(float(line['linkage']['epsilon']))}" for line in linked)
        console.print(f"A person with {linked[0]['linkage']['pseudonyms']} unlinked identifiers: epsilon {each}")
    assumptions = dict.fromkeys(text for line in guarantees if line not in infinite for text in line["assumptions"])
    if rests_on and assumptions:
        console.print("This rests on:")
        listed = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1, 0, 0))
        for text in assumptions:
            listed.add_row(" -", text)
        console.print(listed)


def print_checked(found: Sequence[Checked], totals: Sequence[Total]) -> None:
    """A line for every run: what its ledger records, and what that cost. Then the totals of ledgers with several runs,
    and what each advisory says about these runs."""
    for each in found:
        title = f"'{each.title}'" if each.title else ""
        status: str = each.status
        if each.status == "ok" and each.not_checked:
            status = f"ok for {', '.join(each.checked)}, " if each.checked else ""
            status += f"not checked for {', '.join(each.not_checked)}"
        said = [status, _costs(each.place, each.delta, each.epsilon), each.reason]
        head = " ".join(filter(None, (each.ledger, each.run, title)))
        line = f"{head}: {'; '.join(filter(None, said))}"
        style = "red" if each.status != "ok" else "yellow" if each.not_checked else None
        console.print(escaped(line), style=style, highlight=False, soft_wrap=True)
    for total in totals:
        what = f"{total.ledger}: total of {total.runs:,} runs, {total.lines:,} lines"
        costs = _costs(total.place, total.delta, total.epsilon)
        console.print(escaped(f"{what}; {costs}"), highlight=False, soft_wrap=True)
    for line in _advisories(found):
        console.print(line, highlight=False, soft_wrap=True)


def _costs(place: str, delta: float | None, epsilon: Mapping[str, Cost] | None) -> str:
    from tacit.privacy.statement import epsilon_text

    def one(view: str, costs: Cost) -> str:
        after = "" if costs.corrected is None else f" -> {epsilon_text(costs.corrected)}"
        return f"{view} {epsilon_text(costs.recorded)}{after}"

    parts = ", ".join(one(view, costs) for view, costs in (epsilon or {}).items())
    return f"epsilon [{place}, delta {delta:g}] {parts}" if parts else ""


def _advisories(found: Sequence[Checked]) -> list[str]:
    """What was checked, and where to read about what was not."""
    from tacit.ledger_check import ADVISORIES

    lines = []
    for advisory in ADVISORIES:
        yes = sum(advisory.name in each.checked for each in found)
        no = sum(advisory.name in each.not_checked for each in found)
        said = [f"recomputed for {yes:,} of {len(found):,} runs"] if yes else []
        where = f"compare their plan.toml with {advisory.page}"
        said += [f"not checked for {no:,} of {len(found):,} runs: {where}"] if no else []
        said = said or [f"concerns no run here (accounting {advisory.corrected_in} or later)"]
        lines.append(f"{advisory.name}: {'; '.join(said)}")
    return lines


def _as_published(line: dict[str, Any]) -> str:
    """``10.73 (valid)``, ``(only if)``, ``(not valid)``."""
    from tacit.privacy.statement import epsilon_text

    found = line["as_published"]
    if not found:
        return "–"
    words = {"yes": "valid", "only-if": "only if", "no": "not valid"}
    return f"{epsilon_text(float(found['epsilon']))} ({words[found['valid']]})"


def _print_caveats(result: dict[str, Any]) -> None:
    """What a finite guarantee does not say by itself."""
    if all(line["epsilon"] == "inf" for line in result["guarantees"]):
        return
    if result["evaluation"]["status"] == "outside-guarantee" and result["metrics"]:
        console.print("Metrics were computed on private records: they are outside the guarantee.", style="yellow")
    if result["seed"] is not None:
        console.print(_SEEDED.replace("experiment has", "run had"), style="red")


def print_outlook(outlook: Outlook) -> None:
    """A plan on one screen: the promise, who sees what at which epsilon, what it rests on, the noise, the budget."""
    made = outlook.plan
    console.print(made.title, style="bold")
    console.print(f"{made.label}: {made.method.about}; {made.rounds} rounds")
    if outlook.noise is not None:
        _print_noise(outlook.noise, outlook.plan.local_epsilon)
    for paid in outlook.paid:
        _print_paid(paid)
    finite = any(guarantee.finite for guarantee in outlook.guarantees)
    if finite:
        nothing = outlook.promise.startswith("Nothing")
        console.print(f"\n{outlook.promise}\n", style="red" if nothing else "bold", highlight=False)
    print_guarantees([guarantee.as_dict() for guarantee in outlook.guarantees], rests_on=True)
    if made.experiment.seed is not None and finite:
        console.print(_SEEDED, style="red")
    if outlook.pairs is not None:
        console.print(f"\n{outlook.pairs.words}", highlight=False)
    if outlook.slots is not None:
        console.print(f"\n{outlook.slots.words}", highlight=False)
    if outlook.network is not None:
        console.print(f"\n{outlook.network.words}", highlight=False)
    if outlook.over_silos is not None:
        console.print(f"\n{outlook.over_silos.words}", highlight=False)
    if outlook.rounds_within_budget is not None:
        _print_budget(outlook)


def _print_noise(noise: NoiseToSignal, local_epsilon: float | None) -> None:
    from tacit.planner import noise_text

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
        rows.append(
            (
                "largest possible sum",
                f"norm {noise.largest:.4g} = {noise.units} x clip ({noise.clips}), all pulling the same way",
            )
        )
    if noise.ratio is not None:
        rows.append(("noise over signal", f"{noise.ratio:.3g} at best in one round; averaging over rounds helps"))
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="dim")
    table.add_column()
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _print_paid(paid: PaidOnce) -> None:
    from tacit.privacy.statement import epsilon_text

    what = {"statistics": "constants for standardising", "evaluation": "metrics of the final model"}[paid.mechanism]
    whose = "about held-out people only" if paid.apart else "within the guarantees below"
    alone = f"epsilon {epsilon_text(paid.epsilon)} by themselves"
    console.print(f"Paid once: {what}, noise multiplier {paid.noise_multiplier:g}, {alone}, {whose}.", highlight=False)


def _print_budget(outlook: Outlook) -> None:
    fit, rounds = outlook.rounds_within_budget, outlook.plan.rounds
    start = f"Budget: epsilon {outlook.budget:g} allows "
    if fit == rounds:
        console.print(f"{start}all {rounds} rounds.")
    else:
        rest = "the run stops there and keeps that model (the table above is for all rounds)"
        console.print(f"{start}{fit} of {rounds} rounds; {rest}.", style="yellow")


def print_sweep(sweep: Sweep) -> None:
    """A row per point."""
    from tacit.planner import noise_text
    from tacit.privacy.statement import epsilon_text

    target = "" if sweep.target is None else f" for epsilon {sweep.target:g}"
    what = f"noise needed{target}" if sweep.solves == "noise_multiplier" else "epsilon of the given noise"
    at = "" if sweep.delta is None else f" at delta {sweep.delta:g}"
    console.print(sweep.title, style="bold")
    console.print(f"{sweep.method}: {what}{at}, one {sweep.unit} against {', '.join(sweep.against)}")
    ratio = any(point.ratio is not None for point in sweep.points)
    columns = ["noise multiplier", "standard deviation", "epsilon", *(["noise over signal"] if ratio else [])]
    table = columns_of(*(axis.name for axis in sweep.axes), *columns)
    for column in table.columns:
        column.justify = "right"
    for point in sweep.points:
        cells = [f"{value:g}" for value in point.values]
        cells += [noise_text(point.noise_multiplier), f"{point.std:.4g}", epsilon_text(point.epsilon)]
        cells += [] if not ratio else ["–" if point.ratio is None else f"{point.ratio:.3g}"]
        table.add_row(*cells, style=None if math.isfinite(point.epsilon) else "red")
    console.print(table)
    console.print(f"{len(sweep.points)} points in {sweep.seconds:.1f} s", style="dim")


def print_data(picture: dict[str, Any]) -> None:
    console.print("Exact numbers about private data: they stay with the data holder.", style="yellow")
    console.print(
        f"{picture['records']:,} training records, {picture['test_records']:,} held out, "
        f"{picture['subjects']:,} subjects, {len(picture['silos'])} silos"
    )
    table = columns_of("silo", "records", "subjects", "held out", "label")
    for silo in picture["silos"]:
        counts = (f"{silo[key]:,}" for key in ("records", "subjects", "test_records"))
        table.add_row(silo["name"], *counts, _label(silo["label"], picture.get("classes") or []))
    console.print(table)
    _print_histogram("records per subject", picture["records_per_subject"])
    _print_histogram("silos per subject", picture["silos_per_subject"])


def _label(label: Any, classes: list[str]) -> str:
    """A mean, or records per class (the first few)."""
    if not isinstance(label, list):
        return "" if label is None else f"{label:.3f}"
    shown = [f"{name}: {count:,}" for name, count in zip(classes, label, strict=True)][:5]
    return ", ".join(shown) + (", …" if len(label) > 5 else "")


def _print_histogram(title: str, histogram: dict[str, list[int]]) -> None:
    """A few lines of bars: at most a dozen rows, values grouped where there are more."""
    values, counts = histogram[next(key for key in histogram if key != "subjects")], histogram["subjects"]
    step = -(-len(values) // 12)
    ends = [(i, min(i + step, len(values))) for i in range(0, len(values), step)]
    groups = [(values[i], values[j - 1], sum(counts[i:j])) for i, j in ends]
    most = max((count for *_, count in groups), default=1)
    console.print(f"\n{title}", style="bold")
    for low, high, count in groups:
        name = f"{low:,}" if low == high else f"{low:,}–{high:,}"
        console.print(f"{name:>15}  {'█' * max(1, round(40 * count / most))} {count:,}", highlight=False)


def print_survey(found: Survey, folder: Path) -> None:
    """The answers with their error bars, what is promised, and what the other place of the noise would have cost."""
    shown = columns_of(found.column, "estimate", "standard error", "95 % interval")
    for answer in found.answers:
        interval = f"{answer.low:.4g} to {answer.high:.4g}"
        shown.add_row(answer.answer, f"{answer.estimate:.4g}", f"{answer.standard_error:.2g}", interval)
    console.print(shown)
    console.print(f"{found.people:,} people; errors are those of the noise alone.", highlight=False)
    print_guarantees([guarantee.as_dict() for guarantee in found.guarantees], rests_on=True)
    other = "local" if found.place == "central" else "central"
    errors = f"about {found.expected_error:.2g} here, {found.other_error:.2g} with --noise {other}"
    console.print(f"Standard error at this epsilon: {errors}.", highlight=False)
    if found.seed is not None:
        console.print("The survey has a seed: whoever knows it can remove the noise.", style="red")
    console.print(f"survey  {folder}", soft_wrap=True)


def print_audit(found: Audit, page: Path) -> None:
    """What was tried, what came out, and what is claimed; red where a lower bound exceeds a claim."""
    from tacit.privacy.statement import epsilon_text
    from tacit.report.audits import VERDICTS, lower

    published = {str(line.view): line.as_published for line in found.guarantees}
    console.print(f"{found.method}: epsilon at delta {found.delta:g} for one {found.unit}", style="bold")
    table = columns_of(
        "canaries", "seen", "view", "right", "at least", "on a Gaussian curve", "estimate", "proved", "as published"
    )
    for line in found.canaries:
        claim = published.get(line.view)
        beaten = claim is not None and line.epsilon > claim.epsilon
        table.add_row(
            line.kind,
            line.seen,
            line.view,
            f"{line.right}/{line.guesses}",
            lower(line.epsilon),
            lower(line.fdp_epsilon),
            lower(line.estimate),
            epsilon_text(line.proved),
            "–" if claim is None else epsilon_text(claim.epsilon),
            style="red" if line.refuted or line.epsilon > line.proved or beaten else None,
        )
    if found.canaries:
        console.print(table)
    alone = columns_of("method alone", "runs", "at least", "Gaussian", "proved", "hits", "allowed")
    for one in found.mechanism:
        alone.add_row(
            one.view,
            f"{one.found.runs:,}",
            lower(one.found.epsilon),
            lower(one.found.gaussian_epsilon),
            epsilon_text(one.proved),
            f"{one.found.hits:.3f}",
            f"{one.found.most_hits:.3f}",
            style="red" if one.found.refuted else None,
        )
    console.print(alone)
    console.print(VERDICTS[found.verdict][1], style="red" if found.verdict in ("refuted", "doubtful") else None)
    for view in found.refuted_as_published:
        console.print(f"{view}: a lower bound exceeds the published epsilon.", style="red")
    console.print(f"{found.seconds:.0f} s", style="dim")
    console.print(f"report  {page}", soft_wrap=True)


def columns_of(*columns: str) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for i, column in enumerate(columns):
        table.add_column(column, no_wrap=i == 0)
    return table


def cell(value: Any) -> str:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.4g}"
    return str(value)


def print_json(content: Any) -> None:
    print(json.dumps(content, indent=1))


def json_value(value: Any) -> Any:
    """Infinity as the word "inf", an unknown number as null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "inf"
    return value


def complain(line: str) -> None:
    errors.print(f"error  {escaped(' '.join(line.split()))}", style="red", highlight=False, markup=False)
