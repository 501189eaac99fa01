"""A plan and a sweep over plans on the console."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tacit.ui.console import plain_table, show, table_of
from tacit.ui.guarantees import seed_warning, show_guarantees

if TYPE_CHECKING:
    from tacit.planning.preview import NoiseToSignal, Outlook, PaidOnce
    from tacit.planning.sweep import Sweep


def show_outlook(outlook: Outlook) -> None:
    """A plan: noise, guarantees with their assumptions, budget."""
    made = outlook.plan
    show(made.title, "bold")
    show(f"{made.label}: {made.method.info.summary}; {made.rounds} rounds")
    if outlook.noise is not None:
        _show_noise(outlook.noise, outlook.plan.local_epsilon)
    for paid in outlook.paid:
        _show_paid(paid)
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


def _show_noise(noise: NoiseToSignal, local_epsilon: float | None) -> None:
    from tacit.planning.preview import noise_text

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
    if noise.ratio is not None:
        rows.append(("noise over signal", f"{noise.ratio:.3g} at best in one round; averaging over rounds helps"))
    table = plain_table()
    table.add_column(no_wrap=True, style="dim")
    table.add_column()
    for row in rows:
        table.add_row(*row)
    show(table)


def _show_paid(paid: PaidOnce) -> None:
    from tacit.privacy.statement import epsilon_text

    what = {"statistics": "constants for standardising", "evaluation": "metrics of the final model"}[paid.mechanism]
    whose = "about held-out people only" if paid.apart else "within the guarantees below"
    alone = f"epsilon {epsilon_text(paid.epsilon)} by themselves"
    show(f"Released once: {what}, noise multiplier {paid.noise_multiplier:g}, {alone}, {whose}.", highlight=False)


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
    from tacit.planning.preview import noise_text
    from tacit.privacy.statement import epsilon_text

    target = "" if sweep.target is None else f" for epsilon {sweep.target:g}"
    what = f"noise needed{target}" if sweep.solves == "noise_multiplier" else "epsilon of the given noise"
    at = "" if sweep.delta is None else f" at delta {sweep.delta:g}"
    show(sweep.title, "bold")
    show(f"{sweep.method}: {what}{at}, one {sweep.unit} against {', '.join(sweep.against)}")
    ratio = any(point.ratio is not None for point in sweep.points)
    columns = ["noise multiplier", "standard deviation", "epsilon", *(["noise over signal"] if ratio else [])]
    table = table_of(*(axis.name for axis in sweep.axes), *columns)
    for column in table.columns:
        column.justify = "right"
    for point in sweep.points:
        cells = [f"{value:g}" for value in point.values]
        cells += [noise_text(point.noise_multiplier), f"{point.std:.4g}", epsilon_text(point.epsilon)]
        cells += [] if not ratio else ["–" if point.ratio is None else f"{point.ratio:.3g}"]
        table.add_row(*cells, style=None if math.isfinite(point.epsilon) else "red")
    show(table)
    show(f"{len(sweep.points)} points in {sweep.seconds:.1f} s", "dim")
