"""What a plan promises: noise for a target, units, relations, views, and the reasons where nothing can be promised."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import pytest

import tacit
from tacit.config import Plan
from tacit.engine.charges import events
from tacit.errors import Forbidden, UserError
from tacit.privacy import (
    UNITS,
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

DELTA = 1e-5
SILOS, ROUNDS, SIGMA = 10, 20, 3.0


def planned(method: dict[str, Any] | None = None, privacy: dict[str, Any] | None = None, **more: Any) -> Plan:
    """A plan of DP-FedAvg over ten silos; without a noise_multiplier where ``method`` names a target."""
    numbers = {"name": "dp-fedavg", **({"noise_multiplier": SIGMA} if method is None else {}), **(method or {})}
    data = {"source": "table", "path": "nowhere.csv", "label": "y", **more.pop("data", {})}
    silos = {"column": "bank", "count": SILOS}
    return tacit.plan(
        {
            "data": {**data, "silos": silos, "subjects": {"column": "person"}},
            "method": numbers,
            "train": {"rounds": ROUNDS},
            "privacy": {"delta": DELTA, **(privacy or {})},
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
    privacy = {"unit": unit, "against": against, "max_silos_per_subject": 3}
    plan = planned({"target_epsilon": target, "silo_sample_rate": rate}, privacy)
    found = by_view(plan)
    assert list(found) == against
    assert all(0 < guarantee.epsilon <= target for guarantee in found.values())
    less = planned({"noise_multiplier": plan.noise_multiplier / 1.01, "silo_sample_rate": rate}, privacy)
    assert max(guarantee.epsilon for guarantee in less.guarantees()) > target


def test_a_target_binds_the_views_that_are_asked_for_and_a_view_that_no_noise_helps_is_named():
    assert by_view(planned({"target_epsilon": 2.0}))["server"].epsilon == math.inf  # trusted, so not asked for
    with pytest.raises(UserError, match=r"method.target_epsilon: no noise protects a silo from view 'server'.*public"):
        planned({"target_epsilon": 2.0}, {"against": ["public", "server"]})
    with pytest.raises(Forbidden, match=r"privacy.budget: .*infinite.*server"):
        planned(privacy={"against": ["public", "server"], "budget": 5.0})


def test_the_noise_is_given_once_and_only_once():
    with pytest.raises(UserError, match=r"method.target_epsilon: .*together with noise_multiplier"):
        planned({"noise_multiplier": 1.0, "target_epsilon": 1.0})
    with pytest.raises(UserError, match=r"method.noise_multiplier: .*neither noise_multiplier nor target_epsilon"):
        planned({})


@pytest.mark.parametrize(
    ("key", "value"),
    [("noise_multiplier", -1.0), ("noise_multiplier", math.nan), ("target_epsilon", 0.0), ("target_epsilon", math.inf)],
)
def test_noise_and_targets_that_make_no_sense_are_refused_by_name(key, value):
    with pytest.raises(UserError, match=rf"method.{key}"):
        planned({key: value})


def test_max_grad_norm_is_another_name_of_clip():
    numbers = {"noise_multiplier": SIGMA}
    assert planned({"max_grad_norm": 0.3, **numbers}).method == planned({"clip": 0.3, **numbers}).method
    with pytest.raises(UserError, match=r"method.max_grad_norm: .*clip"):
        planned({"max_grad_norm": 0.3, "clip": 0.3, **numbers})


# -- who is protected from whom ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [1.0, 0.3])
@pytest.mark.parametrize("relation", ["zero-out", "replace"])
@pytest.mark.parametrize("unit", ["silo", "subject", "record"])
def test_units_and_relations_of_dp_fedavg(unit, relation, rate):
    """A zeroed silo moves the sum by C. Anything less than a silo, or a replaced one, turns an upload around: 2 C in
    each of a subject's silos, old and new, which are sampled in both worlds: less is gained by that."""
    method = {"noise_multiplier": SIGMA, "silo_sample_rate": rate}
    plan = planned(method, {"unit": unit, "relation": relation, "max_silos_per_subject": 4})
    moved = {("subject", "zero-out"): 4, ("subject", "replace"): 8}.get((unit, relation), 1)
    turned, somewhere = Gaussian(SIGMA / (2 * moved)), 1 - (1 - rate) ** moved
    expected = epsilon(turned)
    if (unit, relation) == ("silo", "zero-out"):
        expected = epsilon(PoissonSampled(rate, Gaussian(SIGMA)))
    elif rate < 1:
        expected = epsilon(SampledWithoutReplacement(math.ceil(somewhere * 1e9), 10**9, turned))
    found = by_view(plan)
    for view in ("public", "silo"):
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


@pytest.mark.parametrize("view", ["shuffler", "neighbour", "coalition:[a,b]"])
def test_views_that_an_exchange_does_not_have_are_refused(view):
    with pytest.raises(UserError, match=r"privacy.against: the plain exchange has no view"):
        planned(privacy={"against": [view]})


def test_a_missing_number_of_silos_is_named():
    with pytest.raises(UserError, match=r"data.silos.count: is missing"):
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
    with pytest.raises(UserError, match=r"method.target_epsilon: no noise protects .*per-silo"):
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
    views = ("public", "server", "silo", "silos:2")
    found = events(planned(privacy={"unit": "subject", "relation": "replace", "against": ["silos:2"]}).promise)
    places = product(UNITS, views, ("zero-out", "replace"))
    assert found.keys() == {place(unit, View.parse(view), relation) for unit, view, relation in places}
    assert found["silo/public/zero-out"] == PoissonSampled(1.0, Gaussian(SIGMA))
    assert found["silo/public/replace"] == Gaussian(SIGMA / 2)
