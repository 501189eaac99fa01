"""What a method, an exchange and public facts promise together, and the noise that a target needs.

Everything here works before any record is read. A :class:`Promise` knows whom it protects and from whom; it costs the
events that the method names, round by round or for a whole run, and adds what every reader must know: relation,
sampling, assumptions, and what the paper's own accounting says.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from tacit.errors import UserError
from tacit.exchange import Exchange
from tacit.methods.method import FACT_KEYS, Facts, Method, Private
from tacit.privacy import (
    UNITS,
    AsPublished,
    Event,
    Exposure,
    Guarantee,
    Largest,
    Relation,
    Repeated,
    Unit,
    Unprotected,
    View,
)

if TYPE_CHECKING:
    from tacit.privacy import Bound

REPRODUCIBLE = "reproducible-noise: the run has a seed, and whoever knows it can draw the same noise again"
PUBLIC_SIZES = (
    "numbers of silos, subjects and records, caps, rates and constants are public and not taken from the data"
)


@dataclass(frozen=True)
class Promise:
    """Who is protected from whom, and at what cost.

    unit, relation  who is protected, against what change
    views           everybody for whom a guarantee is printed
    against         those of them that a target or a budget binds
    leaks           reasons outside the method why nothing can be promised
    """

    method: Method
    exchange: Exchange
    facts: Facts
    unit: Unit
    relation: Relation
    views: tuple[View, ...]
    against: tuple[View, ...]
    delta: float
    seeded: bool = False
    leaks: tuple[str, ...] = ()

    def exposure(self, unit: Unit, view: View) -> Exposure:
        relation = self.relation if unit == self.unit else self.method.relation(unit)
        # a view that the exchange does not know is taken to see everything
        seen = self.exchange.reveals_to(view) or "each"
        return Exposure(unit, relation, view, seen, self.exchange.hides_counts)

    def event(self, unit: Unit, view: View) -> Event:
        """What one round releases to ``view`` about one ``unit``."""
        if self.leaks:
            return Unprotected(self.leaks[0])
        return self.method.event(self.exposure(unit, view), self.facts)

    def events(self) -> dict[str, Event]:
        """One round's events by ``unit/view``, for the ledger: all units, so that budgets of any of them hold."""
        return {f"{unit}/{view}": self.event(unit, view) for unit in UNITS for view in self.views}

    def guarantees(self, spent: Callable[[View], Event] | None = None) -> tuple[Guarantee, ...]:
        """What each view learns about one unit: over the planned rounds, or what was really ``spent``."""
        if not self.method.private:
            spent = None
        return tuple(self._guarantee(view, spent) for view in self.views)

    def _guarantee(self, view: View, spent: Callable[[View], Event] | None) -> Guarantee:
        exposure = self.exposure(self.unit, view)
        event = self._planned(view) if spent is None else spent(view)
        if not self.method.private:  # known without any accounting
            return Guarantee(
                self.unit, self.relation, view, "none", math.inf, self.delta, "none", (_reason(event), *self.leaks)
            )
        bound = cost(event, self.delta)
        finite = math.isfinite(bound.epsilon)
        return Guarantee(
            self.unit,
            self.relation,
            view,
            self.method.sampling(exposure) if finite else "none",
            bound.epsilon,
            self.delta,
            bound.accountant if finite else "none",
            self._assumptions(exposure) if finite else (_reason(event), *self.leaks[1:]),
            _honest(self.method.as_published(exposure, self.delta, self.facts), finite),
        )

    def _assumptions(self, exposure: Exposure) -> tuple[str, ...]:
        seeded = (REPRODUCIBLE,) if self.seeded else ()
        travelled = self.exchange.assumptions(exposure.view, self.facts.silos)
        return (*seeded, *self.method.assumptions(exposure, self.facts), PUBLIC_SIZES, *travelled)

    def _planned(self, view: View) -> Event:
        return Repeated(self.event(self.unit, view), self.facts.rounds)

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
        from tacit.privacy import calibrate_cost, calibrate_noise

        try:
            if accounting == "proved":
                sigma = calibrate_noise(self._all_views, epsilon, self.delta)
            else:
                sigma = calibrate_cost(self._published, epsilon)
        except ValueError:
            raise UserError("method.target_epsilon", *self._unreachable(epsilon, accounting)) from None
        return self._with_noise(sigma)

    def _with_noise(self, sigma: float) -> Promise:
        assert isinstance(self.method, Private)
        return replace(self, method=replace(self.method, noise_multiplier=sigma))

    def _all_views(self, sigma: float) -> Event:
        noisy = self._with_noise(sigma)
        events = tuple(dict.fromkeys(noisy._planned(view) for view in self.against))
        return events[0] if len(events) == 1 else Largest(events)

    def _published(self, sigma: float) -> float:
        noisy = self._with_noise(sigma)
        numbers = [
            published.epsilon
            for view in self.against
            if (published := noisy.method.as_published(self.exposure(self.unit, view), self.delta, self.facts))
        ]
        return max(numbers, default=math.inf)

    def _unreachable(self, epsilon: float, accounting: str) -> tuple[str, str]:
        if accounting == "as-published":
            return f"no published accounting of {self.method.name} reaches {epsilon:g}", 'use privacy.target = "proved"'
        for view in self.against:
            event = self._with_noise(1e6)._planned(view)
            if math.isinf(cost(event, self.delta).epsilon):
                views = ", ".join(str(other) for other in self.against if other != view) or "public"
                problem = f"no noise protects a {self.unit} from view '{view}' ({_reason(event)})"
                return problem, f"leave that view out of privacy.against (for example: {views})"
        return f"no noise reaches {epsilon:g}", "raise it, or lower rounds and rates"


def promise(
    method: Method,
    exchange: Exchange,
    facts: Facts,
    *,
    unit: Unit | None,
    relation: Relation | None,
    against: tuple[View, ...] | None,
    delta: float,
    seeded: bool,
    leaks: tuple[str, ...],
) -> Promise:
    """The promise of a plan. Without ``against``: every view that the exchange speaks of, and the target binds those
    that the method does not trust."""
    chosen = unit or method.units[0]
    if chosen not in method.units:
        protects = " or ".join(method.units)
        raise UserError("privacy.unit", f"{method.name} does not protect a {chosen}", f"use {protects}")
    views = against if against is not None else tuple(View.parse(text) for text in exchange.reveals)
    for view in views:
        if exchange.reveals_to(view) is None:
            known = ", ".join(exchange.reveals)
            raise UserError("privacy.against", f"the {exchange.name} exchange has no view '{view}'", f"use {known}")
    bound = views if against is not None else tuple(view for view in views if view.kind not in method.trusts)
    return Promise(
        method, exchange, facts, chosen, relation or method.relation(chosen), views, bound, delta, seeded, leaks
    )


def check_facts(method: Method, unit: Unit, facts: Facts) -> None:
    """Refuse a plan that lacks a public fact which the method needs."""
    for fact in method.needs(unit):
        if not getattr(facts, fact):
            raise UserError(
                FACT_KEYS[fact],
                f"is missing: {method.name} needs it to protect a {unit}",
                "declare it; it is public and cannot be counted from private records",
            )


@lru_cache(maxsize=4096)
def cost(event: Event, delta: float) -> Bound:
    """What an event costs at delta. (Accounting is imported on first use: it takes a second.)"""
    from tacit.privacy import account

    return account(event, delta)


def _honest(published: AsPublished | None, finite: bool) -> AsPublished | None:
    """A published number that says nothing about this view is not valid for it."""
    if published is None or finite or published.valid == "no":
        return published
    return replace(published, valid="no", reason="it is not about what this view sees")


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
