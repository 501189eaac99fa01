"""``tacit survey``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tacit.errors import UserError
from tacit.ui.arguments import Json
from tacit.ui.console import show, show_guarantees, show_json, show_line, table_of

if TYPE_CHECKING:
    from tacit.families.survey.ask import Survey


def survey(
    table: Annotated[Path, typer.Argument(metavar="TABLE", help="A csv, csv.gz, parquet or npz file.")],
    column: Annotated[str, typer.Option("--column", help="The column with the answers.")],
    epsilon: Annotated[float, typer.Option("--epsilon", help="Privacy budget of the answers for one subject.")],
    categories: Annotated[
        str | None, typer.Option("--categories", metavar="a,b,…", help="Estimate the share of each; they are public.")
    ] = None,
    bounds: Annotated[
        str | None, typer.Option("--range", metavar="LOW:HIGH", help="Estimate the mean; the bounds are public.")
    ] = None,
    noise: Annotated[
        str, typer.Option("--noise", help="central: a trusted server adds it. local: every subject does.")
    ] = "central",
    subject: Annotated[
        str | None, typer.Option("--subject", help="The column that identifies the subject of each row.")
    ] = None,
    delta: Annotated[float, typer.Option("--delta", help="Central: 0 for Laplace noise, else Gaussian.")] = 0.0,
    ledger: Annotated[
        Path | None, typer.Option("--ledger", metavar="FILE", help="A ledger shared with other surveys and runs.")
    ] = None,
    budget: Annotated[float | None, typer.Option("--budget", help="Largest epsilon of that ledger in all.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="For studies only.")] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="The new folder.")] = None,
    as_json: Json = False,
) -> None:
    """Ask one question of a table: shares of answers, or a mean over subjects, with error bars."""
    from tacit.families.survey import ask

    found, folder = ask.survey(
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
        show_json({**found.as_dict(), "survey": str(folder), "report": str(folder / "survey.html")})
    else:
        show_survey(found, folder)


def _range(text: str) -> tuple[float, float]:
    """``0:120`` as two numbers."""
    try:
        low, high = (float(part) for part in text.split(":"))
    except ValueError:
        raise UserError("malformed", "--range", f"'{text}' is not LOW:HIGH", "write for example 0:120") from None
    return low, high


def show_survey(found: Survey, folder: Path) -> None:
    """The answers with their error bars, the guarantees, and the error with noise in the other place."""
    shown = table_of(found.column, "estimate", "standard error", "95 % interval")
    for answer in found.answers:
        interval = f"{answer.low:.4g} to {answer.high:.4g}"
        shown.add_row(answer.answer, f"{answer.estimate:.4g}", f"{answer.standard_error:.2g}", interval)
    show(shown)
    show(f"{found.people:,} people; errors are those of the noise alone.", highlight=False)
    show_guarantees([guarantee.as_dict() for guarantee in found.guarantees], rests_on=True)
    other = "local" if found.place == "central" else "central"
    errors = f"about {found.expected_error:.2g} here, {found.other_error:.2g} with --noise {other}"
    show(f"Standard error at this epsilon: {errors}.", highlight=False)
    if found.seed is not None:
        show("The survey has a seed: anyone who knows it can remove the noise.", "red")
    show_line(f"survey  {folder}")
    show_line(f"report  {folder / 'survey.html'}")
