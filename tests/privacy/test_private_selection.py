"""Repeat and select: the price is never below that of the exact law of the best run."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from tacit.privacy import Composed, Gaussian, Laplace, Largest, Nothing, Pure, Randomness, Selected, Unprotected
from tacit.privacy.accounting.account import account, calibrate_noise, delta_of, delta_profile, pure_epsilon
from tacit.privacy.accounting.canonical_form import canonical
from tacit.privacy.accounting.events import Event, PoissonSampled, RandomizedResponse, Repeated, event_from_dict
from tacit.privacy.accounting.rdp import ORDERS, event_rdp
from tacit.privacy.accounting.selection_bounds import expected_runs, stopping_rate
from tacit.privacy.invalid import InvalidArgument
from tacit.privacy.mechanisms.private_selection import Choice, Repetitions, repeat_and_select
from tests.refusals import refuses


def stream(*place: int):
    return Randomness.from_seed(9).stream("selection", *place)


laws = st.one_of(
    st.builds(Repetitions, st.floats(1.0, 20.0), st.just("negative-binomial"), st.floats(-0.3, 3.0)),
    st.builds(Repetitions, st.floats(0.05, 20.0), st.just("poisson")),
)


def best_of(law: Repetitions, outcomes: np.ndarray) -> np.ndarray:
    """Probabilities of "none" and of every outcome, worst score first, as the best of K runs: by the sum over K."""
    counts = np.arange(20_000)
    chances = law.probabilities(counts)
    below = np.concatenate([[0.0], np.cumsum(outcomes)])
    below[-1] = 1.0
    with np.errstate(divide="ignore"):
        beaten = np.array([1.0 if t == 1 else float(chances @ np.power(t, counts)) for t in below])
    return np.concatenate([[beaten[0]], np.diff(beaten)])


def hockey_stick(p: np.ndarray, q: np.ndarray, epsilon: float) -> float:
    growth = math.exp(epsilon)
    return float(max(np.maximum(p - growth * q, 0).sum(), np.maximum(q - growth * p, 0).sum()))


# -- the law of the number of runs -------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(laws)
def test_the_probabilities_sum_to_one_and_have_the_mean_asked_for(law: Repetitions) -> None:
    counts = np.arange(20_000)
    chances = law.probabilities(counts)
    assert chances.sum() == pytest.approx(1.0, abs=1e-6)
    assert chances @ counts == pytest.approx(law.mean, rel=1e-3)


def test_geometric_and_logarithmic_laws_are_the_known_ones() -> None:
    k = np.arange(1, 50)
    assert Repetitions(8.0).probabilities(k) == pytest.approx((7 / 8) ** (k - 1) / 8)
    stop = stopping_rate(8.0, 0.0)
    logarithmic = (1 - stop) ** k / (k * math.log(1 / stop))
    assert Repetitions(8.0, shape=0.0).probabilities(k) == pytest.approx(logarithmic)
    assert expected_runs(stop, 0.0) == pytest.approx(8.0)
    assert expected_runs(1e-3, 1e-9) == pytest.approx(expected_runs(1e-3, 1e-5), rel=1e-4)


@pytest.mark.parametrize(
    "law", [Repetitions(4.0), Repetitions(4.0, shape=0.0), Repetitions(4.0, shape=-0.5), Repetitions(4.0, "poisson")]
)
def test_the_number_of_runs_is_drawn_by_its_law(law: Repetitions) -> None:
    drawn = Counter(law.draw(stream(i)) for i in range(4000))
    expected = 4000 * law.probabilities(np.arange(7))
    seen = np.array([drawn[k] for k in range(7)])
    # Pearson's statistic on at most 7 cells exceeds 36 with probability below 1e-5
    possible = expected > 0
    assert seen[~possible].sum() == 0
    assert np.sum((seen - expected)[possible] ** 2 / expected[possible]) < 36
    assert law.draw(stream(3)) == law.draw(stream(3))


# -- what it costs -----------------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(laws, st.floats(0.05, 2.5), st.integers(2, 5), st.randoms(use_true_random=False), st.floats(-6.0, -1.0))
def test_randomised_response_selected_is_never_below_its_exact_law(
    law: Repetitions, epsilon: float, levels: int, shuffler: object, exponent: float
) -> None:
    delta = 10.0**exponent
    p = np.full(levels, 1.0)
    q = np.full(levels, 1.0)
    p[0] = q[1] = math.exp(epsilon)
    order = list(range(levels))
    shuffler.shuffle(order)  # type: ignore[attr-defined]
    one, other = best_of(law, p[order] / p.sum()), best_of(law, q[order] / q.sum())
    event = law.event(RandomizedResponse(epsilon, levels))
    assert hockey_stick(one, other, account(event, delta).epsilon) <= delta * (1 + 1e-6) + 1e-9
    assert hockey_stick(one, other, account(event, 0.0).epsilon * (1 + 1e-9)) <= 1e-9
    for asked in (0.0, 0.3, 1.0, 3.0):
        assert hockey_stick(one, other, asked) <= delta_of(event, asked) * (1 + 1e-6) + 1e-9


@pytest.mark.parametrize("shape", [-0.5, 0.0, 0.5, 1.0, 2.0])
def test_the_price_of_pure_runs_is_nearly_attained(shape: float) -> None:
    """A rare outcome that is likelier with the own data, beaten only by one that is likelier with the neighbour's: both
    ratios point the same way."""
    epsilon, rare, best, stop = 0.5, 1e-6, 1e-3, 1e-8
    rise = math.exp(epsilon)
    p = np.array([1 - rise * rare - best, rise * rare, best])
    q = np.array([1 - rare - rise * best, rare, rise * best])

    def beaten(x: np.ndarray) -> np.ndarray:
        """f(1 - x), up to a factor and a constant."""
        g = stop + (1 - stop) * x
        return np.log(g) if shape == 0 else g**-shape

    above = [np.append(np.cumsum(law[::-1])[::-1], 0.0) for law in (p, q)]
    one, other = (np.abs(np.diff(beaten(x))) for x in above)
    event = Selected(Pure(epsilon), expected_runs(stop, shape), shape=shape)
    claimed = account(event, 0.0).epsilon
    assert claimed == pytest.approx((2 + shape) * epsilon)
    exact = float(np.abs(np.log(one / other)).max())
    assert 0.98 * claimed <= exact <= claimed
    total = abs(float(beaten(np.array([0.0]))[0] - beaten(np.array([1.0]))[0]))
    for share in (0.5, 0.9, 0.97):
        assert 0 < hockey_stick(one / total, other / total, share * claimed) <= delta_of(event, share * claimed)


@settings(max_examples=25, deadline=None)
@given(laws, st.floats(0.5, 10.0), st.booleans(), st.floats(0.0, 3.0))
def test_gaussian_runs_selected_are_never_below_their_exact_law(
    law: Repetitions, noise: float, upwards: bool, epsilon: float
) -> None:
    x = np.linspace(-14.0, 14.0 + 1 / noise, 20_001)
    sign = 1.0 if upwards else -1.0
    densities = []
    for shift in (0.0, 1 / noise):
        beaten = norm.sf(sign * (x - shift))
        if law.law == "poisson":
            factor = law.mean * np.exp(-law.mean * beaten)
        else:
            stop = stopping_rate(law.mean, law.shape)
            factor = law.mean * (stop / (stop + (1 - stop) * beaten)) ** (1 + law.shape)
        densities.append(factor * norm.pdf(x - shift) * (x[1] - x[0]))
    missing = math.exp(-law.mean) if law.law == "poisson" else 0.0
    assert densities[0].sum() + missing == pytest.approx(1.0, abs=1e-4)
    exact = hockey_stick(densities[0], densities[1], epsilon)
    event = law.event(Gaussian(noise))
    assert exact <= delta_of(event, epsilon) + 1e-6
    # and what is said at that delta is no smaller an epsilon
    if exact > 1e-7:
        assert account(event, exact * 0.99).epsilon >= epsilon * (1 - 1e-3)


@pytest.mark.parametrize(
    "law", [Repetitions(20.0), Repetitions(20.0, shape=0.0), Repetitions(20.0, "poisson")], ids=str
)
def test_a_rare_give_away_is_found_in_as_many_runs_as_there_are(law: Repetitions) -> None:
    """With probability 1e-3 a run shows the unit's presence beyond doubt, and scores best when it does."""
    counts = np.arange(20_000)
    shown = float(law.probabilities(counts) @ -np.expm1(counts * math.log1p(-1e-3)))
    event = law.event(PoissonSampled(1e-3, Gaussian(0.1)))
    assert shown > 0.01
    for epsilon in (1.0, 3.0):
        assert shown * 0.999 <= delta_of(event, epsilon) <= 1.5 * 20e-3
    assert account(event, shown * 0.9).epsilon > 3.0


def test_pure_runs_cost_three_times_with_geometric_stopping_and_twice_with_the_logarithmic_law() -> None:
    for mean in (2.0, 50.0):
        assert account(Selected(Pure(0.2), mean), 0.0).epsilon == pytest.approx(0.6)
        assert account(Selected(Laplace(5.0), mean, shape=0.0), 0.0).epsilon == pytest.approx(0.4)
    poisson = account(Selected(Pure(0.2), 3.0, "poisson"), 0.0).epsilon
    assert poisson == pytest.approx(0.2 + 3 * math.tanh(0.1))
    assert pure_epsilon(Selected(Gaussian(1.0), 2.0)) == math.inf


@pytest.mark.parametrize("shape", [0.0, 0.5, 1.0, 2.0])
def test_negative_binomial_divergences_agree_with_dp_accounting(shape: float) -> None:
    from dp_accounting import GaussianDpEvent
    from dp_accounting.dp_event import RepeatAndSelectDpEvent
    from dp_accounting.rdp import RdpAccountant

    for noise, mean in ((5.0, 20.0), (1.0, 3.0)):
        oracle = RdpAccountant(ORDERS.tolist())
        oracle.compose(RepeatAndSelectDpEvent(GaussianDpEvent(noise), mean, shape))
        assert event_rdp(Selected(Gaussian(noise), mean, shape=shape)) == pytest.approx(oracle.rdp, rel=1e-8)


def test_poisson_divergences_are_at_most_those_of_dp_accounting() -> None:
    from dp_accounting import GaussianDpEvent
    from dp_accounting.dp_event import RepeatAndSelectDpEvent
    from dp_accounting.rdp import RdpAccountant

    oracle = RdpAccountant(ORDERS.tolist())
    oracle.compose(RepeatAndSelectDpEvent(GaussianDpEvent(5.0), 20.0, math.inf))
    # the same theorem with the delta of a loss distribution instead of one converted from Renyi divergences
    assert np.all(event_rdp(Selected(Gaussian(5.0), 20.0, "poisson")) <= oracle.rdp * (1 + 1e-9))


training = Repeated(PoissonSampled(0.01, Gaussian(1.0)), 200)


@pytest.mark.parametrize("law", ["negative-binomial", "poisson"])
def test_more_runs_cost_more_and_none_costs_less_than_one(law: str) -> None:
    one = account(training, 1e-5).epsilon
    costs = [account(Selected(training, mean, law), 1e-5).epsilon for mean in (1.5, 4.0, 20.0, 300.0)]
    assert one < costs[0] < costs[1] < costs[2] < costs[3] < math.inf


def test_the_trade_off_of_one_run_gives_a_smaller_price_than_renyi_accounting() -> None:
    bound = account(Selected(training, 10.0), 1e-5)
    assert bound.accountant == "selection"
    assert bound.epsilon == min(bound.parts.values())
    assert bound.epsilon < 0.95 * bound.parts["rdp"]
    # far below the ten runs themselves
    assert bound.epsilon < account(Repeated(training, 10), 1e-5).epsilon


def test_one_certain_run_is_that_run_and_no_run_is_nothing() -> None:
    assert account(Selected(training, 1.0), 1e-5) == account(training, 1e-5)
    assert canonical(Selected(training, 0.0, "poisson")).empty
    assert account(Selected(Nothing(), 9.0), 0.0).epsilon == 0.0
    assert account(Selected(Unprotected("a plain score"), 9.0), 1e-5).epsilon == math.inf
    assert account(Selected(Gaussian(0.0), 9.0, "poisson"), 1e-5).epsilon == math.inf


def test_settings_of_different_cost_count_as_the_largest() -> None:
    cheap, dear = Gaussian(9.0), Gaussian(3.0)
    law = Repetitions(12.0)
    assert account(law.event(cheap, dear), 1e-5) == account(law.event(dear), 1e-5)
    incomparable = law.event(PoissonSampled(0.01, Gaussian(0.7)), PoissonSampled(0.3, Gaussian(8.0)))
    for member in (PoissonSampled(0.01, Gaussian(0.7)), PoissonSampled(0.3, Gaussian(8.0))):
        assert account(incomparable, 1e-5).epsilon >= account(law.event(member), 1e-5).epsilon * (1 - 1e-9)


@pytest.mark.parametrize("law", ["negative-binomial", "poisson"])
def test_selections_compose_survive_a_ledger_and_can_be_calibrated(law: str) -> None:
    event = Composed((Selected(training, 5.0, law), Gaussian(4.0)))
    assert event_from_dict(event.as_dict()) == event
    both = account(event, 1e-5)
    assert account(Selected(training, 5.0, law), 1e-5).epsilon < both.epsilon < math.inf
    assert account(PoissonSampled(0.1, Selected(Pure(1.0), 3.0, law)), 1e-5).epsilon < math.inf

    def choice(noise: float) -> Event:
        return Selected(Repeated(Gaussian(noise), 10), 5.0, law)

    noise = calibrate_noise(choice, 1.0, 1e-5)
    assert account(choice(noise), 1e-5).epsilon <= 1.0 < account(choice(noise * 0.98), 1e-5).epsilon


@pytest.mark.parametrize("law", ["negative-binomial", "poisson"])
@pytest.mark.parametrize(
    "inner", [Gaussian(1e-4), Gaussian(1e6), Pure(1000.0), Pure(1e-9), Largest((Pure(1.0),))], ids=str
)
def test_extreme_selections_give_a_number_or_infinity(law: str, inner: Event) -> None:
    for mean in (1.0, 1.0 + 1e-12, 1e5):
        for shape in (-0.9, 0.0, 1e-12, 1.0, 50.0):
            event = Selected(inner, mean, law, shape)
            for delta in (0.0, 1e-300, 1e-5, 1.0):
                assert account(event, delta).epsilon >= 0.0
            deltas = delta_profile(event, np.array([0.0, 0.01, 1000.0, math.inf]))
            assert np.all((deltas >= 0) & (deltas <= 1))


def test_impossible_numbers_of_runs_are_refused() -> None:
    for wrong, field in (
        (Selected(Gaussian(1.0), 0.5), "mean"),
        (Selected(Gaussian(1.0), math.inf), "mean"),
        (Selected(Gaussian(1.0), -1.0, "poisson"), "mean"),
        (Selected(Gaussian(1.0), 3.0, shape=-1.0), "shape"),
        (Selected(Gaussian(1.0), 3.0, shape=math.inf), "shape"),
    ):
        with refuses("out-of-range", field, InvalidArgument):
            account(wrong, 1e-5)
    for mean, law, shape in ((0.5, "negative-binomial", 1.0), (1e9, "poisson", 1.0), (3.0, "negative-binomial", -1.0)):
        with refuses("out-of-range", "mean" if shape > 0 else "shape", InvalidArgument):
            Repetitions(mean, law, shape)  # type: ignore[arg-type]


# -- running it --------------------------------------------------------------------------------------------------------


def test_the_best_run_is_returned_and_every_run_has_its_own_number() -> None:
    seen: list[tuple[str, int]] = []

    def run(setting: str, number: int) -> float:
        seen.append((setting, number))
        return {"a": 0.1, "b": 0.9, "c": math.nan}[setting] + number / 1000

    choice = repeat_and_select(run, lambda result: result, ["a", "b", "c"], Repetitions(60.0, "poisson"), stream(1))
    assert isinstance(choice, Choice)
    assert choice.setting == "b"
    assert choice.score == choice.result == max(0.9 + number / 1000 for setting, number in seen if setting == "b")
    assert [number for _, number in seen] == list(range(len(seen)))
    assert {setting for setting, _ in seen} == {"a", "b", "c"}


def test_no_run_gives_no_result_and_scores_that_are_no_numbers_are_the_worst() -> None:
    assert repeat_and_select(lambda s, n: n, float, [1], Repetitions(0.0, "poisson"), stream()) is None
    only = repeat_and_select(lambda s, n: n, lambda r: math.nan, [1], Repetitions(3.0), stream())
    assert only is not None
    assert (only.result, only.score) == (0, -math.inf)
    with refuses("missing", "settings", InvalidArgument):
        repeat_and_select(lambda s, n: n, float, [], Repetitions(3.0), stream())
