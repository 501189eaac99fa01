"""One plan in one engine: every unit, relation and view, what it sees of neighbouring tables against what the
accountant is told."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pandas as pd

from tacit.data import source_facts
from tacit.engine.learner import learner
from tacit.planning.plan import Plan
from tacit.privacy import Event, Randomness, Repeated, View
from tests.neighbours.engines import Seen, noise_only, other_noise
from tests.neighbours.shifts import Noise, allowed, too_often
from tests.neighbours.worlds import SILOS, TARGETS, changes

Run = Callable[..., Seen | None]


class Place(NamedTuple):
    """A cell of a plan in an engine."""

    unit: str
    relation: str
    view: str


@dataclass(frozen=True)
class Verdict:
    """``ratio``: the largest shift that was found over the largest that is accounted for; None where nothing finite is
    printed. ``tolerance``: how far above 1 it may be, for the error of measuring the noise."""

    ratio: float | None
    tolerance: float = 0.0

    @property
    def holds(self) -> bool:
        return self.ratio is None or self.ratio <= 1 + self.tolerance

    def worse(self, other: Verdict) -> Verdict:
        if self.ratio is None or other.ratio is None:
            return other if self.ratio is None else self
        return max(self, other, key=lambda verdict: verdict.ratio / (1 + verdict.tolerance))  # type: ignore[operator]


def told(plan: Plan) -> dict[Place, Event]:
    """What the accountant is told of a round (of a joint method, of all rounds), for every cell."""
    found: dict[Place, Event] = {}

    def note(promise: object, view: View) -> Event:
        event = promise.event(promise.unit, view)  # type: ignore[attr-defined]
        found[Place(promise.unit, promise.relation, str(view))] = event  # type: ignore[attr-defined]
        return event

    plan.promise.everywhere(note)
    return found


@dataclass
class Case:
    """A plan that runs on a table and on its neighbours.

    missing  silos that do not answer
    targets  subjects that are changed
    units    what neighbours differ in
    holders  silos that look at the others
    draws    runs with other noise, for the noise that is in a release
    views    views that are looked at; None: all
    """

    plan: Plan
    run: Run
    frame: pd.DataFrame
    missing: tuple[str, ...] = ()
    targets: Sequence[str] = TARGETS
    units: Sequence[str] = ("record", "subject", "silo")
    draws: int = 2
    holders: Sequence[int] = range(len(SILOS))
    views: Sequence[str] | None = None
    _runs: dict[tuple[int, object], Seen | None] = field(default_factory=dict)
    _other_noise: dict[tuple[int, ...], list[Seen]] = field(default_factory=dict)
    _noises: dict[object, list[Noise]] = field(default_factory=dict)

    def verdicts(self) -> dict[Place, Verdict]:
        """A verdict on every cell."""
        return {
            place: self.verdict(place, event)
            for place, event in told(self.plan).items()
            if place.unit in self.units and (self.views is None or place.view in self.views)
        }

    def verdict(self, place: Place, event: Event) -> Verdict:
        if self.plan.method.info.serverless and self.plan.method.claim.joint and isinstance(event, Repeated):
            event = event.event  # a walk is looked at step by step
        most = allowed(event)
        if math.isinf(most):
            return Verdict(None)
        worst = Verdict(0.0)
        view = View.parse(place.view)
        base = self.seen(self.frame)
        if base is None:  # nothing is released
            return worst
        for known in self._holders(view):
            free = [silo for k, silo in enumerate(SILOS) if k not in known]
            noises = self._noise(known, self._parts(view))
            tolerance = max(noise.tolerance for noise in noises)
            for change in changes(place.unit, place.relation, free, self.targets, fades=self._counts):
                after = self.seen(change(self.frame))
                assert after is not None, "a neighbouring table is refused where this one is not"
                releases = zip(self._seen_by(view, base), self._seen_by(view, after), strict=True)
                shifts = [self._shift(noises, now - before) for before, now in releases]
                ratio = max(shifts) / most if most else math.inf if max(shifts) else 0.0
                if ratio <= 1 + tolerance and too_often(event, shifts, tolerance):
                    ratio = math.inf
                worst = worst.worse(Verdict(ratio, tolerance))
        return worst

    def seen(self, frame: pd.DataFrame) -> Seen | None:
        key = int(pd.util.hash_pandas_object(frame, index=False).sum()), len(frame)
        if key not in self._runs:
            self._runs[key] = self.run(self.plan, frame, self.missing)
        return self._runs[key]

    def _holders(self, view: View) -> Iterator[tuple[int, ...]]:
        """The silos that belong to a view: every choice of them."""
        here = [k for k in self.holders if SILOS[k] not in self.missing]
        yield from combinations(here, view.count if view.holds_records else 0)

    def _parts(self, view: View) -> str:
        reveals, method = self.plan.exchange.reveals_to(view), self.plan.method
        apart = reveals == "each" or (reveals == "messages" and method.info.serverless and method.claim.joint is False)
        return "each" if apart and not method.info.pools else "sum"

    def _seen_by(self, view: View, seen: Seen) -> list[np.ndarray]:
        """What a view sees: a release ``[parts, numbers]`` for every round, or one for all of them."""
        if self._parts(view) == "each":
            assert seen.each is not None
            rounds = list(seen.each)
        else:
            rounds = [move[np.newaxis] for move in seen.public]
        joint = self.plan.method.claim.joint and not self.plan.method.info.serverless  # of a walk, step by step
        return [np.concatenate(rounds)] if joint else rounds

    @property
    def _counts(self) -> bool:
        """Whether the last number of a release is the count that a clip follows."""
        return getattr(self.plan.options, "adaptive_clip", None) is not None

    def _shift(self, noises: Sequence[Noise], moved: np.ndarray) -> float:
        parts = (moved[:, :-1], moved[:, -1:]) if self._counts else (moved,)
        return math.hypot(*(noise.shift(part) for noise, part in zip(noises, parts, strict=True)))

    def _noise(self, known: tuple[int, ...], parts: str) -> list[Noise]:
        """The noise of those releases that silos who know their own do not know; and that of the count."""
        if (known, parts) not in self._noises:
            each = "neighbour" if self.plan.method.info.serverless else "server"
            view = View.parse("public" if parts == "sum" else each)
            draws = [self._seen_by(view, seen) for seen in self._drawn(() if self.plan.method.info.pools else known)]
            pairs = zip(draws[::2], draws[1::2], strict=True)
            between = [[(a - b) / math.sqrt(2) for a, b in zip(*pair, strict=True)] for pair in pairs]
            if known and not self.plan.method.info.pools:  # what they know is the same in every run
                draws = between
            mask = np.flatnonzero(self._mask())
            noises = [Noise([release[:, mask[mask < release.shape[1]]] for each in draws for release in each])]
            if self._counts:
                noises.append(Noise([release[:, -1:] for each in between for release in each]))
            self._noises[known, parts] = noises
        return self._noises[known, parts]

    def _drawn(self, known: tuple[int, ...]) -> list[Seen]:
        """Runs with other noise, but that of the silos that are ``known``."""
        if known not in self._other_noise:
            found: list[Seen] = []
            for salt in range(self.draws):
                with other_noise(salt, known):
                    seen = self.run(self.plan, self.frame, self.missing)
                assert seen is not None
                found.append(seen)
            self._other_noise[known] = found
        return self._other_noise[known]

    def _mask(self) -> np.ndarray:
        """Which of the released numbers belong to categories that no record has."""
        plan, levels = self.plan, len(self.plan.experiment.data.categorical["code"])
        labels, features = source_facts(plan.data).labels, (levels + 1,)
        start = learner(plan.experiment.model, labels, features, Randomness.from_seed(0)).params
        return noise_only(plan.method.server.init(plan.server_step, start, plan.promise.facts.silos).params, levels)
