"""What it costs to publish the best of K runs, K random and secret.

Liu and Talwar 2019 ("Private selection from private candidates"); Papernot and Steinke 2022 ("Hyperparameter tuning
with Renyi differential privacy", arXiv 2110.03620); for trade-off curves, Koskela, Redberg, Wang 2024 ("Privacy
profiles for private selection").

**Set-up.** One run draws an outcome y, ordered by its score; ties are broken by a uniform tag that is not released
(taking the first of equals is the same, because runs are independent and alike), so the order is total and no outcome
has positive probability. With q the density of one run and x = Pr[a run beats y], the best of K runs has the density

    h q,    h = f'(1 - x),  f(t) = E[t^K],

and the result "none" the probability Pr[K = 0]. Q, X, G, H are the same with the neighbouring data. x is uniform on
[0, 1] for y drawn from q.

**Negative binomial**, truncated at 1, shape eta > -1, stopping rate gamma (:func:`stopping_rate`): h = E[K]
(gamma / g)^{1 + eta} with g = gamma + (1 - gamma) x. g is the probability of something that can be decided from one
run (toss a coin of rate gamma; if it fails, is y beaten?), so one run's promises hold for it:

* Renyi (Papernot and Steinke, Theorem 2). From (b, rho_b): G <= g^{1 - 1/b} e^{(1 - 1/b) rho_b}. With g >= gamma,

      h^a H^{1 - a} = E[K] gamma^{1 + eta} (G^{a - 1} g^{-a})^{1 + eta}
                   <= E[K] (gamma^{-1/b} e^{(1 - 1/b) rho_b})^{(a - 1)(1 + eta)},

  and integrated against q^a Q^{1 - a}

      rho'_a = rho_a + (1 + eta) min_b [(1 - 1/b) rho_b + ln(1/gamma) / b] + ln E[K] / (a - 1).

* Pure. a, b -> infinity: (2 + eta) epsilon; 3 epsilon for the geometric law, as Liu and Talwar proved.

* Trade-off. G <= e^c g + (1 - gamma) delta(c) for every c >= 0, hence h <= e^s H with s = (1 + eta)
  ln(e^c + delta(c) (1 - gamma) / gamma), and, because h <= E[K],

      delta'(epsilon) = int (h q - e^epsilon H Q)_+ <= int h (q - e^{epsilon - s} Q)_+ <= E[K] delta(epsilon - s).

**Poisson** of mean mu: h = mu e^{-mu x}, and X <= e^c x + delta(c).

* Renyi (Theorem 6). h^a H^{1 - a} = mu exp(mu ((a - 1) X - a x)). With e^c = a / (a - 1) the exponent is at most
  mu (a - 1) delta(c). The result "none" has the same probability e^-mu with both data and adds e^-mu to the integral
  (the theorem's formula is ln mu instead of ln(mu + e^-mu …): nothing for the usual mu):

      rho'_a = ln(e^-mu + mu e^{(a - 1)(rho_a + mu delta(ln(a / (a - 1))))}) / (a - 1).

* Pure. h / H = e^{mu (X - x)}, and X - x <= tanh(epsilon / 2), the largest total variation: epsilon + mu
  tanh(epsilon / 2).

* Trade-off. mu X <= mu x + (e^c - 1) t + mu delta(c) wherever mu x <= t; the best lies elsewhere with probability at
  most e^-t. Hence, with s = (e^c - 1) t + mu delta(c),  delta'(epsilon) <= mu delta(epsilon - s) + e^-t.

delta(c) is always that of one run, for both directions. Each bound holds for every c and t; the smallest is taken.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from tacit.privacy.accounting.account import CURVE, account, delta_profile
from tacit.privacy.accounting.canonical_form import canonical
from tacit.privacy.accounting.events import Selected
from tacit.privacy.accounting.gaussian import bisect
from tacit.privacy.accounting.rdp import ORDERS, composed_rdp
from tacit.privacy.invalid import require

Array = npt.NDArray[np.float64]

# ln(1 / tail) of a Poisson number of runs: the t of the module
_TAILS: Array = np.linspace(2.0, 80.0, 40)


def expected_runs(stop: float, shape: float) -> float:
    """E[K] of the truncated negative binomial: eta (1 - gamma) / (gamma (1 - gamma^eta)); ln for eta = 0."""
    if stop >= 1:
        return 1.0
    log = -math.log(stop)
    if abs(shape) * log < 1e-6:
        # eta / (1 - gamma^eta) = 1 / (log (1 - eta log / 2 + …))
        return (1 - stop) / stop / (log * (1 - shape * log / 2))
    return shape * (1 - stop) / (stop * -math.expm1(-shape * log))


def stopping_rate(mean: float, shape: float) -> float:
    """gamma of the truncated negative binomial with this mean: 1 / mean for the geometric law (shape 1)."""
    if mean <= 1:
        return 1.0
    if shape == 1:
        return 1 / mean
    low = -1.0  # ln gamma
    while expected_runs(math.exp(low), shape) < mean:
        low *= 2
        require("unreachable", "mean", low >= -700, f"no stopping rate gives {mean} runs on average at shape {shape}")
    low, high = bisect(lambda log: expected_runs(math.exp(log), shape) <= mean, low, 0.0, steps=200)
    return math.exp((low + high) / 2)


def selection_rdp(event: Selected, orders: Array) -> Array:
    """rho' at every order of a selection in canonical form."""
    parts = canonical(event.event).parts
    rho = composed_rdp(parts, orders)
    if event.law == "poisson":
        deltas = delta_profile(event.event, np.log1p(1 / (orders - 1)))
        with np.errstate(over="ignore"):
            log_best = math.log(event.mean) + (orders - 1) * (rho + event.mean * deltas)
        return np.asarray(np.logaddexp(-event.mean, log_best) / (orders - 1), dtype=np.float64)
    stop = stopping_rate(event.mean, event.shape)
    values = rho + math.log(expected_runs(stop, event.shape)) / (orders - 1) + _drift(event, stop)
    # a divergence does not fall with the order: what holds at a higher one holds here
    ascending = np.argsort(orders)
    values[ascending] = np.minimum.accumulate(values[ascending][::-1])[::-1]
    return values


def selection_pure_epsilon(event: Selected) -> float:
    """The epsilon that holds with delta 0."""
    one = _pure(event)
    if event.law == "poisson":
        return one + event.mean * math.tanh(one / 2)
    return (2 + event.shape) * one


def selection_epsilon(event: Selected, delta: float) -> float:
    """The smallest epsilon at ``delta`` by the trade-off of one run."""
    if event.law == "poisson":
        # both halves of delta: mu delta(epsilon - s) and e^-t
        shift = _poisson_shifts(event, np.array([math.log(2 / delta)]))[0]
        return account(event.event, min(1.0, delta / (2 * event.mean))).epsilon + float(shift)
    stop = stopping_rate(event.mean, event.shape)
    one = account(event.event, min(1.0, delta / expected_runs(stop, event.shape))).epsilon
    return one + _trade_off_shift(event, stop)


def selection_deltas(event: Selected, epsilons: Array) -> Array:
    """delta' at every epsilon by the trade-off of one run."""
    if event.law == "poisson":
        left = epsilons[:, None] - _poisson_shifts(event, _TAILS)[None, :]
        inner = np.ones(left.shape)
        inner[left >= 0] = delta_profile(event.event, left[left >= 0])
        return np.asarray(np.minimum(1.0, np.min(event.mean * inner + np.exp(-_TAILS), axis=1)), dtype=np.float64)
    stop = stopping_rate(event.mean, event.shape)
    rest = epsilons - _trade_off_shift(event, stop)
    values = np.ones(len(epsilons))
    if np.any(rest >= 0):
        values[rest >= 0] = expected_runs(stop, event.shape) * delta_profile(event.event, rest[rest >= 0])
    return np.asarray(np.minimum(1.0, values), dtype=np.float64)


def _drift(event: Selected, stop: float) -> float:
    """(1 + eta) min over b of (1 - 1/b) rho_b + ln(1/gamma) / b; b = 1 and b = infinity included."""
    rho = composed_rdp(canonical(event.event).parts)
    log = -math.log(stop)
    between = float(np.min((1 - 1 / ORDERS) * rho + log / ORDERS))
    return (1 + event.shape) * min(log, between, _pure(event))


def _trade_off_shift(event: Selected, stop: float) -> float:
    """s = (1 + eta) min over c of ln(e^c + delta(c) (1 - gamma) / gamma)."""
    deltas = delta_profile(event.event, CURVE)
    with np.errstate(divide="ignore"):
        logs = np.logaddexp(CURVE, np.log(deltas) + math.log((1 - stop) / stop))
    return (1 + event.shape) * min(float(logs.min()), _pure(event))


def _poisson_shifts(event: Selected, tails: Array) -> Array:
    """s = min over c of (e^c - 1) t + mu delta(c), for each t; never more than mu times the total variation."""
    points = np.concatenate([[0.0], np.geomspace(1e-4, 3.0, 60)])
    deltas = delta_profile(event.event, points)
    table = np.expm1(points)[None, :] * tails[:, None] + event.mean * deltas[None, :]
    return np.asarray(table.min(axis=1), dtype=np.float64)


def _pure(event: Selected) -> float:
    """The epsilon of one run at delta 0."""
    return account(event.event, 0.0).epsilon
