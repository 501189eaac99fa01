"""How far one unit moves a sum whose weights depend on the counts of a whole slot (specification 9.1, 9.2).

A subject's part in silo s has norm at most 1 (in clips) and weight n_s f(N). n_s is the subject's number of records
there, N the number of all records of the slot in all silos, f a public table (``weight_tables``). In the exchange
``weighted`` no party knows N, so no view can subtract what another part of the slot contributes. If n records leave a
slot in which r others stay, they take n f(n + r) with them, and every weight that stays changes from f(n + r) to f(r):
r |f(r) - f(n + r)|. The sum moves by at most

    n f(n + r) + r |f(r) - f(n + r)|                                                                           (1)

The r records that stay belong to the same subject in curious silos, or to other subjects of the slot.

:func:`largest_shift` is the maximum of (1) for any table. :func:`slot_shift` and :func:`slot_record_shift` also count
silos with more records in a slot than they use. They take tables f that do not increase from N = 1 on, of which
g(N) = N f(N) does not decrease and is at most 1.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from tacit.privacy.invalid import require
from tacit.privacy.proofs.weight_tables import WeightTable

Array = npt.NDArray[np.float64]

# entries of the table of (n, r) that are computed at once
_CHUNK = 1 << 20
# by which part values of a table in floating point may miss what is known about f
_ROUNDING = 1e-12


def largest_shift(table: npt.ArrayLike, leaving: int, staying: int) -> float:
    """The largest value of (1) in clips, over n in 1..leaving and r in 0..staying.

    table  f(0), f(1), ..., at least up to f(leaving + staying)

    For a curious silo of S with at most R records of a subject in each: leaving (S - 1) R, staying R.
    """
    require("out-of-range", "leaving", leaving >= 1 and staying >= 0, "must be at least 1, and staying at least 0")
    f = _weights(table, leaving + staying)
    n = np.arange(1, leaving + 1)
    rows = max(1, _CHUNK // leaving)
    found = 0.0
    for first in range(0, staying + 1, rows):
        r = np.arange(first, min(first + rows, staying + 1))[:, np.newaxis]
        together = f[n + r]
        found = max(found, float(np.max(n * together + r * np.abs(f[r] - together))))
    return found


def largest_slot_shift(table: npt.ArrayLike, silos: int, records: int, curious: int = 0) -> float:
    """The most clips by which one subject's records in the other ``silos - curious`` silos move a sum with weights
    n f(N), where several subjects may share a slot.

    table    f(0), f(1), ..., at least up to f(silos * records)
    records  R: a silo uses at most R records of a subject. It counts a slot with more than R records as one with R, and
             contributes nothing to it

    **Proof.** Let the subject leave. In an honest silo s it has a_s <= R records next to r_s of the others in its slot.

        r_s + a_s <= R        the silo uses and counts r_s + a_s records before and r_s after
        r_s <= R < r_s + a_s  the silo counts R records and uses none before; after, it uses and counts the r_s others
        r_s > R               the silo counts R records and uses none, before and after

    Let N records be counted before and N' after. None is counted after that was not before: N' <= N. Where N' >= 1,
    f(N') >= f(N); where N' = 0, none is used after. A silo of the third kind moves the sum no further than one of the
    first kind that uses R records of the others: N and N' stay, and R (f(N') - f(N)) >= 0 is added. So does a curious
    silo with an overfull slot. Without such silos, let j silos be of the second kind, q <= j R the records that they
    begin to use, n the subject's records in silos of the first kind, and r all records that are used before and after,
    those of the c curious silos included. A silo uses at most R records of a slot: n <= (S - c - j) R and
    n + r <= (S - j) R. With N = n + r + j R and N' = r + q the sum moves by at most

        V = n f(N) + r (f(N') - f(N)) + q f(N') = (n - r) f(N) + g(r + q).

    g does not decrease: V is largest at q = j R. Nor do n f(N) = g(N) - (r + j R) f(N) and -r f(N) decrease with n: V
    is largest at n = min((S - c - j) R, (S - j) R - r). j and r are searched. The maximum is attained: by others with R
    records in each of the j silos, where the subject has one, and r records elsewhere, and by contributions on one line
    of which the subject's point the other way.
    """
    others = silos - curious
    usual = others >= 1 and curious >= 0 and records >= 1
    require("out-of-range", "silos", usual, "at least one silo must be left, with at least one record of a subject")
    f = _falling(table, silos * records)
    g = np.arange(len(f)) * f
    found = 0.0
    for overfull in range(others + 1):
        room = (silos - overfull) * records
        r = np.arange(room + 1)
        n = np.minimum((others - overfull) * records, room - r)
        after = r + overfull * records
        found = max(found, float(np.max((n - r) * f[n + after] + g[after])))
    return found


def largest_slot_record_shift(table: npt.ArrayLike, silos: int, records: int) -> float:
    """The same for one record of a subject, removed or replaced by another of the same subject and silo. One that is
    replaced by another subject's is removed and added: twice this.

    **Proof.** Only one silo's part of the subject, of n <= R records, can turn around. *Removed*: it goes from weight
    n f(N) to (n - 1) f(N - 1), and the other N - n records of the slot, of this or another subject, from f(N) to
    f(N - 1): n f(N) + (n - 1) f(N - 1) + (N - n) (f(N - 1) - f(N)) = (2 n - N) f(N) + g(N - 1). This does not decrease
    with n: n = min(R, N). For N <= R it is g(N) + g(N - 1), which is largest at N = R: N in R..S R are searched.
    *Replaced*, also by a record for which a cap makes room: 2 n f(N) <= 2 g(n) <= 2 g(R). *Overfull*: the removed
    record can only bring a slot of R + 1 records back, which counts as R before and after: R f(N) <= g(R).
    """
    usual = silos >= 1 and records >= 1
    require("out-of-range", "silos", usual, "at least one silo is needed, with at least one record of a subject")
    f = _falling(table, silos * records)
    total = np.arange(records, silos * records + 1)
    removed = (2 * records - total) * f[total] + (total - 1) * f[total - 1]
    return max(2.0 * records * float(f[records]), float(removed.max()))


@lru_cache(maxsize=256)
def slot_shift(table: WeightTable, silos: int, records: int, curious: int = 0) -> float:
    """:func:`largest_slot_shift` of a table, rounded or not.

    **Proof** for weights f' that are f rounded down to multiples of 2^-k. f' does not increase either, so that in any
    slot the sum moves by at most V' = (n - r) f'(N) + (r + q) f'(N'). f - 2^-k < f' <= f, thus V' is at most
    V + max(0, r - n) 2^-k < V + S R 2^-k.
    """
    return largest_slot_shift(table.floats(), silos, records, curious) + _rounding(table, silos * records)


@lru_cache(maxsize=256)
def slot_record_shift(table: WeightTable, silos: int, records: int) -> float:
    """:func:`largest_slot_record_shift` of a table, rounded or not. Rounding adds at most max(0, N - 2 n) 2^-k, which
    is below S R 2^-k (proof as for :func:`slot_shift`)."""
    return largest_slot_record_shift(table.floats(), silos, records) + _rounding(table, silos * records)


def shared_slots(subjects: int, slots: int) -> float:
    """The expected share of ``subjects`` who share a slot with another: 1 - (1 - 1 / slots)^(subjects - 1)."""
    require("out-of-range", "subjects", subjects >= 1 and slots >= 1, "subjects and slots must be at least 1")
    return 1.0 - (1.0 - 1.0 / slots) ** (subjects - 1)


def _rounding(table: WeightTable, most: int) -> float:
    return 0.0 if table.bits is None else most * 2.0**-table.bits


def _weights(table: npt.ArrayLike, most: int) -> Array:
    """The table as an array; refused where it is too short, or its values are not weights."""
    f = np.asarray(table, np.float64)
    problem = f"the table must have the weights f(0) to f({most})"
    require("wrong-length", "table", f.ndim == 1 and len(f) > most, problem)
    usual = bool(np.all(np.isfinite(f) & (f >= 0)))
    require("out-of-range", "weights", usual, "weights must be finite numbers from 0 on")
    return f


def _falling(table: npt.ArrayLike, most: int) -> Array:
    """f(0) to f(most); refused unless f does not increase from 1 on, and N f(N) does not decrease and is at most 1."""
    f = _weights(table, most)[: most + 1]
    g = np.arange(most + 1) * f
    falls = bool(np.all(f[2:] <= f[1:-1] * (1 + _ROUNDING)))
    require("out-of-range", "weights", falls, "f(N) must not increase from N = 1 on")
    grows = bool(np.all(g[1:] >= g[:-1] * (1 - _ROUNDING))) and bool(np.all(g <= 1 + _ROUNDING))
    require("out-of-range", "weights", grows, "N f(N) must not decrease, and must be at most 1")
    return f
