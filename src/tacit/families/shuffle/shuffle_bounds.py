"""Local reports in random order: upper bounds of what shuffling costs (specification 5.2).

The dominating pair of ``n`` shuffled reports of an epsilon-locally private randomiser (Feldman, McMillan, Talwar 2021,
"Hiding among the clones", theorem 3.2): with C ~ Bin(n - 1, e^-epsilon) and A ~ Bin(C, 1/2),

    P = A + Ber(t),    Q = A + Ber(1 - t),    t = e^pair / (1 + e^pair),    C known to the view,

where ``pair`` is the local epsilon of the report that changes. Given C, with M = C + 1, the outcome y has

    P(y) = Bin(M, 1/2)(y) 2 [t y + (1 - t)(M - y)] / M,
    loss(y) = ln([t y + (1 - t)(M - y)] / [(1 - t) y + t (M - y)]),

and Q is the mirror image, y -> M - y, so that one privacy-loss distribution serves both directions.

Everything here is an upper bound by construction. Fewer clones are worse (one more fair coin added to A is
post-processing), therefore the numbers C in one narrow class may be replaced by its smallest and those in the lower
tail by 0; losses in the tails of y are replaced by the largest, ``pair``. Nothing is left for an infinite loss, and
epsilon never exceeds the local one. An outcome of loss l between two points of the grid is split between them such
that its probabilities under P and under Q both stay; who sees into which half it fell may forget it, so the split pair
dominates ("connect the dots", Doroshenko et al. 2022).

``blanket_delta`` and ``blanket_epsilon`` are the tighter bounds of one randomiser, Laplace on [0, 1] or k-ary
randomised response (Balle, Bell, Gascón, Nissim 2019, "The privacy blanket of the shuffle model").

The protocols that are built from shuffled reports are in ``families.shuffle.proofs``.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from scipy import fft, special

from tacit.privacy.accounting.events import ShuffledReports
from tacit.privacy.accounting.gaussian import smallest_integer
from tacit.privacy.accounting.pld import LARGEST_TABLE, Losses, Pld, from_atoms
from tacit.privacy.invalid import InvalidArgument

# dp-accounting and parts of SciPy take seconds to import: where they are needed, and no earlier
if TYPE_CHECKING:
    from dp_accounting.pld import pld_pmf
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

Floats = npt.NDArray[np.float64]

# what the tails of C and of y weigh together, at most; it is charged at the largest loss
_TAIL = 1e-18
# from this many outcomes on, neighbouring numbers of clones are taken together
_CELLS = 4_000_000
# local epsilons beyond which a crowd of reports amplifies nothing, and below which nothing needs it: the local bound
LARGEST, _SMALL = 40.0, 1e-5


# --- the dominating pair ---------------------------------------------------------------------------------------------


def shuffled_pld(event: ShuffledReports, grid: float) -> PrivacyLossDistribution:
    """:func:`shuffled_table` as a distribution of dp-accounting."""
    from dp_accounting.pld import pld_pmf
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    return PrivacyLossDistribution(pld_pmf.DensePLDPmf(grid, *shuffled_table(event, grid), 0.0, True))


def shuffled_table(event: ShuffledReports, grid: float) -> tuple[int, Floats]:
    """(lowest loss in steps of ``grid``, probabilities) of the event's privacy loss, pessimistic; the same both ways.

    k-ary randomised response (``randomizer="response"``) shows v0 or v1, the changed report's two values, with
    probability 2 / (e^epsilon + levels - 1) whatever its input: these are the clones. The changed report is itself
    one of the two with probability (e^epsilon + 1) / (e^epsilon + levels - 1) at most, and is independent of its input
    otherwise. With many levels the description of any randomiser is the better one; :func:`_rates` chooses.
    """
    _check(event)
    pair = _pair(event)
    if pair == 0 or event.epsilon == 0:
        return 0, np.ones(1)
    informative, clone = _rates(event)
    losses, masses = _outcomes(event.reports, clone, pair)
    lowest, probabilities = _on_grid(losses, informative * masses, grid)
    if informative < 1:
        probabilities[-lowest] += 1 - informative
    return lowest, probabilities


def shuffled_losses(event: ShuffledReports, grid: float) -> Losses:
    """Both directions of the loss on ``grid``. There are many outcomes: coarse grids take theirs from one fine table,
    and splitting twice is as pessimistic."""
    finest = max(shuffled_deviation(event), 1e-12) / 512
    if grid <= finest:
        one_way = Pld(grid, *shuffled_table(event, grid))
    else:
        fine = _fine_shuffled(event, finest)
        one_way = from_atoms(fine.losses, fine.mass, grid).remove
    return Losses(one_way, one_way)


@lru_cache(maxsize=64)
def _fine_shuffled(event: ShuffledReports, grid: float) -> Pld:
    return Pld(grid, *shuffled_table(event, grid))


def dominates(first: PrivacyLossDistribution, second: PrivacyLossDistribution, grid: float, slack: float) -> bool:
    """Whether delta of ``second`` exceeds that of the pair behind ``first`` by at most ``slack``, at every epsilon.

    Then ``first`` may stand for ``second`` in any composition, for ``slack`` more delta each time (Zhu, Dong, Wang
    2022, theorem 10). Profiles are convex in e^epsilon. On the grid the one of ``first`` is exact; between two points
    it lies above the chords of the two neighbouring intervals, extended. That of ``second`` is at most its chord.
    """
    pair = [pld._pmf_remove.to_dense_pmf() for pld in (first, second)]
    low = min(pmf._lower_loss for pmf in pair) - 2
    high = max(pmf._lower_loss + pmf.size for pmf in pair) + 2
    points = np.arange(low, high + 1)
    upper, lower = (_profile(pmf, points, grid) for pmf in pair)
    # heights of the four points around an interval, as functions of e^epsilon in units of the interval's left end
    left, start, stop, right = upper[:-3], upper[1:-2], upper[2:-1], upper[3:]
    width, before, after = math.expm1(grid), -math.expm1(-grid), math.exp(grid) * math.expm1(grid)
    falling, rising = (start - left) / before, (right - stop) / after
    steepness = rising - falling
    meet = np.where(
        steepness > 1e-12,
        np.clip((start - stop + rising * width) / np.where(steepness > 1e-12, steepness, 1.0), 0.0, width),
        0.0,
    )
    lowest = start + falling * meet
    chord = lower[1:-2] + (lower[2:-1] - lower[1:-2]) * meet / width
    return bool((lower <= upper + slack).all() and (chord <= lowest + slack).all())


def _profile(pmf: pld_pmf.DensePLDPmf, points: npt.NDArray[np.int64], grid: float) -> Floats:
    """delta at epsilon = grid * points, for a range of points that covers the losses."""
    masses = np.zeros(points.size)
    start = pmf._lower_loss - int(points[0])
    masses[start : start + pmf.size] = pmf._probs
    # delta(x) = sum over losses l > x of (1 - e^(x - l)) mass; in steps of the grid g, from the right:
    # delta(x - g) = e^-g delta(x) + (1 - e^-g) Pr[loss >= x]
    above = np.append(0.0, np.cumsum(masses[::-1])[:-1])
    from scipy import signal

    deltas = signal.lfilter([-math.expm1(-grid)], [1.0, -math.exp(-grid)], above)[::-1]
    return np.asarray(np.minimum(deltas + pmf._infinity_mass, 1.0), dtype=np.float64)


def _rates(event: ShuffledReports) -> tuple[float, float]:
    """(probability that the changed report depends on its value, probability that another report is a clone).

    Randomised response has both descriptions, the one of any randomiser and its own: the one with more clones is taken.
    """
    small = math.exp(-event.epsilon)
    if event.randomizer == "response" and (event.levels - 1) * small <= 1:
        whole = 1 + (event.levels - 1) * small
        return (1 + small) / whole, 2 * small / whole
    return 1.0, small


def _outcomes(reports: int, clone: float, pair: float) -> tuple[Floats, Floats]:
    """(loss, probability under P) of every (class of C, y), the tails included as the module says."""
    clones, weights = _clone_classes(reports - 1, clone)
    sizes = clones + 1.0
    reach = np.minimum(np.ceil(np.sqrt(0.5 * sizes * -math.log(_TAIL / 4))) + 1, np.ceil(sizes / 2))
    # y from the middle: for every class the same number of columns, those outside 0..M get probability 0
    columns = np.arange(-reach.max(), reach.max() + 1)
    y = np.floor(sizes / 2)[:, None] + columns[None, :]
    inside = (y >= 0) & (y <= sizes[:, None])
    y = np.where(inside, y, 0.0)
    rest = sizes[:, None] - y
    truth, lie = float(special.expit(pair)), max(float(special.expit(-pair)), 1e-300)
    p, q = truth * y + lie * rest, lie * y + truth * rest
    log_choose = (
        special.gammaln(sizes + 1)[:, None]
        - special.gammaln(y + 1)
        - special.gammaln(rest + 1)
        - sizes[:, None] * math.log(2)
    )
    masses = np.where(inside, np.exp(log_choose) * p, 0.0)
    # what is outside the columns weighs less than _TAIL (Hoeffding); the rest of the difference from 1 is rounding
    masses *= (weights / masses.sum(axis=1))[:, None]
    losses = np.clip(np.log(p) - np.log(q), -pair, pair)
    # the ends are known exactly, also where e^-pair is too small for a float
    losses = np.where(y == 0, -pair, np.where(rest == 0, pair, losses))
    return np.append(losses.ravel(), pair), np.append(masses.ravel(), _TAIL)


def _clone_classes(others: int, clone: float) -> tuple[Floats, Floats]:
    """Numbers of clones and their probabilities: the bulk of the binomial.

    The tail below stands at 0, that above at the largest listed; a class of neighbours stands at its smallest.
    """
    low, high = _bulk(others, clone)
    width = math.sqrt(max(1.0, high)) * 18
    stride = max(1, math.ceil((high - low + 1) * width / _CELLS))
    starts = np.arange(low, high + 1, stride)
    weights = np.add.reduceat(binomial_pmf(np.arange(low, high + 1), others, clone), starts - low)
    weights[-1] += special.bdtrc(high, others, clone) if high < others else 0.0
    if low > 0:
        starts, weights = np.append(0, starts), np.append(special.bdtr(low - 1, others, clone), weights)
    return starts.astype(np.float64), np.asarray(weights / weights.sum(), dtype=np.float64)


def _on_grid(losses: Floats, masses: Floats, grid: float) -> tuple[int, Floats]:
    """(lowest loss in steps of the grid, probabilities): every outcome split between its two neighbours on the grid.

    The share w of the upper neighbour g + grid of a loss l in [g, g + grid) keeps both probabilities, under P and Q:
    (1 - w) e^-g + w e^-(g + grid) = e^-l, that is w = (1 - e^-(l - g)) / (1 - e^-grid).
    """
    steps = np.floor(losses / grid)
    share = np.clip(np.expm1(-(losses - steps * grid)) / math.expm1(-grid), 0.0, 1.0)
    lowest = int(steps.min())
    places = (steps - lowest).astype(np.int64)
    size = int(places.max()) + 2
    if size > LARGEST_TABLE:
        raise MemoryError(f"{size} losses at grid {grid}: choose a coarser one")
    upper = np.bincount(places + 1, weights=masses * share, minlength=size)
    lower = np.bincount(places, weights=masses * (1 - share), minlength=size)
    return lowest, np.asarray(lower + upper, dtype=np.float64)


def shuffled_deviation(event: ShuffledReports) -> float:
    """About the standard deviation of the loss: the scale that a grid has to resolve."""
    clones = (event.reports - 1) * _rates(event)[1]
    return 2 * math.tanh(_pair(event) / 2) / math.sqrt(clones + 1)


def _pair(event: ShuffledReports) -> float:
    return event.epsilon if event.pair is None else event.pair


def _check(event: ShuffledReports) -> None:
    pair = _pair(event)
    if event.reports < 1:
        raise InvalidArgument("out-of-range", "reports", f"at least one report is needed, not {event.reports}")
    if event.levels < 2:
        problem = f"randomised response has at least 2 levels, not {event.levels}"
        raise InvalidArgument("out-of-range", "levels", problem)
    if not (0 <= pair < math.inf and 0 <= event.epsilon < math.inf):
        problem = f"local epsilons are finite and not negative, not {event.epsilon} and {pair}"
        raise InvalidArgument("out-of-range", "epsilon", problem)


# --- tighter bounds for one randomiser -------------------------------------------------------------------------------


def blanket_delta(event: ShuffledReports, epsilon: float) -> float:
    """An upper bound of delta at ``epsilon``, from the blanket of the event's randomiser ("laplace" or "response").

    Every randomiser R is a mixture: with probability gamma a draw W from the blanket w, the same for all inputs. With
    L = (R(x)(W) - e^epsilon R(x')(W)) / w(W) for the two values x, x' of the changed report (Balle et al. 2019),

        delta(epsilon) <= 1/(gamma n) E[(L_1 + ... + L_M)_+],    M ~ Bin(n, gamma).

    Response on B levels: gamma = B / (e^eps0 + B - 1), w uniform; L has three values and all pairs x, x' are alike.
    Laplace noise of scale 1/eps0 on [0, 1]: gamma = e^(-eps0/2), w is Laplace around 1/2. The worst pair is x = 0,
    x' = 1: a pair on one side of 1/2 becomes worse in the convex order when x is mirrored (L is a difference of two
    variables with fixed laws, most spread when one falls as the other rises), and a pair around 1/2 when x goes to 0
    and x' to 1 (all these L fall with W, have the same mean, and differ with one change of sign, from + to -).
    E[(sum)_+] is monotone in the convex order.

    For Laplace, L is put on a grid by splits that keep its mean, which again only raises the bound, and the sum of n
    independent copies (L with probability gamma, else 0) is computed by one Fourier transform after an exponential
    tilt to mean zero; what lies outside the transform's window is bounded by Bernstein's inequality and added.
    """
    _check(event)
    if event.pair is not None and event.pair != event.epsilon:
        problem = "the blanket bound needs a changed report that is always sent: pair must equal epsilon"
        raise InvalidArgument("mismatch", "pair", problem)
    if event.randomizer == "any":
        problem = 'the blanket depends on the randomizer: "laplace" or "response"'
        raise InvalidArgument("not-supported", "randomizer", problem)
    if epsilon >= event.epsilon:
        return 0.0
    local = -math.expm1(epsilon - event.epsilon) / (1 + math.exp(-event.epsilon))
    if not _SMALL <= event.epsilon <= LARGEST:
        return local
    bound = _blanket_laplace if event.randomizer == "laplace" else _blanket_response
    return min(local, bound(event, epsilon))


def blanket_epsilon(event: ShuffledReports, delta: float) -> float:
    """The smallest epsilon (to a relative 1e-4, from above) at which :func:`blanket_delta` is at most ``delta``."""
    from scipy import optimize

    if blanket_delta(event, 0.0) <= delta:
        return 0.0
    if delta <= 0:
        return event.epsilon

    def excess(epsilon: float) -> float:
        return math.log(max(blanket_delta(event, epsilon), 1e-300)) - math.log(delta)

    high = min(event.epsilon, 4 * shuffled_deviation(event))
    while high < event.epsilon and excess(high) > 0:
        high = min(event.epsilon, 2 * high)
    if high == event.epsilon and excess(high * (1 - 1e-9)) > 0:
        return event.epsilon
    epsilon = float(optimize.brentq(excess, 0.0, min(high, event.epsilon * (1 - 1e-9)), xtol=2e-5 * high, rtol=2e-5))
    while epsilon < event.epsilon and excess(epsilon) > 0:
        # a root next to 0 is not reached by ratios
        epsilon += 5e-5 * max(epsilon, high)
    return min(epsilon, event.epsilon)


def _blanket_response(event: ShuffledReports, epsilon: float) -> float:
    """The sum over a reports of v0 and b of v1; of the c other blanket reports, Bin(n - a - b, .), in closed form.

    (sum)_+ = gamma (a (e^eps0 - e^epsilon) - b (e^(epsilon + eps0) - 1) - c (e^epsilon - 1))_+, so only a >= 1 counts.
    With n E[X; a] / n = p E[X; 1 + a'], a' ~ Bin(n - 1, p), the weights sum to one and a tail costs at most its weight.
    """
    n, levels = event.reports, event.levels
    whole = math.expm1(event.epsilon) + levels
    single, rise = 1 / whole, math.exp(event.epsilon) - math.exp(epsilon)
    fall, drift = math.expm1(epsilon + event.epsilon), math.expm1(epsilon)
    a = (1 + binomial_bulk(n - 1, single))[:, None]
    given = single / (1 - single)  # the rate of v1 among those that are not v0
    fewest, most = binomial_bulk(n - int(a.max()), given).min(), binomial_bulk(n - int(a.min()), given).max()
    b = np.arange(fewest, most + 1)[None, :]
    others = np.maximum(n - a - b, 0)
    log_weight = special.gammaln(n) - special.gammaln(a) - special.gammaln(b + 1) - special.gammaln(others + 1)
    log_weight += (a - 1 + b) * math.log(single)
    log_weight += others * math.log1p(-2 * single) if single < 0.5 else np.where(others > 0, -np.inf, 0.0)
    weight = np.where(a + b <= n, np.exp(log_weight), 0.0)
    weight /= max(1.0, weight.sum())
    value = a * rise - b * fall
    positive = np.zeros(value.shape)
    rate = (levels - 2) * single / (1 - 2 * single) if levels > 2 else 0.0
    useful = (value > 0) & (weight > 0)
    if rate == 0 or drift == 0:
        positive[useful] = value[useful]
    else:
        gain, left = value[useful], others[useful]
        cut = np.minimum(np.floor(gain / drift), left)
        below = special.bdtr(cut, left, rate)
        moment = np.where(
            cut >= 1, left * rate * special.bdtr(np.maximum(cut - 1, 0), np.maximum(left - 1, 0), rate), 0.0
        )
        positive[useful] = np.maximum(gain * below - drift * moment, 0.0)
    missing = max(0.0, 1.0 - float(weight.sum()))
    # E[(sum)_+] / (gamma n) = single * E over the size-biased a of (sum)_+ / (gamma a)
    return float(single * ((weight * positive / a).sum() + missing * rise))


def _blanket_laplace(event: ShuffledReports, epsilon: float) -> float:
    from scipy import optimize

    n, eps0 = event.reports, event.epsilon
    gamma = math.exp(-eps0 / 2)
    values, probabilities, step = _laplace_ratio(eps0, epsilon, n)
    mixed = gamma * probabilities
    zero = round(-values[0] / step)
    mixed[zero] += 1 - gamma

    def tilted(rate: float) -> Floats:
        weights = mixed * np.exp(rate * (values - values[-1]))
        return np.asarray(weights / weights.sum(), dtype=np.float64)

    def slope(rate: float) -> float:
        return float(tilted(rate) @ values)

    top = 1.0 / values[-1]
    while slope(top) < 0:
        top *= 2
    rate = 0.0 if slope(0.0) >= 0 else float(optimize.brentq(slope, 0.0, top, xtol=1e-12))
    law = tilted(rate)
    log_mass = n * (math.log(float(mixed @ np.exp(rate * (values - values[-1])))) + rate * values[-1])
    centre = float(law @ values)
    variance = float(law @ values**2) - centre**2
    largest = max(values[-1] - centre, centre - values[0])
    exponent = 45.0  # Bernstein: the sum leaves the window with probability below 2 e^-45
    reach = exponent * largest / 3 + math.sqrt((exponent * largest / 3) ** 2 + 2 * exponent * n * variance)
    half = math.ceil((reach + abs(n * centre)) / step) + 1
    half = min(half, n * max(zero, values.size - 1 - zero))
    size = fft.next_fast_len(2 * half + 1, real=True)
    spectrum = fft.rfft(_wrapped(law, zero, size))
    summed = np.maximum(fft.irfft(spectrum**n, size), 0.0)[1 : half + 1]
    sums = step * np.arange(1, half + 1)
    inside = float(summed @ (sums * np.exp(-rate * sums)))
    # s e^(-rate s) is at most 1 / (e rate), and s at most n times the largest value
    outside = 2 * math.exp(-exponent) * min(n * values[-1], 1 / (math.e * rate) if rate > 0 else math.inf)
    return float(math.exp(log_mass) * (inside * (1 + 1e-9) + outside) / (gamma * n))


def _laplace_ratio(eps0: float, epsilon: float, reports: int) -> tuple[Floats, Floats, float]:
    """(values on a grid that contains 0, probabilities, step) of L for x = 0 and x' = 1, spread but with its own mean.

    W < 0 and W > 1, of probability e^(-eps0/2)/2 each, give the largest and the smallest value. Between, L falls:

        L = e^(eps0 (1/2 - 2 W)) - e^(epsilon - eps0/2)      up to W = 1/2,
        L = e^(-eps0/2) - e^(epsilon + eps0 (2 W - 3/2))     from there on.

    [0, 1] is cut where L crosses the grid; each piece is put on the two grid points around it, keeping its mean. Values
    so low that no sum with one of them is positive are raised to -reports times the largest.
    """
    end, lift = math.exp(-eps0 / 2), math.exp(epsilon)
    top, middle, bottom = 1 / end - lift * end, end - lift * end, end - lift / end
    own = end * math.cosh(eps0) + (1 - end**3) / (6 * end) + end**2 * (1 - end) / 2  # E[(R(0)/w)^2]
    cross = end + end * (1 - end)  # E[R(0) R(1) / w^2]
    floor = max(bottom, -reports * top)
    step = max(math.sqrt(2 * max(own - cross, 0.01 * eps0**2)) / 50, (top - floor) / 20_000)
    low, high = math.floor(floor / step), math.ceil(top / step)
    values = step * np.arange(low, high + 1)
    upper = values[(values > middle) & (values < top)]
    lower = values[(values > bottom) & (values < middle)]
    left = (0.5 - np.log(upper + lift * end) / eps0) / 2
    right = (1.5 + (np.log(end - lower) - epsilon) / eps0) / 2
    cuts = np.unique(np.clip(np.concatenate([left, right, [0.0, 0.5, 1.0]]), 0.0, 1.0))
    start, stop = cuts[:-1], cuts[1:]
    first = start < 0.5
    # probability of a piece, and the integrals of the two ratios over it (every one an exponential of W)
    grow = np.where(first, np.exp(eps0 * (stop - 0.5)) - np.exp(eps0 * (start - 0.5)), 0.0)
    decay = np.where(first, 0.0, np.exp(eps0 * (0.5 - start)) - np.exp(eps0 * (0.5 - stop)))
    masses = 0.5 * (grow + decay)
    near = np.exp(-eps0 * start) - np.exp(-eps0 * stop)
    far = np.exp(-eps0 * (1 - stop)) - np.exp(-eps0 * (1 - start))
    sums = 0.5 * (near - lift * far)
    masses, sums = np.append(masses, [end / 2, end / 2]), np.append(sums, [top * end / 2, bottom * end / 2])
    means = np.maximum(sums / np.maximum(masses, 1e-300), values[0])
    place = np.clip(np.floor(means / step).astype(np.int64) - low, 0, values.size - 2)
    share = np.clip(means / step - (place + low), 0.0, 1.0)
    probabilities = np.bincount(place, weights=masses * (1 - share), minlength=values.size)
    probabilities += np.bincount(place + 1, weights=masses * share, minlength=values.size)
    return np.asarray(values), np.asarray(probabilities / probabilities.sum(), dtype=np.float64), step


def _wrapped(law: Floats, zero: int, size: int) -> Floats:
    """The law of a step variable, value 0 at place 0 and negative values from the end."""
    out = np.zeros(size)
    np.add.at(out, (np.arange(law.size) - zero) % size, law)
    return out


def binomial_bulk(trials: int, rate: float) -> npt.NDArray[np.int64]:
    """The values of Bin(trials, rate) but for a tail of about 2e-18."""
    low, high = _bulk(trials, rate)
    return np.arange(low, high + 1)


def _bulk(trials: int, rate: float) -> tuple[int, int]:
    """(low, high): Bin(trials, rate) is below low, or above high, with probability at most 1e-18 each."""
    if trials < 1 or rate <= 0 or rate >= 1:
        certain = trials if rate >= 1 else 0
        return certain, certain
    low = smallest_integer(lambda k: bool(special.bdtr(k, trials, rate) > _TAIL), 0, trials)
    high = smallest_integer(lambda k: bool(special.bdtrc(k, trials, rate) <= _TAIL), 0, trials)
    return low, high


def binomial_pmf(values: npt.ArrayLike, trials: int, rate: float) -> Floats:
    """Pr[Bin(trials, rate) = values], accurate for many trials: by the error of Stirling's formula and deviances
    (Loader 2000)."""
    k = np.asarray(values, dtype=np.float64)
    if trials < 1 or rate <= 0 or rate >= 1:
        return np.asarray(k == (trials if rate >= 1 else 0), dtype=np.float64)
    rest = trials - k
    inner = (k > 0) & (rest > 0)
    some, others = np.where(inner, k, 1.0), np.where(inner, rest, 1.0)
    logs = _stirling(np.array([float(trials)])) - _stirling(some) - _stirling(others)
    logs -= _deviance(some, trials * rate) + _deviance(others, trials * (1 - rate))
    logs += 0.5 * np.log(trials / (2 * math.pi * some * others))
    ends = np.where(k == 0, trials * math.log1p(-rate), trials * math.log(rate))
    return np.asarray(np.exp(np.where(inner, logs, ends)) * ((k >= 0) & (rest >= 0)), dtype=np.float64)


def _stirling(n: Floats) -> Floats:
    """ln n! - ln(sqrt(2 pi n) (n / e)^n)."""
    direct = special.gammaln(n + 1) - (n + 0.5) * np.log(n) + n - 0.5 * math.log(2 * math.pi)
    squared = n * n
    series = (1 / 12 - (1 / 360 - (1 / 1260 - 1 / 1680 / squared) / squared) / squared) / n
    return np.where(n < 16, direct, series)


def _deviance(k: Floats, mean: float) -> Floats:
    """k ln(k / mean) + mean - k."""
    gap = (mean - k) / k
    small = gap**2 * (0.5 - gap * (1 / 3 - gap * (0.25 - gap * (0.2 - gap * (1 / 6 - gap / 7)))))
    return np.asarray(k * np.where(np.abs(gap) < 1e-3, small, gap - np.log1p(gap)), dtype=np.float64)
