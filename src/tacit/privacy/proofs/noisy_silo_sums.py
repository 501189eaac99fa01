"""Sums over silos with noise in shares, one share from every silo, and the event that each view sees.

The sums are those of :mod:`tacit.privacy.mechanisms.noisy_queries`, in which every subject counts at most once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tacit.privacy.accounting.events import Event, Gaussian, Unprotected
from tacit.privacy.mechanisms.noise_mechanisms import standard_normal
from tacit.privacy.randomness import Stream
from tacit.privacy.terms import Exposure

Floats = npt.NDArray[np.float64]


def noisy_sum(parts: Floats, sigma: float, streams: Sequence[Stream]) -> Floats:
    """The sum of ``parts`` [silos, D] with noise of standard deviation ``sigma``, in shares: silo k adds its own of
    standard deviation sigma / sqrt(silos), from ``streams[k]``, before its part leaves it."""
    share = sigma / math.sqrt(len(parts))
    noisy = [part + share * standard_normal(part.size, stream) for part, stream in zip(parts, streams, strict=True)]
    return np.asarray(np.sum(noisy, axis=0), dtype=np.float64)


def paid_event(
    exposure: Exposure, noise_multiplier: float, silos: int, max_silos: int, *, moves_up: bool = True
) -> Event:
    """What a query with ``max_silos``, released as :func:`noisy_sum`, shows to a view about a unit.

    noise_multiplier   z: the noise on the sum has standard deviation z s, s the sensitivity of the query
    silos, max_silos   S silos; records of one subject lie in at most m of them
    moves_up           caps are in force under which, when a record goes, another record or silo of the same subject may
                       take its place; or a subject may be in more than m silos and is scaled down

    **Formal guarantee.** Everything is Gaussian with a fixed covariance, so mu is the norm of the change over the noise
    and ``Gaussian(1 / mu)`` is exact for the largest change. A subject's part in one silo is v_k with |v_k| <= s / m
    (its weights there sum to at most 1 / m), in at most m silos. A larger number k of silos has weights 1 / k.

    *Subject, zero-out.* The sum moves by |sum v_k| <= s, against z s: mu = 1 / z. A view of each silo's noisy part
    (``each``) sees the v_k apart, against z s / sqrt(S) each: mu^2 = sum |v_k|^2 S / (z s)^2 <= m (1 / m)^2 S / z^2, so
    mu = sqrt(S / m) / z. *Replace*: v_k - v_k' has twice the bound: mu doubles.

    *Silos that collude*, c of them, know their own noise: of the sum's variance (S - c) / S is left, so mu grows by
    sqrt(S / (S - c)). Each honest silo's part alone still has its whole share: with ``each`` nothing changes.

    *Record, zero-out.* Its subject has n records in that silo. n = 1: the part vanishes, s / m. n > 1: an average of n
    becomes one of n - 1 and moves by |phi_r - mean of the others| / (m n) <= 2 s / (m n) <= s / m. With ``moves_up``:
    another record takes its place, 2 s / (m n). Or another silo does, which takes s / m away and brings s / m. Or k > m
    silos become k - 1, which takes s / k away and scales the rest, of norm at most (k - 1) s / k, by k / (k - 1), again
    by at most s / k: never more than 2 s / m in all. The sum moves by f s / m with f = 1 or 2, and so, seen apart, do
    the parts in the l2 norm. At most two of them by s / m each, one by 2 s / m, or in the last case by
    (1 / k) sqrt(1 + 1 / (k - 1)) s. *Replace*: taken away and brought, twice that.

    *Silo.* Nothing bounds how many subjects a silo holds: unprotected.

    Constants and metrics are public afterwards: a view that sees nothing else of an exchange sees the sum.
    """
    if exposure.unit == "silo":
        return Unprotected("private statistics do not bound what one silo contributes")
    if exposure.colluding >= silos:
        return Unprotected("all silos collude: no silo is left to protect")
    if exposure.unit == "subject":
        moved = math.sqrt(silos / max_silos) if _apart(exposure) else 1.0
    else:
        moved = (2.0 if moves_up else 1.0) / max_silos * (math.sqrt(silos) if _apart(exposure) else 1.0)
    moved *= 2.0 if exposure.replaces else 1.0
    if not _apart(exposure):
        moved *= math.sqrt(silos / (silos - exposure.colluding))
    return Gaussian(noise_multiplier / moved)


def _apart(exposure: Exposure) -> bool:
    """Whether the view sees every silo's part."""
    return exposure.reveals not in ("sum", "nothing")
