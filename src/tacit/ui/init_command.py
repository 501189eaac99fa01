"""``tacit init`` and the look at a table that ``tacit data TABLE`` prints."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacit.errors import UserError
from tacit.ui.arguments import Json
from tacit.ui.console import show, show_json, show_line, table_of

if TYPE_CHECKING:
    from tacit.data.look import ColumnLook
    from tacit.planning.template import Template

NO_SUBJECT = "none"


def init(
    table: Annotated[Path, typer.Argument(metavar="TABLE", help="csv, tsv, parquet, Excel, Feather, Arrow or npz.")],
    label: Annotated[str | None, typer.Option("--label", help="The column to predict.")] = None,
    subject: Annotated[
        str | None,
        typer.Option("--subject", help="The column that identifies the person; 'none': every row is another one."),
    ] = None,
    silo: Annotated[str | None, typer.Option("--silo", help="The column of the organisation.")] = None,
    epsilon: Annotated[float, typer.Option("--epsilon", min=0.001, help="The target of the guarantee.")] = 4.0,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The new experiment file.")] = Path(
        "experiment.toml"
    ),
    keep: Annotated[list[str], typer.Option("--keep", metavar="COLUMN", help="Use a suspect column.")] = [],  # noqa: B006
    constants: Annotated[
        bool, typer.Option("--constants", help="Propose constants from the table, to be confirmed by hand.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Ask nothing; constants stay private.")] = False,
    as_json: Json = False,
) -> None:
    """Write an experiment file from a look at a table. The table stays here."""
    from tacit.data.look import look, open_table
    from tacit.planning.template import Wanted, template

    if yes and constants:
        problem = "is given together with --constants, which proposes private values as public constants"
        raise UserError("conflict", "--yes", problem, "leave one of the two out")
    if out.exists():
        raise UserError("exists-already", "--out", f"'{out}' exists", "name a new file")
    if not out.absolute().parent.is_dir():
        raise UserError("file-not-found", "--out", f"'{out.absolute().parent}' is no folder", "make the folder first")
    found, text = open_table(table)
    asks = not (yes or as_json) and sys.stdin.isatty() and sys.stdout.isatty()
    public = False
    if asks:
        show_columns(look(found, label, subject, silo))
        label, subject, silo = (
            given if given is not None else _column(f"Column of the {what}", found.names, other)
            for given, what, other in ((label, "label", ()), (subject, "person", (NO_SUBJECT,)), (silo, "silo", ()))
        )
        constants = constants or typer.confirm("Propose constants to confirm by hand, in place of private ones?")
        public = typer.confirm("Are the numbers of people and silos and all categories public knowledge?")
        keep = [*keep, *_kept(look(found, label, None if subject == NO_SUBJECT else subject, silo))]
    missing = [option for option, name in (("--label", label), ("--subject", subject), ("--silo", silo)) if not name]
    if label is None or subject is None or silo is None:
        raise UserError("missing", missing[0], "is required", f"name one of {', '.join(found.names)}")
    who = None if subject == NO_SUBJECT else subject
    wanted = Wanted(label, who, silo, epsilon, tuple(keep), constants, public)
    made = template(found, table, out.absolute().parent, text, wanted)
    _try(made, out)
    show_json({"experiment": str(out), **made.as_dict()}) if as_json else _show_made(made, out, asks)


def _try(made: Template, out: Path) -> None:
    """Write the file, and take it away again if no run would accept it."""
    from tacit.engine import load_federation
    from tacit.planning.plan import plan

    out.write_text(made.text, encoding="utf-8")
    try:
        load_federation(plan(out))
    except BaseException:
        out.unlink()
        raise


def _column(question: str, names: tuple[str, ...], others: tuple[str, ...]) -> str:
    shown = ", ".join((*names, *others))
    while True:
        answer = str(typer.prompt(f"{question} ({shown})"))
        if answer in (*names, *others):
            return answer


def _kept(columns: tuple[ColumnLook, ...]) -> list[str]:
    return [
        column.name
        for column in columns
        if column.suspect and column.kind in ("number", "date", "category")
        if typer.confirm(f"'{column.name}' is left out ({column.suspect}). Use it all the same?")
    ]


def _show_made(made: Template, out: Path, shown: bool) -> None:
    if not shown:
        show_columns(made.columns)
    show(f"{len(made.features)} columns are features, {len(made.left_out)} are left out")
    if made.from_this_table:
        show(f"Read from this table, so guarantees hold only if public: {', '.join(made.from_this_table)}", "yellow")
    show_line(f"experiment  {out}")
    show_line(f"next        tacit run {out}")


def show_columns(columns: tuple[ColumnLook, ...]) -> None:
    show("Exact numbers about private data: they stay with the data holder.", "yellow")
    table = table_of("column", "type", "missing", "values", "suspect")
    for column in columns:
        table.add_row(column.name, column.kind, f"{column.missing:.1%}", _values(column), column.suspect or "")
    show(table)


def _values(column: ColumnLook) -> str:
    def end(value: Any) -> str:
        return f"{value:g}" if isinstance(value, float) else str(value)

    if column.low is not None:
        return f"{end(column.low)} to {end(column.high)}"
    if column.categories:
        listed = ", ".join(column.categories[:6])
        return listed + (f", … ({len(column.categories)})" if len(column.categories) > 6 else "")
    return f"{column.distinct:,} different"
