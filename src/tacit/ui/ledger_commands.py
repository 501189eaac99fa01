"""``tacit ledger``: check, back up and restore ledgers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tacit.ui.arguments import Json, LedgerOrKit, NewPassphrase, Passphrase
from tacit.ui.console import show_json, show_line, show_untrusted

if TYPE_CHECKING:
    from tacit.ledgers.backup import State
    from tacit.ledgers.recheck import Checked, Total

app = typer.Typer(no_args_is_help=True, help="Ledgers and budget files.")


@app.command()
def check(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="LEDGER|RUN|BUDGET|KIT…", help="Ledgers, run folders, budget files, kits of silos."),
    ],
    as_json: Json = False,
) -> None:
    """Show what each run in a ledger cost, and what is left of a silo's limit; recompute runs of earlier versions.

    Exit code 3 if a run was under-counted or has no plan.

    The output names the advisories for which a run was recomputed, and those for which it was not.
    """
    from tacit.engine.folder import plain_values
    from tacit.ledgers import recheck

    found, totals = recheck.check(paths)
    if as_json:
        show_json(plain_values({"runs": list(map(asdict, found)), "ledgers": list(map(asdict, totals))}))
    else:
        show_checked(found, totals)
    if any(each.status != "ok" for each in found):
        raise typer.Exit(3)


@app.command()
def backup(
    target: LedgerOrKit,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The new file.")],
    secret: NewPassphrase,
    as_json: Json = False,
) -> None:
    """Write an encrypted backup of a ledger, with its list of admissions."""
    from tacit.ledgers import backup as backups

    _show_state(backups.backup(target, out, secret), f"backup  {out}", as_json)


@app.command()
def restore(
    source: Annotated[Path, typer.Argument(metavar="BACKUP", help="A file that `tacit ledger backup` wrote.")],
    target: LedgerOrKit,
    secret: Passphrase,
    as_json: Json = False,
) -> None:
    """Restore the ledger of a backup, unless a later state of it exists or is known to the kit."""
    from tacit.ledgers import backup as backups

    _show_state(backups.restore(source, target, secret), "restored", as_json)


def _show_state(state: State, words: str, as_json: bool) -> None:
    if as_json:
        show_json({"ledger": str(state.path), "id": state.id, "lines": state.lines})
        return
    show_line(f"ledger  {state.path}  {state.lines:,} lines  id {state.id}")
    show_line(words)
    for other in state.others:
        show_line(f"not in this backup: {other} (another ledger of this kit; save it by its path)", "yellow")


def show_checked(found: Sequence[Checked], totals: Sequence[Total]) -> None:
    """A line for every run: what its ledger records, and what that cost. Then the totals of ledgers with several runs,
    and what each advisory says about these runs."""
    from tacit.ledgers.recheck import ADVISORIES

    for each in found:
        status: str = each.status
        if each.status == "ok" and each.not_checked:
            status = f"ok for {', '.join(each.checked)}, " if each.checked else ""
            status += f"not checked for {', '.join(each.not_checked)}"
        head = " ".join(filter(None, (each.ledger, each.run, each.title and f"'{each.title}'")))
        style = "red" if each.status != "ok" else "yellow" if each.not_checked else None
        show_untrusted(f"{head}: {'; '.join(filter(None, (status, _costs(each), each.reason)))}", style)
    for total in totals:
        left = "" if total.left is None else f"; {total.left:.3f} is left of epsilon_in_total = {total.limit:g}"
        show_untrusted(f"{total.ledger}: total of {total.runs:,} runs, {total.lines:,} lines; {_costs(total)}{left}")
    for advisory in ADVISORIES:
        yes = sum(advisory.name in each.checked for each in found)
        no = sum(advisory.name in each.not_checked for each in found)
        said = [f"recomputed for {yes:,} of {len(found):,} runs"] if yes else []
        if no:
            where = f"compare their plan.toml with {advisory.page}"
            said.append(f"not checked for {no:,} of {len(found):,} runs: {where}")
        said = said or [f"concerns no run here (accounting {advisory.corrected_in} or later)"]
        show_line(f"{advisory.name}: {'; '.join(said)}")


def _costs(found: Checked | Total) -> str:
    from tacit.privacy.terms import epsilon_text

    parts = []
    for view, costs in found.epsilon.items():
        after = "" if costs.corrected is None else f" -> {epsilon_text(costs.corrected)}"
        parts.append(f"{view} {epsilon_text(costs.recorded)}{after}")
    return f"epsilon [{found.place}, delta {found.delta:g}] {', '.join(parts)}" if parts else ""
