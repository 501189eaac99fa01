"""FLAME's protocols: what people send, that its sums estimate their mean, what is promised to whom, what is refused."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest

import tacit
from tacit.errors import UserError
from tacit.exchange import people_of
from tacit.families.shuffle.encoders import LdpGaussian, LdpLaplace, batches_of, fewest_outside
from tacit.families.shuffle.methods import SSDouble, SSSimple, SSTopk
from tacit.methods import METHODS, Facts
from tacit.planning import preview as planner
from tacit.planning.sweep import sweep
from tacit.privacy import Randomness
from tests.methods.worlds import epsilon, planned, published
from tests.refusals import refuses

FACTS = Facts(silos=1, subjects=1000, parameters=7850)
SMALL = Facts(silos=1, subjects=40, parameters=30)
DELTA = 0.01 / 1000**1.1  # FLAME's rule
VIEWS = ("public", "analyzer", "shuffler", "shuffler+analyzer")


def encoding(options, facts: Facts = SMALL):
    """How a method of these options encodes updates."""
    return options.build(facts).work.encoding


def lists(facts: Facts, **numbers) -> float:
    """How many indices a person sends of ss-topk, over how many are the largest."""
    found = encoding(SSTopk(**numbers), facts)
    return found.listed / found.sent


def stream(name: str = "people"):
    return Randomness.from_seed(4).stream(name)


def flame(method: dict, exchange: dict | None = None, **sections) -> tacit.planning.plan.Plan:
    """FLAME's experiment: 1,000 people, 7,850 numbers, one epoch."""
    return tacit.plan(
        {
            "data": {"source": "mnist", "subjects": {"assign": "uniform", "count": 1000}, **sections.get("data", {})},
            "model": {"name": "logistic"},
            "method": method,
            "train": {"rounds": 1, **sections.get("train", {})},
            "privacy": {"delta": DELTA, **sections.get("privacy", {})},
            "exchange": {"name": "shuffled", **(exchange or {})},
        }
    )


SIMPLE = {"name": "ss-simple", "local_epsilon": 78.5}
DOUBLE = {"name": "ss-double", "local_epsilon": 78.5, "padding": 333, "index_sampling": "fixed"}
BERNOULLI = DOUBLE | {"index_sampling": "bernoulli"}
TOPK = {"name": "ss-topk", "local_epsilon": 78.5, "padding": 333}


# --- promises --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "proved", "paper"),
    [
        (SIMPLE, 0.0946, 0.910056),
        (DOUBLE, 1.765, 0.237927),
        (BERNOULLI, 0.221, 0.237927),
        (TOPK, 2.595, 0.237927),
        (TOPK | {"padding": 1000}, 0.966, None),
    ],
)
def test_flame_at_its_own_parameters_proved_and_as_published(method, proved, paper):
    """specification 5.2 (rounded up to a coarser grid there) and the paper's numbers, to their digits."""
    plan = flame(method)
    for view in ("public", "analyzer"):
        assert 0.95 * proved <= epsilon(plan, view) <= 1.003 * proved
        if paper is not None:
            assert published(plan, view).epsilon == pytest.approx(paper, abs=6e-7)
    assert published(plan, "public").valid == ("only-if" if method is SIMPLE else "no")


def test_flame_at_a_tenth_of_the_indices():
    method = {"name": "ss-topk", "local_epsilon": 0.5 * 785, "index_rate": 0.1, "padding": 666, "epochs": 2}
    plan = flame(method, train={"rounds": 2})
    assert published(plan, "analyzer").epsilon == pytest.approx(2.3482, abs=5e-5)
    assert epsilon(plan, "analyzer") > 2.3482
    assert "per epoch" in published(plan, "analyzer").reason


def test_the_strongest_index_privacy_is_that_of_theorem_5():
    method = SSTopk(local_epsilon=78.5, padding=333, index_privacy="strongest")
    assert encoding(method, FACTS).listed == 16 * 157
    assert lists(FACTS, local_epsilon=1.0, index_privacy=3.125) == 16
    assert lists(FACTS, local_epsilon=1.0, index_privacy=1.0) == 7850 / 157  # l = ceil(1 / beta): every index
    assert lists(FACTS, local_epsilon=1.0) == 1


def test_shuffler_and_analyzer_together_are_left_with_local_privacy():
    found = {name: {view: epsilon(flame(method), view) for view in VIEWS} for name, method in (
        ("simple", SIMPLE), ("double", DOUBLE), ("bernoulli", BERNOULLI), ("topk", TOPK))}  # fmt: skip
    assert found["simple"]["shuffler+analyzer"] == pytest.approx(78.5)
    assert found["double"]["shuffler+analyzer"] == pytest.approx(78.5)
    assert found["bernoulli"]["shuffler+analyzer"] == pytest.approx(0.5 * 7850)  # every coin may show heads
    assert math.isinf(found["topk"]["shuffler+analyzer"])
    # the shuffler knows its own fillings; in simple there are none
    assert found["simple"]["shuffler"] == found["simple"]["analyzer"]
    assert found["double"]["shuffler"] == pytest.approx(78.5)
    assert math.isinf(found["topk"]["shuffler"])
    all_indices = flame(TOPK | {"padding": 1000, "index_privacy": 1.0})
    assert epsilon(all_indices, "shuffler+analyzer") == pytest.approx(78.5)
    assert epsilon(all_indices, "shuffler") == pytest.approx(epsilon(all_indices, "analyzer"))


def test_the_papers_local_claim_holds_where_exactly_k_numbers_are_sent():
    valid = {
        name: published(flame(method), "shuffler+analyzer").valid
        for name, method in (("simple", SIMPLE), ("double", DOUBLE), ("bernoulli", BERNOULLI), ("topk", TOPK))
    }
    assert valid == {"simple": "yes", "double": "yes", "bernoulli": "no", "topk": "no"}


@pytest.mark.parametrize(("method", "left"), [(SIMPLE, 78.5), (DOUBLE, 78.5), (TOPK, math.inf)])
def test_linked_messages_hide_in_no_crowd(method, left):
    plan = flame(method, {"linked": True})
    for view in ("public", "analyzer", "shuffler+analyzer"):
        assert epsilon(plan, view) == pytest.approx(left)
    assert published(plan, "analyzer").valid == "no"


def test_one_epoch_of_large_local_epsilons_never_costs_more_than_two():
    """At eps_lk = 4 every mixture of full and half pairs is looked at, for one epoch; two are charged as full ones."""
    one, two = (
        epsilon(
            flame(TOPK | {"local_epsilon": 20 * 4.0, "index_rate": 20.5 / 7850, "padding": 1000}, train=train),
            "analyzer",
        )
        for train in ({"rounds": 1}, {"rounds": 2})
    )
    assert 4 < one < two < 60


@pytest.mark.parametrize("method", [SIMPLE, DOUBLE, BERNOULLI, TOPK, TOPK | {"padding": 1000}])
@pytest.mark.parametrize("randomizer", ["laplace", "response"])
def test_hardly_any_noise_gives_huge_numbers_and_no_errors(method, randomizer):
    for guarantee in flame(method | {"local_epsilon": 1e9, "randomizer": randomizer}).guarantees():
        assert guarantee.epsilon >= 0.9e9
        assert guarantee.as_published is None or guarantee.as_published.epsilon >= 0.9e9


def test_few_places_are_said_to_be_the_reason():
    few = flame(BERNOULLI | {"padding": 10})
    assert math.isinf(epsilon(few, "analyzer"))
    assert any("method.padding" in text for guarantee in few.guarantees() for text in guarantee.assumptions)
    assert math.isfinite(epsilon(flame(TOPK | {"padding": 10, "index_privacy": "strongest"}), "analyzer"))
    # over many epochs overflows add up
    one, nine = (epsilon(flame(BERNOULLI | {"padding": 54}, train={"rounds": n}), "analyzer") for n in (1, 9))
    assert math.isfinite(one)
    assert math.isinf(nine)


def test_fillings_do_not_hide_anybody_from_the_shuffler_that_makes_them():
    for guarantee in flame(SIMPLE).guarantees():
        reach = [text for text in guarantee.assumptions if "reach the shuffler" in text]
        assert [("fillings" in text) for text in reach] == {
            "shuffler": [False], "shuffler+analyzer": []
        }.get(str(guarantee.view), [True])  # fmt: skip


def test_every_guarantee_is_about_one_person_replaced_and_says_on_what_it_rests():
    for guarantee in flame(BERNOULLI).guarantees():
        assert (guarantee.unit, guarantee.relation) == ("subject", "replace")
        if str(guarantee.view) in ("public", "analyzer"):
            assert guarantee.sampling == "shuffled-reports"
            assert any("does not collude" in text for text in guarantee.assumptions)
            assert any("one encoder" in text for text in guarantee.assumptions)


def test_batches_of_people_take_turns_and_only_epochs_add_up():
    one = flame(DOUBLE, data={"subjects": {"assign": "uniform", "count": 5000}}, train={"rounds": 5})
    turns = flame(
        DOUBLE | {"batch_subjects": 1000}, data={"subjects": {"assign": "uniform", "count": 5000}}, train={"rounds": 5}
    )
    single = flame(DOUBLE)
    assert epsilon(turns, "analyzer") == epsilon(single, "analyzer") < epsilon(one, "analyzer")
    epochs = flame(
        DOUBLE | {"batch_subjects": 1000, "epochs": 10},
        data={"subjects": {"assign": "uniform", "count": 5000}},
        train={"rounds": 50},
    )
    assert epochs.rounds == 50
    assert epsilon(epochs, "analyzer") == pytest.approx(6.53, rel=0.003)  # specification 5.2: ten epochs, fixed k


def test_references_beside_a_run_of_epochs_have_its_rounds():
    plan = flame(DOUBLE | {"epochs": 3}, train={"rounds": 3})
    assert plan.with_method("pooled").rounds == 3
    assert plan.with_method("ss-simple").exchange.name == "shuffled"


def test_people_do_not_divide_evenly_and_every_batch_has_at_least_as_many_as_declared():
    method = SSDouble(local_epsilon=1.0, batch_subjects=300)
    facts = Facts(silos=1, subjects=1000, parameters=100, rounds=3)
    assert method.build(facts).turns == 3
    crowd = encoding(method, facts).crowd
    assert (crowd.smallest, crowd.largest) == (333, 334)
    assert encoding(method, facts).padded == 334
    assert crowd.participations(facts.rounds) == 1


def test_a_target_is_reached_by_all_protocols():
    for method in (SIMPLE, BERNOULLI, TOPK | {"padding": 1000}):
        numbers = {key: value for key, value in method.items() if key != "local_epsilon"}
        plan = flame(numbers | {"target_epsilon": 1.0})
        assert 0.98 <= epsilon(plan, "analyzer") <= 1.0
        assert plan.local_epsilon > 0
        assert math.isinf(epsilon(plan, "shuffler+analyzer")) == (method["name"] == "ss-topk")  # trusted, not bound


@pytest.mark.parametrize("name", ["ldp-laplace", "ldp-gaussian"])
def test_local_noise_protects_from_the_server_and_better_from_who_sees_sums(name):
    plan = flame({"name": name, "local_epsilon": 8.0}, {"name": "plain"})
    assert epsilon(plan, "server") == pytest.approx(8.0, rel=1e-3)
    assert epsilon(plan, "public") < 1.0


def test_a_silo_has_no_guarantee_and_one_record_that_of_its_person():
    method = SSDouble(local_epsilon=78.5, padding=333)
    plan = flame(BERNOULLI, privacy={"unit": "record"})
    assert epsilon(plan, "analyzer") == epsilon(flame(BERNOULLI), "analyzer")
    assert "silo" not in method.info.units


def test_a_plan_shows_the_local_epsilon_and_the_noise_on_a_sum():
    shown = planner.outlook(flame(BERNOULLI))
    assert shown.as_dict()["local_epsilon"] == 78.5
    assert shown.noise.std == pytest.approx(2 * math.sqrt(333 * 8))  # 2 C, and a variance of 2 / .5^2 a message
    assert shown.noise.largest == pytest.approx(1000 * math.sqrt(157))
    assert shown.noise.place == "every person's own"


def test_local_epsilons_can_be_swept():
    content = {
        "data": {"source": "mnist", "subjects": {"assign": "uniform", "count": 1000}},
        "method": {"name": "ss-simple", "target_epsilon": 1.0},
        "train": {"rounds": 1},
        "exchange": {"name": "shuffled"},
    }
    found = sweep(content, ["local_epsilon=10,78.5"], Path.cwd())
    assert found.solves == "epsilon"
    assert [point.epsilon for point in found.points] == sorted(point.epsilon for point in found.points)


# --- what people send ------------------------------------------------------------------------------------------------


def test_simple_sends_every_number_and_topk_the_largest():
    vectors = np.random.default_rng(0).normal(size=(6, 30)).astype(np.float32)
    simple = encoding(SSSimple(local_epsilon=30e6, value_range=10.0)).encode(vectors, stream())
    assert np.bincount(simple.person).tolist() == [30] * 6
    np.testing.assert_allclose((2 * simple.value - 1) * 10, vectors.ravel(), atol=1e-3)
    topk = encoding(SSTopk(local_epsilon=4e6, value_range=10.0, index_rate=4 / 30)).encode(vectors, stream())
    for person, vector in enumerate(vectors):
        own = topk.person == person
        assert set(topk.dimension[own]) == set(np.argsort(-np.abs(vector))[:4])
        np.testing.assert_allclose((2 * topk.value[own] - 1) * 10, vector[topk.dimension[own]], atol=1e-3)
        assert (np.diff(topk.dimension[own]) > 0).all()


def test_topk_hides_the_largest_among_others_that_say_nothing():
    """Of 200 people with the same largest numbers: others are uniform (5 deviations), and their values are blanket."""
    vectors = np.zeros((200, 30), np.float32)
    vectors[:, :3] = 5.0
    numbers = {"local_epsilon": 3e6, "value_range": 10.0, "index_rate": 0.1, "index_privacy": 2.5}
    assert lists(SMALL, **numbers) == 4
    sent = encoding(SSTopk(**numbers)).encode(vectors, stream())
    assert np.bincount(sent.person).tolist() == [12] * 200
    counts = np.bincount(sent.dimension, minlength=30)
    assert counts[:3].tolist() == [200] * 3
    expected, deviation = 200 / 3, math.sqrt(200 / 3 * 2 / 3)
    assert (np.abs(counts[3:] - expected) < 5 * deviation).all()
    np.testing.assert_allclose(sent.value[sent.dimension < 3], 0.75, atol=1e-3)
    np.testing.assert_allclose(sent.value[sent.dimension >= 3], 0.5, atol=1e-3)


def test_equal_numbers_are_chosen_by_lot():
    sent = encoding(SSTopk(local_epsilon=1.0, index_rate=0.1)).encode(np.zeros((3000, 30), np.float32), stream())
    counts = np.bincount(sent.dimension, minlength=30)
    assert (np.abs(counts - 300) < 5 * math.sqrt(300)).all()


@pytest.mark.parametrize("sampling", ["fixed", "bernoulli"])
def test_double_chooses_without_looking(sampling):
    method = SSDouble(local_epsilon=1.0, index_rate=0.1, index_sampling=sampling)
    sent = encoding(method).encode(np.full((3000, 30), 7.0, np.float32), stream(sampling))
    assert (np.abs(np.bincount(sent.dimension, minlength=30) - 300) < 5 * math.sqrt(300)).all()
    own = np.bincount(sent.person, minlength=3000)
    if sampling == "fixed":
        assert set(own) == {3}
    else:
        assert own.mean() == pytest.approx(3, abs=0.15)
        assert own.var() == pytest.approx(2.7, rel=0.2)  # every number by a coin of its own
    assert (np.diff(sent.person * 30 + sent.dimension) > 0).all()  # each at most once, person by person


@pytest.mark.parametrize(
    "method",
    [
        SSSimple(local_epsilon=60.0),
        SSSimple(local_epsilon=60.0, randomizer="response", levels=3),
        SSDouble(local_epsilon=12.0, index_rate=0.2, index_sampling="fixed"),
        SSDouble(local_epsilon=12.0, index_rate=0.2, randomizer="response"),
        SSTopk(local_epsilon=60.0, index_rate=1.0),
    ],
)
def test_the_analyzers_mean_is_unbiased_and_has_the_predicted_variance(method):
    """400 rounds of 40 people, 30 numbers: every mean within 5 deviations, the mean variance within 6 % (1e-6)."""
    rng = np.random.default_rng(1)
    vectors = rng.uniform(-1.4, 1.4, size=(40, 30)).astype(np.float32)
    clipped = np.clip(vectors, -1, 1)
    reported, scale = encoding(method), 1 / method.build(SMALL).divisors.total
    draws, law = stream(str(method)), reported.law
    padded, found = reported.padded, []
    for _ in range(400):
        sent = reported.encode(vectors, draws)
        total = np.bincount(sent.dimension, sent.value - 0.5, 30)
        lacking = padded - np.bincount(sent.dimension, minlength=30)
        total += np.bincount(np.repeat(np.arange(30), lacking), law.blanket(int(lacking.sum()), draws) - 0.5, 30)
        found.append(scale * total)
    mean, variance = np.mean(found, axis=0), np.var(found, axis=0)
    rate = reported.sent / 30
    reports = law.variance((clipped + 1) / 2.0)
    # a number is reported with this rate, or its place is filled; its expectation then moves, too
    spread = rate * reports + (1 - rate) * law.blanket_variance + rate * (1 - rate) * (law.kept * clipped / 2) ** 2
    expected = scale**2 * spread.sum(axis=0)
    assert (np.abs(mean - clipped.mean(axis=0)) < 5 * np.sqrt(expected / 400)).all()
    assert variance.mean() == pytest.approx(expected.mean(), rel=0.06)


@pytest.mark.parametrize("method", [LdpLaplace(local_epsilon=300.0), LdpGaussian(local_epsilon=300.0)])
def test_local_noise_is_unbiased_and_as_large_as_planned(method):
    """Sums of 20 people, 2,000 numbers: the deviation is known to 8 % (1e-6)."""
    facts = Facts(silos=1, subjects=20, parameters=2000)
    vectors = np.full((20, 2000), 3.0, np.float32)
    total = encoding(method, facts).send(vectors, stream(method.info.name)).sum(axis=0)
    planned_noise = method.build(facts).noise.in_a_round
    assert total.std() == pytest.approx(planned_noise, rel=0.08)
    assert total.mean() == pytest.approx(20.0, abs=5 * planned_noise / math.sqrt(2000))


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "exchange", "field"),
    [
        (SIMPLE, {"name": "plain"}, "exchange.name"),
        ({"name": "fedavg"}, {}, "exchange.name"),
        ({"name": "ldp-laplace", "local_epsilon": 1.0}, {"name": "masked"}, "exchange.name"),
        ({"name": "ss-simple"}, {}, "method.local_epsilon"),
        (SIMPLE | {"target_epsilon": 1.0}, {}, "method.target_epsilon"),
        (SIMPLE | {"batch_subjects": 1001}, {}, "method.batch_subjects"),
        (DOUBLE | {"index_rate": 1e-5}, {}, "method.index_rate"),
        (BERNOULLI, {"linked": True}, "exchange.linked"),
        (SIMPLE | {"epochs": 2}, {}, "train.rounds"),
        (SIMPLE | {"noise_multiplier": 1.0}, {}, "method.noise_multiplier"),
        (TOPK | {"index_privacy": 0.5}, {}, "method.index_privacy"),
    ],
)
def test_what_does_not_go_together_is_refused_with_the_field(method, exchange, field):
    with pytest.raises(UserError) as found:
        flame(method, exchange)
    assert found.value.field == field


def test_a_table_must_declare_its_columns_so_that_the_number_of_reports_is_known():
    experiment = {
        "data": {"label": "ill", "subjects": {"column": "person", "count": 9}},
        "exchange": {"name": "shuffled"},
    }
    with refuses("missing", "data.numeric"):
        tacit.plan(experiment | {"method": SIMPLE})


def test_all_five_are_methods():
    for name in ("ss-simple", "ss-double", "ss-topk", "ldp-laplace", "ldp-gaussian"):
        assert METHODS[name].info.name == name
        assert METHODS[name].info.reference == "[FLAME]"


# --- silos that know the noise of their own people -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "silos", "view", "printed"),
    [
        ("ldp-gaussian", 2, "silo", 0.8681),
        ("ldp-gaussian", 10, "silos:9", 2.1131),
        ("ldp-laplace", 2, "silo", 2.0252),
        ("ldp-laplace", 10, "silos:9", 5.0757),
    ],
)
def test_people_hide_only_among_people_outside_a_view(name, silos, view, printed):
    plan = planned(
        {"name": name, "local_epsilon": 8.0},
        silos=silos,
        rounds=10,
        data={"label": "y", "subjects": {"column": "who", "count": 1000}, "numeric": {f"x{i}": {} for i in range(9)}},
        privacy={"against": [view]},
    )
    assert epsilon(plan, view) == pytest.approx(printed, abs=1e-4)


@pytest.mark.parametrize(("people", "batches", "silos"), [(40, 3, 4), (7, 7, 3), (100, 9, 7), (2, 1, 3)])
def test_fewest_people_outside_are_those_of_the_worst_batch_and_silos(people, batches, silos):
    batch = batches_of(people, batches)
    for colluding in range(silos):
        found = [
            sum(batch[p] == b for k in range(silos) if k not in members for p in people_of(k, people, silos))
            for b in range(batches)
            for members in itertools.combinations(range(silos), colluding)
        ]
        assert fewest_outside(people, batches, silos, colluding) == max(1, min(found))
