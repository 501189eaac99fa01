"""The true cost of runs of earlier accountings, as far as it can be recomputed.

A ledger line has the events that were computed when it was written, and the number of the accounting that wrote it.
:data:`ADVISORIES` says which advisory is about lines of which accounting, and whether such lines are recomputed here.

Lines of the first accounting (without the key ``accounting``) are recomputed for TACIT-2026-01 from the plan of their
run, from what that version did and what is proved about it today:

F1  exchange weighted: the weights of a silo's own part depend on the other silos
F2  federation, noise in every batch: a round was released although silos were missing; their noise is not counted
F3  federation: subjects could share a number, so that one who leaves turns a clipped vector around: two clips
F4  simulator: turns, batches and places were ranks among those present: nothing is proved
F6  sums in single precision: the rounding of as many terms as the plan declares is added to the sensitivity
F7  discrete noise on a grid of less than 1,000 steps: not recomputed, nothing is proved
F8  simulator: a cap over silos dropped a silo's own records: nothing is proved to views that hold records

Not recomputed here: F5 (a policy for records that counted subjects) is a matter of the policy, not of a run. In a
silo's own ledger, which names no plan, F6 is not recomputed either.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tacit.engine.folder import LEDGER, LOCAL, PLAN, RESULT, plan_content, read_json
from tacit.errors import TacitError, UserError
from tacit.exchange import EXCHANGES
from tacit.kernels.batches import most_expected
from tacit.kernels.clipped_sum import CHUNK
from tacit.methods import METHODS, Method
from tacit.planning.claims import Once, Promise, cost
from tacit.planning.plan import Plan, plan
from tacit.privacy import (
    Composed,
    Event,
    Gaussian,
    GaussianMixture,
    Largest,
    Ledger,
    LedgerError,
    Nothing,
    PoissonSampled,
    Relation,
    Repeated,
    SampledWithoutReplacement,
    Unit,
    Unprotected,
    View,
    spent,
)
from tacit.privacy.ledger import place

if TYPE_CHECKING:
    from tacit.federation.site.policy import Policy

Lines = Sequence[Mapping[str, Any]]
Status = Literal["ok", "under-counted", "not recomputed"]


@dataclass(frozen=True)
class Advisory:
    """An advisory about epsilons that were too small."""

    name: str
    corrected_in: int  # lines of an accounting below this one may be affected
    recomputed: bool = False  # here; if not, the page of the advisory says what to look for in a plan

    @property
    def page(self) -> str:
        return f"docs/advisories/{self.name}.md"


ADVISORIES = (
    Advisory("TACIT-2026-01", 2, recomputed=True),
    Advisory("TACIT-2026-02", 3),
    Advisory("TACIT-2026-03", 3),
    Advisory("TACIT-2026-04", 3),
)
# lines of an accounting below this one are recomputed
_FIRST_CORRECTED = 2

# what is recomputed is above what was recorded by more than rounding
_ABOVE = 1e-3
# of ledgers without a plan
_DELTA = 1e-5
CAUSES = {
    "F1": "the weights of a silo's part depended on the other silos",
    "F2": "noise of missing silos was counted",
    "F3": "subjects could share a number",
    "F4": "turns, batches or places depended on who is present",
    "F6": "sums in single precision were rounded",
    "F8": "a cap over silos dropped a silo's own records",
}


@dataclass(frozen=True)
class Cost:
    """Epsilon of a run against one view: as recorded, and as recomputed; None if it is not known."""

    recorded: float
    corrected: float | None


@dataclass(frozen=True)
class Checked:
    """One run of one ledger."""

    ledger: str
    run: str
    status: Status  # of what is recomputed; "ok" says nothing about the advisories in ``not_checked``
    place: str = ""
    delta: float | None = None
    epsilon: Mapping[str, Cost] = field(default_factory=dict)
    reason: str = ""  # why it is under-counted, or was not recomputed
    title: str = ""
    lines: int = 0
    checked: tuple[str, ...] = ()  # advisories about lines of this accounting for which the run was recomputed
    not_checked: tuple[str, ...] = ()  # and for which it was not


@dataclass(frozen=True)
class Total:
    """All runs of one ledger together."""

    ledger: str
    runs: int
    lines: int
    place: str
    delta: float
    epsilon: Mapping[str, Cost]
    limit: float | None = None  # epsilon_in_total of the silo's policy
    left: float | None = None  # of the limit, as the silo counts it


@dataclass(frozen=True)
class _Known:
    """A run folder: its plan with the noise that was used, and whether silos were parties of their own."""

    plan: Plan | None
    federated: bool
    problem: str = ""


@dataclass(frozen=True)
class _Scope:
    """For whom epsilon is computed."""

    unit: Unit
    relation: Relation
    views: tuple[View, ...]
    delta: float
    policy: Policy | None = None

    @property
    def place(self) -> str:
        return f"{self.unit}/{self.relation}"

    def epsilon(self, lines: Lines, view: View) -> float:
        return cost(spent(lines, place(self.unit, view, self.relation)), self.delta).epsilon

    def left(self, lines: Lines) -> dict[str, float]:
        """The limit of the policy and what is left of it; nothing without a limit."""
        if self.policy is None or math.isinf(limit := self.policy.epsilon_in_total):
            return {}
        return {"limit": limit, "left": max(0.0, limit - self.policy.epsilon(lambda where: spent(lines, where)))}


def check(paths: Sequence[Path]) -> tuple[list[Checked], list[Total]]:
    """Every run in ``paths`` (ledgers, budget files, run folders and the kits of silos), and the total of every ledger
    that has several runs, or is a silo's. Lines of a budget file are recomputed where the folder of their run is among
    the paths."""
    places = dict(map(_place, paths))
    lines = {file: _lines(file) for file in places}
    own = {file: _known(file.parent) for file in places if file.name == LEDGER and (file.parent / PLAN).is_file()}
    by_run = {str(line["run"]): known for file, known in own.items() for line in lines[file]}
    found, totals = [], []
    for file, scope in places.items():
        recorded: list[Mapping[str, Any]] = []
        again: list[Mapping[str, Any]] = []
        runs = dict.fromkeys(str(line["run"]) for line in lines[file])
        for run in runs:
            some = [line for line in lines[file] if line["run"] == run]
            checked, recomputed = _checked(file, run, some, own.get(file) or by_run.get(run), scope)
            found.append(checked)
            recorded += some
            again += recomputed
        if len(runs) > 1 or scope is not None:
            whole = _subject_scope(recorded)
            # recomputed lines of a silo are about subjects only
            if scope is not None and (_are_same(recorded, again) or scope.place == whole.place):
                whole = scope
            costs = _compared(recorded, again, whole)
            left = {} if scope is None else scope.left(recorded)
            totals.append(Total(str(file), len(runs), len(recorded), whole.place, whole.delta, costs, **left))
    return found, totals


def _place(path: Path) -> tuple[Path, _Scope | None]:
    """The ledger of ``path``, and the scope of the policy if it is the kit of a silo."""
    if not (path / "tacit" / "kit.json").is_file():
        return (path / LEDGER if path.is_dir() else path), None
    from tacit.federation.carrier.processes import settings
    from tacit.federation.site.policy import Policy
    from tacit.ledgers.backup import ledger_of
    from tacit.planning.settings import read_section

    file, kit = ledger_of(path)
    assert kit is not None, "the folder is a kit"
    policy = read_section(settings(kit)[1], Policy, "POLICY.toml")
    return file, _Scope(policy.unit, policy.relation, tuple(map(View.parse, policy.against)), policy.delta, policy)


def _accounting(line: Mapping[str, Any]) -> int:
    return int(line.get("accounting", 1))


def _subject_scope(lines: Lines) -> _Scope:
    """For a ledger without a plan: subjects, and the views that all lines have."""
    views = [
        where.split("/")[1]
        for where in (lines[0]["events"] if lines else ())
        if where.startswith("subject/") and all(where in line["events"] for line in lines)
    ]
    return _Scope("subject", "zero-out", tuple(map(View.parse, dict.fromkeys(views or ["public"]))), _DELTA)


def _checked(file: Path, run: str, lines: Lines, known: _Known | None, scope: _Scope | None) -> tuple[Checked, Lines]:
    """A run, and its lines as recomputed."""
    oldest = min(map(_accounting, lines))
    concern = {advisory.name: advisory.recomputed for advisory in ADVISORIES if oldest < advisory.corrected_in}
    yes = tuple(name for name, recomputed in concern.items() if recomputed)
    no = tuple(name for name, recomputed in concern.items() if not recomputed)
    plan = known.plan if known is not None else None
    if plan is not None:
        promise = plan.promise
        scope = scope or _Scope(promise.unit, promise.relation, tuple(promise.views), promise.delta)
    made = partial(Checked, str(file), run, title=plan.title if plan else "", lines=len(lines))
    again, causes = lines, ""
    if oldest >= _FIRST_CORRECTED:
        scope = scope or _subject_scope(lines)
    elif known is None and all(line["party"] != "server" for line in lines):
        scope, again, causes = *_recomputed_silo(lines), "F1, F2 or F3: recomputed from the replacement of a subject"
    elif known is None or plan is None or scope is None:
        reason = "no plan: name the folder of this run, too" if known is None else known.problem
        return made("not recomputed", reason=reason, not_checked=tuple(concern)), lines
    else:
        again = [_again(line, plan.promise, known.federated) for line in lines]
        causes = "; ".join(f"{name}: {CAUSES[name]}" for name in _causes(plan.promise, known.federated))
    costs = _compared(lines, again, scope)
    under = any(each.corrected is not None and each.corrected > each.recorded * (1 + _ABOVE) for each in costs.values())
    status: Status = "under-counted" if under else "ok"
    facts = partial(made, place=scope.place, delta=scope.delta, epsilon=costs, checked=yes, not_checked=no)
    return facts(status, reason=causes if under else ""), again


def _compared(lines: Lines, again: Lines, scope: _Scope) -> dict[str, Cost]:
    is_same = _are_same(lines, again)
    return {
        str(view): Cost(scope.epsilon(lines, view), None if is_same else scope.epsilon(again, view))
        for view in scope.views
    }


def _are_same(lines: Lines, again: Lines) -> bool:
    return all(one is other for one, other in zip(lines, again, strict=True))


def _causes(promise: Promise, federated: bool) -> list[str]:
    """Which of the causes are counted for a run."""
    method, facts = promise.method, promise.facts
    weighted = promise.exchange.index is not None
    found = {
        "F1": weighted and facts.max_records is not None,
        "F2": federated and _in_batches(method),
        "F3": federated and promise.unit == "subject",
        "F4": not federated and _takes_turns(method),
        "F6": _single_precision(promise) > _ABOVE,
        "F8": not federated and facts.moves_over,
    }
    return [name for name, is_counted in found.items() if is_counted]


def _recomputed_silo(lines: Lines) -> tuple[_Scope, Lines]:
    """A run in a silo's own ledger, which names no plan. Its lines have the events of all relations: what replacing a
    subject costs, to the server where the public may have seen one silo's part, covers F1, F2 and F3."""
    views = [View.parse(where.split("/")[1]) for where in lines[0]["events"] if where.startswith("subject/")]
    views = list(dict.fromkeys(views))

    def covering(line: Mapping[str, Any], view: View) -> Any:
        seen = View.parse("server") if view.kind == "public" and View.parse("server") in views else view
        return line["events"].get(place("subject", seen, "replace"))

    def again(line: Mapping[str, Any]) -> Mapping[str, Any]:
        found = {place("subject", view, "zero-out"): covering(line, view) for view in views}
        return {**line, "events": {where: event for where, event in found.items() if event}}

    corrected = [again(line) if _accounting(line) < _FIRST_CORRECTED else line for line in lines]
    return _Scope("subject", "zero-out", tuple(views), _DELTA), corrected


def _again(line: Mapping[str, Any], promise: Promise, federated: bool) -> Mapping[str, Any]:
    """A line with the events that its release is known to have had."""
    if _accounting(line) >= _FIRST_CORRECTED:
        return line
    once = next((once for once in promise.once if once.mechanism == line["mechanism"]), None)
    if once is None and line["mechanism"] != promise.method.name:
        return line
    events = promise.everywhere(lambda other, view: _released(other, view, federated, once))
    return {**line, "events": {where: event.as_dict() for where, event in events.items()}}


def _released(promise: Promise, view: View, federated: bool, once: Once | None) -> Event:
    """What a release of the first version showed to ``view``: a round, or what is released ``once``."""
    event = _without_rounding(promise, view, federated, once)
    return event if once is not None else _rounded(event, 1 + _single_precision(promise))


def _single_precision(promise: Promise) -> float:
    """By how many clips the sum of a round moved at most because it was rounded (F6).

    A sum of n terms, each of at most one clip, of which none takes part in more than k additions, has an error of at
    most k u / (1 - k u) n clips, u = 2^-24 (Higham 2002, section 4.2); the sum of the neighbouring table has one, too.
    """
    method, facts, exchange = promise.method, promise.facts, promise.exchange
    is_masked = exchange.carries == "integers" and exchange.masking is not None
    if exchange.carries != "sum" and not is_masked:  # integers of subjects, or each party alone
        return 0.0
    if method.clip is not None and method.clip.of in ("record", "batch"):
        terms = max((most_expected(size) for size in method.work.batch_sizes(facts)), default=0.0)
        terms += 10 * math.sqrt(terms) + 50
        additions = CHUNK + terms / CHUNK + 1
    elif method.clip is not None and method.clip.of == "subject":
        terms = float(facts.subjects or 0)
        additions = terms * facts.silos_of_a_subject + facts.silos
    else:
        return 0.0
    error = additions * 2.0**-24
    return 2 * error / (1 - error) * terms if error < 1 else math.inf


def _rounded(event: Event, factor: float) -> Event:
    """``event`` where a sum moves by ``factor`` times as much."""
    match event:
        case Gaussian(noise):
            return Gaussian(noise / factor)
        case GaussianMixture(noise, sensitivities, probabilities):
            return GaussianMixture(noise / factor, sensitivities, probabilities)
        case PoissonSampled(rate, inner):
            return PoissonSampled(rate, _rounded(inner, factor))
        case SampledWithoutReplacement(size, population, Gaussian(noise)):
            return SampledWithoutReplacement(size, population, Gaussian(noise / factor))
        case Repeated(inner, count):
            return Repeated(_rounded(inner, factor), count)
        case Composed(events):
            return Composed(tuple(_rounded(inner, factor) for inner in events))
        case Largest(events):
            return Largest(tuple(_rounded(inner, factor) for inner in events))
        case Nothing() | Unprotected():
            return event
    return event if factor == 1 else Unprotected("F6: sums in single precision")


def _without_rounding(promise: Promise, view: View, federated: bool, once: Once | None) -> Event:
    from tacit.privacy.proofs.subject_events import of_two

    if not federated:
        return _simulated(promise, view) if once is None else promise.once_event(once, promise.unit, view)
    if promise.unit == "subject":
        # two subjects with one number are clipped together: one who leaves turns the vector around, as if replaced
        turned = replace(promise, relation="replace")
        event = _federated(turned, view) if once is None else turned.once_event(once, "subject", view)
        if promise.relation == "zero-out":
            return event
        return of_two(event) or Unprotected(f"F3: {CAUSES['F3']}")
    return _federated(promise, view) if once is None else promise.once_event(once, promise.unit, view)


def _federated(promise: Promise, view: View) -> Event:
    """A round that may have been released without the noise of all other silos: the public saw one silo's part."""
    if _in_batches(promise.method) and view.kind == "public":
        view = View.parse("server")
    return promise.event(promise.unit, view)


def _simulated(promise: Promise, view: View) -> Event:
    method, facts, exchange = promise.method, promise.facts, promise.exchange
    if _takes_turns(method):
        return Unprotected(f"F4: {CAUSES['F4']}")
    if exchange.index is None or method.clip is None or facts.max_records is None:
        return promise.event(promise.unit, view)
    # the simulator gave every subject a slot of its own
    alone = replace(promise, exchange=EXCHANGES[exchange.name](**{**asdict(exchange), "index": "list"}))
    others = facts.silos - promise.exposure(promise.unit, view).colluding
    if not view.holds_records or others < 1 or facts.moves_over:
        return alone.event(promise.unit, view)
    from tacit.privacy.proofs.weight_shifts import largest_shift
    from tacit.privacy.proofs.weight_tables import WeightTable

    if promise.unit == "silo" or method.clip.sigma == 0:
        return alone.event(promise.unit, View.parse("public"))
    table = WeightTable("records-phantom", facts.silos * facts.max_records).floats()
    shift = largest_shift(table, others * facts.max_records, (facts.silos - others) * facts.max_records)
    shift = 2.0 if promise.unit == "record" else shift * (2.0 if promise.relation == "replace" else 1.0)
    return Gaussian(method.clip.effective_sigma / (shift * math.sqrt(facts.silos / others)))


def _in_batches(method: Method) -> bool:
    """Whether every batch of a silo has noise of its own."""
    return method.info.place == "inside" and method.clip is not None and method.clip.of in ("record", "batch")


def _takes_turns(method: Method) -> bool:
    """Whether subjects were divided by their rank: into groups, batches or places."""
    return method.claim.joint or method.turns > 1 or method.info.gathers == "subjects"


def _known(folder: Path) -> _Known:
    """The plan of a run folder with the noise that was really used, not solved for again."""
    federated = not (folder / LOCAL).is_file()  # the exact numbers that only a simulator sees
    try:
        content = plan_content(folder)
        method, privacy = dict(content.get("method") or {}), dict(content.get("privacy") or {})
        if method.pop("target_epsilon", None) is not None:
            method |= _noise(str(method.get("name")), folder)
        for key in ("budget", "budget_file", "target"):
            privacy.pop(key, None)
        if federated:
            privacy["over_silo_cap"] = "refuse"
        return _Known(plan({**content, "method": method, "privacy": privacy}, folder=folder), federated)
    except (TacitError, OSError) as error:
        return _Known(None, federated, str(error))


def _noise(method: str, folder: Path) -> dict[str, float]:
    kind = METHODS.get(method)
    found = read_json(folder / RESULT, "run").get("noise_multiplier") if (folder / RESULT).is_file() else None
    if kind is None or kind.noise_key != "noise_multiplier" or found is None:
        raise UserError("file-damaged", "run", f"the noise that was solved for is not in '{RESULT}'", "restore it")
    return {"noise_multiplier": float(found)}


def _lines(file: Path) -> Lines:
    if not file.is_file():
        problem = f"'{file}' is not a ledger, a budget file, a run folder or the kit of a silo"
        raise UserError("wrong-file", "ledger", problem, "name one of these")
    try:
        with Ledger(file) as ledger:
            return ledger.lines
    except LedgerError as error:
        raise UserError("ledger-damaged", "ledger", str(error), "restore it from a backup") from None
