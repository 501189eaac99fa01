"""The commands. Each prints for people, or one JSON object with ``--json``.

Exit 0 on success, 2 for a mistake that the user can mend (one line: field, value, fix), 3 where a budget or a policy
forbids the work, 130 after Ctrl-C (the run folder is usable). Heavy imports happen inside the commands, so that
``--help`` answers at once.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from importlib.metadata import version as installed_version
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from tacit.errors import Forbidden, TacitError, UserError

if TYPE_CHECKING:
    from tacit.audit import Audit
    from tacit.config import Plan
    from tacit.engine import Run
    from tacit.engine.federation.kits import Kit
    from tacit.engine.federation.requester import Asked
    from tacit.planner import NoiseToSignal, Outlook, PaidOnce, Sweep
    from tacit.surveys import Survey

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Differentially private federated learning for data about people.",
)
# Names and values come from people: square brackets in them are text, never markup.
console = Console(markup=False)
errors = Console(stderr=True, soft_wrap=True, markup=False)

federation = typer.Typer(no_args_is_help=True, help="A federation of organisations: kits, who is there, a trial.")
app.add_typer(federation, name="federation")

# What the demo is compared with: no privacy, records protected instead of people, each silo alone, all records pooled.
DEMO_BESIDE = ("fedavg", "local-record", "silo-only", "pooled")

# What `tacit run --json` prints of a result.
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

Experiment = Annotated[Path, typer.Argument(metavar="EXPERIMENT.toml", help="The experiment file.")]
Changes = Annotated[list[str], typer.Option("--set", metavar="a.b=value", help="Replace one setting; may be repeated.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object for machines.")]
Out = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="The run folder to make.")]
SWEEP_HELP = (
    "Solve for several values: rounds=10,100,1000 or rounds=10:1000 (1-2-5 steps). Known: rounds, delta, epsilon, "
    "every key of [method] (clip, sample_rate, noise_multiplier, …), or a.b. May be repeated, or joined by commas."
)
KitFolder = Annotated[Path, typer.Argument(metavar="KIT", help="A folder that `tacit federation init` made.")]
RequesterKit = Annotated[Path, typer.Option("--kit", metavar="KIT", help="The kit of a requester.")]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]


def main() -> None:
    """Entry point: errors that Tacit raises on purpose become one line and their exit code."""
    _keep_compilations()
    try:
        app()
    except TacitError as error:
        _complain(str(error))
        sys.exit(error.exit_code)
    except OSError as error:
        _complain(f"system: {error}; mend it, then go on with --resume if a run folder was made")
        sys.exit(2)
    except (MemoryError, RuntimeError) as error:
        if not _is_shortage(error):
            raise
        _complain("memory: the experiment needs more than there is; lower counts, epochs, batch_size or the model")
        sys.exit(2)


def _is_shortage(error: Exception) -> bool:
    """Whether memory was short; JAX says so by a word in a RuntimeError."""
    return isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error)


def _show_version(wanted: bool) -> None:
    if wanted:
        console.print(f"tacit {installed_version('tacit')}")
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Print the version.")]


@app.callback()
def _program(version: Version = False) -> None:
    """Differentially private federated learning for data about people."""


@app.command()
def demo(out: Out = None, as_json: Json = False) -> None:
    """The built-in experiment, from records to report, in under a minute."""
    from tacit.config import plan

    experiment = plan(Path(str(files("tacit") / "demo.toml")))
    _run(experiment, out=out, baselines=DEMO_BESIDE, as_json=as_json)


@app.command()
def run(
    experiment: Experiment,
    changes: Changes = [],  # noqa: B006 - typer reads the default, nobody changes it
    out: Out = None,
    resume: Annotated[Path | None, typer.Option("--resume", metavar="RUN", help="Go on with this run.")] = None,
    baselines: Annotated[bool, typer.Option("--baselines", help="Also train silo-only and pooled.")] = False,
    as_json: Json = False,
) -> None:
    """Train as the experiment says; leaves a run folder with model, metrics and report."""
    from tacit.config import plan

    _run(plan(experiment, changes), out=out, resume=resume, baselines=baselines, as_json=as_json)


@app.command()
def plan(
    experiment: Experiment,
    changes: Changes = [],  # noqa: B006
    epsilon: Annotated[
        float | None, typer.Option("--epsilon", help="Solve for the noise of this epsilon, whatever the file says.")
    ] = None,
    sweeps: Annotated[
        list[str],
        typer.Option("--sweep", metavar="name=values", help=SWEEP_HELP),
    ] = [],  # noqa: B006
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="The page of a sweep.")] = None,
    as_json: Json = False,
) -> None:
    """What would be promised, to whom, at what noise: no data is read."""
    from tacit import planner
    from tacit.config import plan as make

    content = planner.read_content(experiment, changes, epsilon)
    folder = experiment.resolve().parent
    if sweeps:
        _sweep(content, sweeps, folder, out or Path(f"{experiment.stem}-sweep.html"), as_json)
        return
    outlook = planner.outlook(make(content, folder=folder))
    _print_json(outlook.as_dict()) if as_json else _print_outlook(outlook)


def _sweep(content: dict[str, Any], sweeps: list[str], folder: Path, file: Path, as_json: bool) -> None:
    from tacit import planner
    from tacit.report import sweep_page

    with _PatientLine() as line:
        found = planner.sweep(content, sweeps, folder, told=line.told)
    page = sweep_page(found, file)
    if as_json:
        _print_json({**found.as_dict(), "report": str(page)})
        return
    _print_sweep(found)
    console.print(f"report  {page}", soft_wrap=True)


class _PatientLine:
    """Says how far a sweep is once it has taken two seconds, on the error stream."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._status = errors.status("")
        self._shown = False

    def __enter__(self) -> _PatientLine:
        return self

    def __exit__(self, *_: object) -> None:
        self._status.stop()

    def told(self, done: int, total: int) -> None:
        if time.monotonic() - self._began < 2 or done == total:
            return
        self._status.update(f"{done} of {total} points")
        if not self._shown:
            self._status.start()
            self._shown = True


@app.command()
def methods(as_json: Json = False) -> None:
    """Every method: whom it protects from whom, what it clips, its noise, the exchanges it uses, its paper."""
    from tacit.exchange import EXCHANGES
    from tacit.methods import METHODS, Method
    from tacit.privacy import View

    def views(method: type[Method]) -> list[str]:
        """Views of its exchanges that the method does not trust."""
        if method.noise_place == "none":
            return []
        known = dict.fromkeys(view for name in method.exchanges for view in EXCHANGES[name]().reveals)
        return [view for view in known if View.parse(view).kind not in method.trusts]

    rows: list[dict[str, Any]] = [
        {
            "name": method.name,
            "about": method.about,
            "unit": list(method.units) if method.noise_place != "none" else [],
            "views": views(method),
            "clip": method.clips,
            "noise": method.noise_place,
            "exchanges": list(method.exchanges),
            "paper": method.paper,
        }
        for method in METHODS.values()
    ]
    if as_json:
        _print_json({"methods": rows})
        return
    table = _table("method", "what it does, whom it protects from whom, who adds noise, exchanges, source")
    for row in rows:
        protects = "protects nobody"
        if row["unit"]:
            protects = f"protects a {' or '.join(row['unit'])} from {', '.join(row['views'])}; noise: {row['noise']}"
        source = f"exchange {', '.join(row['exchanges'])}; {row['paper']}"
        table.add_row(row["name"], f"{row['about']}\n{protects}\n{source}")
    console.print(table)


@app.command()
def data(experiment: Experiment, changes: Changes = [], as_json: Json = False) -> None:  # noqa: B006
    """What the data looks like, exactly: for those who hold it. Records per subject, subjects per silo, overlaps."""
    from tacit.config import plan
    from tacit.data import describe
    from tacit.engine import load_federation

    picture = describe(load_federation(plan(experiment, changes)))
    if as_json:
        _print_json(picture)
    else:
        _print_data(picture)


@app.command()
def report(
    run: RunFolder,
    sheet: Annotated[bool, typer.Option("--sheet", help="Write the privacy sheet instead: one page to sign.")] = False,
    as_json: Json = False,
) -> None:
    """Write the page of a run anew and say where it is."""
    from tacit import report as pages

    kind, page = ("sheet", pages.write_sheet(run)) if sheet else ("report", pages.write(run))
    _print_json({kind: str(page)}) if as_json else console.print(f"{kind:6}  {page}", soft_wrap=True)


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN RUN…", help="Run folders.")],
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="The page to write.")] = None,
    as_json: Json = False,
) -> None:
    """Runs side by side: a table here, a page with curves beside the first run."""
    from tacit import report as pages

    table = pages.comparison_table(runs)
    page = pages.compare(runs, out)
    if as_json:
        records = table.reset_index().to_dict("records")
        rows = [{name: _json_value(value) for name, value in record.items()} for record in records]
        _print_json({"runs": rows, "verdict": pages.verdict(runs), "report": str(page)})
        return
    shown = _table("", *map(str, table.index))  # a run is a column: two or three fit any terminal
    for name in table.columns:
        shown.add_row(str(name), *map(_cell, table[name]))
    console.print(shown)
    console.print(pages.verdict(runs), highlight=False)
    console.print(f"report  {page}", soft_wrap=True)


@app.command()
def audit(
    experiment: Experiment,
    changes: Changes = [],  # noqa: B006
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="The folder to make.")] = None,
    of: Annotated[
        Path | None, typer.Option("--of", metavar="RUN", help="A run of this experiment, whose report gets a section.")
    ] = None,
    canaries: Annotated[int, typer.Option("--canaries", help="Made units, each there or not by a coin.")] = 1000,
    runs: Annotated[int, typer.Option("--runs", help="Runs of the method alone, with the unit and without.")] = 1500,
    confidence: Annotated[float, typer.Option("--confidence", help="Of the bounds from canaries.")] = 0.95,
    as_json: Json = False,
) -> None:
    """Attack it: empirical lower bounds on epsilon beside the proved upper bound."""
    from tacit import api
    from tacit.config import plan
    from tacit.progress import Bars

    progress = None if as_json else Bars(console)
    planned = plan(experiment, changes)
    found, page = api.audit(
        planned, out=out, of=of, progress=progress, canaries=canaries, runs=runs, confidence=confidence
    )
    if as_json:
        _print_json({**found.as_dict(), "report": str(page)})
    else:
        _print_audit(found, page)


@app.command()
def survey(
    table: Annotated[Path, typer.Argument(metavar="TABLE", help="A csv, csv.gz, parquet or npz file.")],
    column: Annotated[str, typer.Option("--column", help="What is asked.")],
    epsilon: Annotated[float, typer.Option("--epsilon", help="What an answer may reveal about anybody.")],
    categories: Annotated[
        str | None, typer.Option("--categories", metavar="a,b,…", help="Ask for the share of each; they are public.")
    ] = None,
    bounds: Annotated[
        str | None, typer.Option("--range", metavar="LOW:HIGH", help="Ask for the mean; the bounds are public.")
    ] = None,
    noise: Annotated[
        str, typer.Option("--noise", help="central: a trusted server's. local: everybody's own.")
    ] = "central",
    subject: Annotated[str | None, typer.Option("--subject", help="The column that says whose a row is.")] = None,
    delta: Annotated[float, typer.Option("--delta", help="Central: 0 for Laplace noise, else Gaussian.")] = 0.0,
    ledger: Annotated[
        Path | None, typer.Option("--ledger", metavar="FILE", help="Share this ledger with others.")
    ] = None,
    budget: Annotated[
        float | None, typer.Option("--budget", help="Refuse what would exceed it in that ledger.")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="For studies only.")] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="The folder to make.")] = None,
    as_json: Json = False,
) -> None:
    """Ask one question of a table: shares of answers or a mean over people, with error bars."""
    from tacit import api

    found, folder = api.survey(
        table,
        column,
        epsilon=epsilon,
        out=out,
        ledger=ledger,
        categories=None if categories is None else [name.strip() for name in categories.split(",")],
        bounds=None if bounds is None else _range(bounds),
        place=noise,
        subject=subject,
        delta=delta,
        budget=budget,
        seed=seed,
    )
    if as_json:
        _print_json({**found.as_dict(), "survey": str(folder), "picture": str(folder / "survey.svg")})
    else:
        _print_survey(found, folder)


def _range(text: str) -> tuple[float, float]:
    """``0:120`` as two numbers."""
    try:
        low, high = (float(part) for part in text.split(":"))
    except ValueError:
        raise UserError("--range", f"'{text}' has no form LOW:HIGH", "write for example 0:120") from None
    return low, high


def _print_survey(found: Survey, folder: Path) -> None:
    """The answers with their error bars, what is promised, and what the other place of the noise would have cost."""
    shown = _table(found.column, "estimate", "standard error", "95 % interval")
    for answer in found.answers:
        interval = f"{answer.low:.4g} to {answer.high:.4g}"
        shown.add_row(answer.answer, f"{answer.estimate:.4g}", f"{answer.standard_error:.2g}", interval)
    console.print(shown)
    console.print(f"{found.people:,} people; errors are those of the noise alone.", highlight=False)
    _print_guarantees([guarantee.as_dict() for guarantee in found.guarantees], rests_on=True)
    other = "local" if found.place == "central" else "central"
    errors = f"about {found.expected_error:.2g} here, {found.other_error:.2g} with --noise {other}"
    console.print(f"Standard error at this epsilon: {errors}.", highlight=False)
    if found.seed is not None:
        console.print("The survey has a seed: whoever knows it can remove the noise.", style="red")
    console.print(f"survey  {folder}", soft_wrap=True)


def _print_audit(found: Audit, page: Path) -> None:
    """What was tried, what came out, and what is claimed; red where a lower bound exceeds a claim."""
    from tacit.privacy.statement import epsilon_text
    from tacit.report.audits import VERDICTS, lower

    published = {str(line.view): line.as_published for line in found.guarantees}
    console.print(f"{found.method}: epsilon at delta {found.delta:g} for one {found.unit}", style="bold")
    table = _table(
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
    alone = _table("method alone", "runs", "at least", "Gaussian", "proved", "hits", "allowed")
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


@federation.command("init")
def federation_init(
    file: Annotated[Path, typer.Argument(metavar="FEDERATION.toml", help="Who takes part, and where the server is.")],
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="The folder of the kits.")] = None,
    passphrase: Annotated[
        str,
        typer.Option(
            "--passphrase",
            envvar="TACIT_PASSPHRASE",
            help="Encrypts the key that signs certificates; without it the key is forgotten, and nobody can be added.",
            show_default=False,
        ),
    ] = "",
    as_json: Json = False,
) -> None:
    """Kits for server, silos, analyzer and requesters: certificates, what each may do, ports."""
    from tacit.config import read_section
    from tacit.engine.federation.kits import FederationOptions, make_kits

    options = read_section(file, FederationOptions, "FEDERATION.toml")
    made = make_kits(options, out or Path(f"{options.name}-kits"), passphrase or None)
    if as_json:
        _print_json({"kits": {name: str(folder) for name, folder in made.items()}})
        return
    for name, folder in made.items():
        console.print(f"{name:24}  {folder}", soft_wrap=True, highlight=False)
    console.print(
        "Hand every kit to its holder over a channel that you trust, and delete it here: it holds their keys."
    )
    if not passphrase:
        console.print("The authority's key was not kept: nobody can be added later.", style="yellow")


@federation.command("status")
def federation_status(kit: RequesterKit, as_json: Json = False) -> None:
    """Who is there, which run, and what is left of the silos' budgets where they show it."""
    from tacit.engine.federation.kits import Kit
    from tacit.engine.federation.requester import status

    found = status(Kit.load(kit, "requester"))
    if as_json:
        _print_json(found)
        return
    console.print(f"{found['federation']} at {found['server']}", style="bold")
    for silo, here in found["silos"].items():
        left = found["left"].get(silo)
        budget = "" if left is None else f"; epsilon {left:.3g} was left before your last run"
        console.print(f"{silo:24}  {'here' if here else 'not here'}{budget}", style=None if here else "yellow")
    if (here := found["analyzer"]) is not None:
        console.print(f"{'analyzer':24}  {'here' if here else 'not here'}", style=None if here else "yellow")
    for run in found["runs"]:
        console.print(f"{run['name']} of {run['requester']}: {run.get('state')}, {run.get('done', 0)} rounds")
    if not found["runs"]:
        console.print("no run")


@federation.command("try")
def federation_try(out: Out = None, as_json: Json = False) -> None:
    """A whole federation of local processes on this machine with the built-in data, in one command."""
    from tacit.config import plan
    from tacit.engine.federation.kits import require_nvflare
    from tacit.engine.federation.requester import ask
    from tacit.engine.federation.trial import REQUESTER, Trial
    from tacit.engine.folder import free_folder

    require_nvflare()
    if out is not None and out.exists():
        raise UserError("--out", f"'{out}' exists", "name a new folder")
    trial = Trial((out or free_folder("federation try")).resolve())
    tell = (lambda line: None) if as_json else (lambda line: console.print(line, highlight=False))
    trial.prepare()
    with trial.running(tell):
        planned = plan(Path(str(files("tacit") / "try.toml")))
        kit = trial.kit(REQUESTER)
        try:
            _follow(kit, ask(kit, planned, trial.folder / "run"), planned.rounds, planned.label, as_json)
        finally:
            tell(f"kits, tables, policies, ledgers and logs of everybody: {trial.folder}")


@app.command()
def server(
    kit: KitFolder,
    background: Annotated[bool, typer.Option("--background", help="Go on without this terminal.")] = False,
) -> None:
    """Start a federation's server."""
    from tacit.engine.federation.processes import prepare_server

    _attend(prepare_server(kit), background)


@app.command()
def silo(
    kit: KitFolder,
    data: Annotated[Path, typer.Option("--data", metavar="DATA.toml", help="Where this silo's table is.")],
    policy: Annotated[Path, typer.Option("--policy", metavar="POLICY.toml", help="What this silo allows.")],
    background: Annotated[bool, typer.Option("--background", help="Go on without this terminal.")] = False,
) -> None:
    """Start a silo: it takes part in runs that its policy allows, with its own table."""
    from tacit.engine.federation.processes import prepare_silo

    _attend(prepare_silo(kit, data, policy), background)


@app.command()
def analyzer(
    kit: KitFolder,
    background: Annotated[bool, typer.Option("--background", help="Go on without this terminal.")] = False,
) -> None:
    """Start the analyzer of shuffled exchanges: it adds up what the server has mixed, and holds no records."""
    from tacit.engine.federation.processes import prepare_analyzer

    _attend(prepare_analyzer(kit), background)


@app.command()
def submit(
    experiment: Experiment,
    kit: RequesterKit,
    changes: Changes = [],  # noqa: B006
    out: Out = None,
    patience: Annotated[int, typer.Option("--patience", help="Seconds that a silo has for an answer.")] = 120,
    attach: Annotated[str, typer.Option("--attach", metavar="RUN", help="Follow a run that goes on.")] = "",
    as_json: Json = False,
) -> None:
    """Ask a federation for a run, follow it, and collect its folder. Ctrl-C detaches: the run goes on."""
    from tacit.config import plan
    from tacit.engine.federation.kits import Kit
    from tacit.engine.federation.requester import Asked, ask

    planned, opened = plan(experiment, changes), Kit.load(kit, "requester")
    asked = Asked.of(opened, attach) if attach else ask(opened, planned, out, patience)
    _follow(opened, asked, planned.rounds, planned.label, as_json)


def _attend(kit: Kit, background: bool) -> None:
    from tacit.engine.federation.processes import LOG, NVFLARE_LOG, attend, in_background

    if background:
        number = in_background(kit)
        console.print(f"{kit.name}  process {number}; log {kit.ours / LOG}", soft_wrap=True, highlight=False)
        return
    console.print(f"{kit.name} of {kit.federation}, {kit.host}:{kit.port}; Ctrl-C ends it", highlight=False)
    code = attend(kit, lambda line: console.print(line, soft_wrap=True, highlight=False))
    if code:
        fix = f"see {kit.ours / NVFLARE_LOG}"
        raise UserError("KIT", f"the process ended with code {code}", fix)


def _follow(kit: Kit, asked: Asked, rounds: int, label: str, as_json: bool) -> None:
    from tacit import report as pages
    from tacit.engine.federation.requester import Detached, follow
    from tacit.progress import Bars

    told = (lambda line: None) if as_json else (lambda line: console.print(line, highlight=False))
    try:
        finished = follow(kit, asked, rounds, label, progress=None if as_json else Bars(console), tell=told)
    except Detached as detached:
        text = f"detached; as long as the server is there, follow the run with --attach {detached.run}"
        text = text if detached.run else "stopped before the run was asked for"
        console.print(text, style="yellow", highlight=False, soft_wrap=True)
        raise typer.Exit(130) from None
    pages.write(finished.path)
    _show_finished(finished, as_json)


def _run(
    experiment: Plan,
    *,
    out: Path | None,
    resume: Path | None = None,
    baselines: bool | tuple[str, ...] = False,
    as_json: bool = False,
) -> None:
    from tacit import api
    from tacit.progress import Bars

    progress = None if as_json else Bars(console)
    _show_finished(api.trained(experiment, out=out, resume=resume, baselines=baselines, progress=progress), as_json)


def _show_finished(finished: Run, as_json: bool) -> None:
    """What came out, and the exit code that says how it ended."""
    if as_json:
        _print_json({**{key: finished.result[key] for key in PRINTED}, "report": str(finished.report)})
    else:
        _print_run(finished)
    if finished.result["status"] == "stopped":
        raise typer.Exit(130)
    if finished.result["status"] == "budget":
        done = finished.result["rounds"]
        raise Forbidden(
            "privacy.budget",
            f"round {done + 1} of {finished.result['rounds_planned']} would exceed it",
            f"the model of round {done} is kept in {finished.path}; plan fewer rounds or more noise",
        )
    if finished.result["status"] == "diverged":
        problem = f"the model was no longer finite by round {finished.result['rounds']}"
        raise UserError("train", problem, "lower method.local_learning_rate or train.server_learning_rate")


def _print_run(finished: Run) -> None:
    """The outcome in a few lines: metrics beside the references, what is promised, where the page is."""
    result = finished.result
    if result["status"] == "stopped":
        text = f"stopped after round {result['rounds']}; go on with --resume {finished.path}"
        console.print(text, style="yellow", soft_wrap=True)
    console.print(_metrics_table(result))
    _print_guarantees(result["guarantees"])
    _print_caveats(result)
    console.print(f"run     {finished.path}", soft_wrap=True)
    console.print(f"report  {finished.report}", soft_wrap=True)


def _metrics_table(result: dict[str, Any]) -> Table:
    """A row per metric, and one for the worst silo where silos have models of their own. Scores of models of one silo
    each cannot be ranked against each other: where there are any, ranking metrics are compared by their average over
    silos, on a row of its own."""
    from tacit.report.words import worst_silo

    for_all = {"one for everybody": result["shared"]} if result.get("shared") else {}
    columns = {result["method"]["label"]: result, **for_all, **result["baselines"]}
    own = {"silo-only"} | ({result["method"]["label"]} if result["personal"] else set())
    averaged = [name for name in result["over_silos"] if own & columns.keys()]
    errors = result["evaluation"].get("standard_errors") or {}
    table = _table("held-out", *columns)
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


def _print_caveats(result: dict[str, Any]) -> None:
    """What a finite guarantee does not say by itself."""
    if all(line["epsilon"] == "inf" for line in result["guarantees"]):
        return
    if result["evaluation"]["status"] == "outside-guarantee":
        console.print("Metrics were computed on private records: they are outside the guarantee.", style="yellow")
    if result["seed"] is not None:
        console.print(_SEEDED.replace("experiment has", "run had"), style="red")


def _print_outlook(outlook: Outlook) -> None:
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
    _print_guarantees([guarantee.as_dict() for guarantee in outlook.guarantees], rests_on=True)
    if made.experiment.seed is not None and finite:
        console.print(_SEEDED, style="red")
    if outlook.pairs is not None:
        console.print(f"\n{outlook.pairs.words}", highlight=False)
    if outlook.network is not None:
        console.print(f"\n{outlook.network.words}", highlight=False)
    if outlook.over_silos is not None:
        console.print(f"\n{outlook.over_silos.words}", highlight=False)
    if outlook.rounds_within_budget is not None:
        _print_budget(outlook)


_SEEDED = "The experiment has a seed: whoever knows it can regenerate the noise. The model must not be published."


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


def _print_sweep(sweep: Sweep) -> None:
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
    table = _table(*(axis.name for axis in sweep.axes), *columns)
    for column in table.columns:
        column.justify = "right"
    for point in sweep.points:
        cells = [f"{value:g}" for value in point.values]
        cells += [noise_text(point.noise_multiplier), f"{point.std:.4g}", epsilon_text(point.epsilon)]
        cells += [] if not ratio else ["–" if point.ratio is None else f"{point.ratio:.3g}"]
        table.add_row(*cells, style=None if math.isfinite(point.epsilon) else "red")
    console.print(table)
    console.print(f"{len(sweep.points)} points in {sweep.seconds:.1f} s", style="dim")


def _print_guarantees(guarantees: list[dict[str, Any]], *, rests_on: bool = False) -> None:
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
        table = _table(*headings, *(["as published"] if published else []))
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
    assumptions = dict.fromkeys(text for line in guarantees if line not in infinite for text in line["assumptions"])
    if rests_on and assumptions:
        console.print("This rests on:")
        listed = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1, 0, 0))
        for text in assumptions:
            listed.add_row(" -", text)
        console.print(listed)


def _as_published(line: dict[str, Any]) -> str:
    """``10.73 (valid)``, ``(only if)``, ``(not valid)``."""
    from tacit.privacy.statement import epsilon_text

    found = line["as_published"]
    if not found:
        return "–"
    words = {"yes": "valid", "only-if": "only if", "no": "not valid"}
    return f"{epsilon_text(float(found['epsilon']))} ({words[found['valid']]})"


def _print_data(picture: dict[str, Any]) -> None:
    console.print("Exact numbers about private data: they stay with the data holder.", style="yellow")
    console.print(
        f"{picture['records']:,} training records, {picture['test_records']:,} held out, "
        f"{picture['subjects']:,} subjects, {len(picture['silos'])} silos"
    )
    table = _table("silo", "records", "subjects", "held out", "label")
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


def _table(*columns: str) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for i, column in enumerate(columns):
        table.add_column(column, no_wrap=i == 0)
    return table


def _json_value(value: Any) -> Any:
    """Infinity as the word "inf", an unknown number as null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "inf"
    return value


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.4g}"
    return str(value)


def _print_json(content: Any) -> None:
    print(json.dumps(content, indent=1))


def _complain(line: str) -> None:
    errors.print(f"error  {' '.join(line.split())}", style="red", highlight=False)


def _keep_compilations() -> None:
    """Compiled kernels are kept between commands, unless the environment says where (or that) they are."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tacit" / "compiled"
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")


if __name__ == "__main__":
    main()
