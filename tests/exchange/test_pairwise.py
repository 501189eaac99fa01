"""GOPA: noise of pairs cancels exactly, messages have the covariance that is counted, drop-outs cost what is said."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tacit
from tacit.crypto import Refused
from tacit.data import Federation, Labels, Records
from tacit.engine.learner import learner
from tacit.engine.simulate import Simulation
from tacit.errors import UserError
from tacit.exchange import Session, SumFacts
from tacit.exchange.post import TooFew
from tacit.families.pairwise.exchange import Pairwise
from tacit.families.pairwise.proofs import gopa
from tacit.planning import preview as planner
from tacit.privacy import Noise, Randomness, View
from tacit.privacy.accounting.gaussian import gaussian_epsilon
from tacit.privacy.invalid import InvalidArgument
from tests.refusals import refuses

GRAPHS = ("k-out", "ring", "complete", "erdos-renyi")


def facts(silos: int, std: float = 1.0, bound: float = 1.0) -> SumFacts:
    return SumFacts(silos, silos, bound, Noise(std, "once"))


def session(exchange: Pairwise, silos: int, numbers: int = 5, std: float = 1.0) -> Session:
    return exchange.session([f"s{k}" for k in range(silos)], numbers, facts(silos, std))


def streams(silos: int, seed: int = 1) -> list:
    return [Randomness.from_seed(seed).stream("noise", silo) for silo in range(silos)]


def vectors(silos: int, numbers: int = 5, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-(10**6), 10**6, size=(silos, numbers))


# -- the sum


@settings(deadline=None, max_examples=12)
@given(st.sampled_from(GRAPHS), st.integers(3, 9), st.just(0.0) | st.floats(0.01, 50), st.integers(0, 100))
def test_the_estimate_is_the_noisy_sum_and_pairs_cancel_exactly(graph, silos, multiplier, seed):
    """On the grid to the last integer, and so to 1e-9 relative in floats."""
    exchange = Pairwise(graph=graph, peers=2, pairwise_multiplier=multiplier)
    values = vectors(silos, seed=seed)
    found = session(exchange, silos)
    total = found.sum(1, values, streams(silos, seed))
    own = session(Pairwise(graph=graph, peers=2, pairwise_multiplier=0.0), silos)
    plain = own.sum(1, values, streams(silos, seed))  # the same independent noise, and none in pairs
    np.testing.assert_array_equal(total, plain)
    assert found.server.total is not None
    np.testing.assert_array_equal(sum(found.server._vectors.values()), found.server.total)
    if multiplier > 1:
        assert any((found.server._vectors[name] != own.server._vectors[name]).any() for name in found.terms.silos)


def test_the_sum_has_the_noise_that_was_planned_and_messages_have_the_rest():
    silos, numbers = 6, 4000
    exchange = Pairwise(graph="complete", pairwise_multiplier=5.0)
    found = session(exchange, silos, numbers, std=2.0)
    zeros = np.zeros((silos, numbers), np.int64)
    total = found.sum(1, zeros, streams(silos))
    # 4,000 samples: the bounds are at more than four standard errors
    assert total.std() == pytest.approx(2.0, rel=0.05)
    messages = np.stack([found.server._vectors[name] for name in found.terms.silos]) * exchange.precision
    eta = 2.0 / math.sqrt(silos)
    sigma = eta**2 * np.eye(silos) + (5 * eta) ** 2 * (silos * np.eye(silos) - 1)
    assert np.abs(np.cov(messages) - sigma).max() < 0.1 * sigma.max()


def test_every_round_and_pair_has_noise_of_its_own():
    found = session(Pairwise(graph="complete", pairwise_multiplier=3.0), 4, 50)
    zeros = np.zeros((4, 50), np.int64)
    found.sum(1, zeros, streams(4))
    first = found.server._vectors
    found.sum(2, zeros, streams(4))
    second = found.server._vectors
    assert all((first[name] != second[name]).any() for name in first)


# -- drop-outs


def lost(phase: str, who: str):
    def carry(at: str, sender: str, recipient: str, message: bytes) -> bytes | None:
        return None if at == phase and sender == who else message

    return carry


@pytest.mark.parametrize("phase", ["keys", "vectors"])
def test_who_vanishes_takes_its_vector_along_and_leaves_no_noise_of_its_pairs(phase):
    exchange = Pairwise(graph="complete", pairwise_multiplier=20.0, drop_outs=1)
    found = session(exchange, 5)
    gone = found.terms.silos[2]
    values = vectors(5)
    total = found.sum(1, values, streams(5), lost(phase, gone))
    plain = session(Pairwise(graph="complete", pairwise_multiplier=0.0, drop_outs=1), 5)
    expected = plain.sum(1, values, streams(5), lost(phase, gone))
    np.testing.assert_array_equal(total, expected)
    assert gone not in found.server.survivors
    assert len(found.server.survivors) == 4


def test_more_drop_outs_than_declared_end_the_round():
    found = session(Pairwise(graph="complete", pairwise_multiplier=2.0), 4)
    with pytest.raises(TooFew):
        found.sum(1, vectors(4), streams(4), lost("vectors", found.terms.silos[0]))


def test_no_silo_shows_more_seeds_than_may_vanish():
    """A server that calls everybody vanished gets the seeds of nobody."""
    found = session(Pairwise(graph="complete", pairwise_multiplier=2.0, drop_outs=1), 4)
    found.server.begin(1)
    parties = zip(found.silos.items(), vectors(4), streams(4), strict=True)
    for name, message in [(name, silo.begin(1, vector, stream)) for (name, silo), vector, stream in parties]:
        found.server.receive(name, message)
    told = found.server.advance()
    victim = found.terms.silos[0]
    for name, message in told.items():
        found.server.receive(name, found.silos[name].receive(message))
    lie = found.server._post.write(
        victim, "seeds", found.server._of_peers(victim, dict.fromkeys(found.terms.silos, b""))
    )
    with refuses("too-few", kind=Refused, peer="server"):
        found.silos[victim].receive(lie)


# -- what it costs


def posterior_mu(edges: np.ndarray, honest: list[int], eta: float, pair: float) -> float:
    """By brute force: the coalition knows its own noises, and tells two values of a silo apart by all that is left."""
    silos = len(edges)
    noises = [("own", k) for k in range(silos)] + [("pair", i, j) for i, j in np.argwhere(np.triu(edges))]
    unknown = [n for n in noises if all(k in honest for k in n[1:])]
    matrix = np.zeros((len(honest), len(unknown)))
    for column, noise in enumerate(unknown):
        if noise[0] == "own":
            matrix[honest.index(noise[1]), column] = eta
        else:
            matrix[honest.index(noise[1]), column] = pair
            matrix[honest.index(noise[2]), column] = -pair
    covariance = matrix @ matrix.T
    return max(math.sqrt(np.linalg.solve(covariance, row) @ row) for row in np.eye(len(honest)))


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("members", [(), (1,), (0, 3)])
def test_the_coalitions_posterior_is_the_formula(graph, members):
    exchange = Pairwise(graph=graph, peers=2, pairwise_multiplier=3.0)
    edges = exchange.edges(7)
    eta = 1 / math.sqrt(7)
    honest = [k for k in range(7) if k not in members]
    brute = posterior_mu(edges, honest, eta, 3 * eta)
    view = View("coalition", len(members), tuple(map(str, members))) if members else View("server")
    assert exchange.factor(view, 7) == pytest.approx(brute, rel=1e-9)
    assert gopa(edges, members, eta, 3 * eta).mu == pytest.approx(brute, rel=1e-9)


def test_nothing_told_apart_in_simulation_is_above_the_formula():
    """The best test of the coalition, on messages of the protocol itself, has no more power than mu allows."""
    silos, numbers, shift = 5, 6000, 0.8
    exchange = Pairwise(graph="ring", pairwise_multiplier=1.5, precision=1e-6)
    found = session(exchange, silos, numbers)
    steps = round(shift / exchange.precision)
    seen = []
    for number, value in ((1, 0), (2, steps)):
        values = np.zeros((silos, numbers), np.int64)
        values[2] = value
        found.sum(number, values, streams(silos, seed=number))
        seen.append(np.stack([found.server._vectors[name] for name in found.terms.silos]) * exchange.precision)
    eta = 1 / math.sqrt(silos)
    edges = exchange.edges(silos)
    sigma = eta**2 * np.eye(silos) + (1.5 * eta) ** 2 * (np.diag(edges.sum(axis=1)) - edges)
    direction = np.linalg.solve(sigma, np.eye(silos)[2])
    scores = [direction @ part for part in seen]
    mu = shift * exchange.factor(View("server"), silos)
    measured = (scores[1].mean() - scores[0].mean()) / np.std(np.concatenate([s - s.mean() for s in scores]))
    assert measured == pytest.approx(mu, abs=4 * math.sqrt(2 / numbers))


def test_any_coalition_of_a_size_is_the_worst_of_all_of_them():
    exchange = Pairwise(graph="k-out", peers=2, pairwise_multiplier=4.0, honest=0.75)
    worst = exchange.factor(View.parse("server+silos:2"), 8)
    each = [exchange.factor(View.parse(f"coalition:[{i},{j}]"), 8) for i in range(8) for j in range(i)]
    assert worst == pytest.approx(max(each))
    assert "server+silos:2" in exchange.views(8)


def test_too_many_coalitions_are_not_guessed_at_unless_all_are_alike():
    few = {"pairwise_multiplier": 4.0, "honest": 0.5}
    assert Pairwise(graph="k-out", peers=10, **few).factor(View.parse("server+silos:20"), 40) == math.inf
    assert Pairwise(graph="complete", **few).factor(View.parse("server+silos:20"), 40) < 1.1


def test_an_isolated_silo_falls_back_to_local_privacy_with_a_warning():
    exchange = Pairwise(graph="ring", pairwise_multiplier=10.0)
    around = View.parse("coalition:[0,2]")  # both neighbours of silo 1
    assert exchange.factor(around, 6) == pytest.approx(math.sqrt(6))  # its own noise alone
    assert any("warning: silos 1 share no noise" in text for text in exchange.assumptions(around, 6))
    assert not any("warning" in text for text in exchange.assumptions(View("server"), 6))


def test_drop_outs_cost_what_their_seeds_hid():
    exchange = Pairwise(graph="k-out", peers=2, pairwise_multiplier=4.0, drop_outs=1)
    edges, eta = exchange.edges(7), 1 / math.sqrt(6)
    each = [gopa(edges, (gone,), eta, 4 * eta).mu for gone in range(7)]
    assert exchange.factor(View("server"), 7) == pytest.approx(max(each))
    # the sum is as noisy as planned without the one who vanishes
    assert exchange.factor(View("public"), 7) == pytest.approx(1.0)


def test_the_fewest_peers_are_found_and_one_less_is_not_enough():
    exchange = Pairwise(graph="k-out", pairwise_multiplier=8.0)
    edges = exchange.edges(30)
    assert exchange.factor(View("server"), 30) <= 1.05
    peers = next(m for m in range(1, 30) if (Pairwise(peers=m, pairwise_multiplier=8.0).edges(30) == edges).all())
    assert 1 < peers < 29
    assert Pairwise(peers=peers - 1, pairwise_multiplier=8.0).factor(View("server"), 30) > 1.05


def test_without_a_multiplier_pairs_are_noisy_enough_to_leave_little_but_the_sum():
    for graph in ("ring", "complete", "k-out"):
        assert 1.0 <= Pairwise(graph=graph, peers=3).factor(View("server"), 12) <= math.sqrt(1 + 1 / 20) + 1e-9


@pytest.mark.parametrize(
    ("numbers", "silos", "field"),
    [
        ({"peers": 9}, 9, "exchange.peers"),
        ({"honest": 0.1, "drop_outs": 1, "graph": "complete"}, 5, "exchange.honest"),
        ({"precision": 0.1, "graph": "ring"}, 5, "exchange.precision"),
        ({"precision": 1e-18, "graph": "ring"}, 5, "exchange.precision"),
        ({"graph": "ring"}, 1, "exchange.name"),
    ],
)
def test_numbers_that_do_not_go_together_are_refused(numbers, silos, field):
    with pytest.raises(UserError) as found:
        Pairwise(**numbers).check(facts(silos))
    assert found.value.field == field


# -- training


def planned(method: dict, exchange: dict, *, silos: int = 5, **sections):
    data = {
        "silos": {"column": "silo", "count": silos},
        "subjects": {"column": "person", "count": 50},
        "task": "binary",
        "numeric": ["a", "b"],
    }
    content = {"seed": 1, "data": data, "method": method, "train": {"rounds": 3}, "exchange": exchange, **sections}
    return tacit.plan(content)


def made_federation(silos: int) -> Federation:
    rng = np.random.default_rng(2)
    silo = np.repeat(np.arange(silos), 10).astype(np.int32)
    features = rng.normal(size=(10 * silos, 2)).astype(np.float32)
    labels = (features[:, 0] > 0).astype(np.int32)
    records = Records(features, labels, np.arange(10 * silos, dtype=np.int32), silo)
    names = tuple(f"silo {k + 1}" for k in range(silos))
    return Federation(records, records, Labels("binary", ("0", "1")), names, 10 * silos, ("a", "b"), "records")


def trained(method: dict, exchange: dict) -> np.ndarray:
    federation, randomness = made_federation(5), Randomness.from_seed(1)
    plan = planned(method, exchange)
    sim = Simulation(plan, federation, learner(plan.experiment.model, federation.labels, (2,), randomness), randomness)
    for number in (1, 2, 3):
        sim.round(number)
    return np.concatenate([np.ravel(leaf) for leaf in sim.model()["layer0"].values()])


@pytest.mark.parametrize("name", ["dp-fedavg", "dp-fedsgd"])
def test_at_noise_zero_the_exchange_changes_nothing(name):
    method = {"name": name, "noise_multiplier": 0.0, "clip": 0.2}
    pairs = trained(method, {"name": "pairwise", "graph": "ring"})
    np.testing.assert_allclose(pairs, trained(method, {"name": "plain"}), atol=1e-6)
    assert np.abs(pairs).max() > 0.01


def test_with_noise_models_differ_by_about_that_noise():
    method = {"name": "dp-fedavg", "noise_multiplier": 3.0, "clip": 0.2}
    without = {**method, "noise_multiplier": 0.0}
    found = trained(method, {"name": "pairwise"}) - trained(without, {"name": "pairwise"})
    expected = math.sqrt(3) * 3.0 * 0.2 / 5  # three rounds of the mean's noise
    assert 0.2 * expected < np.abs(found).mean() < 3 * expected


def test_plans_count_the_server_in_and_trust_nobody():
    plan = planned({"name": "dp-fedavg", "noise_multiplier": 4.0}, {"name": "pairwise", "graph": "complete"})
    found = {str(g.view): g.epsilon for g in plan.guarantees()}
    assert set(found) == {"public", "server", "silo"}
    assert found["public"] == pytest.approx(gaussian_epsilon(math.sqrt(3) / 4, 1e-5))
    assert found["public"] <= found["server"] < found["silo"]
    assert "server" in {str(view) for view in plan.promise.against}
    factor = Pairwise(graph="complete").factor(View("server"), 5)
    assert found["server"] == pytest.approx(gaussian_epsilon(factor * math.sqrt(3) / 4, 1e-5))
    assert not any("trusted" in text for g in plan.guarantees() for text in g.assumptions)


def test_a_target_is_reached_against_the_declared_coalition():
    exchange = {"name": "pairwise", "graph": "complete", "honest": 0.6}
    plan = planned({"name": "dp-fedavg", "target_epsilon": 2.0}, exchange)
    found = {str(g.view): g.epsilon for g in plan.guarantees()}
    assert set(found) == {"public", "server", "silo", "server+silos:2"}
    assert 1.98 < max(found.values()) <= 2.0


def test_a_plan_says_how_much_noise_silos_and_pairs_add():
    exchange = {"name": "pairwise", "graph": "ring", "pairwise_multiplier": 6.0}
    plan = planned({"name": "dp-fedavg", "noise_multiplier": 4.0, "clip": 0.5}, exchange)
    found = planner.outlook(plan).parts["pairs"]
    assert found is not None
    assert (found.graph, found.peers) == ("ring", (2, 2))
    assert found.independent == pytest.approx(4.0 * 0.5 / math.sqrt(5))
    assert found.shared == pytest.approx(6 * found.independent)
    assert found.factor["public"] == pytest.approx(1.0)
    assert "2 others (ring)" in found.words
    assert planner.outlook(planned({"name": "dp-fedavg", "noise_multiplier": 4.0}, {"name": "plain"})).parts == {}


def test_what_does_not_go_with_pairs_is_refused():
    for method, field in (
        ({"name": "dp-fedavg", "silo_sample_rate": 0.5}, "method.silo_sample_rate"),
        ({"name": "dp-fedavg", "adaptive_clip": {}}, "method.adaptive_clip"),
        ({"name": "higrad"}, "exchange.name"),
        ({"name": "fedavg"}, "exchange.name"),
    ):
        noise = {} if method["name"] == "fedavg" else {"noise_multiplier": 1.0}
        with refuses("not-supported", field):
            planned({**method, **noise}, {"name": "pairwise"})


def test_a_vector_beyond_the_bound_is_refused_by_its_own_silo():
    """Also -2^63, which has no magnitude: into it a number that is none is rounded."""
    one = session(Pairwise(peers=2), 3)
    for extreme in (one.terms.largest + 1, -one.terms.largest - 1, -(2**63)):
        vector = np.full(5, extreme, np.int64)
        with refuses("out-of-range", "vector", InvalidArgument):
            next(iter(one.silos.values())).begin(1, vector, streams(1)[0])
