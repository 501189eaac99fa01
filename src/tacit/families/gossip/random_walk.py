"""What a token that walks between nodes costs a node, against one other node: Renyi divergences (specification 6.2)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy import fft

from tacit.privacy.accounting.events import RandomWalk
from tacit.privacy.invalid import InvalidArgument

Floats = npt.NDArray[np.float64]

# a walk of more steps is long
LONG_WALK = 2000


def walk_rdp(event: RandomWalk, orders: Floats) -> Floats:
    """What the event costs at ``orders``, infinite where it is not computed: every order is a bound by itself, and of a
    long walk, where each takes a while, a few will do (:func:`_few`)."""
    chosen = _few(orders) if event.contracts and event.steps > LONG_WALK else np.arange(len(orders))
    found: Floats = np.full(len(orders), np.inf)
    found[chosen] = random_walk_rdp(event, orders[chosen])
    return found


def _few(orders: Floats, ratio: float = 1.25) -> npt.NDArray[np.int64]:
    """Places of ``orders``, ascending, whose distances from 1 grow by about ``ratio``; the first and the last are kept.

    Epsilon is about a (alpha - 1) + b / (alpha - 1), least where both terms are equal. An order whose distance from 1
    is off by a factor sqrt(ratio) makes it larger by (sqrt(ratio) + 1 / sqrt(ratio)) / 2 at most: 0.7 %.
    """
    kept = [0]
    for place in range(1, len(orders)):
        if orders[place] - 1 >= ratio * (orders[kept[-1]] - 1) * (1 - 1e-9):
            kept.append(place)
    return np.unique([*kept, len(orders) - 1])


def random_walk_rdp(event: RandomWalk, orders: Sequence[float] | Floats) -> Floats:
    """Rényi divergence of the event at each of ``orders`` (> 1), against one other node that sees the final model too.

    The path of the token does not depend on data and is revealed up to the visits of the other node v. A step of the
    node u in question that is followed by m - 1 noisy steps of others before u or v is visited again (or the walk ends)
    costs alpha Delta^2 / (2 sigma^2 m), by amplification by iteration (Feldman et al. 2018; the losses must contract).
    With p = 1/nodes, kappa = alpha (alpha - 1) Delta^2 / (2 sigma^2) and f(0) = 1, exp((alpha - 1) rdp) <= f(steps):

        f(t) = (1 - p) f(t - 1) + p h(t),
        h(t) = sum_{m=1}^{t-1} p (1 - 2 p)^(m-1) e^(kappa/m) [h(t - m) + f(t - m - 1)] + (1 - 2 p)^(t-1) e^(kappa/t)

    (specification 6.2). Without contraction f = (1 - p + p e^kappa)^steps.

    f grows about like e^(rate t); the recursion is run on f(t) e^(-rate t), which neither overflows nor vanishes, and
    its convolution is done by halves with Fourier transforms: O(steps log^2 steps) per order.
    """
    alpha = np.asarray(orders, dtype=np.float64)
    if (alpha <= 1).any():
        raise InvalidArgument("out-of-range", "orders", "Rényi orders are greater than 1")
    if event.nodes < 2 or event.steps < 0:
        problem = "a walk needs at least two nodes and no negative number of steps"
        raise InvalidArgument("out-of-range", "nodes", problem)
    if event.steps == 0:
        return np.zeros(alpha.size)
    if event.noise_multiplier == 0:
        return np.full(alpha.size, math.inf)
    kappa = alpha * (alpha - 1) / (2 * event.noise_multiplier**2)
    if not event.contracts:
        p = 1 / event.nodes
        return np.asarray(event.steps * np.logaddexp(math.log1p(-p), math.log(p) + kappa) / (alpha - 1))
    chunk = max(1, 2_000_000 // event.steps)
    logs = [_log_walk(event.nodes, event.steps, kappa[i : i + chunk]) for i in range(0, alpha.size, chunk)]
    # rounding of the transforms is a relative 1e-12 of f; it is rounded away upwards
    return np.asarray((np.concatenate(logs) + 1e-9) / (alpha - 1), dtype=np.float64)


def _log_walk(nodes: int, steps: int, kappa: Floats) -> Floats:
    """ln f(steps) for each kappa."""
    p = 1 / nodes
    gaps = np.arange(1, steps + 1)
    log_stay = math.log1p(-2 * p) if nodes > 2 else -math.inf
    log_free = np.where(gaps == 1, 0.0, (gaps - 1) * log_stay) if nodes > 2 else np.where(gaps == 1, 0.0, -math.inf)
    log_gap = log_free + kappa[:, None] / gaps
    rate = _growth(p, log_gap + math.log(p))
    tilt = rate[:, None] * gaps
    kernel = np.exp(log_gap + math.log(p) - tilt)  # [orders, gap - 1]
    last = np.exp(log_gap - tilt)
    decay = np.exp(-rate)
    size = kappa.size
    f, h = np.zeros((size, steps + 1)), np.zeros((size, steps + 1))
    f[:, 0] = 1.0
    # source[t] = h(t) + f(t - 1), both tilted: what a gap that ends at time t leads to
    source, inflow = np.zeros((size, steps + 1)), np.concatenate([np.zeros((size, 1)), last], axis=1)

    def solve(start: int, stop: int) -> None:
        if stop - start <= 64:
            for t in range(start, stop):
                width = t - start
                h[:, t] = inflow[:, t]
                if width:
                    h[:, t] += np.einsum("om,om->o", kernel[:, :width], source[:, start:t][:, ::-1])
                f[:, t] = (1 - p) * decay * f[:, t - 1] + p * h[:, t]
                source[:, t] = h[:, t] + decay * f[:, t - 1]
            return
        middle = (start + stop) // 2
        solve(start, middle)
        length = fft.next_fast_len(stop - start + middle - start, real=True)
        left = fft.rfft(source[:, start:middle], length)
        right = fft.rfft(kernel[:, : stop - start - 1], length)
        carried = fft.irfft(left * right, length)
        inflow[:, middle:stop] += np.maximum(carried[:, middle - start - 1 : stop - start - 1], 0.0)
        solve(middle, stop)

    solve(1, steps + 1)
    return np.asarray(np.log(f[:, steps]) + rate * steps, dtype=np.float64)


def _growth(p: float, log_kernel: Floats) -> Floats:
    """The rate at which the recursion grows, so closely that e^(rate steps) is known to a factor e.

    The root of sum_m kernel_m e^(-rate m) (1 + p / (e^rate - 1 + p)) = 1.
    """
    gaps = np.arange(1, log_kernel.shape[1] + 1)
    # the first term alone is at most 1 at the root; two above that the sum is below 1, as kernel_m <= kernel_1
    low = np.maximum(log_kernel[:, 0], 0.0)
    high = low + 2.0
    while float((high - low).max()) > 1 / gaps[-1]:
        middle = (low + high) / 2
        exponents = log_kernel - middle[:, None] * gaps
        peak = exponents.max(axis=1)
        log_sum = peak + np.log(np.exp(exponents - peak[:, None]).sum(axis=1))
        too_small = log_sum + np.log1p(p / (np.expm1(np.minimum(middle, 700.0)) + p)) > 0
        low, high = np.where(too_small, middle, low), np.where(too_small, high, middle)
    return high
