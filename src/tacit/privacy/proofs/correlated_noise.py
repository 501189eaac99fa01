"""Noise that is correlated over rounds and partly cancels in the sum of all rounds, of which a model is made.

In round t the sum x_t of clipped contributions is released as ``x_t + sum_j m_j z_{t-j}``, j = 0 .. b-1, with fresh
normals z_t in every round and public weights ``m`` (``bands`` of them, m_0 = 1). In matrices, with the lower triangular
Toeplitz matrix M of the weights and C = M^-1:

    x + M z = C^-1 (C x + z)

The released rounds are post-processing of C x + z: the matrix mechanism with strategy C (Li et al. 2015), which also
holds where x_t depends on what was released before, because C is lower triangular and the noise Gaussian (Denisov,
McMahan, Rush, Smith, Thakurta 2022, "Improved Differential Privacy for SGD via Optimal Private Linear Operators on
Adaptive Streams", theorem 2.1). So the whole training is *one* Gaussian mechanism, of which the sensitivity is that of
C x. The cost is that of all rounds, whole, from the first round on: no round is private by itself.

Weights are the first ``bands`` coefficients of (1 - u)^(1/2), a square root of the inverse of summing up (Kalinin,
McKenna, Upadhyay, Lampert 2025, "Back to Square Roots"): 1, -1/2, -1/8, -1/16, … One band is independent noise.

**Who takes part when** decides the sensitivity, so it is a public schedule: people are divided into ``groups``, and
round t is that of group (t - 1) mod groups.

*Claim.* If a person contributes u_t with norm at most 1 in the rounds P of its group and nothing in the others, then
|C u|^2 <= |sum_{t in P} C_t|^2, C_t being the columns of C; and that is attained.

*Proof.* |C u|^2 = sum_{s,t in P} <C_s, C_t> <u_s, u_t>. All entries of C are at least 0. Its first column c fulfils
c_0 = 1 and c_k = sum_j (-m_j) c_{k-j}, a sum of products of numbers that are not negative (-m_j >= 0 for j >= 1). Hence
<C_s, C_t> >= 0, and by Cauchy and Schwarz <u_s, u_t> <= 1, whatever the directions and signs: the sum is at most
sum_{s,t} <C_s, C_t>. It is attained where all u_t are the same unit vector. QED.

So signs chosen by an adversary gain nothing over always pushing the same way, and the bound is exact.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

# the sums below are of positive numbers: their rounding is far below this, relatively
_ROUNDED_UP = 1 + 1e-9


def noise_weights(bands: int) -> tuple[float, ...]:
    """m_0 .. m_{bands-1}: the coefficients of (1 - u)^(1/2)."""
    weights = [1.0]
    for k in range(1, bands):
        weights.append(weights[-1] * (k - 1.5) / k)
    return tuple(weights)


def strategy_column(bands: int, rounds: int) -> Array:
    """The first column of C = M^-1, ``[rounds]``; every other one is the same, further down."""
    back = -np.array(noise_weights(bands)[1:])
    column = np.zeros(rounds)
    column[:1] = 1.0
    for k in range(1, rounds):
        reach = min(k, len(back))
        column[k] = back[:reach] @ column[k - reach : k][::-1]
    return column


def sensitivity(bands: int, groups: int, rounds: int) -> float:
    """The most by which one person moves C x over all rounds, if each contribution has norm at most 1: the largest norm
    of a group's sum of columns."""
    column, groups = strategy_column(bands, rounds), min(groups, rounds)
    turns = np.pad(column, (0, -rounds % groups)).reshape(-1, groups)
    # of the first group, whose turns are the earliest: those of the others are the same, further down and cut off
    moved = np.cumsum(turns, axis=0).ravel()[:rounds]
    return float(np.linalg.norm(moved)) * _ROUNDED_UP
