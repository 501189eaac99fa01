"""The papers' numbers, to the digits that are printed (specification 1.4, 4, 6, 7, 8)."""

from __future__ import annotations

import math

import numpy as np
import pytest

from research.conversions import (
    advanced_composition,
    as_published_group_dp,
    group_privacy,
    group_rdp_epsilon,
    simple_composition,
)
from research.textbook import as_published_dpsgd_noise, as_published_gaussian_noise
from tacit.families.subject_dp.published_noise import as_published_local_group_noise
from tacit.privacy.accounting.account import account
from tacit.privacy.accounting.as_published import (
    as_published_higrad,
    as_published_rdp,
    as_published_uldp_group,
)
from tacit.privacy.accounting.canonical_form import canonical
from tacit.privacy.accounting.events import Gaussian, PoissonSampled, Repeated, SampledWithoutReplacement
from tacit.privacy.accounting.gaussian import gaussian_delta
from tacit.privacy.accounting.rdp import ORDERS, event_rdp
from tacit.privacy.proofs.subject_events import summed_records


def test_uldp_avg_and_naive() -> None:
    assert as_published_rdp(1.0, 5.0, 100, 1e-5) == pytest.approx(10.7255, abs=5e-5)


@pytest.mark.parametrize(
    ("rate", "printed"),
    # the specification prints 4.866 for q = .5: dp-accounting's series for fractional orders bounds alternating terms
    # by their absolute values. Opacus, which the paper's program uses, gives 4.86224, and so does exact integration.
    [(0.1, 0.835), (0.3, 2.759), (0.5, 4.862), (0.7, 7.110)],
)
def test_uldp_avg_with_sampling(rate: float, printed: float) -> None:
    assert as_published_rdp(rate, 5.0, 100, 1e-5) == pytest.approx(printed, abs=5e-4)


def test_higrad_with_the_rate_of_a_record() -> None:
    assert as_published_higrad(0.05, 2.0, 200, 1e-5) == pytest.approx(1.721, abs=5e-4)


def test_uldp_group_figure_2() -> None:
    printed = {1: 2.849, 2: 7.99, 4: 24.5, 8: 98.79, 16: 450.7, 32: 2151.98, 64: 11416.5}
    for group, value in printed.items():
        digits = len(str(value).split(".")[1])
        assert as_published_uldp_group(group, 0.01, 5.0, 10**5, 1e-5) == pytest.approx(value, abs=0.51 * 10**-digits)


def test_group_privacy_by_lemma_5() -> None:
    printed = {2: 6.80, 4: 18.25, 8: 58.07, 16: 214.7, 32: 854.2}
    for group, value in printed.items():
        digits = len(str(value).split(".")[1])
        assert as_published_group_dp(group, 0.01, 5.0, 10**5, 1e-5) == pytest.approx(value, abs=0.6 * 10**-digits)
    assert as_published_group_dp(62, 0.01, 5.0, 10**5, 1e-5) == pytest.approx(51344, abs=1)
    assert as_published_group_dp(64, 0.01, 5.0, 10**5, 1e-5) == math.inf


def test_noise_of_local_group_dp() -> None:
    # specification 1.4 says TR = 7900; its numbers are those of 7920 (79.2 batches per epoch, 100 rounds)
    for group, sigma in {1: 1.495, 2: 2.849, 3: 4.242, 4: 5.650, 6: 8.479}.items():
        assert as_published_local_group_noise(group, 4.0, 1e-5, 0.0127, 7920) == pytest.approx(sigma, abs=6e-4)
        assert as_published_local_group_noise(group, 4.0, 1e-5, 0.012716, 7900) == pytest.approx(sigma, abs=6e-4)
        assert as_published_local_group_noise(group, 4.0, 1e-5, 0.0127, 7900) == pytest.approx(sigma, rel=2e-3)


def test_the_textbook_gaussian_holds_up_to_one_and_fails_later() -> None:
    for epsilon in (0.1, 0.5, 1.0):
        noise = as_published_gaussian_noise(1.0, epsilon, 1e-5)
        assert noise.holds
        assert gaussian_delta(1 / noise.sigma, epsilon) <= 1e-5
    beyond = as_published_gaussian_noise(1.0, 9.0, 1e-5)
    assert not beyond.holds
    assert gaussian_delta(1 / beyond.sigma, 9.0) > 1e-5


def test_the_slides_dpsgd_noise_and_its_condition() -> None:
    early = as_published_dpsgd_noise(1.0, 1.0, 1e-6, 1000, 1)
    assert early.sigma == pytest.approx(0.17, abs=5e-3)
    assert not early.holds
    late = as_published_dpsgd_noise(1.0, 1.0, 1e-6, 1000, 10**4)
    assert late.holds
    proved = account(Repeated(SampledWithoutReplacement(1, 1000, Gaussian(late.sigma / 2)), 10**4), 1e-6)
    assert proved.epsilon == pytest.approx(0.0272, abs=3e-4)


# -- classical conversions ---------------------------------------------------------------------------------------------


def record_rho(orders: np.ndarray) -> np.ndarray:
    ((event, _),) = canonical(PoissonSampled(0.01, Gaussian(5.0))).parts
    return 10**5 * event_rdp(event, orders)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 13])
def test_lemma_6_is_a_bound_for_every_group_size(size: int) -> None:
    bound = group_rdp_epsilon(record_rho, size, 1e-5, ORDERS)
    proved = account(summed_records(0.01, size, 5.0, 10**5), 1e-5).epsilon
    assert bound >= proved
    assert bound <= group_rdp_epsilon(record_rho, 1 << (size - 1).bit_length(), 1e-5, ORDERS) + 1e-9


def test_rounding_a_group_down_is_no_bound() -> None:
    # Gaussians are the worst case of their Renyi curve: a group of 7 is rounded down to 4, and 3^2 rho is too small
    # for 7^2 rho
    ((event, _),) = canonical(Gaussian(50.0)).parts
    down = group_rdp_epsilon(lambda orders: event_rdp(event, orders), 4, 1e-5, ORDERS)
    up = group_rdp_epsilon(lambda orders: event_rdp(event, orders), 7, 1e-5, ORDERS)
    proved = account(Gaussian(50.0 / 7), 1e-5).epsilon
    assert up >= proved
    assert down < up


def test_group_privacy_of_pure_and_approximate_guarantees() -> None:
    epsilon, delta = group_privacy(0.5, 1e-6, 3)
    assert epsilon == pytest.approx(1.5)
    assert delta == pytest.approx(1e-6 * math.expm1(1.5) / math.expm1(0.5))
    assert delta <= 3 * math.exp(2 * 0.5) * 1e-6
    assert group_privacy(0.5, 0.0, 3) == (1.5, 0.0)
    assert group_privacy(0.0, 1e-6, 4)[1] == pytest.approx(4e-6)
    assert group_privacy(1000.0, 1e-6, 50)[1] == 1.0
    # the exact Gaussian for a group stays below the conversion
    one = 1e-6
    assert (
        gaussian_delta(3 / 10.0, 3 * account(Gaussian(10.0), one).epsilon)
        <= group_privacy(account(Gaussian(10.0), one).epsilon, one, 3)[1]
    )


def test_simple_and_advanced_composition() -> None:
    assert simple_composition([(0.1, 1e-6), (0.2, 2e-6)]) == (pytest.approx(0.3), pytest.approx(3e-6))
    epsilon, delta = advanced_composition(0.1, 0.0, 100, 1e-6)
    assert epsilon == pytest.approx(0.1 * math.sqrt(200 * math.log(1e6)) + 10 * math.expm1(0.1))
    assert delta == 1e-6
    assert advanced_composition(1000.0, 0.0, 2, 1e-6)[0] == math.inf


def test_groups_for_which_the_published_conversion_has_no_noise_get_none():
    """Epsilon 1.5 over groups of ten: the conversion at order 63 alone costs 0.16."""
    assert as_published_local_group_noise(10, 1.5, 1e-5, 0.5, 1) == math.inf
    assert as_published_local_group_noise(4, 2.0, 1e-5, 0.5, 1) < 100
