"""What a plan promises: noise for a target, units, relations, views, and the reasons where nothing can be promised."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import pytest

import tacit
from tacit.engine.charges import events
from tacit.methods import METHODS
from tacit.planning.plan import Plan
from tacit.privacy import (
    RELATIONS,
    UNITS,
    Composed,
    Event,
    Gaussian,
    Guarantee,
    PoissonSampled,
    Repeated,
    SampledWithoutReplacement,
    Unprotected,
    View,
    account,
)
from tacit.privacy.ledger import place
from tacit.privacy.terms import sentence
from tests.methods.worlds import planned as made_plan
from tests.refusals import refuses

DELTA = 1e-5
SILOS, ROUNDS, SIGMA = 10, 20, 3.0


def planned(method: dict[str, Any] | None = None, privacy: dict[str, Any] | None = None, **more: Any) -> Plan:
    """A plan of DP-FedAvg over ten silos; without a noise_multiplier where ``method`` names a target."""
    numbers = {"name": "dp-fedavg", **({"noise_multiplier": SIGMA} if method is None else {}), **(method or {})}
    data = {"source": "table", "path": "nowhere.csv", "label": "y", **more.pop("data", {})}
    silos = {"column": "bank", "count": SILOS}
    return tacit.plan(
        {
            "data": {**data, "silos": silos, "subjects": {"column": "person", "count": 100}},
            "method": numbers,
            "privacy": {"delta": DELTA, **(privacy or {})},
            "train": {"rounds": ROUNDS},
            **more,
        }
    )


def by_view(plan: Plan) -> dict[str, Guarantee]:
    return {str(guarantee.view): guarantee for guarantee in plan.guarantees()}


def epsilon(event: Event) -> float:
    return account(Repeated(event, ROUNDS), DELTA).epsilon


# -- noise for a target ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [0.5, 8.0])
@pytest.mark.parametrize("rate", [1.0, 0.3])
@pytest.mark.parametrize("unit", ["silo", "subject"])
def test_noise_for_a_target_meets_it_for_every_view_and_is_at_most_a_hundredth_too_large(target, rate, unit):
    against = ["public", "silo", "silos:2"]
    privacy = {"unit": unit, "against": against, "max_silos_per_subject": 3, "over_silo_cap": "refuse"}
    plan = planned({"target_epsilon": target, "silo_sample_rate": rate}, privacy)
    found = by_view(plan)
    assert list(found) == against
    assert all(0 < guarantee.epsilon <= target for guarantee in found.values())
    less = planned({"noise_multiplier": plan.noise_multiplier / 1.01, "silo_sample_rate": rate}, privacy)
    assert max(guarantee.epsilon for guarantee in less.guarantees()) > target


def test_a_target_binds_the_views_that_are_asked_for_and_a_view_that_no_noise_helps_is_named():
    assert by_view(planned({"target_epsilon": 2.0}))["server"].epsilon == math.inf  # trusted, so not asked for
    with refuses("unreachable", "method.target_epsilon", names=["server"]):
        planned({"target_epsilon": 2.0}, {"against": ["public", "server"]})
    with refuses("no-guarantee", "privacy.budget", names=["server"]):
        planned(privacy={"against": ["public", "server"], "budget": 5.0})


def test_the_noise_is_given_once_and_only_once():
    with refuses("conflict", "method.target_epsilon"):
        planned({"noise_multiplier": 1.0, "target_epsilon": 1.0})
    with refuses("missing", "method.noise_multiplier"):
        planned({})


@pytest.mark.parametrize(
    ("key", "value"),
    [("noise_multiplier", -1.0), ("noise_multiplier", math.nan), ("target_epsilon", 0.0), ("target_epsilon", math.inf)],
)
def test_noise_and_targets_that_make_no_sense_are_refused_by_name(key, value):
    with refuses("out-of-range", f"method.{key}"):
        planned({key: value})


def test_max_grad_norm_is_another_name_of_clip():
    numbers = {"noise_multiplier": SIGMA}
    assert planned({"max_grad_norm": 0.3, **numbers}).options == planned({"clip": 0.3, **numbers}).options
    with refuses("conflict", "method.max_grad_norm"):
        planned({"max_grad_norm": 0.3, "clip": 0.3, **numbers})


# -- who is protected from whom ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [1.0, 0.3])
@pytest.mark.parametrize("relation", ["zero-out", "replace"])
@pytest.mark.parametrize("unit", ["silo", "subject", "record"])
@pytest.mark.parametrize("over_cap", ["drop", "refuse"])
def test_units_and_relations_of_dp_fedavg(unit, relation, rate, over_cap):
    """A zeroed silo moves the sum by C. Anything less than a silo, or a replaced one, turns an upload around: 2 C in
    each of a subject's silos, old and new, which are sampled in both worlds: less is gained by that. Where a cap on
    silos lets others take a record's place, a record that goes counts as a replaced subject; and a silo, of whose own
    records the cap drops some or none, has no guarantee. A replaced record may come to another silo, or subject."""
    method = {"noise_multiplier": SIGMA, "silo_sample_rate": rate}
    caps = {"max_silos_per_subject": 4, "over_silo_cap": over_cap}
    plan = planned(method, {"unit": unit, "relation": relation, **caps})
    away = 8 if over_cap == "drop" else 1
    moved = {
        ("subject", "zero-out"): 4,
        ("subject", "replace"): 8,
        ("record", "zero-out"): away,
        ("record", "replace"): 2 * away,
    }.get((unit, relation), 1)
    turned, somewhere = Gaussian(SIGMA / (2 * moved)), 1 - (1 - rate) ** moved
    expected = epsilon(turned)
    if (unit, relation) == ("silo", "zero-out"):
        expected = epsilon(PoissonSampled(rate, Gaussian(SIGMA)))
    elif rate < 1 and moved < 16:  # two subjects in eight silos each are counted as always sampled
        expected = epsilon(SampledWithoutReplacement(math.ceil(somewhere * 1e9), 10**9, turned))
    found = by_view(plan)
    assert over_cap == "refuse" or found["silo"].epsilon == math.inf
    for view in ("public", "silo") if over_cap == "refuse" else ("public",):
        assert found[view].epsilon == pytest.approx(expected)
        assert (found[view].unit, found[view].relation, found[view].delta) == (unit, relation, DELTA)
        assert found[view].sampling == (f"poisson silos {rate:g}" if rate < 1 else "none")
    assert found["server"].epsilon == math.inf
    assert "sees every silo's update" in found["server"].assumptions[0]


def test_a_subject_may_be_in_every_silo_unless_a_cap_says_otherwise():
    everywhere = by_view(planned(privacy={"unit": "subject"}))["public"].epsilon
    assert everywhere == pytest.approx(epsilon(Gaussian(SIGMA / (2 * SILOS))))
    capped = [by_view(planned(privacy={"unit": "subject", "max_silos_per_subject": m}))["public"] for m in (1, 3, 99)]
    assert capped[0].epsilon == pytest.approx(epsilon(Gaussian(SIGMA / 2)))
    assert capped[0].epsilon < capped[1].epsilon < capped[2].epsilon == pytest.approx(everywhere)


def test_colluding_silos_see_models_and_with_the_server_everything():
    found = by_view(planned(privacy={"against": ["silos:2", "silos:9", "server+silos:2"]}))
    assert found["silos:2"].epsilon == found["silos:9"].epsilon == pytest.approx(epsilon(Gaussian(SIGMA)))
    assert found["server+silos:2"].epsilon == math.inf


METHODS_OF_RECORDS = (
    {"name": "local-record", "noise_multiplier": 20.0, "sample_rate": 1.0, "batches_per_round": 1},
    {"name": "higrad", "noise_multiplier": 20.0, "sample_rate": 1.0, "batches_per_round": 1},
    {"name": "central-group", "noise_multiplier": 20.0, "sample_rate": 1.0},
    {"name": "uldp-group", "noise_multiplier": 20.0, "sample_rate": 1.0, "batches_per_round": 1, "group_size": 10},
)


@pytest.mark.parametrize("method", METHODS_OF_RECORDS, ids=lambda method: method["name"])
def test_a_record_that_makes_room_for_another_moves_a_sum_twice(method):
    """With a cap, the record behind takes the place of one that is removed: two clips instead of one."""

    def record(**privacy: Any) -> float:
        caps = {"max_records_per_subject_and_silo": 1, **privacy}
        made = planned(method, {"unit": "record", "against": ["public"], **caps}, data={"records_per_silo": 40})
        return by_view(made)["public"].epsilon

    deviation = 20.0 * (math.sqrt(SILOS) if method["name"] == "central-group" else 1.0)
    assert record() >= epsilon(Gaussian(deviation / 2)) * (1 - 1e-9)
    # and where another silo may take the place of one that held the record, it is as if its person were replaced
    replaced = planned(
        method,
        {
            "unit": "subject",
            "relation": "replace",
            "against": ["public"],
            "max_records_per_subject_and_silo": 1,
            "max_silos_per_subject": 1,
        },
        data={"records_per_silo": 40},
    )
    assert record(max_silos_per_subject=1) == by_view(replaced)["public"].epsilon


def test_with_caps_a_published_number_of_records_is_not_valid_and_sampling_is_said_as_it_counts():
    method = {"name": "local-record", "noise_multiplier": 2.0, "sample_rate": 0.1, "batches_per_round": 1}

    def printed(**caps: int) -> Guarantee:
        made = planned(method, {"unit": "record", "against": ["public"], **caps}, data={"records_per_silo": 40})
        return by_view(made)["public"]

    free, capped = printed(), printed(max_records_per_subject_and_silo=3)
    over = printed(max_records_per_subject_and_silo=3, max_silos_per_subject=1)
    assert [line.as_published.valid for line in (free, capped, over) if line.as_published] == ["yes", "no", "no"]
    assert capped.as_published is not None
    assert "makes room" in capped.as_published.reason
    assert (free.sampling, over.sampling) == ("poisson records 0.1", "none")
    assert free.epsilon < capped.epsilon < over.epsilon


def test_a_record_s_place_is_sampled_as_the_record_was():
    """Removed and moved up at rate q: exactly the pair (1 - q) N(0) + q N(1) against (1 - q) N(0) + q N(-1)."""
    rate, sigma = 0.3, 2.0
    method = {"name": "local-record", "noise_multiplier": sigma, "sample_rate": rate, "batches_per_round": 1}
    caps = {"unit": "record", "against": ["public"], "max_records_per_subject_and_silo": 3}
    made = planned(method, caps, data={"records_per_silo": 40}, train={"rounds": 1})
    printed = by_view(made)["public"].epsilon
    x = np.linspace(-12 * sigma, 12 * sigma, 400_001)

    def density(mean: float) -> np.ndarray:
        return np.exp(-((x - mean) ** 2) / (2 * sigma**2)) / (sigma * math.sqrt(2 * math.pi))

    up, down = ((1 - rate) * density(0.0) + rate * density(place) for place in (1.0, -1.0))
    spent = np.maximum(up - math.exp(printed) * down, 0).sum() * (x[1] - x[0])
    assert spent <= DELTA
    uncapped = planned(method, {"unit": "record", "against": ["public"]}, data={"records_per_silo": 40})
    assert (
        by_view(uncapped)["public"].epsilon
        < by_view(planned(method, caps, data={"records_per_silo": 40}))["public"].epsilon
    )


def test_a_reference_that_protects_records_is_not_charged_for_caps():
    caps = {"unit": "subject", "max_records_per_subject_and_silo": 5, "max_silos_per_subject": 1}
    caps["against"] = ["public", "server"]
    person = planned({"name": "subject-sgd", "target_epsilon": 4.0}, caps, data={"records_per_silo": 40})
    record = person.with_method("local-record")
    assert (record.promise.unit, record.promise.facts.moves_up, record.promise.facts.moves_over) == (
        "record",
        False,
        False,
    )
    assert 3.9 < by_view(record)["public"].epsilon <= 4.0
    free = planned(
        {"name": "local-record", "target_epsilon": 4.0}, {"against": ["public"]}, data={"records_per_silo": 40}
    )
    assert record.noise_multiplier == pytest.approx(free.noise_multiplier, rel=1e-2)


@pytest.mark.parametrize("name", ["uldp-avg", "uldp-naive", "subject-sgd", "dp-fedavg"])
@pytest.mark.parametrize("view", ["silos:10", "silos:11"])
def test_where_all_silos_look_nobody_is_left_to_protect(name, view):
    made = planned({"name": name, "noise_multiplier": SIGMA}, {"against": [view]}, data={})
    assert by_view(made)[view].epsilon == math.inf


def test_a_promise_to_silos_is_about_what_the_others_hold():
    made = planned({"name": "uldp-avg", "noise_multiplier": SIGMA}, {"against": ["public", "silo", "silos:2"]})
    for guarantee in made.guarantees():
        own = guarantee.view.holds_records
        assert own == ("other silos" in sentence(guarantee))
        assert own == any("other silos hold" in text for text in guarantee.assumptions)


@pytest.mark.parametrize("view", ["shuffler", "neighbour", "coalition:[a,b]"])
def test_views_that_an_exchange_does_not_have_are_refused(view):
    with refuses("unknown-name", "privacy.against"):
        planned(privacy={"against": [view]})


@pytest.mark.parametrize(
    ("name", "exchange"),
    [("uldp-avg", "plain"), ("uldp-avg", "masked"), ("uldp-avg", "weighted"), ("dp-fedavg", "pairwise")],
)
def test_a_party_without_a_role_in_an_exchange_is_written_as_what_it_saw(name, exchange):
    capped = {"max_records_per_subject_and_silo": 5}
    weights = {"weights": "records-phantom"} if exchange == "weighted" else {}
    method = {"name": name, "noise_multiplier": SIGMA, **weights}
    written = events(planned(method, capped, exchange={"name": exchange}).promise)
    stand_ins = {"analyzer": "public", "shuffler": "server", "shuffler+analyzer": "server"}
    for (view, seen), unit, relation in product(stand_ins.items(), UNITS, RELATIONS):
        assert written[place(unit, view, relation)] == written[place(unit, seen, relation)]
    assert place("subject", "neighbour", "zero-out") not in written


def test_a_missing_number_of_silos_is_named():
    with refuses("missing", "data.silos.count"):
        tacit.plan(
            {
                "data": {"source": "table", "path": "nowhere.csv", "label": "y", "silos": {"column": "bank"}},
                "method": {"name": "dp-fedavg", "noise_multiplier": SIGMA},
            }
        )


# -- what takes a promise away, and what it rests on -------------------------------------------------------------------


def test_standardising_by_silo_leaves_no_guarantee_and_says_why():
    plan = planned(data={"standardize": "per-silo"})
    for guarantee in plan.guarantees():
        assert guarantee.epsilon == math.inf
        assert guarantee.accountant == "none"
        assert "per-silo" in guarantee.assumptions[0]
    assert all(isinstance(event, Unprotected) for event in events(plan.promise).values())
    with refuses("unreachable", "method.target_epsilon", names=["per-silo"]):
        planned({"target_epsilon": 2.0}, data={"standardize": "per-silo"})


def test_without_noise_nothing_is_promised():
    for guarantee in planned({"noise_multiplier": 0.0}).guarantees():
        assert guarantee.epsilon == math.inf
    assert "adds no noise" in by_view(planned({"noise_multiplier": 0.0}))["public"].assumptions[0]


def test_a_seed_is_among_the_assumptions_of_every_finite_guarantee():
    for seed, expected in ((None, False), (7, True), (0, True)):
        more = {} if seed is None else {"seed": seed}
        for view, guarantee in by_view(planned(**more)).items():
            if guarantee.finite:
                assert any("reproducible-noise" in text for text in guarantee.assumptions) is expected
            else:
                assert view == "server"


def test_finite_guarantees_name_the_trusted_server():
    assert any("trusted" in text for text in by_view(planned())["public"].assumptions)


def test_a_ledger_line_speaks_of_every_unit_view_and_relation():
    """So that a budget of any of them holds over runs, whatever each of them promises."""
    views = ("public", "server", "silo", "silos:2", "analyzer", "shuffler", "shuffler+analyzer")
    found = events(planned(privacy={"unit": "subject", "relation": "replace", "against": ["silos:2"]}).promise)
    places = product(UNITS, views, ("zero-out", "replace"))
    assert found.keys() == {place(unit, View.parse(view), relation) for unit, view, relation in places}
    assert found["silo/public/zero-out"] == PoissonSampled(1.0, Gaussian(SIGMA))
    assert found["silo/public/replace"] == Gaussian(SIGMA / 2)


# -- what is released once and paid for --------------------------------------------------------------------------------

PAID = {"standardize": "paid", "numeric": {"age": {"low": 0, "high": 100}}}
METRICS = {"status": "paid", "noise_multiplier": 6.0}


def paying(
    data: dict[str, Any] | None = None, privacy: dict[str, Any] | None = None, method: Any = None, **more: Any
) -> Plan:
    """A plan that protects people in ten silos and pays for its constants; in at most two silos each."""
    return tacit.plan(
        {
            "data": {
                "label": "y",
                "silos": {"column": "bank", "count": SILOS},
                "subjects": {"column": "person", "count": 1000},
                **PAID,
                **(data or {}),
            },
            "method": {"name": "uldp-avg", **({"noise_multiplier": SIGMA} if method is None else method)},
            "train": {"rounds": ROUNDS},
            "privacy": {"delta": DELTA, "max_silos_per_subject": 2, **(privacy or {})},
            **more,
        }
    )


def bare(plan: Plan, view: str) -> Event:
    """The rounds alone."""
    return Repeated(plan.promise.event(plan.promise.unit, View.parse(view)), ROUNDS)


def bounded(event: Event) -> float:
    return account(event, DELTA).epsilon


@pytest.mark.parametrize("unit", ["subject", "record"])
@pytest.mark.parametrize("relation", ["zero-out", "replace"])
def test_what_is_paid_for_once_is_part_of_every_guarantee(unit, relation):
    privacy = {"unit": unit, "relation": relation, "against": ["public", "server", "silos:3"]}
    plan = paying(privacy=privacy)
    z = 10.0 / (2 if relation == "replace" else 1)
    once = {
        # a record moves half a person's part, twice: another silo may move up under the cap
        "public": Gaussian(z),
        "server": Gaussian(z * math.sqrt(2 / SILOS) if unit == "subject" else z / math.sqrt(SILOS)),
    }
    found = by_view(plan)
    assert found["silos:3"].epsilon == math.inf  # the cap drops records of these silos, or not, because of others
    for view, event in once.items():
        assert found[view].epsilon == pytest.approx(bounded(Composed((event, bare(plan, view)))))
        assert any("standardising" in text for text in found[view].assumptions)
    promised = paying(privacy=privacy | {"over_silo_cap": "refuse"})
    # no other silo moves up: a record moves half a person's part
    alone = Gaussian(z * (1 if unit == "subject" else 2) * math.sqrt(7 / SILOS))
    together = bounded(Composed((alone, bare(promised, "silos:3"))))
    assert by_view(promised)["silos:3"].epsilon == pytest.approx(together)


CAPPED = ("subject-sgd", "uldp-naive", "dp-fedavg", "higrad")


@pytest.mark.parametrize(("name", "unit"), [(name, unit) for name in CAPPED for unit in METHODS[name].info.units])
def test_silos_have_no_guarantee_where_a_cap_over_silos_drops_their_records(name, unit):
    method = {"name": name, "noise_multiplier": SIGMA}
    sizes = {"records_per_silo": 40}
    caps = {"max_records_per_subject_and_silo": 2, "max_silos_per_subject": SILOS - 1, "against": ["silo", "silos:3"]}
    dropped = by_view(planned(method, {**caps, "unit": unit}, data=sizes))
    promised = by_view(planned(method, {**caps, "unit": unit, "over_silo_cap": "refuse"}, data=sizes))
    assert {guarantee.epsilon for guarantee in dropped.values()} == {math.inf}
    assert all(math.isfinite(guarantee.epsilon) for guarantee in promised.values())


@pytest.mark.parametrize(
    ("exchange", "method", "seen"),
    [
        ("shuffled", {"name": "ss-simple", "local_epsilon": 1.0}, ("shuffler", "shuffler+analyzer", "analyzer")),
        ("plain", {"name": "subject-sgd", "noise_multiplier": 5.0}, ("server", "server+silos:1")),
        ("pairwise", {"name": "dp-fedavg", "noise_multiplier": 5.0}, ("server", "server+silos:1")),
    ],
)
def test_parts_of_paid_sums_are_seen_where_they_are_not_masked(exchange, method, seen):
    """Ten silos, of which one holds a subject: its part has a tenth of the noise's variance."""
    columns = {f"x{i}": {"low": 0, "high": 1} for i in range(3)}
    data = {"label": "y", "standardize": "paid", "numeric": columns}
    privacy = {"statistics_noise_multiplier": 10.0, "max_silos_per_subject": 1, "over_silo_cap": "refuse"}
    promise = made_plan(method, silos=10, data=data, privacy=privacy, exchange={"name": exchange}).promise
    for view in seen:
        assert promise.once_event(promise.once[0], "subject", View.parse(view)) in (
            Gaussian(10 / 10**0.5),
            Gaussian(5 / 10**0.5),  # replaced
        )


def test_no_constants_of_a_silo_can_be_paid_for():
    found = by_view(planned(privacy={"unit": "silo", "against": ["public"]}, data=PAID))["public"]
    assert found.epsilon == math.inf
    assert "do not bound what one silo contributes" in found.assumptions[0]


def test_a_target_leaves_room_for_what_is_paid_for():
    plan = paying(method={"target_epsilon": 2.0}, privacy={"against": ["public", "server"]}, evaluation=METRICS)
    assert 1.98 < max(guarantee.epsilon for guarantee in plan.guarantees()) <= 2.0
    free = paying({"standardize": "declared"}, {"against": ["public", "server"]}, {"target_epsilon": 2.0})
    assert plan.noise_multiplier > free.noise_multiplier * 1.001
    with refuses("unreachable", "method.target_epsilon", names=["privacy.statistics_noise_multiplier"]):
        paying(method={"target_epsilon": 0.3}, privacy={"against": ["public"]})


@pytest.mark.parametrize(
    ("data", "evaluation", "apart"),
    [
        ({}, {}, True),
        ({}, {"data": "others.csv"}, False),
        ({"subjects": {"count": 1000}}, {}, False),
        ({"subjects": {"assign": "zipf", "count": 1000}}, {}, False),
    ],
)
def test_only_held_out_people_bear_the_larger_of_training_and_metrics(data, evaluation, apart):
    plan = paying(data, {"against": ["public"]}, evaluation=METRICS | evaluation)
    training, metrics = Composed((Gaussian(10.0), bare(plan, "public"))), Gaussian(6.0)
    expected = max(bounded(training), bounded(metrics)) if apart else bounded(Composed((training, metrics)))
    assert by_view(plan)["public"].epsilon == pytest.approx(expected)
    dear = paying(data, {"against": ["public"]}, evaluation=METRICS | evaluation | {"noise_multiplier": 0.2})
    expected = bounded(Gaussian(0.2)) if apart else bounded(Composed((training, Gaussian(0.2))))
    assert by_view(dear)["public"].epsilon == pytest.approx(expected)


def test_training_and_metrics_add_up_for_a_replaced_person():
    """A subject that is trained on may be replaced by one that is held out: both releases change."""
    method = {"name": "uldp-naive", "noise_multiplier": 2.0}
    privacy = {"unit": "subject", "relation": "replace", "against": ["public"]}
    plan = tacit.plan(
        {
            "data": {
                "source": "table",
                "path": "none.csv",
                "label": "y",
                "task": "real",
                "numeric": {"x": {"mean": 0, "scale": 1}},
                "subjects": {"column": "who", "count": 20},
                "silos": {"column": "silo", "count": 3},
            },
            "model": {"name": "linear"},
            "method": method,
            "train": {"rounds": 1},
            "privacy": privacy,
            "evaluation": {"status": "paid", "noise_multiplier": 2.0, "loss_bound": 1.0, "metrics": ["rmse"]},
        }
    )
    assert by_view(plan)["public"].epsilon > 4.983  # a pair of tables whose models and metrics are that far apart


def test_sources_with_a_split_of_their_own_hold_nobody_out_by_lot():
    heart = {"source": "heart", "standardize": "declared", "subjects": {}, "silos": {}, "numeric": None, "label": "y"}
    assert not paying(heart, evaluation=METRICS).evaluation.apart
    randhie = {**heart, "source": "randhie", "standardize": "paid", "label": "any_visit"}
    assert paying(randhie, evaluation=METRICS).evaluation.apart


def test_a_published_number_does_not_count_what_is_paid_for_beside_it():
    free, paid = (
        by_view(paying(data, {"against": ["public"]}))["public"].as_published
        for data in ({"standardize": "declared"}, None)
    )
    assert (free.valid, paid.valid) == ("yes", "only-if")
    assert "it does not cover the statistics" in paid.reason


def test_a_method_without_noise_promises_nothing_whatever_it_pays_for():
    plan = paying(method={"name": "fedavg"}, evaluation=METRICS)
    assert {guarantee.epsilon for guarantee in plan.guarantees()} == {math.inf}


@pytest.mark.parametrize(
    ("change", "code", "field"),
    [
        ({"data": {"numeric": {"age": {"low": 0}}}}, "missing", "data.numeric"),
        ({"data": {"numeric": None}}, "missing", "data.standardize"),
        ({"data": {"silos": {"column": "bank"}}, "method": {"name": "fedavg"}}, "missing", "data.silos.count"),
        (
            {"data": {"standardize": "declared"}, "privacy": {"statistics_noise_multiplier": 2.0}},
            "no-effect",
            "privacy.statistics_noise_multiplier",
        ),
        (
            {"privacy": {"statistics_noise_multiplier": 0.0}},
            "out-of-range",
            "privacy.statistics_noise_multiplier",
        ),
        ({"evaluation": {"status": "paid"}}, "missing", "evaluation.noise_multiplier"),
        ({"evaluation": {"noise_multiplier": 2.0}}, "no-effect", "evaluation.noise_multiplier"),
        (
            {"evaluation": {"data": "x.csv", "status": "public", "metrics": ["accuracy"]}},
            "no-effect",
            "evaluation.metrics",
        ),
        ({"evaluation": METRICS | {"metrics": ["auc"]}}, "unknown-name", "evaluation.metrics"),
        ({"evaluation": METRICS | {"metrics": ["acuracy"]}}, "unknown-name", "evaluation.metrics"),
        ({"evaluation": METRICS | {"metrics": ["accuracy"] * 2}}, "duplicate", "evaluation.metrics"),
        (
            {"data": {"task": "real"}, "model": {"name": "linear"}, "evaluation": METRICS},
            "missing",
            "evaluation.loss_bound",
        ),
    ],
)
def test_what_cannot_be_paid_for_is_refused_with_the_field(change, code, field):
    with refuses(code, field):
        paying(**change)


def test_what_is_no_table_has_no_constants_to_pay_for():
    data = {"source": "mnist", "silos": {"assign": "uniform", "count": 3}, "standardize": "paid"}
    with refuses("not-supported", "data.standardize", names=["private", "mnist"]):
        tacit.plan({"data": data, "method": {"name": "fedavg"}})


def test_events_of_a_whole_run_are_given_for_everybody_and_to_everybody():
    plan = paying(evaluation=METRICS, privacy={"against": ["public"]})
    whole = plan.events()
    assert set(whole) == set(events(plan.promise))
    assert bounded(whole[place("subject", View("public"), "zero-out")]) == by_view(plan)["public"].epsilon


def test_what_was_read_from_the_table_makes_every_guarantee_conditional():
    names = ("data.subjects.count", "data.silos.count")
    plan = planned(data={"from_this_table": names})
    assert plan.from_this_table == names
    assert {found.as_dict()["valid"] for found in plan.guarantees() if found.finite} == {"only-if"}
    assert all(name in found.assumptions[0] for found in plan.guarantees() if found.finite for name in names)
    assert planned().from_this_table == ()
    assert {found.valid for found in planned().guarantees()} == {"yes"}
    with refuses("unknown-name", "data.from_this_table", names=["data.categorical"]):
        planned(data={"from_this_table": ["data.categorical"]})
