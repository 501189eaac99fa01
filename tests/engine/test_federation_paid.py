"""What a run pays for on a federation, constants before the first round and metrics after the last: those of the
simulator, announced before they leave, and told once."""

from __future__ import annotations

import numpy as np
import pytest

from tacit.crypto import Refused
from tacit.engine.evaluate import release_constants, release_metrics
from tacit.engine.run import load_federation
from tacit.exchange.post import OutOfTurn, write_sums
from tacit.federation.protocol.agreement import mark
from tacit.privacy import Randomness
from tests.engine.federated import (
    ROUNDS,
    flat,
    loaded,
    parties,
    planned,
    simulated,
    simulation_of,
)
from tests.refusals import refuses
from tests.short_keys import shortened

pytestmark = pytest.mark.filterwarnings("ignore::tacit.families.weighting.paillier.WeakKeyWarning")
PAID = {"evaluation": {"status": "paid", "noise_multiplier": 2.0}}


@pytest.mark.parametrize(
    ("method", "exchange", "more"),
    [
        ("uldp-avg", "masked", {}),
        ("local-record", "plain", {}),
        ("uldp-avg", "weighted", {"slots": 20}),
        ("uldp-avg", "weighted", shortened("weighted")),
    ],
)
def test_metrics_that_are_paid_for_are_those_of_the_simulator_and_announced_before_they_leave(
    method, exchange, more, experiment, visits
):
    made = planned(experiment, method, exchange, exchange=more, **PAID)
    announced = []

    def hook(name):
        return lambda mechanism, number, events: announced.append((name, mechanism, number, set(events)))

    federation = parties(made, visits, before_release=hook)
    found = federation.run().metrics
    simulation, test = simulated(made, visits), load_federation(made, visits).test
    outputs = simulation.outputs(test.features, test.silo)
    expected = release_metrics(made, outputs, test, simulation.randomness, ROUNDS)
    assert found.overall == pytest.approx(expected.overall, abs=1e-6)
    assert found.errors == pytest.approx(expected.errors, abs=1e-6)
    paid = [line for line in announced if line[1] == "evaluation"]
    assert [line[:3] for line in paid] == [(name, "evaluation", ROUNDS) for name in federation.names]
    assert all("subject/public/zero-out" in line[3] for line in paid)


def test_a_model_is_there_without_the_metrics_that_could_not_be_had(experiment, visits):
    federation = parties(planned(experiment, "local-record", "plain", **PAID), visits)
    outcome = federation.run(lambda silo, step, answer: None if (silo, step) == ("west", 3 + ROUNDS) else answer)
    assert (outcome.rounds, outcome.metrics) == (ROUNDS, None)
    assert [refusal.silo for refusal in outcome.refusals] == ["west", ""]


def test_a_silo_tells_metrics_once_after_the_last_round_and_only_where_they_are_paid_for(experiment, visits):
    for paid, when, code in ((PAID, 1, "mismatch"), ({}, ROUNDS + 1, "not-planned")):
        federation = parties(planned(experiment, "local-record", "plain", **paid), visits)
        phases = federation.coordinator.phases()
        told = next(phases)
        for _ in range(2):  # hello, begin
            told = phases.send({silo: federation.silos[silo].handle(message) for silo, message in told.items()})
        desk = federation.coordinator._desk
        if when > desk.number:
            desk.begin(when)
        with refuses(code, kind=Refused, peer="server"):
            federation.silos["south"].handle(desk.write("*", "metrics", b""))
    federation = parties(planned(experiment, "local-record", "plain", **PAID), visits)
    assert federation.run().metrics is not None
    again = federation.coordinator._desk.write("*", "metrics", b"")
    with pytest.raises(OutOfTurn):
        federation.silos["south"].handle(again)


NUMERIC = {"age": {"low": 0, "high": 100}, "pressure": {"low": 60, "high": 200}}
STANDARDIZED = {"data": {"standardize": "paid", "numeric": NUMERIC}}


@pytest.mark.parametrize(
    ("method", "exchange"),
    [
        ("uldp-avg", "masked"),
        ("local-record", "plain"),
        ("uldp-avg", "plain"),
        ("ldp-laplace", "plain"),
        ("uldp-avg", "weighted"),
    ],
)
def test_constants_that_are_paid_for_are_those_of_the_simulator_and_announced_before_they_leave(
    method, exchange, experiment, visits
):
    made = planned(experiment, method, exchange, exchange=shortened(exchange), **STANDARDIZED)
    announced, released = [], []

    def hook(name):
        return lambda mechanism, number, events: announced.append((name, mechanism, number, set(events)))

    federation = parties(made, visits, before_release=hook, after_statistics=released.append)
    outcome = federation.run()
    whole = loaded(made, visits)
    expected = release_constants(made, whole, Randomness.from_seed(made.experiment.seed))
    (found,) = released
    assert np.array(found) == pytest.approx(np.array(expected), abs=1e-6)
    simulation = simulation_of(made, whole.standardized(*expected))
    assert flat(outcome.model) == pytest.approx(flat(simulation.model()), abs=1e-6)
    first = announced[: len(federation.names)]
    assert [line[:3] for line in first] == [(name, "statistics", 0) for name in federation.names]
    assert all(f"{made.promise.unit}/public/zero-out" in line[3] for line in first)


def test_constants_that_were_paid_for_before_are_taken(experiment, visits):
    made = planned(experiment, "local-record", "plain", **STANDARDIZED)
    given = ([50.0, 120.0], [20.0, 30.0])
    announced = []
    before = parties(
        made,
        visits,
        before_release=lambda name: lambda mechanism, number, events: announced.append(mechanism),
        before_statistics=lambda: given,
    )
    outcome = before.run()
    simulation = simulation_of(made, loaded(made, visits).standardized(*given))
    assert flat(outcome.model) == pytest.approx(flat(simulation.model()), abs=1e-6)
    assert "statistics" not in announced


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ([50.0, 100.0, 0.0, 1.0], "out-of-range"),
        ([50.0, 100.0, 1.0, 1e-8], "out-of-range"),
        ([50.0, 100.0, 1.0, 200.0], "out-of-range"),
        ([-1.0, 100.0, 1.0, 1.0], "out-of-range"),
        ([50.0, 100.0], "wrong-length"),
        ([np.nan] * 4, "out-of-range"),
        (None, "out-of-turn"),
    ],
)
def test_a_silo_refuses_constants_that_are_none_and_to_be_asked_twice(wrong, code, experiment, visits):
    federation = parties(planned(experiment, "local-record", "plain", **STANDARDIZED), visits)
    phases = federation.coordinator.phases()
    told = next(phases)
    for _ in range(3):  # hello, begin, statistics
        message = told["south"]
        told = phases.send({silo: federation.silos[silo].handle(sent) for silo, sent in told.items()})
    if wrong is not None:
        message = federation.coordinator._desk.write("south", "constants", write_sums(np.array(wrong)))
    with refuses(code, kind=Refused, peer="server"):
        federation.silos["south"].handle(message)


def test_constants_do_not_travel_in_every_exchange(experiment, visits):
    with refuses("simulator-only", "data.standardize"):
        parties(planned(experiment, "dp-fedavg", "pairwise", **STANDARDIZED), visits)


@pytest.mark.parametrize(
    ("method", "exchange", "named"), [("dp-fedavg", "pairwise", "pairwise"), ("silo-only", "plain", "silo-only")]
)
def test_metrics_that_could_not_be_paid_for_are_refused(method, exchange, named, experiment, visits):
    with refuses("simulator-only", "evaluation.status", names=[named]):
        parties(planned(experiment, method, exchange, exchange=shortened(exchange), **PAID), visits)


def test_parties_who_mean_other_noise_or_bounds_of_what_is_paid_for_mean_another_plan(experiment):
    wider = {"data": STANDARDIZED["data"] | {"numeric": NUMERIC | {"age": {"low": 0, "high": 130}}}}
    louder = {"evaluation": PAID["evaluation"] | {"noise_multiplier": 77.0}}
    marks = [mark(planned(experiment, "local-record", **more)) for more in ({}, PAID, louder, STANDARDIZED, wider)]
    assert len(set(marks)) == len(marks)
