"""The terms of every guarantee, and the guarantee itself: who is protected (unit), against what change (relation), from
which view, with which epsilon. In words: one sentence for the public, and a sheet for the data-protection officer.

Nothing here computes an epsilon. ``account.attack_limits`` says what a guarantee means against an attacker.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from tacit.notebook import box, folded, line, table
from tacit.privacy.invalid import InvalidArgument, require

if TYPE_CHECKING:
    from tacit.privacy.accounting.account import AttackLimits
    from tacit.privacy.accounting.events import Event

Unit = Literal["record", "subject", "silo"]
Relation = Literal["zero-out", "replace"]
Reveals = Literal["nothing", "sum", "each", "messages"]
# a subject's slot: a keyed hash modulo their number, which subjects may share, or a list that the silos share
Index = Literal["slots", "list"]

# -- default settings of statistics and metrics that are released with noise: they depend on no record

# On means and deviations, relative to the sensitivity: epsilon 0.34 at delta 1e-5 (mu = 0.1), little compared to
# training. The error of a mean is 10 sqrt(2 F + 1) / subjects half widths of its bounds: a few per cent from some
# thousand people on.
STATISTICS_NOISE = 10.0
# The least that is chosen for columns without bounds where few people are declared: mu = 1 / 3.
FEWEST_STATISTICS_NOISE = 3.0
# A record whose true class has a probability below e^-4 = 2 % counts as e^-4 in private metrics.
LOG_LOSS_BOUND = 4.0

UNITS: tuple[Unit, ...] = get_args(Unit)
RELATIONS: tuple[Relation, ...] = get_args(Relation)

# kind -> the view in a sentence; kinds with a number or a list of members carry it after a colon
_KINDS = {
    "public": "anyone who sees the released models",
    "server": "the server",
    "silo": "one curious silo",
    "silos": "colluding silos",
    "server+silos": "the server together with colluding silos",
    "shuffler": "the shuffler",
    "analyzer": "the analyzer behind the shuffler",
    "shuffler+analyzer": "the shuffler and the analyzer together",
    "neighbour": "a neighbour in the network",
    "coalition": "a declared coalition",
}
_COUNTED = ("silos", "server+silos")
_FAR = "neighbour"  # may carry a number: this many steps away, or more
_FORM = re.compile(r"([a-z+]+)(?::(\d+|\[[^\]]*\]))?")


@dataclass(frozen=True)
class View:
    """Who looks: ``View.parse("silos:2")`` are two colluding silos, ``"neighbour:3"`` a node at least three steps away;
    ``str(view)`` gives the same text back."""

    kind: str
    count: int = 1
    members: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> View:
        """Read a view as it is written in an experiment file; ValueError with the accepted forms otherwise."""
        match = _FORM.fullmatch(text.replace(" ", ""))
        kind, argument = match.groups() if match else (text, None)
        if kind not in _KINDS:
            raise InvalidArgument("unknown-name", "view", f"'{text}' is not a view; known: {', '.join(_forms())}")
        if kind in _COUNTED or (kind == _FAR and argument is not None):
            if argument is None or not argument.isdigit() or int(argument) < 1:
                noun = "steps" if kind == _FAR else "silos"
                raise InvalidArgument("malformed", "view", f"'{text}' needs a number of {noun}, for example '{kind}:2'")
            return cls(kind, count=int(argument))
        if kind == "coalition":
            members = tuple(name for name in (argument or "").strip("[]").split(",") if name)
            if not members:
                raise InvalidArgument("malformed", "view", f"'{text}' needs its members, for example 'coalition:[a,b]'")
            return cls(kind, count=len(members), members=members)
        if argument is not None:
            raise InvalidArgument("malformed", "view", f"'{text}' takes no number; write '{kind}'")
        return cls(kind)

    def __str__(self) -> str:
        if self.kind in _COUNTED or (self.kind == _FAR and self.count > 1):
            return f"{self.kind}:{self.count}"
        return f"coalition:[{','.join(self.members)}]" if self.members else self.kind

    @property
    def holds_records(self) -> bool:
        """Whether silos belong to the view: what it is promised is about what the others hold."""
        return self.kind in ("silo", "silos", "server+silos", "coalition")

    @property
    def who(self) -> str:
        """The view in words, for sentences."""
        words = _KINDS[self.kind]
        if self.kind in _COUNTED:
            several = f"{self.count} colluding silos" if self.count > 1 else "one curious silo"
            return words.replace("colluding silos", several)
        if self.kind == _FAR and self.count > 1:
            return f"a node of the network that is at least {self.count} steps away"
        return words


def _forms() -> list[str]:
    return [f"{kind}:c" if kind in _COUNTED else "coalition:[…]" if kind == "coalition" else kind for kind in _KINDS]


@dataclass(frozen=True)
class Exposure:
    """One row of a promise before it is costed.

    unit, relation   who is protected, against what change
    view             who looks
    reveals          what the exchange shows to that view: ``nothing``, the ``sum`` over silos, ``each`` silo's part
    index            how silos name a subject's slot where contributions are weighted by records in all silos and no
                     party learns those; None where there are no such weights
    pairwise         where silos add the noise, and more that cancels in pairs: what the view learns of one silo, over
                     what it would learn of a sum with the planned noise; None where there is no such noise
    weight_bits      weights by records are rounded down to multiples of 2^-weight_bits; None: they are exact
    """

    unit: Unit
    relation: Relation
    view: View
    reveals: Reveals
    index: Index | None = None
    pairwise: float | None = None
    weight_bits: int | None = None

    @property
    def colluding(self) -> int:
        """How many silos belong to the view: they know their own records, their own noise and the sampling coins."""
        return self.view.count if self.view.kind in ("silo", "silos", "server+silos") else 0

    @property
    def replaces(self) -> bool:
        return self.relation == "replace"


@dataclass(frozen=True)
class Noise:
    """Gaussian noise of standard deviation ``std`` on every number of a sum over silos, and who adds it.

    shares      every silo adds an equal part of the variance before anything leaves it
    once        a trusted server adds all of it to the sum
    inside      the local work adds it, where the exchange has nothing to do

    Noise that is correlated over rounds is a weighted sum of normals of standard deviation ``std``, drawn in this
    round, in the one before, and so on: ``weights`` has one number for each of them (``correlated_noise``).
    """

    std: float
    place: Literal["inside", "shares", "once"]
    weights: tuple[float, ...] = (1.0,)

    @property
    def in_a_round(self) -> float:
        """The standard deviation of the noise on one round's sum."""
        return self.std * math.hypot(*self.weights)


# the assumption of every guarantee whose noise is not drawn in steps of a grid
FLOATING_POINT = "noise is drawn in floating point; its least significant bits are not covered"


@dataclass(frozen=True)
class AsPublished:
    """What a paper's own accounting gives for the same run, and whether that number holds."""

    epsilon: float
    valid: Literal["yes", "only-if", "no"]
    reason: str


@dataclass(frozen=True)
class Linkage:
    """The same for a subject with several unlinked pseudonyms (``subject_events``)."""

    pseudonyms: int
    epsilon: float


@dataclass(frozen=True)
class Guarantee:
    """An upper bound that is proved for this unit, relation, view and sampling scheme; infinity where there is none.

    ``valid`` is "only-if" where an assumption is known to be unconfirmed: declared values were read from the table.
    """

    unit: Unit
    relation: Relation
    view: View
    sampling: str
    epsilon: float
    delta: float
    accountant: str
    assumptions: tuple[str, ...] = ()
    as_published: AsPublished | None = None
    linkage: Linkage | None = None
    valid: Literal["yes", "only-if"] = "yes"

    @property
    def finite(self) -> bool:
        return math.isfinite(self.epsilon)

    def as_dict(self) -> dict[str, Any]:
        """The form of ``--json``: infinity is the string "inf"."""
        values = asdict(self)
        for part in (values, values["as_published"], values["linkage"]):
            if part is not None:
                part["epsilon"] = part["epsilon"] if math.isfinite(part["epsilon"]) else "inf"
        return values | {"view": str(self.view), "assumptions": list(self.assumptions)}

    def _repr_html_(self) -> str:
        return box("Guarantee", line(sentence(self)), *guarantees_html([self.as_dict()]))


# -- in words ----------------------------------------------------------------------------------------------------------

_CHANGE: dict[tuple[Unit, Relation], str] = {
    ("record", "zero-out"): "Adding or removing {record}",
    ("record", "replace"): "Replacing what {record} says, its person and silo as before,",
    ("subject", "zero-out"): "Adding or removing everything about any one person, in {silos} together,",
    ("subject", "replace"): "Replacing everything about any one person, in {silos} together, by another's data",
    ("silo", "zero-out"): "Adding or removing everything that {silo} holds",
    ("silo", "replace"): "Replacing everything that {silo} holds by other data",
}
_EVERYWHERE = {"record": "any one record", "silos": "all silos", "silo": "any one silo"}
# to a view that holds records itself, a promise is about what the others hold
_ELSEWHERE = {
    "record": "any one record of the other silos",
    "silos": "all other silos",
    "silo": "any one of the other silos",
}

# What no guarantee of a training run covers, whatever its epsilon (specification 0.6).
NOT_COVERED = (
    "Choosing settings (rounds, clip, rates, model) by looking at results on the same private records.",
    "What is public by declaration: sizes, caps, rates, class names, column names, constants for standardising.",
    "Other releases from the same data that are not in this ledger.",
)
FLOATS = "The least significant bits of floating-point noise."
METRICS = {
    "outside-guarantee": "The metrics of this run and the numbers of test records: they were computed without noise.",
    "paid": "Metrics on private records other than those released with noise.",
    "public": "Metrics on private records; those of this run were computed on data declared public.",
    "none": "Metrics on private records; this run has none.",
}
REFERENCES = "The reference models of this run, trained for comparison without a guarantee."
SEEDED = "The run had a seed: a party that knows it can regenerate the noise, so the model must not be published."


def sentence(guarantee: Guarantee) -> str:
    """The promise in one sentence: Pr[with] <= e^epsilon Pr[without] + delta, for anything that can be seen.

    (Not "by at most that factor, except with probability delta": that is a stronger statement, and does not follow;
    specification 6, row S1.)
    """
    who = guarantee.view.who
    if not guarantee.finite:
        return f"Nothing is promised about what {who} can learn about any one {unit_word(guarantee.unit)}."
    where = _ELSEWHERE if guarantee.view.holds_records else _EVERYWHERE
    change = _CHANGE[guarantee.unit, guarantee.relation].format(**where)
    factor = f"a factor of {factor_text(guarantee.epsilon)}"
    rest = f", plus {_chance(guarantee.delta)}" if guarantee.delta > 0 else ""
    return f"{change} changes the probability of anything that {who} can see by at most {factor}{rest}."


@dataclass(frozen=True)
class SheetRow:
    """One view of the sheet: its guarantee, and what that allows an attacker."""

    guarantee: Guarantee
    limits: AttackLimits

    @property
    def right_guesses(self) -> float:
        """The share of right guesses of the best attacker, if presence and absence are equally likely beforehand."""
        return (1 + self.limits.advantage) / 2

    @property
    def meaning(self) -> str:
        """What the limits mean, in plain words."""
        who, whose = self.guarantee.view.who, unit_word(self.guarantee.unit)
        if not self.guarantee.finite:
            return f"{_capital(who)} may find out with certainty whether the data of one {whose} were used."
        (false_alarms, found), *others = self.limits.tpr_at_fpr.items()
        recognised = (
            f"at most {percent(found)} of those whose data were used, where false alarms may strike "
            f"{percent(false_alarms, up=False)} of those whose data were not"
        )
        for false_alarms, found in others:
            recognised += f", and at most {percent(found)} at {percent(false_alarms, up=False)}"
        return (
            f"Even the best attack by {who} guesses rightly whether one {whose}'s data were used in at most "
            f"{percent(self.right_guesses)} of cases (a coin toss: 50 %). It recognises {recognised}."
        )


@dataclass(frozen=True)
class Sheet:
    """The privacy sheet of a run, for a data-protection officer."""

    rows: tuple[SheetRow, ...]
    assumptions: tuple[str, ...]
    not_covered: tuple[str, ...]


def sheet(
    guarantees: Sequence[Guarantee],
    seeded: bool,
    *,
    events: Mapping[str, Event] | None = None,
    evaluation: str = "outside-guarantee",
    references: bool = False,
) -> Sheet:
    """The sheet of the guarantees of one unit.

    events      what happened in all, by view (``str(view)``): attack limits then come from its whole trade-off curve
    evaluation  on what the metrics were computed: ``public``, ``outside-guarantee``, ``paid``; ``none``: there are none
    references  other models were trained for comparison
    """
    require("missing", "guarantees", bool(guarantees), "a sheet needs at least one guarantee")
    stated = dict.fromkeys(text for g in guarantees if g.finite for text in g.assumptions)
    not_covered = [METRICS.get(evaluation, METRICS["outside-guarantee"]), *NOT_COVERED]
    not_covered += [FLOATS] if FLOATING_POINT in stated else []
    not_covered += [REFERENCES] if references else []
    not_covered += [SEEDED] if seeded else []
    return Sheet(
        tuple(_row(guarantee, (events or {}).get(str(guarantee.view))) for guarantee in guarantees),
        tuple(text for text in stated if text != FLOATING_POINT),
        tuple(not_covered),
    )


def _row(guarantee: Guarantee, event: Event | None) -> SheetRow:
    """The limits of the whole curve, which is asked at many epsilons, and of this guarantee's own: both are valid."""
    from tacit.privacy.accounting.account import attack_limits  # slow to import

    pair = (guarantee.epsilon, guarantee.delta)
    return SheetRow(guarantee, attack_limits(event if guarantee.finite else None, pair=pair))


# -- words and numbers -------------------------------------------------------------------------------------------------


def unit_word(unit: Unit) -> str:
    return "person" if unit == "subject" else unit


def epsilon_text(epsilon: float, digits: int = 4) -> str:
    """Epsilon in a few significant digits, rounded up: what is printed still holds."""
    if not math.isfinite(epsilon):
        return "inf"
    return f"{rounded_up(epsilon, digits):.{digits}g}" if epsilon < 10**digits else f"{math.ceil(epsilon):d}"


def guarantees_html(guarantees: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Guarantees, as :meth:`Guarantee.as_dict` gives them, for a notebook: a table, and what they rest on."""
    rows = [
        {
            "protects": found["unit"],
            "from": View.parse(found["view"]).who,
            "epsilon": epsilon_text(float(found["epsilon"])),
            "delta": f"{found['delta']:g}",
            "relation": found["relation"],
        }
        for found in guarantees
    ]
    finite = [found for found in guarantees if found["epsilon"] != "inf"]
    unconfirmed = next((found["assumptions"][0] for found in finite if found.get("valid") == "only-if"), "")
    rests_on = dict.fromkeys(text for found in finite for text in found["assumptions"])
    return (
        table(rows),
        line(f"Only if: {unconfirmed}", warning=True) if unconfirmed else "",
        folded("Rests on", rests_on),
    )


def noise_text(multiplier: float) -> str:
    """A noise multiplier in four digits, rounded up: what is printed gives no larger epsilon."""
    return f"{rounded_up(multiplier, 4):.4g}"


def rounded_up(value: float, digits: int) -> float:
    """The smallest number of ``digits`` significant digits that is at least ``value`` (to within 1e-12 of it)."""
    if value <= 0:
        return 0.0
    value = max(value, 1e-290)  # what is smaller has fewer digits
    places = digits - 1 - math.floor(math.log10(value))
    scaled = value * 10.0**places
    return float(f"{math.ceil(scaled * (1 - 1e-12))}e{-places}")


def percent(share: float, *, up: bool = True) -> str:
    """A share in per cent, limits rounded up in the digit that is shown."""
    value = 100 * share
    if value >= 99.95 and share < 1:
        return "almost 100 %"
    shown = min(100.0, rounded_up(value, 3 if value >= 10 else 2)) if up else value
    return f"{shown:.3g} %"


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]


def _chance(delta: float) -> str:
    """Delta as people say it, rounded up."""
    if delta >= 0.01:
        return f"a probability of {rounded_up(delta, 3):g} (delta)"
    if delta < 1e-15:
        return f"a probability of {delta:g} (delta)"
    return f"a probability of 1 in {math.floor(1 / delta * (1 + 1e-9)):,} (delta = {delta:g})"


def factor_text(epsilon: float) -> str:
    """e^epsilon in a form that people can read, rounded up: 1 only for epsilon 0."""
    if epsilon >= math.log(1e6):
        return f"10^{math.ceil(epsilon / math.log(10))}"
    if 0 < epsilon < 0.01:  # two digits of what it is above 1
        above = max(1e-6, rounded_up(math.expm1(epsilon), 2))
        return f"{1 + above:.{1 - math.floor(math.log10(above))}f}"
    factor = rounded_up(math.exp(epsilon), 3)
    return f"{factor:.3g}" if factor < 1000 else f"{factor:,.0f}"
