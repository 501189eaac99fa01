"""Properties of the accountants: never below the truth, monotone, indifferent to order, and never NaN."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.privacy.accounting.account import account, attack_limits, delta_of, delta_profile
from tacit.privacy.accounting.canonical_form import canonical
from tacit.privacy.accounting.event_losses import losses_of
from tacit.privacy.accounting.events import (
    Composed,
    DiscreteGaussian,
    Event,
    Gaussian,
    GaussianMixture,
    Laplace,
    Largest,
    Nothing,
    PoissonSampled,
    Pure,
    RandomizedResponse,
    RandomWalk,
    Repeated,
    SampledWithoutReplacement,
    Selected,
    ShuffledReports,
    Unprotected,
    event_from_dict,
)
from tacit.privacy.accounting.gaussian import gaussian_epsilon
from tacit.privacy.accounting.pld import composed_delta, composed_epsilon
from tacit.privacy.accounting.rdp import ORDERS, event_rdp, without_replacement
from tacit.privacy.invalid import InvalidArgument
from tacit.privacy.proofs.subject_events import summed_records
from tests.refusals import refuses

from .hockeystick import one_step_delta, two_step_delta

FEW = settings(max_examples=10, deadline=None)
SLACK = 1 + 5e-3  # the grid's tolerance: two bounds may differ by it without being out of order

noises = st.floats(0.4, 20.0)
rates = st.floats(0.001, 0.999)
deltas = st.floats(-9.0, -2.0).map(lambda exponent: 10.0**exponent)
rounds = st.integers(1, 2000)


def poisson(rate: float, noise: float, times: int) -> Event:
    return Repeated(PoissonSampled(rate, Gaussian(noise)), times)


@st.composite
def mixtures(draw: st.DrawFn) -> GaussianMixture:
    count = draw(st.integers(1, 4))
    shifts = draw(st.lists(st.floats(0.1, 4.0), min_size=count, max_size=count))
    weights = np.array(draw(st.lists(st.floats(0.02, 1.0), min_size=count + 1, max_size=count + 1)))
    weights /= weights.sum()
    return GaussianMixture(draw(st.floats(0.5, 4.0)), (0.0, *shifts), tuple(map(float, weights)))


simple_events = st.one_of(
    st.builds(poisson, rates, noises, rounds),
    st.builds(Gaussian, noises),
    st.builds(Laplace, st.floats(0.5, 20.0)),
    st.builds(RandomizedResponse, st.floats(0.01, 3.0), st.integers(2, 6)),
    st.builds(Pure, st.floats(0.01, 2.0)),
    st.builds(DiscreteGaussian, st.floats(2.0, 40.0), st.integers(1, 3)),
    mixtures(),
    st.just(Nothing()),
)


@FEW
@given(mixtures(), st.floats(0.0, 4.0))
def test_proved_delta_is_never_below_the_integral_of_the_exact_pair(event: GaussianMixture, epsilon: float) -> None:
    exact = one_step_delta(event, epsilon)
    proved = delta_of(event, epsilon)
    assert proved >= exact * (1 - 1e-6) - 1e-13
    assert proved <= exact * 1.02 + 1e-9


@FEW
@given(rates, st.floats(0.4, 5.0), st.floats(0.0, 3.0))
def test_one_sampled_step_is_never_below_the_integral(rate: float, noise: float, epsilon: float) -> None:
    pair = GaussianMixture(noise, (0.0, 1.0), (1 - rate, rate))
    exact = one_step_delta(pair, epsilon)
    proved = delta_of(PoissonSampled(rate, Gaussian(noise)), epsilon)
    assert exact * (1 - 1e-6) - 1e-13 <= proved <= exact * 1.02 + 1e-9


@settings(max_examples=5, deadline=None)
@given(mixtures(), mixtures(), st.floats(0.0, 2.0))
def test_two_steps_are_never_below_the_double_integral(one: GaussianMixture, two: GaussianMixture, eps: float) -> None:
    exact = two_step_delta(one, two, eps)
    proved = delta_of(Composed((one, two)), eps)
    assert proved >= exact * (1 - 1e-4) - 1e-9
    assert proved <= exact * 1.03 + 1e-7


@FEW
@given(st.lists(st.tuples(noises, st.integers(1, 50)), min_size=1, max_size=4), deltas)
def test_composed_gaussians_by_their_loss_distributions_are_just_above_the_exact_value(
    parts: list[tuple[float, int]], delta: float
) -> None:
    mu = math.sqrt(sum(count / noise**2 for noise, count in parts))
    releases = sum(count for _, count in parts)
    grid = mu / math.sqrt(releases) / 24
    tables = [(losses_of(Gaussian(noise), grid).remove, count) for noise, count in parts]
    exact = gaussian_epsilon(mu, delta)
    assert exact * (1 - 1e-9) <= composed_epsilon(tables, delta) <= exact * 1.02 + 1e-4
    together = Composed(tuple(Repeated(Gaussian(noise), count) for noise, count in parts))
    assert account(together, delta).epsilon == pytest.approx(exact, rel=1e-9, abs=1e-12)


@FEW
@given(rates, noises, rounds, deltas, st.floats(1.05, 3.0))
def test_epsilon_falls_with_noise_and_delta_and_grows_with_rounds_and_rate(
    rate: float, noise: float, times: int, delta: float, factor: float
) -> None:
    here = account(poisson(rate, noise, times), delta).epsilon
    assert account(poisson(rate, noise * factor, times), delta).epsilon <= here * SLACK + 1e-9
    assert account(poisson(rate, noise, times), min(1.0, delta * factor)).epsilon <= here * SLACK + 1e-9
    assert account(poisson(rate, noise, math.ceil(times * factor)), delta).epsilon * SLACK + 1e-9 >= here
    assert account(poisson(min(1.0, rate * factor), noise, times), delta).epsilon * SLACK + 1e-9 >= here


@FEW
@given(st.floats(0.001, 0.2), st.integers(1, 12), st.floats(0.8, 8.0), st.integers(1, 300))
def test_epsilon_grows_with_the_group(rate: float, group: int, noise: float, times: int) -> None:
    smaller = account(summed_records(rate, group, noise, times), 1e-5).epsilon
    larger = account(summed_records(rate, group + 3, noise, times), 1e-5).epsilon
    assert smaller <= larger * SLACK + 1e-9


@FEW
@given(st.lists(simple_events, min_size=2, max_size=4), st.randoms(use_true_random=False), deltas)
def test_order_and_grouping_of_a_composition_do_not_matter(events: list[Event], shuffler: object, delta: float) -> None:
    mixed = list(events)
    shuffler.shuffle(mixed)  # type: ignore[attr-defined]
    one = account(Composed(tuple(events)), delta)
    nested = Composed((mixed[0], Composed(tuple(mixed[1:]))))
    assert one == account(nested, delta)
    assert account(Repeated(Composed(tuple(events)), 2), delta) == account(Composed((*events, *mixed)), delta)


@FEW
@given(st.lists(simple_events, min_size=1, max_size=3), deltas)
def test_the_printed_value_is_the_smallest_of_its_parts(events: list[Event], delta: float) -> None:
    bound = account(Composed(tuple(events)), delta)
    assert bound.epsilon == max(0.0, min(bound.parts.values()))
    assert bound.epsilon == max(0.0, bound.parts[bound.accountant])
    assert all(value >= 0 and not math.isnan(value) for value in bound.parts.values())


@FEW
@given(st.lists(simple_events, min_size=1, max_size=3))
def test_events_survive_a_ledger(events: list[Event]) -> None:
    event = Composed((Largest(tuple(events)), *events))
    assert event_from_dict(event.as_dict()) == event


# -- edges -------------------------------------------------------------------------------------------------------------


def test_nothing_costs_nothing_and_no_noise_costs_everything() -> None:
    for free in (
        Nothing(),
        Gaussian(math.inf),
        Laplace(math.inf),
        PoissonSampled(0.0, Gaussian(0.1)),
        Repeated(Gaussian(1.0), 0),
        Composed(()),
        Largest(()),
        Pure(0.0),
        SampledWithoutReplacement(0, 10, Gaussian(1.0)),
        GaussianMixture(1.0, (0.0,), (1.0,)),
        RandomizedResponse(2.0, levels=1),
    ):
        assert account(free, 1e-5).epsilon == 0.0
        assert account(free, 0.0).epsilon == 0.0
        assert delta_of(free, 0.0) == 0.0
    for open_ in (
        Unprotected("plain"),
        Gaussian(0.0),
        Laplace(0.0),
        DiscreteGaussian(0.0),
        Pure(math.inf),
        PoissonSampled(0.1, Gaussian(0.0)),
        Composed((Gaussian(1.0), Unprotected("x"))),
        Largest((Gaussian(1.0), Unprotected("x"))),
        Repeated(Largest((Gaussian(1.0), Unprotected("x"))), 3),
        GaussianMixture(0.0, (0.0, 1.0), (0.9, 0.1)),
        Gaussian(1e-200),
    ):
        assert account(open_, 1e-5).epsilon == math.inf
        assert delta_of(open_, 10.0) == 1.0


def test_a_rate_of_one_is_no_sampling() -> None:
    assert account(PoissonSampled(1.0, Gaussian(2.0)), 1e-5) == account(Gaussian(2.0), 1e-5)
    whole = SampledWithoutReplacement(10, 10, Gaussian(2.0))
    assert account(whole, 1e-5) == account(Gaussian(2.0), 1e-5)


def test_delta_zero_needs_pure_privacy_and_delta_one_needs_nothing() -> None:
    assert account(Repeated(Laplace(2.0), 4), 0.0).epsilon == pytest.approx(2.0)
    assert account(Composed((Laplace(2.0), Gaussian(9.0))), 0.0).epsilon == math.inf
    assert account(Gaussian(0.001), 1.0).epsilon == 0.0
    assert account(Gaussian(0.001), 7.0).epsilon == 0.0
    assert account(PoissonSampled(0.5, Pure(1.0)), 0.0).epsilon == pytest.approx(math.log1p(0.5 * math.expm1(1.0)))


@pytest.mark.parametrize(
    "event",
    [
        poisson(0.01, 1000.0, 10),
        poisson(0.5, 0.01, 1000),
        poisson(1e-3, 1.0, 10**6),
        poisson(1e-9, 0.5, 10**6),
        poisson(0.999999, 3.0, 5),
        poisson(0.01, 1e-4, 3),
        poisson(0.1, 1e6, 10**6),
        Repeated(Gaussian(1e4), 10**6),
        Repeated(Pure(1000.0), 7),
        Repeated(Pure(1e-4), 10**6),
        Repeated(Laplace(1e-3), 50),
        summed_records(0.01, 1, 2.0, 100),
        summed_records(0.01, 5000, 5.0, 1000),
        summed_records(0.01, 5000, 500.0, 100),
        Repeated(SampledWithoutReplacement(1, 10**6, Gaussian(0.01)), 10),
        DiscreteGaussian(1e9, 1000),
    ],
    ids=str,
)
@pytest.mark.parametrize("delta", [0.0, 1e-300, 1e-12, 1e-5, 0.3, 1.0])
def test_extreme_numbers_give_a_number_or_infinity(event: Event, delta: float) -> None:
    bound = account(event, delta)
    assert bound.epsilon >= 0.0
    assert not any(math.isnan(value) for value in bound.parts.values())
    if delta >= 1e-12:
        assert math.isfinite(bound.epsilon)


@pytest.mark.parametrize("epsilon", [0.0, 0.01, 1.0, 1000.0, math.inf])
def test_deltas_are_probabilities(epsilon: float) -> None:
    for event in (poisson(0.01, 1.0, 1000), poisson(0.5, 0.01, 3), summed_records(0.01, 50, 5.0, 100), Laplace(0.1)):
        assert 0.0 <= delta_of(event, epsilon) <= 1.0


def test_impossible_numbers_are_refused() -> None:
    for wrong, code, field in (
        (Gaussian(-1.0), "out-of-range", "noise_multiplier"),
        (Gaussian(math.nan), "out-of-range", "noise_multiplier"),
        (PoissonSampled(1.5, Gaussian(1.0)), "out-of-range", "rate"),
        (Repeated(Gaussian(1.0), -1), "out-of-range", "count"),
        (GaussianMixture(1.0, (0.0, 1.0), (0.9, 0.2)), "out-of-range", "probabilities"),
        (GaussianMixture(1.0, (0.0, 1.0), (0.9,)), "wrong-length", "probabilities"),
        (SampledWithoutReplacement(11, 10, Gaussian(1.0)), "out-of-range", "size"),
    ):
        with refuses(code, field, InvalidArgument):
            account(wrong, 1e-5)
    with refuses("out-of-range", "delta", InvalidArgument):
        account(Gaussian(1.0), math.nan)


def test_large_batches_without_replacement_are_no_worse_than_unsampled() -> None:
    nearly_all = Repeated(SampledWithoutReplacement(99, 100, Gaussian(4.0)), 30)
    bound = account(nearly_all, 1e-5)
    assert bound.epsilon <= account(Repeated(Gaussian(4.0), 30), 1e-5).epsilon == bound.parts["unsampled"]
    assert delta_of(nearly_all, 5.0) <= delta_of(Repeated(Gaussian(4.0), 30), 5.0)


def test_a_reason_is_kept_word_for_word() -> None:
    assert event_from_dict(Unprotected("inf").as_dict()) == Unprotected("inf")
    assert event_from_dict(Gaussian(math.inf).as_dict()) == Gaussian(math.inf)


def test_probability_missing_from_a_mixture_of_many_is_not_dropped_as_rounding() -> None:
    amounts = np.arange(1, 4001) * 1e-6
    # 1000 times 3.9e-12 is more than delta: the largest sensitivity must show
    short = GaussianMixture(1.0, (*amounts, 1000.0), (*np.full(4000, (1 - 3.9e-12) / 4000), 0.0))
    assert account(Repeated(short, 1000), 1e-9).epsilon > 4e5
    # and a sum of 1 up to rounding has nothing missing
    whole = GaussianMixture(1.0, (*amounts, 1000.0), (*np.full(4000, 1 / 4000), 0.0))
    assert account(Repeated(whole, 1000), 1e-9).epsilon < 1


def test_probabilities_above_one_are_taken_from_the_smallest_sensitivities() -> None:
    given_ = GaussianMixture(1.0, (0.0, 1.0, 2.0), (0.2, 0.3, 0.5 + 5e-10))
    ((kept, _),) = canonical(given_).parts
    assert isinstance(kept, GaussianMixture)
    assert kept.probabilities == pytest.approx((0.2 - 5e-10, 0.3, 0.5 + 5e-10), abs=1e-15)
    assert math.fsum(kept.probabilities) == pytest.approx(1, abs=1e-15)
    small = GaussianMixture(1.0, (0.0, 1.0, 2.0), (1e-10, 1e-10, 1.0))
    assert canonical(small) == canonical(Gaussian(0.5))


def test_sampling_does_not_amplify_what_is_known_under_replacement_only() -> None:
    assert account(PoissonSampled(0.01, ShuffledReports(4.0, 2)), 1e-6).epsilon >= 3.9
    assert account(PoissonSampled(0.01, ShuffledReports(4.0, 2)), 0.0).epsilon == 4
    best = Selected(ShuffledReports(4.0, 2), 3.0)
    assert account(PoissonSampled(0.01, best), 0.0).epsilon == account(best, 0.0).epsilon


def test_probability_missing_from_a_mixture_goes_to_the_largest_sensitivity() -> None:
    truncated = GaussianMixture(2.0, (0.0, 1.0, 5.0), (0.9, 0.09, 0.0))
    full = GaussianMixture(2.0, (0.0, 1.0, 5.0), (0.9, 0.09, 0.01))
    assert account(truncated, 1e-5).epsilon == pytest.approx(account(full, 1e-5).epsilon, rel=1e-6)


# -- the worst of several ----------------------------------------------------------------------------------------------


def test_largest_is_the_worst_member_and_dominated_members_are_dropped() -> None:
    weak, strong = poisson(0.01, 1.0, 100), poisson(0.02, 1.0, 200)
    assert account(Largest((weak, strong)), 1e-5).epsilon == account(strong, 1e-5).epsilon
    inside = Composed((Largest((weak, strong)), Gaussian(3.0)))
    assert account(inside, 1e-5) == account(Composed((strong, Gaussian(3.0))), 1e-5)


def test_incomparable_members_inside_a_composition_are_covered_whichever_took_place() -> None:
    rare, noisy = PoissonSampled(0.01, Gaussian(0.7)), PoissonSampled(0.3, Gaussian(8.0))
    both = account(Repeated(Largest((rare, noisy)), 50), 1e-5)
    for first in (0, 20, 50):
        chosen = Composed((Repeated(rare, first), Repeated(noisy, 50 - first)))
        assert both.epsilon >= account(chosen, 1e-5).epsilon


def test_parts_that_only_renyi_accounting_knows_are_added_to_the_others() -> None:
    walk = RandomWalk(100, 50, 20.0)
    bound = account(Composed((walk, poisson(0.01, 1.0, 100))), 1e-5)
    assert set(bound.parts) == {"simple", "rdp", "split"}
    assert bound.epsilon < account(walk, 5e-6).epsilon + account(poisson(0.01, 1.0, 100), 5e-6).epsilon + 1e-9


# -- against dp-accounting ---------------------------------------------------------------------------------------------


def test_loss_distributions_agree_with_dp_accounting() -> None:
    from dp_accounting.pld import privacy_loss_distribution as oracle

    cases = [
        (PoissonSampled(0.02, Gaussian(1.0)), oracle.from_gaussian_mechanism(1.0, sampling_prob=0.02), 300),
        (Laplace(4.0), oracle.from_laplace_mechanism(4.0), 60),
        (DiscreteGaussian(8.0, 2), oracle.from_discrete_gaussian_mechanism(8.0, 2), 60),
        (PoissonSampled(0.1, Laplace(1.0)), oracle.from_laplace_mechanism(1.0, sampling_prob=0.1), 60),
        (RandomizedResponse(0.3, 3), oracle.from_randomized_response(3 / (math.exp(0.3) + 2), 3), 60),
    ]
    for event, distribution, times in cases:
        composed = distribution.self_compose(times)
        for delta in (1e-3, 1e-6):
            expected = composed.get_epsilon_for_delta(delta)
            assert account(Repeated(event, times), delta).epsilon == pytest.approx(expected, rel=4e-3)


@pytest.mark.parametrize(("rate", "noise", "times"), [(0.01, 1.0, 500), (0.2, 2.0, 50), (0.005, 0.8, 300)])
def test_compositions_are_never_below_the_optimistic_distribution_of_dp_accounting(
    rate: float, noise: float, times: int
) -> None:
    from dp_accounting.pld import privacy_loss_distribution as oracle

    lower = oracle.from_gaussian_mechanism(
        noise,
        pessimistic_estimate=False,
        value_discretization_interval=1e-4,
        sampling_prob=rate,
        use_connect_dots=False,
    ).self_compose(times)
    for delta in (1e-4, 1e-7):
        assert account(poisson(rate, noise, times), delta).epsilon >= lower.get_epsilon_for_delta(delta)


def test_shuffled_reports_and_random_walks_are_accounted_for() -> None:
    shuffled = account(ShuffledReports(4.0, 10**5), 1e-6)
    assert 0.1675 <= shuffled.epsilon <= 0.1728
    assert account(ShuffledReports(4.0, 1), 1e-6).epsilon == pytest.approx(4.0, rel=1e-3)
    known = account(ShuffledReports(0.5, 333, randomizer="response", levels=4), 1e-6)
    assert known.accountant == "blanket"
    assert known.epsilon < known.parts["pld"]
    # the walk is known to Renyi accounting only, the shuffle to loss distributions only: their bounds are added
    walk = RandomWalk(200, 2000, 1.0)
    assert account(walk, 1e-6).epsilon == pytest.approx(8.04, abs=5e-3)
    both = account(Composed((walk, ShuffledReports(4.0, 10**5))), 2e-6)
    assert both.accountant == "split"
    assert both.epsilon == pytest.approx(account(walk, 1e-6).epsilon + shuffled.epsilon, rel=1e-6)


def test_renyi_divergences_agree_with_dp_accounting() -> None:
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    orders = np.array([2.0, 3.0, 5.0, 8.0, 17.0, 40.0, 100.0])
    replace = dp_accounting.NeighboringRelation.REPLACE_ONE
    for rate, noise in ((0.01, 1.0), (0.2, 3.0), (0.9, 0.8)):
        poisson_oracle = RdpAccountant(orders.tolist())
        poisson_oracle.compose(dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise)))
        ((event, _),) = canonical(PoissonSampled(rate, Gaussian(noise))).parts
        assert event_rdp(event, orders) == pytest.approx(poisson_oracle.rdp, rel=1e-9)
        fixed_oracle = RdpAccountant(orders.tolist(), replace)
        fixed_oracle.compose(
            dp_accounting.SampledWithoutReplacementDpEvent(
                1000, round(1000 * rate), dp_accounting.GaussianDpEvent(noise)
            )
        )
        assert without_replacement(rate, noise, orders) == pytest.approx(fixed_oracle.rdp, rel=1e-8)
    laplace_oracle = RdpAccountant(orders.tolist())
    laplace_oracle.compose(dp_accounting.LaplaceDpEvent(2.0))
    assert event_rdp(Laplace(2.0), orders) == pytest.approx(laplace_oracle.rdp, rel=1e-9)


def test_renyi_of_a_mixture_equals_direct_integration() -> None:
    from scipy.integrate import quad

    event = GaussianMixture(1.0, (0.0, 0.5, 1.5), (0.7, 0.2, 0.1))

    def ratio(x: float) -> float:
        pairs = zip(event.sensitivities, event.probabilities, strict=True)
        return sum(weight * math.exp(shift * x - shift**2 / 2) for shift, weight in pairs)

    for order in (1.5, 2.0, 6.3):
        present, _ = quad(lambda x, a=order: ratio(x) ** a * math.exp(-x * x / 2), -15, 25, limit=400)
        value = math.log(present / math.sqrt(2 * math.pi)) / (order - 1)
        assert event_rdp(event, np.array([order]))[0] == pytest.approx(value, rel=1e-7)


def test_a_split_of_laplace_noise_over_coordinates_is_dominated_by_one_coordinate() -> None:
    # the proof is in discrete_losses; here the product of two shifts against the whole, on a fine common grid
    one, other, whole = (losses_of(Laplace(noise), 1e-3).remove for noise in (1 / 0.3, 1 / 0.7, 1.0))
    for epsilon in np.linspace(0.0, 0.95, 8):
        split = composed_delta([(one, 1), (other, 1)], float(epsilon))
        assert split <= composed_delta([(whole, 1)], float(epsilon)) + 1e-5


# -- what an attacker can do -------------------------------------------------------------------------------------------


def test_attack_limits_of_a_gaussian_are_its_trade_off_curve() -> None:
    from scipy.stats import norm

    limits = attack_limits(Gaussian(1.0))
    assert limits.advantage == pytest.approx(norm.cdf(0.5) - norm.cdf(-0.5), abs=1e-6)
    for fpr, tpr in limits.tpr_at_fpr.items():
        exact = norm.cdf(norm.ppf(fpr) + 1.0)
        assert exact <= tpr <= exact * 1.01


def test_attack_limits_lie_between_guessing_and_certainty() -> None:
    assert attack_limits(Nothing()).advantage == 0.0
    assert dict(attack_limits(Nothing()).tpr_at_fpr) == {0.001: 0.001, 0.01: 0.01}
    assert attack_limits(Unprotected()).advantage == 1.0
    assert dict(attack_limits(Unprotected()).tpr_at_fpr) == {0.001: 1.0, 0.01: 1.0}
    sampled = attack_limits(poisson(0.01, 1.0, 1000))
    assert 0.0 < sampled.advantage < attack_limits(poisson(0.01, 1.0, 4000)).advantage < 1.0
    assert 0.001 < sampled.tpr_at_fpr[0.001] < sampled.tpr_at_fpr[0.01] < 1.0


def test_delta_profile_is_the_single_deltas() -> None:
    event = poisson(0.02, 1.2, 400)
    epsilons = np.array([0.0, 0.5, 1.0, 2.0])
    single = [delta_of(event, float(epsilon)) for epsilon in epsilons]
    assert delta_profile(event, epsilons) == pytest.approx(single, rel=0.02, abs=2e-5)


def test_orders_of_the_fallback_cover_tiny_and_large_divergences() -> None:
    assert ORDERS.min() == pytest.approx(1.1)
    assert ORDERS.max() == 255


@pytest.mark.parametrize(
    "event",
    [
        Laplace(1e-300),
        Laplace(1e-65),
        DiscreteGaussian(1e-300),
        DiscreteGaussian(1e-65),
        DiscreteGaussian(1e-5, 10**30),
        SampledWithoutReplacement(1, 10**9, Gaussian(1e-300)),
        SampledWithoutReplacement(1, 10**9, Gaussian(1e-65)),
        PoissonSampled(1e-300, Gaussian(1e-9)),
        PoissonSampled(1e-300, Pure(1e300)),
        PoissonSampled(0.5, Laplace(1e-65)),
        PoissonSampled(0.5, DiscreteGaussian(1e-65)),
        Pure(1e300),
        RandomizedResponse(1e-300),
        RandomizedResponse(700.0, 10**9),
        ShuffledReports(1e-300, 10**6),
        Repeated(Laplace(1e-5), 10**12),
        GaussianMixture(1e-90, (0.0, 1.0), (0.5, 0.5)),
        GaussianMixture(1e-65, (0.0, 1.0), (0.5, 0.5)),
        GaussianMixture(1.0, (0.0, 1e200), (0.5, 0.5)),
        Selected(Pure(1e200), 5.0, "poisson"),
    ],
    ids=repr,
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_absurd_numbers_are_answered(event: Event) -> None:
    for delta in (0.0, 1e-300, 1e-5, 0.5):
        assert account(event, delta).epsilon >= 0
    for epsilon in (0.0, 1.0, 1e3):
        assert 0 <= delta_of(event, epsilon) <= 1


def test_events_are_read_as_they_were_written_and_nothing_else_is() -> None:
    for noise in (math.inf, -math.inf, 2.0):
        assert event_from_dict(Gaussian(noise).as_dict()) == Gaussian(noise)
    with refuses("unknown-key", "gaussian", InvalidArgument):
        event_from_dict({"kind": "gaussian"})
    with refuses("unknown-key", "gaussian", InvalidArgument):
        event_from_dict({"kind": "gaussian", "noise_multiplier": 1.0, "sigma": 2.0})
    with refuses("unknown-key", "poisson-sampled", InvalidArgument):
        event_from_dict({"kind": "poisson-sampled", "rate": 0.1})
    with refuses("out-of-range", "noise_multiplier", InvalidArgument):
        account(event_from_dict(Gaussian(-math.inf).as_dict()), 1e-5)


def test_central_moments_without_replacement_include_what_the_quadrature_leaves_out() -> None:
    from tacit.privacy.accounting.rdp import _log_central_moments

    # E_Q[(r - 1)^l] = sum_k C(l, k) (-1)^k e^{k (k - 1) mu^2 / 2}; for mu = 1e-8 it is mu^l E[z^l], far below the cut
    for mu in (0.5, 1.0, 3.0):
        exact = math.log(sum(math.comb(4, k) * (-1) ** k * math.exp(k * (k - 1) * mu**2 / 2) for k in range(5)))
        assert _log_central_moments(mu, np.array([0, 4]))[1] == pytest.approx(exact, rel=1e-9)
    tiny = _log_central_moments(1e-8, np.array([0, 2, 8]))
    assert tiny[1] == pytest.approx(2 * math.log(1e-8), abs=1e-6)
    assert tiny[2] >= 8 * math.log(1e-8) + math.log(105)
