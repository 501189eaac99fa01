"""The privacy loss of a Gaussian sum to which the unit contributes a random amount.

With the unit the release is P = sum_j w_j N(c_j, 1), without it Q = N(0, 1) (in units of the standard deviation, c_j
>= 0). Poisson sampling of one record is c = (0, 1 / sigma) with w = (1 - q, q); a subject of whose n records each is
sampled with probability q has c_j = j / sigma and binomial w. Vector contributions of norm at most c_j are dominated
by this pair (Choquette-Choo, Ganesh, McKenna, McMahan, Rush, Thakurta, Xu 2023, arXiv 2310.15526; Ganesh 2024, arXiv
2401.10294).

The privacy loss L(x) = ln sum_j w_j exp(c_j x - c_j^2 / 2) is convex and increasing in x, so each cell between two
losses of the grid is an interval of x. All its ends are found at once, by Hermite interpolation of a table and Newton
steps, and the probabilities of the cells under P and Q are differences of normal distribution functions.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from scipy.special import log_ndtr, ndtr, ndtri

from tacit.privacy.accounting.events import GaussianMixture
from tacit.privacy.accounting.pld import Losses, Pld, spread

Array = npt.NDArray[np.float64]

# probability that may be counted as infinite loss, per release
_TAIL = 1e-30
# |z| beyond which the standard normal has less than _TAIL
_REACH = float(-ndtri(_TAIL))
_LARGEST_TABLE = 1 << 22


def mixture_losses(event: GaussianMixture, grid: float) -> Losses:
    """Both loss distributions of ``event`` on multiples of ``grid``, pessimistic; the tails are infinite losses."""
    shifts, weights, dropped = _standard(event)
    edges, first = _edges(shifts, weights, grid)
    # between edges i and i + 1 the loss lies between grid points first + i and first + i + 1
    cells = np.arange(first, first + len(edges) - 1)
    mass_p, log_q = _mass(edges, shifts, weights), _log_normal_mass(edges)
    with np.errstate(divide="ignore", under="ignore"):
        log_p, mass_q = np.log(mass_p), np.exp(log_q)
    remove = spread(mass_p[1:-1], log_q[1:-1], cells, grid)
    add = spread(mass_q[1:-1], log_p[1:-1], -cells - 1, grid)
    # outside the edges: the smallest losses are raised to the nearest grid point in the table, the largest are infinite
    remove.mass[1] += mass_p[0]
    add.mass[1] += mass_q[-1]
    return Losses(
        Pld(grid, remove.low, remove.mass, float(mass_p[-1]) + dropped),
        Pld(grid, add.low, add.mass, float(mass_q[0])),
    )


def loss_deviation(event: GaussianMixture) -> float:
    """The standard deviation of one release's privacy loss, to a few digits: the scale of a sensible grid."""
    shifts, weights, _ = _standard(event)
    span = 4 * (int(shifts[-1]) + 12)
    if span <= 49 * len(shifts):
        # many components close together: P's density is phi e^L
        points = np.linspace(-6.0, float(shifts[-1]) + 6.0, span)
        loss, _ = loss_and_slope(points, shifts, weights)
        density = np.exp(loss - points**2 / 2)
    else:
        around = np.linspace(-6.0, 6.0, 49)
        loss, _ = loss_and_slope(np.add.outer(shifts, around).ravel(), shifts, weights)
        density = np.outer(weights, np.exp(-(around**2) / 2)).ravel()
    density /= density.sum()
    mean = float(density @ loss)
    return math.sqrt(float(density @ (loss - mean) ** 2))


def loss_range(event: GaussianMixture) -> float:
    """Length of the interval of losses that :func:`mixture_losses` tabulates."""
    shifts, weights, _ = _standard(event)
    ends, _ = loss_and_slope(np.array([-_REACH, _upper_end(shifts, weights)]), shifts, weights)
    return float(ends[1] - ends[0])


def _standard(event: GaussianMixture) -> tuple[Array, Array, float]:
    """Shifts in standard deviations, ascending, their weights, and the mass of the largest ones that is below 1e-30.

    Dropping components from P and counting them as infinite loss is pessimistic for (P, Q); for (Q, P) a smaller P
    makes every loss larger.
    """
    shifts = np.asarray(event.sensitivities, dtype=np.float64) / event.noise_multiplier
    weights = np.asarray(event.probabilities, dtype=np.float64)
    order = np.argsort(shifts, kind="stable")
    shifts, weights = shifts[order], weights[order]
    from_above = np.cumsum(weights[::-1])[::-1]
    kept = from_above > _TAIL
    used = kept & (weights > 0)
    return shifts[used], weights[used], float(from_above[~kept].max(initial=0.0))


def _upper_end(shifts: Array, weights: Array) -> float:
    """x beyond which P has at most the tail probability: each component gets an equal part of it."""
    allowed = np.minimum(_TAIL / (len(shifts) * weights), 0.5)
    return float(np.max(shifts - ndtri(allowed)))


def loss_and_slope(points: Array, shifts: Array, weights: Array) -> tuple[Array, Array]:
    """L and its derivative at ``points``, in chunks of bounded size."""
    loss, slope = np.empty_like(points), np.empty_like(points)
    constants = np.log(weights) - shifts**2 / 2
    chunk = max(1, (1 << 21) // len(shifts))
    for start in range(0, len(points), chunk):
        exponents = np.multiply.outer(shifts, points[start : start + chunk])
        exponents += constants[:, None]
        top = exponents.max(axis=0)
        exponents -= top
        np.exp(exponents, out=exponents)
        total = exponents.sum(axis=0)
        loss[start : start + chunk] = top + np.log(total)
        slope[start : start + chunk] = shifts @ exponents / total
    return loss, slope


def _edges(shifts: Array, weights: Array, grid: float) -> tuple[Array, int]:
    """Ends of the cells, ascending, and the grid point below the first cell: the inner ends have losses on the grid,
    the two outer ones are where the tails begin. (Zero is among the losses: E_Q[e^L] = 1.)"""
    low, high = -_REACH, _upper_end(shifts, weights)
    # the table needs a few points per unit of x and per 1 / c, where the loss bends
    count = int(min(20_000, 64 + (high - low) * 12 * max(1.0, float(shifts[-1]) / 4)))
    knots = np.linspace(low, high, count)
    losses, slopes = loss_and_slope(knots, shifts, weights)
    first, last = min(0, math.ceil(losses[0] / grid)), max(0, math.floor(losses[-1] / grid))
    if last - first > _LARGEST_TABLE:
        raise MemoryError(f"{last - first} losses at grid {grid}: choose a coarser one")
    targets = np.arange(first, last + 1) * grid
    inner = np.clip(_invert(targets, knots, losses, slopes, shifts, weights), low, high)
    return np.concatenate([[low], inner, [high]]), first - 1


def _invert(targets: Array, knots: Array, losses: Array, slopes: Array, shifts: Array, weights: Array) -> Array:
    """x with L(x) = target, for all targets: cubic Hermite interpolation of the inverse, then safeguarded Newton
    steps."""
    cell = np.clip(np.searchsorted(losses, targets, side="right") - 1, 0, len(knots) - 2)
    left, right = knots[cell], knots[cell + 1]
    width = losses[cell + 1] - losses[cell]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        t = np.where(width > 0, (targets - losses[cell]) / width, 0.5)
        start, end = width / slopes[cell], width / slopes[cell + 1]
        x = (
            (1 + 2 * t) * (1 - t) ** 2 * left
            + t * (1 - t) ** 2 * start
            + t**2 * (3 - 2 * t) * right
            - t**2 * (1 - t) * end
        )
    x = np.where(np.isfinite(x), np.clip(x, left, right), right)
    rough = np.arange(len(targets))
    for _ in range(60):
        value, slope = loss_and_slope(x[rough], shifts, weights)
        residual = value - targets[rough]
        # L is convex: the tangent's root lies right of the true one, and from there Newton descends monotonically
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            step = np.where(slope > 0, residual / slope, 0.0)
            # L'' <= c_max L', so the step leaves at most c_max residual^2 / (2 L')
            remaining = np.where(slope > 0, shifts[-1] * residual**2 / (2 * slope), 0.0)
        moved = np.clip(x[rough] - step, left[rough], right[rough])
        still = (remaining > 1e-14 * np.maximum(1.0, np.abs(targets[rough]))) & (moved != x[rough])
        x[rough] = moved
        rough = rough[still]
        if len(rough) == 0:
            break
    return np.maximum.accumulate(x)


def _mass(edges: Array, shifts: Array, weights: Array) -> Array:
    """P of the cells (-inf, e_0], (e_0, e_1], …, (e_last, inf): distribution functions left of 0, survival right of
    it."""
    split = int(np.searchsorted(edges, 0.0))
    below, above = np.zeros(split), np.zeros(len(edges) - split)
    for shift, weight in zip(shifts, weights, strict=True):
        below += weight * ndtr(edges[:split] - shift)
        above += weight * ndtr(shift - edges[split:])
    middle = float(weights.sum()) - (below[-1] if len(below) else 0.0) - (above[0] if len(above) else 0.0)
    cells = np.concatenate([np.diff(below, prepend=0.0), [middle], -np.diff(above, append=0.0)])
    return np.asarray(np.maximum(cells, 0.0), dtype=np.float64)


def _log_normal_mass(edges: Array) -> Array:
    """ln Q of the same cells, accurate in both tails."""
    ends = np.concatenate([[-np.inf], edges, [np.inf]])
    left, right = ends[:-1], ends[1:]
    # mirror the cells on the right, so that both ends are in the lower tail
    flip = left + right > 0
    near, far = np.where(flip, -left, right), np.where(flip, -right, left)
    log_near, log_far = log_ndtr(near), log_ndtr(far)
    with np.errstate(divide="ignore", invalid="ignore"):
        value = log_near + np.log(-np.expm1(log_far - log_near))
    return np.where(near > far, value, -np.inf)
