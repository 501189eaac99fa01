"""What happened, in the accountant's terms: a closed set of frozen events.

An event says which random mechanism was run on the data and nothing about what it costs; ``account`` says that.
Every event is a plain value of public numbers: it can be written into a ledger as a dictionary and read back.

Multipliers: ``noise_multiplier`` is always the scale of the noise divided by the sensitivity of what was released (the
standard deviation for Gaussian noise over the l2 sensitivity, the scale ``b`` for Laplace noise over the l1
sensitivity), for the unit and relation of the guarantee in question. A claim of a method has already put
those in; an event knows no unit.

Compatibility: ledgers keep events for years. Every later version reads what an earlier one wrote.

- An event is never removed, and its ``kind`` never changes.
- A field is never removed or renamed. A new field has a default value with which old lines keep their meaning.
- The meaning of an event or of a field never changes. A mechanism with another meaning is a new event.
- Only the cost of an event may change: by a tighter proof, or because the former proof was wrong.

``tests/stability/events.jsonl`` has lines of every event and its cost. A new event or field adds lines.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from importlib import import_module
from typing import Any, ClassVar, Literal

from tacit.privacy.invalid import InvalidArgument


@dataclass(frozen=True)
class Event:
    """Base of all events; ``as_dict`` and :func:`event_from_dict` are inverse to each other."""

    kind: ClassVar[str]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"kind": self.kind} | {field.name: _plain(getattr(self, field.name)) for field in fields(self)}


@dataclass(frozen=True)
class Nothing(Event):
    """Nothing that depends on the data was released: epsilon 0."""

    kind = "nothing"


@dataclass(frozen=True)
class Unprotected(Event):
    """Something was released without calibrated noise: epsilon is infinite, for the ``reason`` given."""

    kind = "unprotected"
    reason: str = ""


@dataclass(frozen=True)
class Pure(Event):
    """Any mechanism that is known to be epsilon-differentially private and nothing more."""

    kind = "pure"
    epsilon: float


@dataclass(frozen=True)
class Gaussian(Event):
    """A vector of l2 sensitivity S plus N(0, (noise_multiplier S)^2 I)."""

    kind = "gaussian"
    noise_multiplier: float


@dataclass(frozen=True)
class Laplace(Event):
    """A vector of l1 sensitivity S plus independent Laplace noise of scale noise_multiplier S."""

    kind = "laplace"
    noise_multiplier: float


@dataclass(frozen=True)
class DiscreteGaussian(Event):
    """An integer of sensitivity ``sensitivity`` plus discrete Gaussian noise of parameter ``sigma`` (both integers'
    scale).

    Pr[z] proportional to exp(-z^2 / (2 sigma^2)) on the integers (Canonne, Kamath, Steinke 2020). It is about one
    integer: the exact loss of a shift of ``sensitivity`` does not bound a vector of that l2 norm (sigma 2, sensitivity
    8: 23.966; 64 integers moved by 1: 24.387). For several integers compose one event for each.
    """

    kind = "discrete-gaussian"
    sigma: float
    sensitivity: int = 1


@dataclass(frozen=True)
class RandomizedResponse(Event):
    """k-ary randomised response: the true one of ``levels`` values with probability e^eps / (e^eps + levels - 1), any
    other one with equal probability; ``epsilon`` is its local epsilon. ``levels = 2`` is randomised response."""

    kind = "randomized-response"
    epsilon: float
    levels: int = 2


@dataclass(frozen=True)
class PoissonSampled(Event):
    """The unit takes part with probability ``rate``, by a coin that the view does not know; then ``event``."""

    kind = "poisson-sampled"
    rate: float
    event: Event


@dataclass(frozen=True)
class SampledWithoutReplacement(Event):
    """``size`` of ``population`` records, uniformly, unknown to the view; then a Gaussian sum. Relation: replace.

    ``event.noise_multiplier`` is relative to the sensitivity under replacement (sigma / (2 C): specification 0.3).
    """

    kind = "sampled-without-replacement"
    size: int
    population: int
    event: Gaussian


@dataclass(frozen=True)
class GaussianMixture(Event):
    """A Gaussian sum in which the unit's sensitivity is random: ``sensitivities[i]`` with ``probabilities[i]``, secret.

    ``noise_multiplier`` is the standard deviation in the units of ``sensitivities`` (a subject of whose records a
    random number is sampled: sensitivities 0..n, binomial probabilities, the standard deviation over the clip).
    """

    kind = "gaussian-mixture"
    noise_multiplier: float
    sensitivities: tuple[float, ...]
    probabilities: tuple[float, ...]


@dataclass(frozen=True)
class ShuffledReports(Event):
    """``reports`` local reports, each ``epsilon``-locally private, seen in uniformly random order (specification 5.2).

    pair        local epsilon of the changed report's pair (``epsilon`` unless that report is itself subsampled)
    randomizer  "any": standard clones; "laplace" (on [0,1]) and "response" (``levels``): tighter blanket bounds may
                be used
    """

    kind = "shuffled-reports"
    epsilon: float
    reports: int
    pair: float | None = None
    randomizer: Literal["any", "laplace", "response"] = "any"
    levels: int = 2


@dataclass(frozen=True)
class RandomWalk(Event):
    """A token walks over ``nodes`` nodes, the next one uniform over all, for ``steps`` noisy gradient steps; the view
    is one other node and the final model (specification 6.2). ``noise_multiplier`` is sigma / Delta. ``contracts``: the
    losses are convex and smooth and the step is small enough, so that amplification by iteration applies."""

    kind = "random-walk"
    nodes: int
    steps: int
    noise_multiplier: float
    contracts: bool = True


@dataclass(frozen=True)
class Selected(Event):
    """The best of K independent runs of ``event``, by a score that is part of what ``event`` covers; K is random and
    neither it nor the other runs are seen (``private_selection``).

    law     "negative-binomial": truncated at 1, of shape > -1 (1: geometric, random stopping; 0: logarithmic), or
            "poisson": K = 0 is possible and gives no result; ``shape`` is then not used
    mean    E[K]: at least 1 for a negative binomial
    event   one run; ``Largest`` of several where each run first draws one of them at random and says which
    """

    kind = "selected"
    event: Event
    mean: float
    law: Literal["negative-binomial", "poisson"] = "negative-binomial"
    shape: float = 1.0


@dataclass(frozen=True)
class Failure(Event):
    """With at most this ``probability``, whatever was seen before, another release is not what its event says:
    nothing is known of it then. It adds to delta."""

    kind = "failure"
    probability: float


@dataclass(frozen=True)
class Repeated(Event):
    """``count`` runs of ``event``, each free to depend on the outputs before it (adaptive composition)."""

    kind = "repeated"
    event: Event
    count: int


@dataclass(frozen=True)
class Composed(Event):
    """All of ``events``, adaptively: over rounds, batches, and silos that release separately."""

    kind = "composed"
    events: tuple[Event, ...]


@dataclass(frozen=True)
class Largest(Event):
    """One of ``events``, unknown which: the worst of them bounds it (a subject who is confined to one of several
    silos)."""

    kind = "largest"
    events: tuple[Event, ...]


EVENTS: dict[str, type[Event]] = {event.kind: event for event in Event.__subclasses__()}
# modules that say what rare events cost, most of them of families; imported when such an event is accounted for
_BOUNDS = {
    "selected": "tacit.privacy.accounting.selection_bounds",
    "shuffled-reports": "tacit.families.shuffle.shuffle_bounds",
    "random-walk": "tacit.families.gossip.random_walk",
}


def bounds_of(event: Event) -> Any:
    """The module that says what ``event`` costs."""
    return import_module(_BOUNDS[event.kind])


def composition(parts: Iterable[tuple[Event, int]]) -> Event:
    """One event for all of ``parts``: events, and how often each took place."""
    events = tuple(event if count == 1 else Repeated(event, count) for event, count in parts)
    return events[0] if len(events) == 1 else Composed(events) if events else Nothing()


def event_from_dict(values: Mapping[str, Any]) -> Event:
    """The event that ``as_dict`` wrote; ValueError for a malformed one."""
    given = dict(values)
    kind = given.pop("kind", None)
    if kind not in EVENTS:
        raise InvalidArgument("unknown-name", "kind", f"{kind!r} is not an event; known: {', '.join(EVENTS)}")
    kept = EVENTS[kind]
    known = {field.name: field.default is MISSING for field in fields(kept)}
    unknown, missing = given.keys() - known.keys(), {name for name in known if known[name]} - given.keys()
    if unknown or missing:
        wrong = ", ".join(
            [f"{name} is unknown" for name in sorted(unknown)] + [f"no {name}" for name in sorted(missing)]
        )
        problem = f"the event {kind!r} has the fields {', '.join(known) or 'none'}: {wrong}"
        raise InvalidArgument("unknown-key", kind, problem)
    # words stay words: a reason may be any text
    return kept(**{name: value if name == "reason" else _read(value) for name, value in given.items()})


def _plain(value: Any) -> Any:
    if isinstance(value, Event):
        return value.as_dict()
    if isinstance(value, tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return value


def _read(value: Any) -> Any:
    if isinstance(value, Mapping):
        return event_from_dict(value)
    if isinstance(value, list):
        return tuple(_read(entry) for entry in value)
    return {"inf": math.inf, "-inf": -math.inf}.get(value, value) if isinstance(value, str) else value
