"""Public tables of record weights: a subject's part in silo s has weight n_s f(N).

n_s is the subject's number of records in the silo, N the number of records in all silos (of the subject, or of its slot
where subjects may share one), and f a public function:

    records          f(N) = 1 / N                    every subject with records has weight 1 in all
    records-phantom  f(N) = 1 / (1 + N)              as if there were one record more
    records-sqrt     f(N) = sqrt(N / N_max) / N      a subject's weight in all grows with the root of its records
    records-capped   f(N) = min(N, cap) / (cap N)    it grows up to ``cap`` records

Of all of them f does not increase from N = 1 on, and N f(N) does not decrease and is at most 1: a subject's weights sum
to at most 1. The bounds of ``weight_shifts`` rest on that. A slot without records contributes nothing: f(0) is never
multiplied with anything but 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from tacit.privacy.invalid import require

RecordWeights = Literal["records", "records-phantom", "records-sqrt", "records-capped"]
RECORD_WEIGHTS: tuple[RecordWeights, ...] = get_args(RecordWeights)
# weights are held as integers of 64 bits with a sign
MOST_BITS = 62


@dataclass(frozen=True)
class WeightTable:
    """One of the tables above, for N = 0..most.

    most  N_max: silos times the most records of a subject (of a slot) in a silo
    cap   records-capped: N that has weight 1 in all
    bits  weights are rounded down to multiples of 2^-bits; None: they are exact
    """

    kind: RecordWeights
    most: int
    cap: int | None = None
    bits: int | None = None

    def __post_init__(self) -> None:
        require("out-of-range", "most", self.most >= 1, "must be at least 1")
        known = self.kind in RECORD_WEIGHTS
        require("unknown-name", "kind", known, f"{self.kind!r} is not a table of weights")
        capped = self.kind == "records-capped"
        usual = (self.cap is not None and self.cap >= 1) if capped else self.cap is None
        require("out-of-range", "cap", usual, "records-capped needs a cap of at least 1, no other table has one")
        if self.bits is not None:
            self._check_bits(self.bits)

    def at(self, totals: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """f(N) of these N, not rounded to ``bits``."""
        found = np.asarray(totals, np.float64)
        if self.kind == "records-phantom":
            return np.asarray(1.0 / (1.0 + found), np.float64)
        counted = np.maximum(found, 1.0)
        if self.kind == "records-sqrt":
            values = 1.0 / np.sqrt(counted * self.most)
        else:
            values = 1.0 / np.maximum(counted, self.cap or 1)  # min(N, cap) / (cap N) = 1 / max(N, cap)
        return np.where(found > 0, values, 0.0)

    def floats(self) -> npt.NDArray[np.float64]:
        """f(0), ..., f(most), not rounded to ``bits``."""
        return self.at(np.arange(self.most + 1))

    def integers(self, bits: int) -> npt.NDArray[np.int64]:
        """floor(2^bits f(N)) for N = 0..most, exactly. For every N they sum to at most 2^bits over all silos, however N
        records are divided: N floor(2^bits f(N)) <= 2^bits N f(N) <= 2^bits."""
        self._check_bits(bits)
        found = np.array([self._integer(total, bits) for total in range(self.most + 1)], np.int64)
        usual = bool(np.all(found[1:] <= (1 << bits) // np.arange(1, self.most + 1)))
        assert usual, "weights would sum to more than 1"
        return found

    def _integer(self, total: int, bits: int) -> int:
        if self.kind == "records-phantom":
            return (1 << bits) // (1 + total)
        if total == 0:
            return 0
        if self.kind == "records-sqrt":  # floor(sqrt(x)) = isqrt(floor(x))
            return math.isqrt((1 << 2 * bits) // (total * self.most))
        return (1 << bits) // max(total, self.cap or 1)

    @staticmethod
    def _check_bits(bits: int) -> None:
        require("out-of-range", "bits", 1 <= bits <= MOST_BITS, f"must be between 1 and {MOST_BITS}")
