"""Properties of every kind of event: monotone, the smallest of its accountants, above exact lower bounds, and numbers
at every edge."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from research.conversions import (
    advanced_composition,
    group_privacy,
    group_rdp_epsilon,
    simple_composition,
)
from tacit.privacy.accounting.account import (
    account,
    attack_limits,
    calibrate_noise,
    delta_of,
    delta_profile,
    pure_epsilon,
)
from tacit.privacy.accounting.canonical_form import canonical
from tacit.privacy.accounting.event_losses import refined_epsilon
from tacit.privacy.accounting.events import (
    Composed,
    DiscreteGaussian,
    Event,
    Gaussian,
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
)
from tacit.privacy.accounting.rdp import ORDERS, composed_rdp, rdp_epsilon
from tacit.privacy.invalid import InvalidArgument
from tacit.privacy.proofs.subject_events import (
    averaged_per_subject,
    summed_records,
)
from tests.privacy.specified import fixed_batches
from tests.refusals import refuses

# two bounds on different grids may differ by so much without being out of order
SLACK = 1 + 5e-3

# every kind of event as a function of its noise (or of what hides like noise), at which it falls
FALLING: dict[str, Callable[[float], Event]] = {
    "gaussian": Gaussian,
    "laplace": Laplace,
    "discrete gaussian": lambda noise: DiscreteGaussian(4 * noise, 2),
    "pure": lambda noise: Pure(1 / noise),
    "response": lambda noise: RandomizedResponse(1 / noise, 5),
    "poisson": lambda noise: PoissonSampled(0.1, Gaussian(noise)),
    "poisson laplace": lambda noise: PoissonSampled(0.3, Laplace(noise)),
    "group": lambda noise: summed_records(0.1, 7, noise, 1),
    "without replacement": lambda noise: SampledWithoutReplacement(10, 500, Gaussian(noise)),
    "shuffled": lambda noise: ShuffledReports(2 / noise, 300),
    "walk": lambda noise: RandomWalk(20, 60, noise),
    "selected": lambda noise: Selected(Gaussian(noise), 4.0),
    "selected poisson": lambda noise: Selected(Gaussian(4 * noise), 4.0, "poisson"),
    "largest": lambda noise: Largest((PoissonSampled(0.1, Gaussian(noise)), PoissonSampled(0.02, Gaussian(noise / 3)))),
}


@pytest.mark.parametrize("kind", FALLING)
def test_epsilon_falls_with_noise_and_delta_and_grows_with_rounds(kind: str) -> None:
    @settings(max_examples=3, deadline=None)
    @given(st.floats(0.6, 6.0), st.floats(1.1, 3.0), st.integers(1, 40), st.floats(-8.0, -3.0))
    def holds(noise: float, factor: float, times: int, exponent: float) -> None:
        make, delta = FALLING[kind], 10.0**exponent
        here = account(Repeated(make(noise), times), delta).epsilon
        assert 0 < here < math.inf
        assert account(Repeated(make(noise * factor), times), delta).epsilon <= here * SLACK + 1e-9
        assert account(Repeated(make(noise), times), delta * factor).epsilon <= here * SLACK + 1e-9
        assert account(Repeated(make(noise), times + 1), delta).epsilon * SLACK + 1e-9 >= here

    holds()


@settings(max_examples=3, deadline=None)
@given(st.floats(0.001, 0.9), st.floats(1.05, 3.0), st.integers(1, 20), st.floats(0.8, 8.0), st.integers(1, 100))
def test_epsilon_grows_with_rate_and_group_in_every_way_to_count_a_subject(
    rate: float, factor: float, records: int, noise: float, times: int
) -> None:
    more = min(1.0, rate * factor)
    for count in (averaged_per_subject, summed_records):
        here = account(count(rate, records, noise, times), 1e-5).epsilon
        assert account(count(more, records, noise, times), 1e-5).epsilon * SLACK + 1e-9 >= here
        assert account(count(rate, records + 3, noise, times), 1e-5).epsilon * SLACK + 1e-9 >= here
    assert (
        account(fixed_batches(400, 20, records, noise, times), 1e-5).epsilon
        <= account(fixed_batches(400, 20, records + 2, noise, times), 1e-5).epsilon * SLACK + 1e-9
    )


@settings(max_examples=30, deadline=None)
@given(st.floats(0.0, 5.0), st.floats(0.0, 0.1), st.integers(1, 5000), st.integers(1, 100))
def test_group_conversions_grow_with_the_group_and_with_what_they_convert(
    epsilon: float, delta: float, size: int, more: int
) -> None:
    here, there = group_privacy(epsilon, delta, size), group_privacy(epsilon, delta, size + more)
    assert here[0] <= there[0]
    assert here[1] <= there[1] + 1e-15
    assert group_privacy(epsilon * 1.1, delta, size)[1] >= here[1] * (1 - 1e-9)
    noise = 100.0

    def rho(orders: np.ndarray) -> np.ndarray:
        return orders / (2 * noise**2)

    assert group_rdp_epsilon(rho, size, 1e-5, ORDERS) <= group_rdp_epsilon(rho, size + more, 1e-5, ORDERS) + 1e-12


# -- the printed value -------------------------------------------------------------------------------------------------


three_ways = st.one_of(
    st.builds(Laplace, st.floats(0.5, 50.0)),
    st.builds(RandomizedResponse, st.floats(0.01, 3.0), st.integers(2, 6)),
    st.builds(Pure, st.floats(0.01, 2.0)),
    st.builds(lambda q, b: PoissonSampled(q, Laplace(b)), st.floats(0.01, 0.99), st.floats(0.5, 20.0)),
    st.builds(lambda q, s: PoissonSampled(q, Gaussian(s)), st.floats(0.01, 0.99), st.floats(0.5, 20.0)),
)


@settings(max_examples=12, deadline=None)
@given(st.lists(st.tuples(three_ways, st.integers(1, 300)), min_size=1, max_size=3), st.floats(-9.0, -0.2))
def test_the_printed_value_is_the_smallest_of_pld_rdp_and_simple(
    parts: list[tuple[Event, int]], exponent: float
) -> None:
    delta = 10.0**exponent
    event = Composed(tuple(Repeated(one, count) for one, count in parts))
    flat = canonical(event)
    by_pld = refined_epsilon(flat.parts, delta)
    by_rdp = rdp_epsilon(ORDERS, composed_rdp(flat.parts), delta)
    by_sum = simple_composition([(pure_epsilon(one) * count, 0.0) for one, count in flat.parts])[0]
    printed = account(event, delta)
    assert printed.epsilon == pytest.approx(max(0.0, min(by_pld, by_rdp, by_sum)), rel=1e-12)
    assert printed.epsilon <= min(by_pld, by_rdp, by_sum) * (1 + 1e-12)
    assert printed.epsilon >= 0.0


@settings(max_examples=12, deadline=None)
@given(st.lists(st.tuples(three_ways, st.integers(1, 100)), min_size=2, max_size=4), st.randoms(use_true_random=False))
def test_order_does_not_matter_to_the_whole_trade_off(parts: list[tuple[Event, int]], shuffler: object) -> None:
    mixed = list(parts)
    shuffler.shuffle(mixed)  # type: ignore[attr-defined]
    epsilons = np.array([0.0, 0.5, 2.0])
    one, other = (delta_profile(Composed(tuple(Repeated(*part) for part in way)), epsilons) for way in (parts, mixed))
    assert one.tolist() == other.tolist()


# -- exact lower bounds ------------------------------------------------------------------------------------------------


def hockey_stick(p: np.ndarray, q: np.ndarray, epsilon: float) -> float:
    growth = math.exp(epsilon)
    return float(max(np.maximum(p - growth * q, 0).sum(), np.maximum(q - growth * p, 0).sum()))


def assert_above(event: Event, p: np.ndarray, q: np.ndarray, epsilon: float, numerical: float = 1e-12) -> None:
    """Neither delta at epsilon nor epsilon at that delta may be below the truth."""
    exact = hockey_stick(p, q, epsilon)
    assert delta_of(event, epsilon) >= exact * (1 - 1e-6) - numerical
    if exact > max(1e-200, 1e3 * numerical):
        assert account(event, exact * (1 - 1e-6) - numerical).epsilon >= epsilon * (1 - 1e-6)


@settings(max_examples=15, deadline=None)
@given(st.floats(0.01, 2.0), st.integers(2, 8), st.integers(1, 40), st.floats(0.0, 4.0))
def test_many_randomised_responses_are_above_the_exact_sum(
    epsilon: float, levels: int, times: int, asked: float
) -> None:
    """The loss of one is +epsilon, -epsilon or 0: convolved exactly."""
    whole = math.exp(epsilon) + levels - 1
    step = np.array([1.0, levels - 2, math.exp(epsilon)]) / whole
    p = np.ones(1)
    for _ in range(times):
        p = np.convolve(p, step)
    q = p[::-1]
    assert_above(Repeated(RandomizedResponse(epsilon, levels), times), p, q, asked)


@settings(max_examples=10, deadline=None)
@given(st.floats(0.02, 2.0), st.floats(0.02, 2.0), st.integers(1, 25), st.integers(1, 25), st.floats(0.0, 3.0))
def test_different_pure_mechanisms_are_above_the_exact_product(
    one: float, two: float, first: int, second: int, asked: float
) -> None:
    laws = []
    for flip in (1.0, -1.0):
        truths = [1 / (1 + math.exp(-flip * epsilon)) for epsilon in (one, two)]
        a, b = (binom.pmf(np.arange(n + 1), n, t) for n, t in ((first, truths[0]), (second, truths[1])))
        laws.append(np.outer(a, b).ravel())
    event = Composed((Repeated(Pure(one), first), Repeated(Pure(two), second)))
    assert_above(event, laws[0], laws[1], asked)


@settings(max_examples=10, deadline=None)
@given(st.floats(0.3, 8.0), st.floats(0.05, 1.0), st.floats(0.0, 2.0))
def test_sampled_laplace_noise_is_above_the_integral(scale: float, rate: float, asked: float) -> None:
    # cells of which one boundary lies at each kink: exact probabilities
    edges = np.concatenate([np.linspace(-60 * scale, 0, 20_001), np.linspace(0, 1, 2001)[1:]])
    edges = np.concatenate([edges, 1 - edges[edges < 0][::-1]])

    def law(centre: float) -> np.ndarray:
        z = (edges - centre) / scale
        with np.errstate(over="ignore"):
            below = np.where(z < 0, np.exp(z) / 2, 1 - np.exp(-z) / 2)
        return np.diff(below)

    q = law(0.0)
    p = (1 - rate) * q + rate * law(1.0)
    assert_above(PoissonSampled(rate, Laplace(scale)), p, q, asked, numerical=1e-10)


@settings(max_examples=10, deadline=None)
@given(st.floats(0.6, 30.0), st.integers(1, 4), st.integers(1, 3), st.floats(0.0, 3.0))
def test_discrete_gaussian_noise_is_above_the_exact_sum(
    sigma: float, sensitivity: int, times: int, asked: float
) -> None:
    reach = math.ceil(12 * sigma) + sensitivity
    z = np.arange(-reach, reach + 1)
    weights = np.exp(-(z**2) / (2 * sigma**2))
    weights /= weights.sum()
    # the loss is linear in z, so that the sum of the outputs says all
    p = np.ones(1)
    for _ in range(times):
        p = np.convolve(p, weights)
    shift = times * sensitivity
    padded = np.concatenate([p, np.zeros(shift)])
    moved = np.concatenate([np.zeros(shift), p])
    assert_above(Repeated(DiscreteGaussian(sigma, sensitivity), times), moved, padded, asked)


@settings(max_examples=8, deadline=None)
@given(st.floats(0.2, 3.0), st.integers(2, 60), st.floats(0.0, 2.0))
def test_shuffled_responses_are_above_the_exact_count(epsilon: float, reports: int, asked: float) -> None:
    """All others hold 0, one report changes from 0 to 1: the number of ones that are seen, exactly."""
    lie = 1 / (1 + math.exp(epsilon))
    others = binom.pmf(np.arange(reports), reports - 1, lie)
    p = np.convolve(others, [1 - lie, lie])
    q = np.convolve(others, [lie, 1 - lie])
    for randomizer in ("any", "response"):
        assert_above(ShuffledReports(epsilon, reports, randomizer=randomizer), p, q, asked)


@settings(max_examples=10, deadline=None)
@given(st.floats(0.3, 3.0), st.integers(1, 6), st.integers(7, 12), st.floats(0.0, 2.0))
def test_batches_without_replacement_are_above_one_exact_pair(
    noise: float, size: int, population: int, asked: float
) -> None:
    """All others contribute nothing, one record is replaced by its opposite: a mixture of two normal laws each."""
    rate = size / population
    x = np.linspace(-1 - 10 * noise, 1 + 10 * noise, 20_001)

    def normal(centre: float) -> np.ndarray:
        return np.exp(-(((x - centre) / noise) ** 2) / 2) / (noise * math.sqrt(2 * math.pi)) * (x[1] - x[0])

    p, q = ((1 - rate) * normal(0.0) + rate * normal(centre) for centre in (0.5, -0.5))
    assert_above(SampledWithoutReplacement(size, population, Gaussian(noise)), p, q, asked, numerical=1e-6)


# -- edges -------------------------------------------------------------------------------------------------------------

EDGES: list[Event] = [
    *(make(noise) for make in FALLING.values() for noise in (1e-3, 1e4)),
    *(Repeated(make(20.0), 10**6) for kind, make in FALLING.items() if kind not in ("selected poisson", "walk")),
    *(summed_records(rate, group, 2.0, 10) for rate in (0.0, 1.0) for group in (1, 5000)),
    *(averaged_per_subject(rate, group, 2.0, 10**6) for rate in (0.0, 1e-7, 1.0) for group in (1, 5000)),
    summed_records(1e-4, 5000, 50.0, 1000),
    summed_records(0.001, 5000, 40.0 * math.sqrt(5), 100),
    summed_records(1.0, 5, 3.0 * math.sqrt(5), 100),
    fixed_batches(10**4, 1, 5000, 5.0, 10),
]


@pytest.mark.parametrize("delta", [0.0, 1e-5, 1.0])
def test_edges_are_numbers_from_zero_on(delta: float) -> None:
    for event in EDGES:
        bound = account(event, delta)
        assert bound.epsilon >= 0.0, event
        assert not any(math.isnan(value) or value < 0 for value in bound.parts.values()), event
        if delta == 1.0:
            assert bound.epsilon == 0.0, event


@pytest.mark.parametrize("kind", FALLING)
def test_no_noise_costs_everything_and_endless_noise_nothing(kind: str) -> None:
    make = FALLING[kind]
    if kind in ("pure", "response", "shuffled"):
        assert account(make(1e-320), 1e-5).epsilon == math.inf
    else:
        assert account(make(0.0), 1e-5).epsilon == math.inf
        assert delta_of(make(0.0), 1000.0) == 1.0
    assert account(make(math.inf), 1e-5).epsilon == 0.0
    assert account(Repeated(make(1.0), 0), 0.0).epsilon == 0.0
    limits = attack_limits(make(1.0))
    assert 0.0 <= limits.advantage <= 1.0
    assert all(0.0 <= rate <= 1.0 for rate in limits.tpr_at_fpr.values())


@pytest.mark.parametrize(
    "event",
    [
        Laplace(1e-300),
        Laplace(1e-50),
        Laplace(1e200),
        PoissonSampled(0.5, Laplace(1e200)),
        PoissonSampled(1 - 1e-16, Laplace(1e-3)),
        DiscreteGaussian(1e-300, 5000),
        DiscreteGaussian(1e-3, 5000),
        DiscreteGaussian(1e200),
        PoissonSampled(1e-300, Gaussian(1.0)),
        PoissonSampled(1e-12, Gaussian(1e12)),
        PoissonSampled(1e-12, Gaussian(1e3)),
        SampledWithoutReplacement(4999, 5000, Gaussian(1e200)),
        RandomWalk(100, 300, 1e200),
        ShuffledReports(1e-12, 1000, randomizer="laplace"),
        ShuffledReports(1e6, 2),
        Composed((Pure(1e6), Repeated(PoissonSampled(0.01, Gaussian(1.0)), 100))),
    ],
    ids=str,
)
def test_absurd_numbers_give_a_number_or_infinity(event: Event) -> None:
    for times in (1, 1000):
        for delta in (0.0, 1e-300, 1e-5):
            assert account(Repeated(event, times), delta).epsilon >= 0.0
    deltas = delta_profile(event, np.array([0.0, 0.01, 1000.0, math.inf]))
    assert np.all((deltas >= 0) & (deltas <= 1))


@pytest.mark.parametrize("epsilon", [0.0, 0.01, 1.0, 1000.0, math.inf])
@pytest.mark.parametrize("size", [0, 1, 3, 5000])
def test_conversions_at_the_edges(epsilon: float, size: int) -> None:
    for delta in (0.0, 1e-300, 1e-5, 1.0):
        for value in (*group_privacy(epsilon, delta, size), *simple_composition([(epsilon, delta)] * 2)):
            assert value >= 0
        for slack in (0.0, 1e-6, 1.0):
            assert all(value >= 0 for value in advanced_composition(epsilon, delta, size, slack))


@pytest.mark.parametrize(("epsilon", "size"), [(0.01, 1), (1000.0, 1), (1000.0, 5000)])
def test_calibration_at_the_edges_is_on_the_right_side(epsilon: float, size: int) -> None:
    def make(noise: float) -> Event:
        return summed_records(0.01, size, noise, 10)

    noise = calibrate_noise(make, epsilon, 1e-5, tolerance=0.05)
    assert account(make(noise), 1e-5).epsilon <= epsilon
    assert calibrate_noise(make, epsilon, 1.0) == 0.0
    with refuses("unreachable", "epsilon", InvalidArgument):
        calibrate_noise(make, epsilon, 0.0)
    assert calibrate_noise(lambda noise: Nothing(), epsilon, 0.0) < 1e-5
