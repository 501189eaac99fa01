"""Every cell of the harness: methods and exchanges as the registries list them, and the worlds that each is tried in.

A method that adds noise and has no line in ``NUMBERS`` cannot be checked: ``test_page`` fails until it has one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, NamedTuple

import pandas as pd

import tacit
from tacit.exchange import EXCHANGES, Plain
from tacit.methods import METHODS
from tacit.planning.claims import exchanges_for
from tacit.planning.plan import Plan
from tacit.privacy.proofs.weight_tables import RECORD_WEIGHTS
from tests.neighbours import reports
from tests.neighbours.checks import Case, Place, Verdict
from tests.neighbours.engines import ENGINES, gossiped
from tests.neighbours.reports import REPORTING
from tests.neighbours.worlds import (
    CAP,
    CLIP,
    DIVIDED,
    FIRST,
    LAST,
    MANY,
    SILOS,
    TARGETS,
    alone,
    confined,
    crowd,
    experiment,
    many,
    table,
)
from tests.short_keys import SHORT_KEY, short_keys

LEVELS = 4000

# A method's numbers. Every record is in every batch: what a coin would leave out, it cannot hide here.
NOISY = {"clip": CLIP, "noise_multiplier": 1.0}
BATCH = {**NOISY, "sample_rate": 1.0, "batches_per_round": 1}
NUMBERS: dict[str, dict[str, Any]] = {
    "dp-fedavg": NOISY,
    "dp-fedsgd": NOISY,
    "central-group": {**NOISY, "sample_rate": 1.0},
    "pooled-dp-sgd": BATCH,
    "local-record": BATCH,
    "local-group": BATCH,
    "higrad": BATCH,
    "user-ldp": BATCH,
    "subject-sgd": NOISY,
    "uldp-avg": {**NOISY, "local_learning_rate": 0.01},
    "uldp-sgd": NOISY,
    "uldp-naive": NOISY,
    "uldp-group": {**BATCH, "group_size": CAP * len(SILOS)},
    "fine-tune": NOISY,
    "mean-regularized": NOISY,
    "graph-regularized": NOISY,
    "per-fedavg": {**NOISY, "inner_learning_rate": 0.01},
    "pfedme": NOISY,
    "fedem": NOISY,
    "muffliato-sgd": {**NOISY, "topology": "complete"},
    "random-walk": {**NOISY, "walk_steps": 1},
    "local-walk": {**NOISY, "walk_steps": 1},
}
# any other method that adds noise to sums
NUMBERS |= {
    name: NOISY for name, kind in METHODS.items() if kind.info.private and name not in NUMBERS and name not in REPORTING
}

# weights by records, and the other numbers that go with them
DISCLOSED: dict[str, dict[str, Any]] = {
    weights: {"weight_cap": 4} if weights == "records-capped" else {} for weights in RECORD_WEIGHTS
}

EXCHANGE: dict[str, dict[str, Any]] = {"pairwise": {"graph": "complete"}}


@cache
def held_out_file() -> str:
    """A table to evaluate on, so that no lot decides which records are for training."""
    file = Path(mkdtemp()) / "held_out.csv"
    table().to_csv(file, index=False)
    return str(file)


class Cell(NamedTuple):
    """One world of a method in an exchange and an engine."""

    method: str
    exchange: str
    engine: str
    world: str

    def __str__(self) -> str:
        return " | ".join(self)


@dataclass(frozen=True)
class World:
    """A table, and what of the experiment goes with it.

    methods, exchanges, engines  where it is tried; None: everywhere
    missing                      silos that do not answer
    targets, units               what neighbours differ in
    holders                      silos that look at the others
    levels, draws                how many numbers see noise alone, and in how many runs
    views                        views that are looked at; None: all
    """

    frame: Callable[[], pd.DataFrame]
    methods: Sequence[str] | None = None
    exchanges: Sequence[str] | None = None
    engines: Sequence[str] = tuple(ENGINES)
    numbers: Mapping[str, Any] = field(default_factory=dict)
    sections: Mapping[str, Any] = field(default_factory=dict)
    rounds: int = 1
    levels: int = LEVELS
    draws: int = 2
    missing: tuple[str, ...] = ()
    targets: Sequence[str] = TARGETS
    units: Sequence[str] = ("record", "subject", "silo")
    holders: Sequence[int] = range(len(SILOS))
    views: Sequence[str] | None = None

    def suits(self, method: str, exchange: str, engine: str) -> bool:
        return (
            (self.methods is None or method in self.methods)
            and (self.exchanges is None or exchange in self.exchanges)
            and engine in self.engines
        )

    def looks_at(self, place: Place) -> bool:
        return place.unit in self.units and (self.views is None or place.view in self.views)


BATCHES = ("local-record", "local-group", "higrad", "user-ldp")
SUMS = tuple(name for name, kind in EXCHANGES.items() if kind.carries in ("sum", "integers"))
SOME_MISSING = (*BATCHES, "subject-sgd", "uldp-naive", "dp-fedavg")
IN_ONE = {"privacy": {"max_silos_per_subject": 1}}
CROWD = 10


def private_weights(weights: str, **exchange: Any) -> World:
    """Subjects in all silos with more records than the cap of others, whose weights no party learns."""
    return World(
        lambda: table(records=20, targets=(DIVIDED,), others=12),
        methods=tuple(name for name, kind in METHODS.items() if "subjects" in kind.info.sends),
        exchanges=("weighted",),
        numbers={"weights": weights, **DISCLOSED[weights]},
        sections={
            "data": {"subjects": {"column": "person", "count": 24}},
            "privacy": {"max_records_per_subject_and_silo": 20},
            "exchange": exchange,
        },
        levels=900,
        targets=(DIVIDED,),
        units=("subject", "record"),
        holders=(2,),
    )


WORLDS: dict[str, World] = {
    # vectors that turn around, subjects first and last in every order, more records than the cap, unequal silos
    "worst": World(table, exchanges=SUMS),
    # secret coins: nobody moves a release more often than is said. Alone in a silo, a target has coins of its own
    "coins": World(
        lambda: alone(LAST),
        methods=("subject-sgd", "higrad", "local-record"),
        exchanges=("plain",),
        engines=("simulator",),
        numbers={"rate": 0.3},
        rounds=40,
        targets=(LAST,),
        units=("subject", "record"),
        holders=(0,),  # the target weighs the same in every silo
    ),
    "common coins": World(
        lambda: alone(LAST),
        methods=("subject-sgd",),
        exchanges=("plain",),
        engines=("federation",),
        numbers={"rate": 0.3},
        rounds=80,
        targets=(LAST,),
        units=("subject",),
        holders=(0,),
    ),
    "coins of silos": World(
        table,
        methods=("dp-fedavg",),
        exchanges=("plain",),
        engines=("simulator",),
        numbers={"silo_sample_rate": 0.3},
        rounds=40,
        units=("silo",),
    ),
    # nodes without a server: silos, or people
    "nodes": World(table, methods=("muffliato-sgd",), exchanges=("direct",)),
    "people as nodes": World(
        table,
        methods=("muffliato-sgd",),
        exchanges=("direct",),
        numbers={"nodes": "subjects"},
        units=("subject", "record"),
    ),
    "walk": World(table, methods=("random-walk", "local-walk"), exchanges=("direct",), rounds=40),
    "walk of people": World(
        table,
        methods=("random-walk", "local-walk"),
        exchanges=("direct",),
        numbers={"nodes": "subjects"},
        rounds=40,
        units=("subject", "record"),
    ),
    # at most so many records of a subject in a batch, drawn by lot
    "cap in a batch": World(
        lambda: table(targets=(LAST,)), methods=("local-group",), numbers={"group_cap": 2}, targets=(LAST,)
    ),
    "clip first": World(table, methods=("subject-sgd",), exchanges=("plain",), numbers={"clip_first": True}),
    # without a clip: each gradient is scaled to length 1
    "directions": World(table, methods=("subject-sgd",), exchanges=("plain", "masked"), numbers={"clip": None}),
    "capped weights": World(
        table, methods=("uldp-avg",), exchanges=("plain", "masked"), numbers={"weights": "capped", "weight_cap": 2}
    ),
    **{
        f"disclosed weights, {weights}": World(
            table,
            methods=("uldp-sgd",),
            exchanges=("plain", "masked"),
            numbers={"weights": weights, "disclose_counts": True, **cap},
        )
        for weights, cap in DISCLOSED.items()
    },
    # weights that nobody learns: what a silo holds itself counts by what the others hold. In slots that subjects share,
    # and on a list; a silo that vanishes; and with the exact quotients of Paillier's protocol
    "private weights, records": private_weights("records"),
    **{
        f"private weights, {weights}": replace(private_weights(weights), engines=("simulator",))
        for weights in RECORD_WEIGHTS
        if weights != "records"
    },
    **{
        f"listed weights, {weights}": replace(
            private_weights(weights, index="list"), methods=("uldp-sgd",), engines=("simulator",)
        )
        for weights in RECORD_WEIGHTS
    },
    "private weights, drop-outs": replace(
        private_weights("records", drop_outs=1), methods=("uldp-avg",), engines=("federation",), missing=SILOS[1:2]
    ),
    "private weights, paillier": replace(
        private_weights("records-phantom", protocol="paillier", key_bits=SHORT_KEY), methods=("uldp-avg",)
    ),
    # subjects in one silo each, as promised; and silos that do not answer: what is released has the noise that is
    # counted, or is not released
    "confined": World(confined, exchanges=SUMS, methods=BATCHES, sections=IN_ONE),
    "one missing": World(
        confined,
        methods=SOME_MISSING,
        engines=("federation",),
        missing=SILOS[2:],
        exchanges=SUMS,
        sections=IN_ONE,
        units=("subject",),
    ),
    "one answers": World(
        confined,
        methods=SOME_MISSING,
        engines=("federation",),
        missing=SILOS[1:],
        exchanges=SUMS,
        sections=IN_ONE,
        units=("subject",),
    ),
    "drop-outs": World(
        table,
        methods=("uldp-avg", "uldp-naive"),
        exchanges=("masked",),
        missing=SILOS[2:],
        engines=("federation",),
        sections={"exchange": {"drop_outs": 1}},
    ),
    # as many subjects as are declared: identifiers that share a number are taken for one subject
    "crowd": World(
        lambda: crowd(CROWD),
        methods=("subject-sgd", "uldp-avg"),
        exchanges=("plain", "masked"),
        engines=("federation",),
        sections={"data": {"subjects": {"column": "person", "count": CROWD}}},
        targets=tuple(f"q{number:02d}" for number in range(CROWD)),
        units=("subject",),
        holders=(0,),  # all silos hold the same
    ),
    # subjects take turns: taking one out leaves the turns of all others as they are
    "turns": World(
        table,
        methods=("uldp-avg",),
        exchanges=("plain",),
        numbers={"correlated_noise": {"groups": 2, "bands": 2}},
        rounds=4,
        units=("subject",),
    ),
    # so many records that rounding adds up
    "many records": World(
        many,
        methods=("central-group", "local-record"),
        engines=("simulator",),
        numbers={"clip": 1.0},
        sections={
            "data": {"records_per_silo": MANY},
            "privacy": {"unit": "record", "max_records_per_subject_and_silo": None},
            "evaluation": {"data": "held-out"},  # in a file, see ``planned``
        },
        levels=400,
        draws=2,
        targets=(FIRST,),
        units=("record",),
        holders=(1,),
    ),
    # a clip that follows a count: the count leaves with the sum, with noise of its own
    "adaptive clip": World(
        table,
        methods=("central-group", "local-record", "higrad", "user-ldp", "subject-sgd"),
        exchanges=("plain",),
        engines=("simulator",),
        numbers={"adaptive_clip": {"rate": 1e-3, "count_noise": 0.25}},
        rounds=40,
        levels=100,
        draws=12,
        targets=(DIVIDED,),
        holders=(0,),
    ),
    # two silos that put together what they know
    "coalition": World(
        table,
        methods=("dp-fedavg", "higrad", "local-group", "subject-sgd"),
        exchanges=("plain",),
        engines=("simulator",),
        sections={"privacy": {"against": ["silos:2"]}},
        targets=(FIRST, DIVIDED),
        views=("silos:2",),
    ),
    # a cap over silos: which of its records a silo uses depends on the others
    "one silo each": World(
        table,
        methods=("subject-sgd", "higrad", "dp-fedavg"),
        exchanges=("plain", "masked"),
        engines=("simulator",),
        sections=IN_ONE,
    ),
    "two silos each": World(
        table,
        methods=("subject-sgd",),
        exchanges=("plain",),
        engines=("simulator",),
        sections={"privacy": {"max_silos_per_subject": 2}},
        units=("subject",),
    ),
}


def engines_of(method: str) -> tuple[str, ...]:
    """The engines that a method runs in: those that pool records, or have no server, in the simulator only."""
    kind = METHODS[method]
    return ("simulator",) if kind.info.pools or kind.info.serverless else tuple(ENGINES)


def combinations() -> Iterator[tuple[str, str, str]]:
    """Every method that adds noise, in every exchange that it lists and every engine that it runs in."""
    for name, method in METHODS.items():
        if method.info.private:
            for exchange in exchanges_for(method.info):
                assert exchange in EXCHANGES
                for engine in engines_of(name):
                    yield name, exchange, engine


def cells() -> Iterator[Cell]:
    for method, exchange, engine in combinations():
        if method in NUMBERS:
            for name, world in WORLDS.items():
                if world.suits(method, exchange, engine):
                    yield Cell(method, exchange, engine, name)
        elif method in REPORTING:
            yield Cell(method, exchange, engine, "reports")


@short_keys()
def planned(cell: Cell, **more: Any) -> Plan:
    world = WORLDS[cell.world]
    numbers = {"name": cell.method, **NUMBERS[cell.method], **world.numbers, **more}
    rate = numbers.pop("rate", None)
    if rate is not None:
        numbers["sample_rate" if "sample_rate" in numbers else "subject_sample_rate"] = rate
    sections = {name: dict(section) for name, section in world.sections.items()}
    if "evaluation" in sections:
        sections["evaluation"]["data"] = held_out_file()
    carried = {"name": cell.exchange, **EXCHANGE.get(cell.exchange, {}), **sections.pop("exchange", {})}
    return before_release(tacit.plan(experiment(numbers, world.levels, world.rounds, exchange=carried, **sections)))


def before_release(plan: Plan) -> Plan:
    """The plan without what a variant of the plain exchange makes of the noisy sum: post-processing, which may show a
    small shift as a large one, costs nothing."""
    exchange = plan.exchange
    if not isinstance(exchange, Plain) or type(exchange).released is Plain.released:
        return plan
    bare = type("Bare", (type(exchange),), {"released": Plain.released})
    return replace(plan, promise=replace(plan.promise, exchange=bare(**asdict(exchange))))


def verdicts(cell: Cell) -> dict[Place, Verdict]:
    """What the harness finds in a cell, for every unit, relation and view."""
    if cell.world == "reports":
        return reports.verdicts(cell.method, cell.engine)
    with short_keys():
        return case(cell).verdicts()


def case(cell: Cell) -> Case:
    world = WORLDS[cell.world]
    run = gossiped if METHODS[cell.method].info.serverless else ENGINES[cell.engine]
    return Case(
        planned(cell),
        run,
        world.frame(),
        world.missing,
        world.targets,
        world.units,
        world.draws,
        world.holders,
        world.views,
    )
