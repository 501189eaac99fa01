"""A promise in words: one sentence for everybody, and a sheet for the person who has to sign.

Words are derived from :class:`Guarantee` values alone; nothing here computes an epsilon. What a guarantee means against
an attacker follows from (epsilon, delta) by hypothesis testing (Kairouz, Oh, Viswanath 2015): whoever guesses whether a
unit's data were used, with false-positive rate f, is right about the used ones at most at the rate
``min(e^eps f + delta, 1 - e^-eps (1 - delta - f))``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tacit.privacy.guarantee import Guarantee
from tacit.privacy.terms import Relation, Unit

FALSE_POSITIVE_RATES = (0.001, 0.01)

_CHANGE: dict[tuple[Unit, Relation], str] = {
    ("record", "zero-out"): "Adding or removing any one record",
    ("record", "replace"): "Replacing any one record by any other",
    ("subject", "zero-out"): "Adding or removing everything about any one person, in all silos together,",
    ("subject", "replace"): "Replacing everything about any one person, in all silos together, by another's data",
    ("silo", "zero-out"): "Adding or removing everything that any one silo holds",
    ("silo", "replace"): "Replacing everything that any one silo holds by other data",
}

# What no guarantee of a training run covers, whatever its epsilon (privacy.md 0.6).
NOT_COVERED = (
    "Metrics computed on private records, unless they are paid for or the evaluation data are public.",
    "Choosing settings (rounds, clip, rates, model) by looking at results on the same private records.",
    "What is public by declaration: sizes, caps, rates, class names, column names, constants for standardising.",
    "Other releases from the same data that are not in this ledger.",
    "The least significant bits of floating-point noise.",
)
SEEDED = "The run had a seed: whoever knows it can regenerate the noise, so the model must not be published."


def sentence(guarantee: Guarantee) -> str:
    """The promise in one sentence."""
    who = guarantee.view.who
    if not guarantee.finite:
        return f"Nothing is promised about what {who} can learn about any one {_unit_word(guarantee.unit)}."
    change = _CHANGE[guarantee.unit, guarantee.relation]
    factor = f"a factor of {_factor(guarantee.epsilon)}"
    rest = f", except with probability {guarantee.delta:g}" if guarantee.delta > 0 else ""
    return f"{change} changes the probability of anything that {who} can see by at most {factor}{rest}."


@dataclass(frozen=True)
class AttackLimit:
    """The most that membership inference can achieve: ``true_positives`` at a rate of ``false_positives``."""

    false_positives: float
    true_positives: float


def advantage(guarantee: Guarantee) -> float:
    """The largest possible difference between true- and false-positive rate of any membership attack.

    The lines e^eps f + delta and 1 - e^-eps (1 - delta - f) cross at f = (1 - delta) / (1 + e^eps), where the
    difference is (e^eps - 1 + 2 delta) / (e^eps + 1).
    """
    if not guarantee.finite:
        return 1.0
    shrunk = math.exp(-guarantee.epsilon)
    return min(1.0, (1 - shrunk + 2 * guarantee.delta * shrunk) / (1 + shrunk))


def membership_limits(guarantee: Guarantee) -> tuple[AttackLimit, ...]:
    """What an attacker who may be wrong about 0.1 % and 1 % of the others can at most find out."""
    return tuple(AttackLimit(rate, _true_positives(guarantee, rate)) for rate in FALSE_POSITIVE_RATES)


def _true_positives(guarantee: Guarantee, rate: float) -> float:
    if not guarantee.finite:
        return 1.0
    shrunk = math.exp(-guarantee.epsilon)
    from_above = rate / shrunk + guarantee.delta if shrunk > 0 else math.inf
    from_below = 1 - shrunk * max(0.0, 1 - guarantee.delta - rate)
    return min(1.0, from_above, from_below)


@dataclass(frozen=True)
class SheetRow:
    """One view of the sheet: who looks, at which epsilon, and what that means."""

    who: str
    promise: str
    guarantee: Guarantee
    advantage: float
    limits: tuple[AttackLimit, ...]


@dataclass(frozen=True)
class Sheet:
    """The privacy sheet of a run, for a data-protection officer."""

    unit: str
    relation: str
    rows: tuple[SheetRow, ...]
    assumptions: tuple[str, ...]
    not_covered: tuple[str, ...]


def sheet(guarantees: Sequence[Guarantee], seeded: bool) -> Sheet:
    """Everything that somebody who signs must know, from the guarantees of one unit."""
    if not guarantees:
        raise ValueError("a sheet needs at least one guarantee")
    first = guarantees[0]
    rows = tuple(SheetRow(g.view.who, sentence(g), g, advantage(g), membership_limits(g)) for g in guarantees)
    assumptions = tuple(dict.fromkeys(text for g in guarantees for text in g.assumptions))
    return Sheet(
        _unit_word(first.unit),
        _CHANGE[first.unit, first.relation].rstrip(","),
        rows,
        assumptions,
        (*NOT_COVERED, SEEDED) if seeded else NOT_COVERED,
    )


def _unit_word(unit: Unit) -> str:
    return "person" if unit == "subject" else unit


def _factor(epsilon: float) -> str:
    """e^epsilon in a form that people can read."""
    factor = math.exp(epsilon) if epsilon < 700 else math.inf
    if factor < 1000:
        return f"{factor:.3g}"
    return f"10^{epsilon / math.log(10):.0f}"
