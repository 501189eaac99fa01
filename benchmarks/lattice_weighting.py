"""How long private weighting from ring-LWE takes: a silo's products against python-paillier, and whole rounds.

    python -m benchmarks.lattice_weighting [--out FOLDER] [--only peer,small,large,huge,memory]

peer    a silo's part of a round for 1,000 people and 100,000 numbers on one core, and the published computation with
        python-paillier, which takes an exponentiation for each person and number; a sample of it is timed
small   setup and two rounds of all parties: 5 silos, 1,000 people, 4,000 numbers
large   the same with 100,000 numbers
huge    the same with 1,000,000 numbers, one round
memory  a silo with 1,000 people and 1,000,000 numbers, one without people, and the server, in one process

All subjects have records in every silo, which is the most work. Contributions are given: 32 vectors of norm 1 that
people share; a million numbers of a thousand people do not fit the memory. Sums are compared with exact ones at 1,000
places. ``peer`` is in processor seconds, whole rounds are by the clock.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from benchmarks.private_weighting import Stopwatch, rendered, timed
from tacit.exchange import Grid, Members, PersonVectors, Session, SumFacts
from tacit.exchange.session import silo_names
from tacit.families.weighting.exchange import Weighted
from tacit.families.weighting.lattice import WEIGHT_BITS
from tacit.families.weighting.lattice_silo import LatticeSilo
from tacit.privacy import Noise, Randomness
from tacit.privacy.proofs.weight_tables import WeightTable

PRECISION, RECORDS, GIVEN, PLACES = 1e-8, 20, 32, 1000
STREAMS = Randomness()


def given_vectors(numbers: int) -> np.ndarray:
    drawn = np.random.default_rng(0).normal(size=(GIVEN, numbers))
    return Grid(PRECISION).truncated(drawn / np.linalg.norm(drawn, axis=1, keepdims=True) * (1 - 1e-6))


def groups(vectors: np.ndarray, people: int) -> Iterator[PersonVectors]:
    """All people, GIVEN at a time."""
    for first in range(0, people, GIVEN):
        own = np.arange(first, min(first + GIVEN, people))
        yield PersonVectors(own, vectors[: len(own)])


class Rounds:
    """All parties in this process, for sums without noise."""

    def __init__(self, numbers: int, people: int, silos: int, holders: int) -> None:
        """``holders`` of the silos have records of all people, the others of none."""
        table = WeightTable("records", RECORDS * silos)
        facts = SumFacts(silos, people, 1.0, Noise(0.0, "shares"), records=RECORDS, weights=table)
        self.exchange = Weighted(precision=PRECISION)
        self.terms = self.exchange.terms("run", silo_names([str(k) for k in range(silos)]), numbers, facts)
        drawn = np.random.default_rng(1).integers(1, RECORDS + 1, (silos, people))
        drawn[holders:] = 0
        self.counts, self.people, self.holders = drawn, people, holders
        self.vectors, self.watch = given_vectors(numbers), Stopwatch()
        begun = time.perf_counter()
        members = [Members(np.arange(people), own) for own in drawn]
        self.session = Session(self.exchange, self.terms, members, carry=self.watch)
        self.setup_seconds, self.setup_bytes = time.perf_counter() - begun, dict(self.watch.bytes)

    def round(self, number: int) -> tuple[float, bool]:
        """Seconds of a round by the clock, and whether its sum is the exact one."""
        self.watch.bytes.clear()
        streams = [STREAMS.stream("noise", number, k) for k in range(len(self.counts))]
        added = [groups(self.vectors, self.people) if k < self.holders else iter(()) for k in range(len(self.counts))]
        begun = time.perf_counter()
        self.session.sum(number, added, streams, self.watch)
        return time.perf_counter() - begun, self._is_exact()

    def _is_exact(self) -> bool:
        totals = self.counts.sum(axis=0)
        weights = (self.counts * np.array(self.terms.table)[totals]).sum(axis=0)  # of each person over all silos
        shared = [int(weights[k::GIVEN].sum()) for k in range(GIVEN)]
        places = np.random.default_rng(2).integers(0, self.terms.numbers, PLACES)
        exact = [sum(w * int(v) for w, v in zip(shared, self.vectors[:, place], strict=True)) for place in places]
        return [self.session.server.total[place] for place in places] == exact


def whole(numbers: int, rounds: int, people: int = 1000, silos: int = 5, holders: int | None = None) -> dict:
    made = Rounds(numbers, people, silos, silos if holders is None else holders)
    seconds, exact = zip(*(made.round(number) for number in range(1, rounds + 1)), strict=True)
    one = made.terms.silos[-1]
    return {
        "numbers": numbers,
        "people": people,
        "silos": silos,
        "primes": made.terms.lattice.primes,
        "setup, s": made.setup_seconds,
        "rounds, s": ", ".join(f"{s:.1f}" for s in seconds),
        "exact": all(exact),
        "silo sends, bytes a number": made.watch.bytes[one] / numbers,
        "setup sends a silo, MB": made.setup_bytes["server"] / silos / 1e6,
        "peak of the process, GB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def peer(people: int = 1000, numbers: int = 100_000) -> dict:
    """Nanoseconds of one core per person and number: all that a silo does before its first message of a round."""
    import phe

    public, _ = phe.generate_paillier_keypair(n_length=3072)
    sample, few = 4, 5
    encrypted = [phe.EncryptedNumber(public, public.raw_encrypt(secrets.randbelow(public.n))) for _ in range(few)]
    scaled = [[secrets.randbelow(public.n) for _ in range(few)] for _ in range(sample)]

    def as_published() -> None:
        for row in scaled:
            total = encrypted[0]._raw_mul(row[0])
            for u in range(1, few):
                total = encrypted[u]._raw_add(total, encrypted[u]._raw_mul(row[u]))

    made = Rounds(numbers, people, 2, 1)
    silo = made.session.silos[made.terms.silos[0]]
    assert isinstance(silo, LatticeSilo)
    silo._workers = 1
    rows = []
    for number in (1, 2, 3):
        theirs = timed(as_published) / sample / few
        stream = STREAMS.stream("noise", number, 0)
        ours = timed(lambda n=number, s=stream: silo.begin(n, groups(made.vectors, people), s)) / people / numbers
        rows.append((theirs, ours, theirs / ours))
    theirs, ours, ratio = (sorted(column) for column in zip(*rows, strict=True))
    return {
        "people": people,
        "numbers": numbers,
        "python-paillier, ms": theirs[1] * 1e3,
        "Tacit, ns: median": ours[1] * 1e9,
        "Tacit, ns: all": ", ".join(f"{s * 1e9:.1f}" for s in ours),
        "times faster: median": ratio[1],
        "times faster: least": ratio[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--only", default="peer,small,large,huge,memory")
    chosen = parser.parse_args()
    works: dict[str, Callable[[], dict]] = {
        "peer": peer,
        "small": lambda: whole(4000, 2),
        "large": lambda: whole(100_000, 2),
        "huge": lambda: whole(1_000_000, 1),
        "memory": lambda: whole(1_000_000, 1, silos=2, holders=1),
    }
    place = chosen.out / "lattice_weighting.json"
    found = json.loads(place.read_text()) if place.is_file() else {}
    found["machine"] = {"cores": os.cpu_count(), "python": platform.python_version(), "load": os.getloadavg()[0]}
    chosen.out.mkdir(parents=True, exist_ok=True)
    for name in chosen.only.split(","):
        found[name] = works[name]()
        print(f"## {name}\n\n{rendered([found[name]])}\n", flush=True)
        place.write_text(json.dumps(found, indent=1) + "\n")
    parts = [f"## {name}\n\n{rendered([found[name]])}\n" for name in works if name in found]
    head = f"# Private weighting from ring-LWE\n\nWeights of {WEIGHT_BITS} bits, precision {PRECISION:g}.\n\n"
    (chosen.out / "lattice_weighting.md").write_text(head + "\n".join(parts))


if __name__ == "__main__":
    main()
