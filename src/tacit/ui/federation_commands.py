"""``tacit federation``, and the parties of a federation: ``server``, ``silo``, ``analyzer``, ``submit``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tacit.errors import UserError
from tacit.ui.arguments import (
    Background,
    CaPassphrase,
    Changes,
    Experiment,
    Json,
    KitFolder,
    Out,
    RequesterKit,
    SiloTable,
)
from tacit.ui.console import Bars, console, show, show_finished, show_json, show_line, show_untrusted, warn

if TYPE_CHECKING:
    from tacit.federation.kits import Kit
    from tacit.federation.requester import Asked

app = typer.Typer(no_args_is_help=True, help="A federation of organisations: kits, status, a trial.")


@app.command()
def init(
    file: Annotated[Path, typer.Argument(metavar="FEDERATION.toml", help="Parties and the address of the server.")],
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="The folder of the kits.")] = None,
    secret: CaPassphrase = "",
    as_json: Json = False,
) -> None:
    """Make kits for server, silos, analyzer and requesters: certificates, permissions, ports."""
    from tacit.federation.kits import FederationOptions, make_kits
    from tacit.planning.settings import read_section

    options = read_section(file, FederationOptions, "FEDERATION.toml")
    made = make_kits(options, out or Path(f"{options.name}-kits"), secret or None)
    if as_json:
        show_json({"kits": {name: str(folder) for name, folder in made.items()}})
        return
    for name, folder in made.items():
        show_line(f"{name:24}  {folder}")
    show("Send every kit to its holder over a trusted channel, then delete it here: it contains the holder's keys.")
    if not secret:
        show("The CA key was discarded: no party can be added later.", "yellow")


@app.command()
def status(kit: RequesterKit, as_json: Json = False) -> None:
    """Show connected parties, runs, and what is left of the silos' budgets if they show it."""
    from tacit.federation import requester
    from tacit.federation.kits import Kit

    found = requester.status(Kit.load(kit, "requester"))
    if as_json:
        show_json(found)
        return
    show(f"{found['federation']} at {found['server']}", "bold")
    parties = [*found["silos"].items(), *([("analyzer", found["analyzer"])] if found["analyzer"] is not None else [])]
    for name, connected in parties:
        left = found["left"].get(name)
        budget = "" if left is None else f"; epsilon {left:.3g} was left before your last run"
        state = "connected" if connected else "not connected"
        show(f"{name:24}  {state}{budget}", None if connected else "yellow")
    for run in found["runs"]:
        show_untrusted(f"{run['name']} of {run['requester']}: {run.get('state')}, {run.get('done', 0)} rounds")
    if not found["runs"]:
        show("no run")


@app.command()
def check(experiment: Experiment, data: SiloTable, as_json: Json = False) -> None:
    """At a silo: count the rows of its table that an experiment would use. Nothing leaves this machine."""
    from tacit.crypto import Secret
    from tacit.federation.request import received, travelling
    from tacit.federation.site.shard import load_shard, read_silo_data
    from tacit.planning.plan import plan

    planned = received(travelling(plan(experiment)))
    with Secret.random() as secret:  # decides only which subjects are held out
        found = load_shard(planned, "here", read_silo_data(data), secret)
    if as_json:
        show_json({"rows": found.rows, "fit": found.fit, "left_out": found.left_out})
        return
    show(f"{found.fit:,} of {found.rows:,} rows are as the experiment declares them", highlight=False)
    for column, rows in found.left_out.items():
        show(f"{column:24}  {rows:,} rows would be left out: missing or undeclared value", "yellow", highlight=False)


@app.command("try")
def trial(changes: Changes = [], out: Out = None, as_json: Json = False) -> None:  # noqa: B006
    """Run a whole federation of local processes on this machine with the built-in data."""
    from importlib.resources import files

    from tacit.engine.folder import free_folder
    from tacit.federation.demo import REQUESTER, Trial
    from tacit.federation.kits import require_nvflare
    from tacit.federation.requester import ask
    from tacit.planning.plan import plan

    require_nvflare()
    if out is not None and out.exists():
        raise UserError("exists-already", "--out", f"'{out}' exists", "name a new folder")
    planned = plan(Path(str(files("tacit") / "try.toml")), changes)
    made = Trial((out or free_folder("federation try")).resolve())
    tell = (lambda line: None) if as_json else (lambda line: show(line, highlight=False))
    made.prepare()
    with made.running(tell):
        kit = made.kit(REQUESTER)
        try:
            _follow(kit, ask(kit, planned, made.folder / "run"), planned.rounds, planned.label, as_json)
        finally:
            tell(f"kits, tables, policies, ledgers and logs of all parties: {made.folder}")


def server(kit: KitFolder, background: Background = False) -> None:
    """Start the server of a federation."""
    from tacit.federation.carrier.processes import prepare_server

    _attend(prepare_server(kit), background)


def silo(
    kit: KitFolder,
    data: SiloTable,
    policy: Annotated[Path, typer.Option("--policy", metavar="POLICY.toml", help="What this silo allows.")],
    background: Background = False,
    new_budget: Annotated[
        bool, typer.Option("--new-budget", help="Start a new ledger although this kit has one. Both logs record it.")
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
    from tacit.federation.carrier.processes import prepare_silo, silo_warnings
    from tacit.federation.site.policy import Policy
    from tacit.federation.site.shard import read_silo_data
    from tacit.planning.settings import read_section

    prepared = prepare_silo(kit, data, policy, new_budget, same_table)
    for warning in silo_warnings(read_silo_data(data), read_section(policy, Policy, "POLICY.toml")):
        warn(warning)
    _attend(prepared, background)


def analyzer(kit: KitFolder, background: Background = False) -> None:
    """Start the analyzer of shuffled exchanges: it adds up what the server has mixed, and holds no records."""
    from tacit.federation.carrier.processes import prepare_analyzer

    _attend(prepare_analyzer(kit), background)


def submit(
    kit: RequesterKit,
    experiment: Annotated[
        Path | None, typer.Argument(metavar="EXPERIMENT.toml", help="The experiment file; not needed with --attach.")
    ] = None,
    changes: Changes = [],  # noqa: B006
    out: Out = None,
    timeout: Annotated[int, typer.Option("--timeout", help="Seconds that a silo has for an answer.")] = 120,
    patience: Annotated[int | None, typer.Option("--patience", hidden=True, help="Deprecated: use --timeout.")] = None,
    attach: Annotated[
        str, typer.Option("--attach", metavar="RUN", help="Follow this run, which this kit has submitted.")
    ] = "",
    as_json: Json = False,
) -> None:
    """Submit an experiment to a federation, follow the run, collect its folder. Ctrl-C detaches: the run continues."""
    from tacit.federation.kits import Kit
    from tacit.federation.request import left_behind, received
    from tacit.federation.requester import Asked, ask
    from tacit.planning.plan import plan

    if patience is not None:
        warn("--patience is deprecated and will be removed in the next release; use --timeout")
        timeout = patience
    opened = Kit.load(kit, "requester")
    if attach:
        asked = Asked.of(opened, attach)
        planned = received(asked.experiment)  # what was submitted, whatever an experiment file says now
    elif experiment is None:
        problem = "is required, unless --attach names a run"
        raise UserError("missing", "EXPERIMENT.toml", problem, "name the experiment file")
    else:
        planned = plan(experiment, changes)
        for field in left_behind(planned):
            warn(f"{field}: not used; silos read their own tables and keep their own ledgers")
        asked = ask(opened, planned, out, timeout)
    _follow(opened, asked, planned.rounds, planned.label, as_json)


def _attend(kit: Kit, background: bool) -> None:
    from tacit.federation.carrier.handshake import connection_problem
    from tacit.federation.carrier.processes import check_not_running, in_background, in_foreground, party_log
    from tacit.transport.log import LOG

    check_not_running(kit)
    cause = None if kit.kind == "server" else connection_problem(kit, "KIT")
    if cause is not None:  # the party starts: it connects as soon as the server can be reached
        party_log(kit).warning("no connection yet: %s", cause)
        warn(f"no connection yet: {cause}")
    if background:
        number = in_background(kit)
        show_line(f"{kit.name}  process {number}; log {kit.ours / LOG}")
        return
    show(f"{kit.name} of {kit.federation}, {kit.host}:{kit.port}; Ctrl-C ends it", highlight=False)
    in_foreground(kit)


def _follow(kit: Kit, asked: Asked, rounds: int, label: str, as_json: bool) -> None:
    from tacit import report as pages
    from tacit.federation.requester import Detached, follow

    tell = (lambda line: None) if as_json else show_untrusted
    try:
        finished = follow(kit, asked, rounds, label, progress=None if as_json else Bars(console), tell=tell)
    except Detached as detached:
        command = f"tacit submit --attach {detached.run} --kit {shlex.quote(str(kit.path))}"
        text = f"detached; the run continues; follow it with: {command}"
        show_line(text if detached.run else "stopped before the run was submitted", "yellow")
        raise typer.Exit(130) from None
    pages.write(finished.path)
    show_finished(finished, as_json)
