"""How long private weighting with Paillier and masked sums take: against python-paillier, by size, and whole rounds.

    python -m benchmarks.private_weighting [--out FOLDER] [--only peer,table,round,masked,paper]

peer    a silo's weighted sums (1,000 numbers, 20 people), and the published computation with python-paillier, which
        takes an exponentiation by a full-length number for each person and number; a sample of it is timed
table   16 … 10,000 numbers x 10 … 1,000 people: seconds and bytes of a silo and of the server in a round. Beyond
        ``--most`` products of numbers and people a row is extrapolated from the one before, and says so
round   4,000 numbers, 100 people, 5 silos, N_max 500: setup and one round of all parties on this machine
masked  a masked sum of a million numbers over 16 silos: seconds of computation of one silo, and of the server
paper   the sizes of figures 10 and 11 of [ULDP-FL], beside the authors' times where they are public

All with 3072-bit keys, 1e-8 precision, contributions of norm 1. Seconds are of processor time, all cores and processes
added up, unless they are by the clock. One JSON file and one Markdown table.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import secrets
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tacit.exchange import Grid, Keys, Masked, Members, PersonVectors, Session, SumFacts
from tacit.exchange.session import silo_names
from tacit.families.weighting.blinding import blinding_for
from tacit.families.weighting.exchange import Weighted
from tacit.families.weighting.paillier import Ciphertexts, SecretKey
from tacit.families.weighting.paillier_server import PaillierServer
from tacit.families.weighting.paillier_silo import PaillierSilo
from tacit.families.weighting.paillier_terms import PaillierTerms
from tacit.privacy import Noise, Randomness

PRECISION, BITS = 1e-8, 3072
PAILLIER = Weighted(protocol="paillier", precision=PRECISION, key_bits=BITS)
STREAMS = Randomness()
KEY: list[SecretKey] = []


def key() -> SecretKey:
    if not KEY:
        KEY.append(SecretKey.generate(BITS))
    return KEY[0]


def unit_vectors(people: int, numbers: int) -> np.ndarray:
    drawn = np.random.default_rng(0).normal(size=(people, numbers))
    return Grid(PRECISION).truncated(drawn / np.linalg.norm(drawn, axis=1, keepdims=True) * (1 - 1e-6))


def processor() -> float:
    """Seconds of all cores that this process and those it has waited for have used."""
    return sum(os.times()[:4])


def timed(work: Callable[[], object]) -> float:
    """Seconds of processor: other work on the machine does not count."""
    start = processor()
    work()
    return processor() - start


def peer(numbers: int = 1000, people: int = 20) -> dict:
    """Milliseconds per person and number; ours with the raising of ciphertexts and re-randomising, by one process."""
    import phe

    secret = key()
    facts = SumFacts(3, people, 1.0, Noise(1.0, "shares"), records=500 // 3)
    terms = PAILLIER.terms("run", ["a", "b", "c"], numbers, facts)
    vectors = unit_vectors(people, numbers)
    one, two = (half.prime for half in secret.factors)
    public = phe.PaillierPublicKey(int(secret.public.n))
    private = phe.PaillierPrivateKey(public, int(one), int(two))
    inverses = [secrets.randbelow(public.n) for _ in range(people)]
    blinds = [secrets.randbelow(public.n) for _ in range(people)]
    exponents = [blind * 3 * terms.common % public.n for blind in blinds]

    # as published: Encode(delta) n_su r_u C_LCM (mod n) times Enc(B_inv), a sum over people, plus noise
    encrypted = [phe.EncryptedNumber(public, public.raw_encrypt(inverse)) for inverse in inverses]
    sample = terms.packed
    published: list[phe.EncryptedNumber] = []

    def as_published() -> None:
        for number in range(sample):
            scaled = [int(vectors[u, number]) * exponents[u] % public.n for u in range(people)]
            # its operators only take numbers below n / 3: the functions below them take all
            total = encrypted[0]._raw_mul(scaled[0])
            for u in range(1, people):
                total = encrypted[u]._raw_add(total, encrypted[u]._raw_mul(scaled[u]))
            published.append(phe.EncryptedNumber(public, total))

    theirs = timed(as_published) / sample / people

    bases = secret.public.ciphertexts(
        b"".join(int(c.ciphertext(False)).to_bytes(secret.public.ciphertext_bytes, "big") for c in encrypted)
    )
    padded = np.zeros((terms.outputs * terms.packed, people), np.int64)
    padded[:numbers] = vectors.T
    sums: list[Ciphertexts] = []
    raising = timed(lambda: sums.append(bases.multiply(exponents)))
    summing = timed(lambda: sums.append(sums[0].packed_sums(padded, terms.packed, terms.width)))
    pool = timed(lambda: blinding_for(int(secret.public.n)))
    drawing = timed(lambda: sums[1].rerandomised(blinding_for(int(secret.public.n))))
    ours = (raising + summing + drawing) / numbers / people
    # the same plaintexts, modulo n
    low = int(secret.decrypt(sums[1][0])[0]) % int(secret.public.n)
    theirs_first = [int(private.raw_decrypt(c.ciphertext(False))) for c in published[: terms.packed]]
    packed = sum(value << (terms.width * k) for k, value in enumerate(theirs_first)) % int(secret.public.n)
    return {
        "numbers": numbers,
        "people": people,
        "numbers in a ciphertext": terms.packed,
        "python-paillier, ms": theirs * 1e3,
        "Tacit, ms": ours * 1e3,
        "Tacit, sums only, ms": summing / numbers / people * 1e3,
        "times faster": theirs / ours,
        "times faster, sums only": theirs * numbers * people / summing,
        "tables of randomness once, s": pool,
        "same plaintexts": low == packed,
    }


class Measured:
    """The weighted exchange with that many processes for each party."""

    def __init__(self, exchange: Weighted, workers: int) -> None:
        self._exchange, self._workers = exchange, workers

    def __getattr__(self, name: str) -> object:
        return getattr(self._exchange, name)

    def server(self, terms: PaillierTerms, keys: Keys) -> PaillierServer:
        return PaillierServer(terms, keys, self._exchange.grid, workers=self._workers)

    def silo(self, terms: PaillierTerms, keys: Keys, members: Members) -> PaillierSilo:
        return PaillierSilo(terms, keys, self._exchange.grid, members, workers=self._workers)


class Stopwatch:
    """Seconds and bytes by party and phase: a carrier of messages, and handlers whose calls are timed."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.bytes: dict[str, int] = defaultdict(int)

    def __call__(self, phase: str, sender: str, recipient: str, message: bytes) -> bytes:
        self.bytes[sender] += len(message)
        return message

    def watch(self, party: object, name: str, *methods: str) -> None:
        for method in methods:
            plain = getattr(party, method)

            def measured(*args: object, plain: Callable = plain) -> object:
                start = processor()
                try:
                    return plain(*args)
                finally:
                    self.seconds[name] += processor() - start

            setattr(party, method, measured)


def weighted_round(numbers: int, people: int, silos: int, most: int, workers: int) -> dict:
    """Setup and one round; everybody has records in every silo, which is the most work."""
    cap = max(1, (most - 1) // silos)
    facts = SumFacts(silos, people, 1.0, Noise(1.0, "shares"), records=cap)
    terms = PAILLIER.terms("run", silo_names([str(k) for k in range(silos)]), numbers, facts)
    vectors = unit_vectors(people, numbers)
    watch = Stopwatch()
    before, begun = processor(), time.perf_counter()
    members = [Members(np.arange(people), np.ones(people, np.int64))] * silos
    session = Session(
        Measured(PAILLIER, workers),
        terms,
        members,
        carry=watch,
    )
    made = processor() - before
    setup_bytes = dict(watch.bytes)
    watch.bytes.clear()
    for name, silo in session.silos.items():
        watch.watch(silo, name, "begin", "receive")
    watch.watch(session.server, "server", "receive", "advance")
    streams = [STREAMS.stream("noise", 1, k) for k in range(silos)]
    added = [[PersonVectors(np.arange(people), vectors)] for _ in range(silos)]
    setup_clock, begun = time.perf_counter() - begun, time.perf_counter()
    whole = timed(lambda: session.sum(1, added, streams, watch))
    clock = time.perf_counter() - begun
    one = terms.silos[-1]  # the first one may have made the tables of randomness that all use here
    return {
        "numbers": numbers,
        "people": people,
        "silos": silos,
        "N_max": terms.most,
        "numbers in a ciphertext": terms.packed,
        "setup, s": made,
        "round, all parties, s": whole,
        "setup by the clock, s": setup_clock,
        "round by the clock, s": clock,
        "silo, s": watch.seconds[one],
        "server, s": watch.seconds["server"],
        "silo sends, bytes": watch.bytes[one],
        "setup: silo sends, bytes": setup_bytes[one],
        "setup: server sends, bytes": setup_bytes["server"],
        "workers": workers,
    }


def table(most: int, workers: int) -> list[dict]:
    rows = []
    for people in (10, 100, 1000):
        before: dict | None = None
        for numbers in (16, 100, 1000, 10_000):
            if numbers * people <= most:
                before = weighted_round(numbers, people, 3, 500, workers)
                rows.append(before | {"extrapolated": False})
            elif before is not None:
                factor = numbers / before["numbers"]
                grown = {
                    k: v * factor
                    for k, v in before.items()
                    if k.endswith(("s", "bytes")) and "," in k and "setup" not in k
                }
                rows.append(before | grown | {"numbers": numbers, "extrapolated": True})
    return rows


def masked_sum(numbers: int = 1_000_000, silos: int = 16) -> dict:
    exchange = Masked(drop_outs=2, colluding=2, precision=PRECISION)
    facts = SumFacts(silos, 1000, 1.0, Noise(1.0, "shares"))
    session = exchange.session([str(k) for k in range(silos)], numbers, facts)
    assert isinstance(session, Session)
    watch = Stopwatch()
    for name, silo in session.silos.items():
        watch.watch(silo, name, "begin", "receive")
    watch.watch(session.server, "server", "receive", "advance")
    vectors = np.zeros((silos, numbers), np.int64)
    streams = [STREAMS.stream("masked", 1, k) for k in range(silos)]
    session.sum(1, vectors, streams, watch)
    per_silo = [watch.seconds[name] for name in session.terms.silos]
    return {
        "numbers": numbers,
        "silos": silos,
        "bits": session.terms.bits,
        "silo, s (median)": float(np.median(per_silo)),
        "silo, s (largest)": max(per_silo),
        "server, s": watch.seconds["server"],
        "silo sends, bytes": watch.bytes[session.terms.silos[0]],
    }


# Seconds of a silo (their mean) and of the server in a round, as the authors' notebook for figure 11 has them
# (github.com/FumiyukiKato/uldp-fl, exp/secure_weighting.ipynb): Apple M1 Max, 3072 bits, N_max 2000. Their silos' times
# include local training and the raising of everybody's ciphertext, which is part of setup here. The times of figure 10
# are not public.
FIGURE_11 = {
    (16, 10, 3): (83.86, 2.17),
    (30, 10, 3): (108.33, 3.63),
    (58, 10, 3): (181.57, 6.74),
    (107, 10, 3): (286.22, 11.99),
    (16, 20, 3): (176.38, 2.16),
    (16, 30, 3): (239.58, 2.15),
    (16, 40, 3): (321.82, 2.14),
}
FIGURE_10 = {"HeartDisease": [(14, 10, 4), (14, 100, 4)], "TcgaBrca": [(39, 10, 6), (39, 100, 6)]}


def paper(workers: int) -> list[dict]:
    """Figure 11: numbers and people of made data; figure 10: HeartDisease and TcgaBrca with 10 and 100 people."""
    sizes = [("11", size) for size in FIGURE_11]
    sizes += [(f"10, {name}", size) for name, own in FIGURE_10.items() for size in own]
    rows = []
    for figure, size in sizes:
        silo, server = FIGURE_11.get(size, ("not public", "not public"))
        published = {"published: silo, s": silo, "published: server, s": server}
        rows.append({"figure": figure} | weighted_round(*size, 2000, workers) | published)
    return rows


def rendered(rows: list[dict]) -> str:
    head = list(rows[0])
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in rows:
        lines.append(
            "| " + " | ".join(f"{row[k]:.4g}" if isinstance(row[k], float) else str(row[k]) for k in head) + " |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--only", default="peer,table,round,masked,paper")
    parser.add_argument("--most", type=int, default=100_000, help="largest people x numbers that is measured")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    chosen = parser.parse_args()
    works: dict[str, Callable[[], list[dict]]] = {
        "peer": lambda: [peer()],
        "masked": lambda: [masked_sum()],
        "round": lambda: [weighted_round(4000, 100, 5, 500, chosen.workers)],
        "table": lambda: table(chosen.most, chosen.workers),
        "paper": lambda: paper(chosen.workers),
    }
    place = chosen.out / "private_weighting.json"
    found = json.loads(place.read_text()) if place.is_file() else {}
    found["machine"] = {"cores": os.cpu_count(), "python": platform.python_version(), "load": os.getloadavg()[0]}
    chosen.out.mkdir(parents=True, exist_ok=True)
    for name in chosen.only.split(","):
        found[name] = works[name]()
        print(f"## {name}\n\n{rendered(found[name])}\n", flush=True)
        place.write_text(json.dumps(found, indent=1) + "\n")
    parts = [f"## {name}\n\n{rendered(found[name])}\n" for name in works if name in found]
    (chosen.out / "private_weighting.md").write_text("# Private weighting and masked sums\n\n" + "\n".join(parts))


if __name__ == "__main__":
    main()
