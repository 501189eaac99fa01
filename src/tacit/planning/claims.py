"""What a method, an exchange and public facts promise together, and the noise that a target needs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Literal

from tacit.errors import UserError
from tacit.exchange import EXCHANGES, Exchange
from tacit.methods import Facts, Info, Method, Options
from tacit.privacy import (
    RELATIONS,
    UNITS,
    AsPublished,
    Composed,
    Event,
    Exposure,
    Guarantee,
    Largest,
    Linkage,
    Nothing,
    Relation,
    Repeated,
    Unit,
    Unprotected,
    View,
)
from tacit.privacy.ledger import place

if TYPE_CHECKING:
    from tacit.privacy.accounting.account import Bound

REPRODUCIBLE = "reproducible-noise: the run has a seed, and a party that knows it can draw the same noise again"
PUBLIC_SIZES = (
    "numbers of silos, subjects and records, caps, rates and constants are public and not taken from the data"
)
TOLD_APART = (
    "subjects are distinguished by 64 bits of a keyed hash of their identifiers: two of {subjects:,} are taken for one"
    " with probability {chance:.1g}"
)
IN_SHARES = "every silo adds its share of the noise to its part of {what} before anything leaves it"
ONE_IDENTIFIER = "a subject has one identifier in all silos (linkage: epsilon with two that are not linked)"
BY_LOT = "held-out people are drawn by lot, whatever their records say, and are in no training release"
ASSIGNED = (
    "records were assigned to subjects and silos once: the assignment of all others stays when records are removed"
)
FROM_TABLE = (
    "from-this-table: {names} were read from the table itself; the guarantee holds only if they are public anyway,"
    " or would be the same without any one {unit}"
)

MAKES_ROOM = "with caps, a record that is removed makes room for another one, which the paper does not count"
TWO_SUBJECTS = "a replaced record may change two subjects, whose other records a cap on silos moves: no bound is known"
DROPPED = (
    "max_silos_per_subject drops or keeps this view's own records depending on what other silos hold"
    ' (over_silo_cap = "refuse" makes it a promise about the data)'
)
ELSEWHERE = "it is about what the other silos hold: this view knows its own records"

Mechanism = Literal["statistics", "evaluation"]
_WHAT: dict[Mechanism, str] = {
    "statistics": "the sums that standardising constants come from",
    "evaluation": "the sums that metrics come from",
}


# the view whose observations a party has in an exchange where it has no role of its own: see `Promise.everywhere`
_ABSENT = {
    View("analyzer"): View("public"),
    View("shuffler"): View("server"),
    View("shuffler+analyzer"): View("server"),
    View("server"): View("shuffler"),
}


@dataclass(frozen=True)
class Once:
    """A noisy sum over all silos that a run releases once, outside its rounds.

    mechanism         ``statistics`` before the first round: means and deviations of columns; ``evaluation`` after the
                      last: metrics
    noise_multiplier  standard deviation of the noise on the sum over the sensitivity for one subject
    apart             it is about subjects that are in no other release of the run
    """

    mechanism: Mechanism
    noise_multiplier: float
    apart: bool = False

    def event(self, exposure: Exposure, facts: Facts) -> Event:
        """What it shows to a view: ``proofs.noisy_silo_sums.paid_event`` holds the proof."""
        from tacit.privacy.proofs.noisy_silo_sums import paid_event

        caps = facts.moves_over or facts.records_kept == 1
        m = facts.silos_of_a_subject
        return paid_event(exposure, self.noise_multiplier, facts.silos, m, moves_up=caps)

    @property
    def assumptions(self) -> tuple[str, ...]:
        return (IN_SHARES.format(what=_WHAT[self.mechanism]), *((BY_LOT,) if self.apart else ()))


@dataclass(frozen=True)
class Promise:
    """Who is protected from whom, and at what cost.

    unit, relation  who is protected, against what change
    views           for which a guarantee is printed
    against         those of them that a target or a budget binds
    leaks           reasons outside the method why nothing can be promised
    once            what is released once, outside the rounds
    beforehand      what is assumed about how the data were made
    from_table      declared settings that were read from the table, and so may reveal its records
    """

    options: Options
    exchange: Exchange
    facts: Facts
    unit: Unit
    relation: Relation
    views: tuple[View, ...]
    against: tuple[View, ...]
    delta: float
    seeded: bool = False
    leaks: tuple[str, ...] = ()
    once: tuple[Once, ...] = ()
    beforehand: tuple[str, ...] = ()
    from_table: tuple[str, ...] = ()

    @cached_property
    def method(self) -> Method:
        """The parts of the method, with its noise; ValueError where that is still to be solved for."""
        return self.options.build(self.facts)

    def exposure(self, unit: Unit, view: View) -> Exposure:
        relation = self.relation if unit == self.unit else self.options.info.relation(unit)
        # a view that the exchange does not know is taken to see everything
        seen = self.exchange.reveals_to(view) or "each"
        factor = self.exchange.factor(view, self.facts.silos)
        return Exposure(unit, relation, view, seen, self.exchange.index, factor, self.exchange.weight_bits)

    def event(self, unit: Unit, view: View) -> Event:
        """What one round releases to ``view`` about one ``unit``; of a joint method, all rounds together."""
        if self.leaks:
            return Unprotected(self.leaks[0])
        if self.drops_for(view):
            return Unprotected(DROPPED)
        exposure = self.exposure(unit, view)
        if 0 < self.facts.silos <= exposure.colluding and not self.options.info.pools:
            return Unprotected("all silos belong to this view: no other silo is left to protect")
        counted = self._counted(exposure)
        if counted != exposure and exposure.replaces:  # another subject's record may come: the same for that subject
            from tacit.privacy.proofs.subject_events import of_two

            return of_two(self.method.claim.event(counted)) or Unprotected(TWO_SUBJECTS)
        return self.method.claim.event(counted)

    def drops_for(self, view: View) -> bool:
        """Whether the view holds records of its own which the cap on a subject's silos keeps or drops depending on what
        other silos hold: it learns from that, and its own part changes with them (specification 9.5)."""
        holds = view.holds_records or view.kind == "neighbour"
        return self.facts.moves_over and holds and self.options.declared.gathers != "subjects"

    def _counted(self, exposure: Exposure) -> Exposure:
        """What is counted for a unit: where a cap on silos lets others take a record's place, whichever do, no more
        changes than if its subject were replaced."""
        if exposure.unit == "record" and self.facts.moves_over:
            return replace(exposure, unit="subject", relation="replace")
        return exposure

    def release(self, mechanism: Mechanism) -> Once | None:
        """The release of that name outside the rounds, if there is one."""
        return next((once for once in self.once if once.mechanism == mechanism), None)

    def once_event(self, once: Once, unit: Unit, view: View) -> Event:
        """What a release outside the rounds shows to ``view`` about one ``unit``."""
        if self.drops_for(view):
            return Unprotected(DROPPED)
        exposure = self.exposure(unit, view)
        is_masked = self.exchange.masking is not None  # otherwise such sums travel in the clear
        if not is_masked and view.kind not in ("public", "silo", "silos"):
            exposure = replace(exposure, reveals="each")
        return once.event(exposure, self.facts)

    def everywhere(self, event_of: Callable[[Promise, View], Event]) -> dict[str, Event]:
        """``event_of`` this promise to all units, against all changes and to all views, by place.

        **Views that the exchange does not have.** A ledger adds up over runs what one party sees, and runs have
        different exchanges. A party without a role in an exchange is written as what it saw (``_ABSENT``):

        analyzer           receives no message of an exchange without an analyzer: it sees what the public sees.
        shuffler           is the machine of the server in exchanges without a shuffler, and sees what the server sees,
                           which includes all that is published.
        server             is the shuffler of a shuffled exchange, for the same reason.
        shuffler+analyzer  is the server, and the analyzer, which adds only what is published.

        All other views (silos, which know their own subjects' reports; nodes of a network) have no such bound: their
        places stay empty, and count as unprotected.
        """
        seen = {view: view for view in (*self.views, *map(View.parse, self.exchange.reveals))}
        for absent, stand_in in _ABSENT.items():
            if absent not in seen and stand_in in seen:
                seen[absent] = stand_in
        found = {
            (unit, view, relation): event_of(replace(self, unit=unit, relation=relation), view)
            for unit in UNITS
            for view in dict.fromkeys(seen.values())
            for relation in RELATIONS
        }
        return {
            place(unit, view, relation): found[unit, as_seen_by, relation]
            for unit in UNITS
            for view, as_seen_by in seen.items()
            for relation in RELATIONS
        }

    def people(self, number: int) -> str | None:
        """The batch of round ``number``, where its subjects are in no release but rounds of that batch; else None."""
        turns = self.method.turns
        if turns == 1 or any(not once.apart for once in self.once):
            return None
        return f"batch {(number - 1) % turns + 1} of {turns}"

    def participations(self, rounds: int) -> int:
        """In how many of the first ``rounds`` a subject takes part at most: batches take turns."""
        return rounds if self.people(1) is None else -(-rounds // self.method.turns)

    def total(self, view: View, rounds: int, times: Mapping[str, int] | None = None) -> Event:
        """This many rounds in which a subject takes part (``participations``), and everything that is released once (or
        as often as ``times`` says, by mechanism).

        **Batches of subjects.** Batches are fixed before any record is seen. Every subject is in one of them, and
        rounds of the others depend on records of other subjects and on what was released before: they are
        post-processing. So only the rounds of its own batch cost a subject anything (parallel composition).

        **Held-out subjects.** Let T be the training subjects, H the held-out ones, and let the split depend on no
        records. The run gives (M, E): everything learned from T, and a release E = K(M, H). Zeroing out a subject of T
        leaves H and so the kernel K(·, H) as it is: (M, E) is post-processing of M and costs what M costs. Zeroing out
        a subject of H leaves the law of M as it is and costs what K costs at the worst value of M. Every subject is in
        one of the two: the larger bounds both. Without such a split, both may be about the same subject, and add up. So
        they do for a silo, which has subjects in T and in H, and under replacement: a subject of T may be replaced by
        one of H, which changes both.
        """
        together: list[Event] = []
        apart: list[Event] = []
        for once in self.once:
            count = 1 if times is None else times.get(once.mechanism, 0)
            if count:
                event = self.once_event(once, self.unit, view)
                (apart if once.apart else together).append(event if count == 1 else Repeated(event, count))
        training = _composed((*together, self._rounds(view, rounds)))
        if not apart:
            return training
        if self.unit == "silo" or self.relation == "replace":
            return _composed((training, *apart))
        return Largest((training, _composed(tuple(apart))))

    def _rounds(self, view: View, rounds: int) -> Event:
        event = self.event(self.unit, view)
        if self.method.claim.joint:
            return event if rounds else Nothing()
        return Repeated(event, rounds)

    def guarantees(
        self, spent: Callable[[View], Event] | None = None, rounds: int | None = None
    ) -> tuple[Guarantee, ...]:
        """What each view learns about one unit: over the planned rounds, or what was really ``spent`` in ``rounds``."""
        if not self.options.info.private:
            spent = None
        return tuple(self._guarantee(view, spent, rounds) for view in self.views)

    def _guarantee(self, view: View, spent: Callable[[View], Event] | None, rounds: int | None) -> Guarantee:
        exposure = self.exposure(self.unit, view)
        if not self.options.info.private:  # known without any accounting
            reason = _reason(self.event(self.unit, view))
            return Guarantee(
                self.unit, self.relation, view, "none", math.inf, self.delta, "none", (reason, *self.leaks)
            )
        event = self._planned(view) if spent is None else spent(view)
        bound = cost(event, self.delta)
        finite = math.isfinite(bound.epsilon)
        return Guarantee(
            self.unit,
            self.relation,
            view,
            self.method.claim.sampling(self._counted(exposure)) if finite else "none",
            bound.epsilon,
            self.delta,
            bound.accountant if finite else "none",
            self._assumptions(exposure) if finite else (_reason(event), *self.leaks[1:]),
            self._published(exposure, finite, rounds),
            linkage(event, self.delta) if finite and self.unit == "subject" else None,
            "only-if" if finite and self.from_table else "yes",
        )

    def _published(self, exposure: Exposure, finite: bool, rounds: int | None) -> AsPublished | None:
        """The paper's own number, with a note where it does not cover this plan."""
        published = self._as_published(exposure, rounds)
        if published is None:
            return None
        if not finite and published.valid != "no":
            published = replace(published, valid="no", reason="it is not about what this view sees")
        capped = self.facts.moves_up or self.facts.moves_over
        if exposure.unit == "record" and capped and not exposure.replaces:
            return replace(published, valid="no", reason=MAKES_ROOM)
        if not self.once or published.valid == "no":
            return published
        others = " and ".join(once.mechanism for once in self.once)
        return replace(published, valid="only-if", reason=f"{published.reason}; it does not cover the {others}")

    def _assumptions(self, exposure: Exposure) -> tuple[str, ...]:
        seeded = (REPRODUCIBLE,) if self.seeded else ()
        paid = dict.fromkeys(text for once in self.once for text in once.assumptions)
        travelled = self.exchange.assumptions(exposure.view, self.facts.silos)
        elsewhere = (ELSEWHERE,) if exposure.view.holds_records else ()
        linked = (ONE_IDENTIFIER,) if exposure.unit == "subject" else ()
        own, people = self.method.claim.assumptions(exposure), self.facts.subjects
        if self.unit == "subject" and people:
            own = (*own, TOLD_APART.format(subjects=people, chance=people**2 / 2.0**65))
        read = FROM_TABLE.format(names=", ".join(self.from_table), unit=self.unit)
        unconfirmed = (read,) if self.from_table else ()
        return (*unconfirmed, *elsewhere, *seeded, *self.beforehand, *own, *paid, PUBLIC_SIZES, *linked, *travelled)

    def _planned(self, view: View) -> Event:
        return self.total(view, self.participations(self.facts.rounds))

    def worst(self, event_of: Callable[[View], Event]) -> float:
        """The largest epsilon over the views that a budget binds."""
        return max((cost(event_of(view), self.delta).epsilon for view in self.against), default=math.inf)

    def planned_epsilon(self) -> float:
        return self.worst(self._planned)

    # -- solving for the noise

    def with_noise_for(self, epsilon: float, accounting: str) -> Promise:
        """The same promise with the least noise that keeps ``epsilon`` over all of ``against``.

        ``accounting`` is ``proved``, or ``as-published``: then the paper's own number is brought to ``epsilon``.
        """
        from tacit.privacy.accounting.account import calibrate_cost, calibrate_noise

        try:
            if accounting == "proved":
                sigma = calibrate_noise(self._all_views, epsilon, self.delta)
            else:
                sigma = calibrate_cost(lambda noise: self._with_noise(noise).published_epsilon(), epsilon)
        except ValueError:
            raise UserError("unreachable", "method.target_epsilon", *self._unreachable(epsilon, accounting)) from None
        return self._with_noise(sigma)

    def _with_noise(self, sigma: float) -> Promise:
        return replace(self, options=self.options.with_noise(sigma))

    def _all_views(self, sigma: float) -> Event:
        noisy = self._with_noise(sigma)
        planned = [noisy._planned(view) for view in self.against]
        members = (event.events if isinstance(event, Largest) else (event,) for event in planned)
        events = tuple(dict.fromkeys(chain.from_iterable(members)))
        return events[0] if len(events) == 1 else Largest(events)

    def published_epsilon(self, rounds: int | None = None) -> float:
        """The paper's own number after ``rounds`` (all that are planned): the largest over ``against``."""
        exposures = (self.exposure(self.unit, view) for view in self.against)
        found = [published.epsilon for each in exposures if (published := self._as_published(each, rounds))]
        return max(found, default=math.inf)

    def _as_published(self, exposure: Exposure, rounds: int | None) -> AsPublished | None:
        method = self.method if rounds is None else self.options.build(replace(self.facts, rounds=rounds))
        return method.claim.as_published(exposure, self.delta)

    def _unreachable(self, epsilon: float, accounting: str) -> tuple[str, str]:
        if accounting == "as-published":
            return (
                f"no published accounting of {self.options.info.name} reaches {epsilon:g}",
                'use privacy.target = "proved"',
            )
        for view in self.against:
            event = self._with_noise(1e6)._planned(view)
            if math.isinf(cost(event, self.delta).epsilon):
                views = ", ".join(str(other) for other in self.against if other != view) or "public"
                problem = f"no noise protects a {self.unit} from view '{view}' ({_reason(event)})"
                return problem, f"leave that view out of privacy.against (for example: {views})"
            alone = cost(self._with_noise(1e6).total(view, 0), self.delta).epsilon
            if alone >= epsilon:
                problem = f"what is released outside the rounds alone costs {alone:.3g} against view '{view}'"
                return problem, "raise privacy.statistics_noise_multiplier or evaluation.noise_multiplier"
        return f"no noise reaches {epsilon:g}", "raise it, or lower rounds and rates"


def exchanges_for(info: Info) -> tuple[str, ...]:
    """The exchanges that suit a method."""
    return tuple(name for name, kind in EXCHANGES.items() if suits(kind, info))


def suits(exchange: type[Exchange], info: Info) -> bool:
    """Whether an exchange can carry what a method sends, and can add its noise where it does not add it itself."""
    return exchange.carries in info.sends and (info.place not in ("shares", "once") or info.place in exchange.adds)


def beside(before: Event, event: Event) -> Event:
    """``event`` after what others released ``before``. Whom a run holds out does not change with what came before, so
    the larger of its two parts stays outermost, where it costs least."""
    if isinstance(before, Nothing):
        return event
    if isinstance(event, Largest):
        return Largest(tuple(Composed((before, member)) for member in event.events))
    return Composed((before, event))


def _composed(parts: tuple[Event, ...]) -> Event:
    return parts[0] if len(parts) == 1 else Composed(parts)


@lru_cache(maxsize=4096)
def cost(event: Event, delta: float) -> Bound:
    """What an event costs at delta. (Accounting is imported on first use: it takes a second.)"""
    from tacit.privacy.accounting.account import account

    return account(event, delta)


@lru_cache(maxsize=4096)
def linkage(event: Event, delta: float) -> Linkage:
    """What an event costs a subject with two pseudonyms."""
    from tacit.privacy.proofs.subject_events import PSEUDONYMS, linked_epsilon

    return Linkage(PSEUDONYMS, linked_epsilon(event, delta))


def _reason(event: Event) -> str:
    """Why an event is unprotected, in the words of the one who said so."""
    match event:
        case Unprotected(reason):
            return reason
        case Repeated(inner, _):
            return _reason(inner)
        case _:
            parts = getattr(event, "events", ())
            found = [_reason(part) for part in parts if math.isinf(cost(part, 1e-5).epsilon)]
            return found[0] if found else "the noise is too small for any bound"
