"""The commands. Each prints for people, or one JSON object with ``--json``.

Exit 0 on success, 2 for a mistake that the user can correct (one line: field, value, fix), 3 where a budget or a policy
forbids the work, 130 after Ctrl-C (the run folder is usable). Heavy imports happen inside the commands, so that
``--help`` answers at once.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
from importlib.metadata import version as installed_version
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacit.errors import Forbidden, TacitError, UserError
from tacit.escape import escaped
from tacit.terminal import (
    cell,
    columns_of,
    complain,
    console,
    errors,
    json_value,
    print_audit,
    print_checked,
    print_data,
    print_json,
    print_outlook,
    print_run,
    print_survey,
    print_sweep,
)

if TYPE_CHECKING:
    from tacit.config import Plan
    from tacit.engine import Run
    from tacit.engine.federation.kits import Kit
    from tacit.engine.federation.requester import Asked
    from tacit.ledger_backup import State

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Differentially private federated learning for data about people.",
)

federation = typer.Typer(no_args_is_help=True, help="A federation of organisations: kits, who is there, a trial.")
app.add_typer(federation, name="federation")
ledgers = typer.Typer(no_args_is_help=True, help="Ledgers and budget files.")
app.add_typer(ledgers, name="ledger")

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
    "every key of the method (clip, sample_rate, noise_multiplier, …), or a.b. May be repeated, or joined by commas."
)
KitFolder = Annotated[Path, typer.Argument(metavar="KIT", help="A folder that `tacit federation init` made.")]
RequesterKit = Annotated[Path, typer.Option("--kit", metavar="KIT", help="The kit of a requester.")]
SiloTable = Annotated[Path, typer.Option("--data", metavar="DATA.toml", help="Where this silo's table is.")]
LedgerOrKit = Annotated[
    Path, typer.Argument(metavar="KIT|LEDGER", help="The kit of a silo, whose ledger is meant, or a ledger.")
]
CHECKED_HELP = "Ledgers, run folders, budget files, kits of silos."
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]


def main() -> None:
    """Entry point: errors that Tacit raises on purpose become one line and their exit code."""
    _keep_compilations()
    try:
        app()
    except TacitError as error:
        complain(str(error))
        sys.exit(error.exit_code)
    except OSError as error:
        fix = "correct it, then go on with --resume if a run folder was made"
        complain(str(UserError("file-access", "system", str(error), fix)))
        sys.exit(2)
    except (MemoryError, RuntimeError) as error:
        if not _is_shortage(error):
            raise
        fix = "lower counts, epochs, batch_size or the model"
        complain(str(UserError("out-of-memory", "memory", "the experiment needs more than there is", fix)))
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
    print_json(outlook.as_dict()) if as_json else print_outlook(outlook)


def _sweep(content: dict[str, Any], sweeps: list[str], folder: Path, file: Path, as_json: bool) -> None:
    from tacit import planner
    from tacit.report import sweep_page

    with _PatientLine() as line:
        found = planner.sweep(content, sweeps, folder, told=line.told)
    page = sweep_page(found, file)
    if as_json:
        print_json({**found.as_dict(), "report": str(page)})
        return
    print_sweep(found)
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
        print_json({"methods": rows})
        return
    table = columns_of("method", "what it does, whom it protects from whom, who adds noise, exchanges, source")
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
        print_json(picture)
    else:
        print_data(picture)


@app.command()
def report(
    run: RunFolder,
    sheet: Annotated[bool, typer.Option("--sheet", help="Write the privacy sheet instead: one page to sign.")] = False,
    as_json: Json = False,
) -> None:
    """Write the page of a run anew and say where it is."""
    from tacit import report as pages

    kind, page = ("sheet", pages.write_sheet(run)) if sheet else ("report", pages.write(run))
    print_json({kind: str(page)}) if as_json else console.print(f"{kind:6}  {page}", soft_wrap=True)


@ledgers.command("check")
def ledger_check(
    paths: Annotated[list[Path], typer.Argument(metavar="LEDGER|RUN|BUDGET|KIT…", help=CHECKED_HELP)],
    as_json: Json = False,
) -> None:
    """Recompute what runs of earlier versions cost; exit code 3 where one was under-counted or has no plan.

    The output names the advisories for which a run was recomputed, and those for which it was not.
    """
    from tacit.ledger_check import check_all

    found, totals = check_all(paths)
    if as_json:
        runs, ledgers = [each.as_dict() for each in found], [each.as_dict() for each in totals]
        print_json({"runs": runs, "ledgers": ledgers})
    else:
        print_checked(found, totals)
    if any(each.status != "ok" for each in found):
        raise typer.Exit(3)


@ledgers.command("backup")
def ledger_backup(
    target: LedgerOrKit,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The file to make.")],
    passphrase: Annotated[
        str,
        typer.Option(
            "--passphrase",
            envvar="TACIT_PASSPHRASE",
            prompt=True,
            confirmation_prompt=True,
            hide_input=True,
            help="Encrypts the backup.",
        ),
    ],
    as_json: Json = False,
) -> None:
    """Write an encrypted backup of a ledger, and of the list of admissions beside it."""
    from tacit.ledger_backup import backup

    _show_state(backup(target, out, passphrase), f"backup  {out}", as_json)


@ledgers.command("restore")
def ledger_restore(
    source: Annotated[Path, typer.Argument(metavar="BACKUP", help="A file that `tacit ledger backup` wrote.")],
    target: LedgerOrKit,
    passphrase: Annotated[
        str,
        typer.Option(
            "--passphrase", envvar="TACIT_PASSPHRASE", prompt=True, hide_input=True, help="That of the backup."
        ),
    ],
    as_json: Json = False,
) -> None:
    """Put the ledger of a backup in place, unless a later state of it is there or known to the kit."""
    from tacit.ledger_backup import restore

    _show_state(restore(source, target, passphrase), "restored", as_json)


def _show_state(state: State, words: str, as_json: bool) -> None:
    if as_json:
        print_json({"ledger": str(state.path), "id": state.id, "lines": state.lines})
        return
    console.print(f"ledger  {state.path}  {state.lines:,} lines  id {state.id}", soft_wrap=True, highlight=False)
    console.print(words, soft_wrap=True, highlight=False)
    for other in state.others:
        text = f"not in this backup: {other} (another ledger of this kit; save it by its path)"
        console.print(text, style="yellow", soft_wrap=True, highlight=False)


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
        rows = [{name: json_value(value) for name, value in record.items()} for record in records]
        print_json({"runs": rows, "verdict": pages.verdict(runs), "report": str(page)})
        return
    shown = columns_of("", *map(str, table.index))  # a run is a column: two or three fit any terminal
    for name in table.columns:
        shown.add_row(str(name), *map(cell, table[name]))
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
        print_json({**found.as_dict(), "report": str(page)})
    else:
        print_audit(found, page)


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
        print_json({**found.as_dict(), "survey": str(folder), "picture": str(folder / "survey.svg")})
    else:
        print_survey(found, folder)


def _range(text: str) -> tuple[float, float]:
    """``0:120`` as two numbers."""
    try:
        low, high = (float(part) for part in text.split(":"))
    except ValueError:
        raise UserError("malformed", "--range", f"'{text}' has no form LOW:HIGH", "write for example 0:120") from None
    return low, high


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
    from tacit.engine.federation.kits import FederationOptions, make_kits
    from tacit.settings import read_section

    options = read_section(file, FederationOptions, "FEDERATION.toml")
    made = make_kits(options, out or Path(f"{options.name}-kits"), passphrase or None)
    if as_json:
        print_json({"kits": {name: str(folder) for name, folder in made.items()}})
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
        print_json(found)
        return
    console.print(f"{found['federation']} at {found['server']}", style="bold")
    for silo, here in found["silos"].items():
        left = found["left"].get(silo)
        budget = "" if left is None else f"; epsilon {left:.3g} was left before your last run"
        console.print(f"{silo:24}  {'here' if here else 'not here'}{budget}", style=None if here else "yellow")
    if (here := found["analyzer"]) is not None:
        console.print(f"{'analyzer':24}  {'here' if here else 'not here'}", style=None if here else "yellow")
    for run in found["runs"]:
        _say(f"{run['name']} of {run['requester']}: {run.get('state')}, {run.get('done', 0)} rounds")
    if not found["runs"]:
        console.print("no run")


@federation.command("check")
def federation_check(experiment: Experiment, data: SiloTable, as_json: Json = False) -> None:
    """At a silo: which rows of its table an experiment would use, and which not. Nothing leaves this machine."""
    from tacit.config import plan
    from tacit.crypto import Secret
    from tacit.engine.federation.request import received, travelling
    from tacit.engine.federation.shard import load_shard, read_silo_data

    planned = received(travelling(plan(experiment)))
    with Secret.random() as secret:  # only who is held out depends on it
        found = load_shard(planned, "here", read_silo_data(data), secret)
    if as_json:
        print_json({"rows": found.rows, "fit": found.fit, "left_out": found.left_out})
        return
    console.print(f"{found.fit:,} of {found.rows:,} rows are as the experiment declares them", highlight=False)
    for column, rows in found.left_out.items():
        words = f"{column:24}  {rows:,} rows without it, or with something else in it, would be left out"
        console.print(words, style="yellow", highlight=False)


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
        raise UserError("exists-already", "--out", f"'{out}' exists", "name a new folder")
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
    data: SiloTable,
    policy: Annotated[Path, typer.Option("--policy", metavar="POLICY.toml", help="What this silo allows.")],
    background: Annotated[bool, typer.Option("--background", help="Go on without this terminal.")] = False,
    new_budget: Annotated[
        bool, typer.Option("--new-budget", help="Start a new ledger, although this kit has one. Both logs say so.")
    ] = False,
    same_table: Annotated[
        bool,
        typer.Option(
            "--same-table",
            help="With --new-budget: confirm a second budget for a table that a known ledger counts.",
        ),
    ] = False,
) -> None:
    """Start a silo: it takes part in runs that its policy allows, with its own table."""
    from tacit.engine.federation.policy import Policy
    from tacit.engine.federation.processes import prepare_silo, silo_warnings
    from tacit.engine.federation.shard import read_silo_data
    from tacit.settings import read_section

    prepared = prepare_silo(kit, data, policy, new_budget, same_table)
    for warning in silo_warnings(read_silo_data(data), read_section(policy, Policy, "POLICY.toml")):
        errors.print(warning, style="yellow")
    _attend(prepared, background)


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
    kit: RequesterKit,
    experiment: Annotated[
        Path | None, typer.Argument(metavar="EXPERIMENT.toml", help="The experiment file; not needed with --attach.")
    ] = None,
    changes: Changes = [],  # noqa: B006
    out: Out = None,
    patience: Annotated[int, typer.Option("--patience", help="Seconds that a silo has for an answer.")] = 120,
    attach: Annotated[
        str, typer.Option("--attach", metavar="RUN", help="Follow this run, which was asked for with this kit.")
    ] = "",
    as_json: Json = False,
) -> None:
    """Ask a federation for a run, follow it, and collect its folder. Ctrl-C detaches: the run goes on."""
    from tacit.config import plan
    from tacit.engine.federation.kits import Kit
    from tacit.engine.federation.request import left_behind, received
    from tacit.engine.federation.requester import Asked, ask

    opened = Kit.load(kit, "requester")
    if attach:
        asked = Asked.of(opened, attach)
        planned = received(asked.experiment)  # what was asked for, whatever an experiment file says now
    elif experiment is None:
        problem = "is required, unless --attach names a run"
        raise UserError("missing", "EXPERIMENT.toml", problem, "name the experiment file")
    else:
        planned = plan(experiment, changes)
        for field in left_behind(planned):
            errors.print(f"{field}: not used; silos read their own tables and keep their own ledgers", style="yellow")
        asked = ask(opened, planned, out, patience)
    _follow(opened, asked, planned.rounds, planned.label, as_json)


def _say(line: str) -> None:
    """A line with words of others: printed as it is, whatever it holds."""
    console.print(escaped(line), soft_wrap=True, highlight=False, markup=False)


def _attend(kit: Kit, background: bool) -> None:
    from tacit.engine.federation.processes import in_background, in_foreground
    from tacit.transport.log import LOG

    if background:
        number = in_background(kit)
        console.print(f"{kit.name}  process {number}; log {kit.ours / LOG}", soft_wrap=True, highlight=False)
        return
    console.print(f"{kit.name} of {kit.federation}, {kit.host}:{kit.port}; Ctrl-C ends it", highlight=False)
    in_foreground(kit)


def _follow(kit: Kit, asked: Asked, rounds: int, label: str, as_json: bool) -> None:
    from tacit import report as pages
    from tacit.engine.federation.requester import Detached, follow
    from tacit.progress import Bars

    told = (lambda line: None) if as_json else _say
    try:
        finished = follow(kit, asked, rounds, label, progress=None if as_json else Bars(console), tell=told)
    except Detached as detached:
        command = f"tacit submit --attach {detached.run} --kit {shlex.quote(str(kit.path))}"
        text = f"detached; the run goes on; follow it with: {command}"
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
        print_json({**{key: finished.result[key] for key in PRINTED}, "report": str(finished.report)})
    else:
        print_run(finished)
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


def _keep_compilations() -> None:
    """Compiled kernels are kept between commands, unless the environment says where (or that) they are."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tacit" / "compiled"
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")


if __name__ == "__main__":
    main()
