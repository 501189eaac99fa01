"""What cannot be promised or computed is refused at plan time, with the field that would mend it."""

from __future__ import annotations

import pytest

from tacit.errors import UserError
from tacit.methods import METHODS
from tacit.privacy.proofs.weight_tables import RECORD_WEIGHTS
from tests.methods.worlds import planned
from tests.refusals import refuses

NOISE = {"noise_multiplier": 2.0}


def refused(method: dict, **sections) -> UserError:
    with pytest.raises(UserError) as found:
        planned({**NOISE, **method}, **sections)
    return found.value


MISSING = [
    ("local-record", {"data": {"records_per_silo": None}}, "data.records_per_silo"),
    ("higrad", {"data": {"records_per_silo": None}}, "data.records_per_silo"),
    ("user-ldp", {"data": {"records_per_silo": None}}, "data.records_per_silo"),
    ("central-group", {"data": {"records_per_silo": None}}, "data.records_per_silo"),
    ("uldp-group", {"data": {"records_per_silo": None}}, "data.records_per_silo"),
    ("higrad", {"privacy": {"max_records_per_subject_and_silo": None}}, "privacy.max_records_per_subject_and_silo"),
    (
        "local-group",
        {"privacy": {"max_records_per_subject_and_silo": None}},
        "privacy.max_records_per_subject_and_silo",
    ),
    (
        "central-group",
        {"privacy": {"max_records_per_subject_and_silo": None}},
        "privacy.max_records_per_subject_and_silo",
    ),
    ("subject-sgd", {"data": {"subjects": {"column": "person"}}}, "data.subjects.count"),
    ("uldp-avg", {"data": {"subjects": {"column": "person"}}}, "data.subjects.count"),
    ("uldp-naive", {"data": {"silos": {"column": "silo"}}}, "data.silos.count"),
    ("dp-fedavg", {"data": {"silos": {"column": "silo"}}}, "data.silos.count"),
    ("subject-sgd", {"data": {"silos": {"column": "silo"}}}, "data.silos.count"),
]


@pytest.mark.parametrize(("name", "sections", "field"), MISSING)
def test_a_missing_public_fact_is_named(name, sections, field):
    found = refused({"name": name}, **sections)
    assert (found.code, found.field) == ("missing", field)


def test_a_fact_that_only_another_unit_needs_is_not_asked_for():
    caps = {"max_records_per_subject_and_silo": None, "unit": "record"}
    assert planned({"name": "higrad", **NOISE}, privacy=caps).guarantees()


@pytest.mark.parametrize("name", ["local-record", "user-ldp", "uldp-group", "pooled-dp-sgd"])
def test_a_list_of_rates_needs_one_for_every_silo(name):
    found = refused({"name": name, "sample_rate": [0.1, 0.2, 0.3]}, silos=2)
    assert (found.code, found.field) == ("mismatch", "method.sample_rate")


@pytest.mark.parametrize("name", ["uldp-avg", "uldp-sgd"])
@pytest.mark.parametrize("weights", RECORD_WEIGHTS)
def test_record_weights_tell_counts_and_are_refused_unless_that_is_accepted(name, weights):
    method = {"name": name, "weights": weights, **({"weight_cap": 5} if weights == "records-capped" else {})}
    found = refused(method)
    assert (found.code, found.field) == ("not-supported", "method.weights")
    plan = planned({**method, "disclose_counts": True, **NOISE})
    assert {str(g.view): g.finite for g in plan.guarantees()} == {"public": True, "server": False, "silo": False}


@pytest.mark.parametrize("weights", ["uniform", "capped", "records", "records-sqrt", "records-capped"])
def test_paillier_carries_weights_with_a_phantom_record_and_no_others(weights):
    found = refused({"name": "uldp-avg", "weights": weights}, exchange={"name": "weighted", "protocol": "paillier"})
    assert (found.code, found.field) == ("not-supported", "method.weights")
    assert "records-phantom" in found.fix


@pytest.mark.parametrize(
    ("numbers", "caps", "code", "field"),
    [
        ({"weights": "records-capped"}, {}, "missing", "method.weight_cap"),
        ({"weights": "records", "weight_cap": 5}, {}, "no-effect", "method.weight_cap"),
        (
            {"weights": "records-sqrt"},
            {"max_records_per_subject_and_silo": None},
            "missing",
            "privacy.max_records_per_subject_and_silo",
        ),
    ],
)
def test_weights_need_the_numbers_of_their_formula_and_no_others(numbers, caps, code, field):
    found = refused({"name": "uldp-sgd", "disclose_counts": True, **numbers}, privacy=caps)
    assert (found.code, found.field) == (code, field)


SURVIVAL = {"data": {"label": {"time": "t", "event": "e"}, "task": "survival"}, "model": {"name": "cox"}}


@pytest.mark.parametrize(
    ("method", "field"),
    [
        *(({"name": name}, "method.name") for name in ("local-record", "local-group", "higrad")),
        *(({"name": name}, "method.name") for name in ("central-group", "pooled-dp-sgd", "uldp-group")),
        ({"name": "subject-sgd", "clip_first": True}, "method.clip_first"),
        ({"name": "uldp-avg", "batch_size": 8}, "method.batch_size"),
    ],
)
def test_cox_has_no_per_record_gradient(method, field):
    found = refused(method, **SURVIVAL)
    assert (found.code, found.field) == ("not-supported", field)


@pytest.mark.parametrize("name", ["user-ldp", "uldp-avg", "uldp-sgd", "subject-sgd", "dp-fedavg", "uldp-naive"])
def test_cox_goes_with_whatever_takes_people_or_silos_together(name):
    assert planned({"name": name, **NOISE}, **SURVIVAL).guarantees()


@pytest.mark.parametrize(
    ("name", "unit"),
    [("local-record", "silo"), ("higrad", "silo"), ("subject-sgd", "silo"), ("central-group", "silo")],
)
def test_a_unit_that_a_method_does_not_bound_is_refused(name, unit):
    assert refused({"name": name}, privacy={"unit": unit}).field == "privacy.unit"


def test_noise_is_given_once():
    assert refused({"name": "higrad", "target_epsilon": 2.0}).field == "method.target_epsilon"
    with refuses("missing", "method.noise_multiplier"):
        planned({"name": "higrad"})


@pytest.mark.parametrize(
    ("numbers", "field"),
    [
        ({"noise_multiplier": -1.0}, "method.noise_multiplier"),
        ({"clip": 0}, "method.clip"),
        ({"clip": float("nan")}, "method.clip"),
        ({"clip": 1e-20}, "method.clip"),  # squares of what is clipped would vanish, and the bound would not hold
        ({"clip": 1e20}, "method.clip"),
        ({"sample_rate": 0}, "method.sample_rate"),
        ({"sample_rate": 1.5}, "method.sample_rate"),
        ({"group_cap": 0}, "method.group_cap"),
        ({"adaptive_clip": {"count_noise": 0}}, "method.adaptive_clip.count_noise"),
        ({"adaptive_clip": {"quantile": 0}}, "method.adaptive_clip.quantile"),
        ({"noise": "as-published", "adaptive_clip": {}}, "method.adaptive_clip"),
    ],
)
def test_numbers_without_meaning_are_refused(numbers, field):
    assert refused({"name": "local-group", **numbers}).field == field


def test_a_target_against_a_view_that_no_noise_protects_from_is_refused():
    with refuses("unreachable", "method.target_epsilon", names=["'server'"]):
        planned({"name": "dp-fedavg", "target_epsilon": 2.0}, privacy={"against": ["public", "server"]})


def test_a_published_target_needs_a_published_accounting():
    with refuses("unreachable", "method.target_epsilon"):
        planned({"name": "dp-fedavg", "target_epsilon": 2.0}, privacy={"target": "as-published"})


def test_data_that_silos_standardise_themselves_are_promised_nothing():
    plan = planned({"name": "subject-sgd", **NOISE}, data={"standardize": "per-silo"})
    assert not any(g.finite for g in plan.guarantees())


def test_statistics_of_the_data_as_group_size_prove_nothing():
    for size in ("max", "median"):
        plan = planned({"name": "uldp-group", "group_size": size, **NOISE})
        assert not any(g.finite for g in plan.guarantees())
        assert size in plan.guarantees()[0].assumptions[0]


def test_every_private_method_is_planned_without_data():
    for name, kind in METHODS.items():
        if kind.noise_key == "noise_multiplier":
            assert planned({"name": name, **NOISE}).guarantees()
