"""What is public about a run apart from the method's own numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tacit.models import Convexity
from tacit.privacy import Unit


@dataclass(frozen=True)
class Facts:
    """What is public about a run, apart from the method's own numbers: declared, never counted from private records.

    silos             how many silos there are
    rounds            how many rounds are planned
    subjects          how many subjects there are, or places for subjects, at most
    records_per_silo  for every silo the declared number of records: divisor of batches
    max_records       at most this many records of one subject in one silo
    max_silos         at most this many silos hold records of one subject
    records_kept      at most this many records of one subject in one silo are used; None: there is no cap. The smaller
                      of ``max_records`` and of what the method sets itself
    delta             the delta of the run's guarantees
    parameters        how many numbers are learned, where the shape of a record is known without looking at any
    convex            how steep and how curved the loss is, where it is convex in the parameters and bounded so
    records           training records in all; counted, and so only for methods that guarantee nothing
    moves_up          a cap on a subject's records lets another one of the same silo take the place of one that goes
    moves_over        records beyond a cap on a subject's silos are dropped, so that others take the place of one that
                      goes; False where the cap is a promise about the data
    """

    silos: int
    rounds: int = 1
    subjects: int | None = None
    records_per_silo: tuple[int, ...] | None = None
    max_records: int | None = None
    max_silos: int | None = None
    delta: float = 1e-5
    parameters: int | None = None
    convex: Convexity | None = None
    records: int = 0
    moves_up: bool = False
    moves_over: bool = False
    records_kept: int | None = None

    @property
    def silos_of_a_subject(self) -> int:
        return self.silos if self.max_silos is None else min(self.max_silos, self.silos)

    def silos_moved(self, replaces: bool) -> int:
        """In how many silos something changes with one subject: under replacement the other may be elsewhere."""
        return min(self.silos, 2 * self.silos_of_a_subject) if replaces else self.silos_of_a_subject

    def record_silos_moved(self, replaces: bool) -> int:
        """The same for one record."""
        return min(self.silos, 2) if replaces else 1

    def silos_with(self, unit: Unit, replaces: bool) -> int:
        """In how many silos something changes with one unit."""
        if unit == "silo":
            return 1
        return self.silos_moved(replaces) if unit == "subject" else self.record_silos_moved(replaces)

    @property
    def in_few_silos(self) -> str:
        """The promise about a subject's silos, in words."""
        most = self.silos_of_a_subject
        return f"at most {most} silo{'' if most == 1 else 's'} with records of one subject"

    def pooled(self) -> Facts:
        """The same with all records in one place."""
        records = None if self.records_per_silo is None else (sum(self.records_per_silo),)
        most = None if self.max_records is None else self.max_records * self.silos_of_a_subject
        return replace(self, silos=1, records_per_silo=records, max_records=most, max_silos=1)


# A fact of ``Facts`` that a method needs -> the key of the experiment file that declares it.
FACT_KEYS = {
    "silos": "data.silos.count",
    "subjects": "data.subjects.count",
    "records_per_silo": "data.records_per_silo",
    "max_records": "privacy.max_records_per_subject_and_silo",
    "parameters": "data.numeric",
}
