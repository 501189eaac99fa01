"""How far one unit moves a sum whose weights depend on the counts of a whole slot (specification 9.1, 9.2).

A subject's part in silo s has norm at most 1 (in clips) and weight n_s f(N). n_s is the subject's number of records
there, N the number of all records of the slot in all silos, f a public table. In the exchange ``weighted`` no party
knows N, so no view can subtract what another part of the slot contributes. If n records leave a slot in which r others
stay, they take n f(n + r) with them, and every weight that stays changes from f(n + r) to f(r): r |f(r) - f(n + r)|.
The sum moves by at most

    n f(n + r) + r |f(r) - f(n + r)|                                                                           (1)

The r records that stay belong to the same subject in curious silos, or to other subjects of the slot.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from tacit.privacy.invalid import require

Array = npt.NDArray[np.float64]

# entries of the table of (n, r) that are computed at once
_CHUNK = 1 << 20


def phantom_weights(most: int) -> Array:
    """f(N) = 1 / (1 + N) for N = 0..most: the weights of the exchange ``weighted`` (a phantom record in every slot)."""
    return np.asarray(1.0 / (1.0 + np.arange(most + 1)), np.float64)


def largest_shift(table: npt.ArrayLike, leaving: int, staying: int) -> float:
    """The largest value of (1) in clips, over n in 1..leaving and r in 0..staying.

    table  f(0), f(1), ..., at least up to f(leaving + staying)

    For a curious silo of S with at most R records of a subject in each: leaving (S - 1) R, staying R.
    """
    f = np.asarray(table, np.float64)
    require("out-of-range", "leaving", leaving >= 1 and staying >= 0, "must be at least 1, and staying at least 0")
    problem = f"the table must have the weights f(0) to f({leaving + staying})"
    require("wrong-length", "table", f.ndim == 1 and len(f) > leaving + staying, problem)
    usual = bool(np.all(np.isfinite(f) & (f >= 0)))
    require("out-of-range", "weights", usual, "weights must be finite numbers from 0 on")
    n = np.arange(1, leaving + 1)
    rows = max(1, _CHUNK // leaving)
    found = 0.0
    for first in range(0, staying + 1, rows):
        r = np.arange(first, min(first + rows, staying + 1))[:, np.newaxis]
        together = f[n + r]
        found = max(found, float(np.max(n * together + r * np.abs(f[r] - together))))
    return found


@lru_cache(maxsize=256)
def slot_shift(silos: int, records: int, curious: int = 0) -> float:
    """The most clips by which one subject's records in the other ``silos - curious`` silos move a sum with weights
    n / (1 + N), where several subjects may share a slot.

    records  R: a silo uses at most R records of a subject. It counts a slot with more than R records as one with R, and
             contributes nothing to it

    **Proof.** Let the subject leave. In an honest silo s it has a_s <= R records next to r_s of the others in its slot.

        r_s + a_s <= R        the silo uses and counts r_s + a_s records before and r_s after
        r_s <= R < r_s + a_s  the silo counts R records and uses none before; after, it uses and counts the r_s others
        r_s > R               the silo counts R records and uses none, before and after

    Let j silos be of the second kind, q <= j R the records that they begin to use, n <= (S - c - j) R the subject's
    records in silos of the first kind, and r all records that are used before and after, those of the c curious silos
    included. Without silos of the third kind N = n + r + j R before and N' = r + q <= N after, and the sum moves by at
    most

        V = n f(N) + r (f(N') - f(N)) + q f(N') = (n - r) / (1 + n + r + j R) + (r + q) / (1 + r + q).

    k silos of the third kind add k R to N and N'. Every term of the first form falls with that. V grows with n and with
    q: its largest value has n = (S - c - j) R and q = j R. There f(N') - f(N) = n f(N) f(N'), and r f(N') <= 1, so that
    V <= 2 n f(N) + q f(N'), which falls with r: r in 0..4 (n + q) is enough where this is below what was found.
    """
    others = silos - curious
    usual = others >= 1 and records >= 1
    require("out-of-range", "silos", usual, "at least one silo must be left, with at least one record of a subject")
    found, beyond = 0.0, 0.0
    for overfull in range(others + 1):
        n, q = (others - overfull) * records, overfull * records
        r = np.arange(4 * (n + q) + 1)
        found = max(found, float(np.max((n - r) / (1 + n + r + q) + (r + q) / (1 + r + q))))
        beyond = max(beyond, float(2 * n / (1 + n + r[-1] + q) + q / (1 + r[-1] + q)))
    assert beyond < found, "the search ends too early"
    return found


@lru_cache(maxsize=256)
def slot_record_shift(silos: int, records: int) -> float:
    """The same for one record of a subject, removed or replaced by another of the same subject and silo. One that is
    replaced by another subject's is removed and added: twice this.

    **Proof.** Only one silo's part of the subject, of n <= R records, can turn around. *Removed*: it goes from weight
    n f(N) to (n - 1) f(N - 1), and the other r = N - n records of the slot, of this or another subject, from f(N) to
    f(N - 1): n f(N) + (n - 1) f(N - 1) + r (f(N - 1) - f(N)) = (n - r) / (1 + N) + (N - 1) / N for f(N) = 1 / (1 + N),
    which grows with n. *Replaced*, also by a record for which a cap makes room: 2 n f(N) <= 2 R / (1 + R). *Overfull*:
    the removed record can only bring a slot of R + 1 records back, which counts as R before and after: R f(N).
    """
    r = np.arange(silos * records + 1)
    removed = (records - r) / (1 + records + r) + (records - 1 + r) / (records + r)
    return max(2 * records / (1 + records), float(removed.max()))


def shared_slots(subjects: int, slots: int) -> float:
    """The expected share of ``subjects`` who share a slot with another: 1 - (1 - 1 / slots)^(subjects - 1)."""
    require("out-of-range", "subjects", subjects >= 1 and slots >= 1, "subjects and slots must be at least 1")
    return 1.0 - (1.0 - 1.0 / slots) ** (subjects - 1)
