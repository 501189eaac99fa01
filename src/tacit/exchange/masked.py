"""Secure aggregation: silos send masked vectors whose masks cancel in the sum.

Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning" (CCS 2017), with the round of
signatures that lets silos notice a server that tells two stories (section 6 there). A silo's vector of integers x_s is
sent as

    y_s = x_s + noise_s + PRG(b_s) + sum_{r > s} PRG(k_sr) - sum_{r < s} PRG(k_sr)    in Z_2^bits

with an own secret b_s and keys k_sr that each two silos share. Both secrets are dealt out in shares. For a silo whose
vector arrived, the others open b_s; for one that vanished, its part of the k_sr; of no silo both.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from tacit.crypto import (
    BadShares,
    KeyPair,
    MaskStream,
    Refused,
    SealingKey,
    Secret,
    Share,
    combine,
    masked,
    split,
)
from tacit.errors import UserError
from tacit.exchange.base import Exchange, Keys, PlanPart, ServerRole, SiloRole
from tacit.exchange.post import SERVER, Terms, TooFew, TwoKeys, join, join_named, named_parts, parted, two_keys
from tacit.exchange.sums import LEAST_SHARE, REACH, Grid, Integers, SumFacts, check_vector, ring_bits, share_variance
from tacit.planning.settings import Natural, Positive
from tacit.privacy import Reveals, View
from tacit.privacy.mechanisms.discrete_gaussian import discrete_gaussian
from tacit.privacy.randomness import Stream

# which of a peer's two secrets a share is of
OF_PAIRS, OF_OWN = b"p", b"o"
PROTOCOL = "tacit-masked-1"
# the phases of a round, named after what silos send in them
KEYS, SHARES, VECTORS, SURVIVORS, UNMASKING = PHASES = ("keys", "shares", "vectors", "survivors", "unmasking")

# of a list of all silos, more than keys, or two sealed shares, and signatures take for each
_PER_SILO = 1024


@dataclass(frozen=True)
class NoiseSurplus:
    """The standard deviation of the noise in a sum of all silos over that which is accounted for (``factor``): shares
    allow for ``drop_outs`` missing silos."""

    drop_outs: int
    factor: float

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def words(self) -> str:
        return (
            f"Each silo's share of the noise allows for {self.drop_outs} missing silos. If none is missing, the noise"
            f" in a sum has {self.factor:.3g} times the standard deviation that guarantees count."
        )


@dataclass(frozen=True)
class Masked(Exchange):
    """Secure aggregation with drop-outs (Bonawitz et al. 2017, double masking) of integers on a grid.

    drop_outs  how many silos may vanish at any moment of a round; ``silos - drop_outs`` must stay to the end
    colluding  how many silos may share what they see with the server
    precision  the step of the grid

    Formal guarantee: whatever the server and up to ``colluding`` silos do (the server also by telling silos different
    stories), they learn of the other silos of a round nothing but one sum over at least ``silos - drop_outs`` silos,
    for ``2 drop_outs + colluding < silos``. In it is at least the noise that the method accounts for.
    """

    name: ClassVar[str] = "masked"
    about: ClassVar[str] = (
        "secure aggregation: the server sees the sum, with every silo's noise in it, and no single silo"
    )
    carries = "integers"
    carries_once = True

    drop_outs: Natural = 0
    colluding: Natural = 0
    precision: Positive = 1e-8

    @property
    def reveals(self) -> Mapping[str, Reveals]:
        known: dict[str, Reveals] = {"public": "sum", "server": "sum", "silo": "sum"}
        if self.colluding > 1:
            known[f"silos:{self.colluding}"] = "sum"
        if self.colluding:
            known[f"server+silos:{self.colluding}"] = "sum"
        return known

    def reveals_to(self, view: View) -> Reveals | None:
        """The sum; None for more colluding silos than are declared."""
        most = {"public": 1, "server": 1, "silo": 1, "silos": max(1, self.colluding), "server+silos": self.colluding}
        return "sum" if view.count <= most.get(view.kind, -1) else None

    def settings_for(self, view: View) -> str | None:
        return f"exchange.colluding = {view.count}" if view.kind in ("silos", "server+silos") else None

    def assumptions(self, view: View, silos: int) -> tuple[str, ...]:
        return (
            "silos know each other's signing keys, and follow the protocol; noise is discrete, drawn exactly",
            f"at least {silos - self.drop_outs} of {silos} silos stay to the end of a round, or it is not released",
        )

    def check(self, facts: SumFacts) -> None:
        """Refuse (UserError) numbers that do not go together."""
        silos = facts.silos
        if silos < 2:
            problem = "a masked sum needs at least two silos"
            raise UserError("too-few", "exchange.name", problem, 'use exchange.name = "plain"')
        check_drop_outs(self.drop_outs, self.colluding, silos)
        share = self._share(facts)
        if 0 < share < LEAST_SHARE:
            finer = self.precision * share / LEAST_SHARE
            problem = (
                f"{self.precision:g} is too coarse: a silo's noise has {share:.2g} steps, {LEAST_SHARE:g} are needed"
            )
            raise UserError("out-of-range", "exchange.precision", problem, f"use {finer:.1e} or less")
        widest = facts.largest + REACH * math.sqrt(facts.silos) * self._share_size(facts)
        if widest / self.precision >= 2.0**63 * (1 - 1e-9):
            problem = f"{self.precision:g} is too fine: sums up to {widest:.1e} would not fit 64 bits"
            raise UserError("out-of-range", "exchange.precision", problem, f"use {widest / 2.0**62:.1e} or more")

    def terms(self, run: str, silos: Sequence[str], numbers: int, facts: SumFacts) -> MaskedTerms:
        """What the parties agree on, for vectors of ``numbers`` numbers."""
        self.check(facts)
        largest = self.grid.steps(facts.largest)
        threshold = facts.silos - self.drop_outs
        return MaskedTerms(run, tuple(silos), numbers, self._bits(facts), largest, self._share(facts), threshold)

    def server(self, terms: MaskedTerms, keys: Keys) -> MaskedServer:
        return MaskedServer(terms, keys, self.grid)

    def silo(self, terms: MaskedTerms, keys: Keys, members: None) -> MaskedSilo:
        return MaskedSilo(terms, keys, self.grid)

    @property
    def grid(self) -> Grid:
        return Grid(self.precision)

    @property
    def masking(self) -> Masked:
        return self

    def plan_parts(self, promise: Any) -> dict[str, PlanPart]:
        silos = promise.facts.silos
        return {"noise_surplus": NoiseSurplus(self.drop_outs, self.surplus(silos))} if self.drop_outs else {}

    def surplus(self, silos: int) -> float:
        """The standard deviation of the noise in a sum over that asked for: more, for the sake of silos that might have
        dropped out."""
        return math.sqrt(silos * share_variance(silos, self.drop_outs, self.colluding))

    def _share(self, facts: SumFacts) -> float:
        """The standard deviation of a silo's noise in steps, rounded up."""
        return self._share_size(facts) / self.precision * (1 + 1e-12)

    def _share_size(self, facts: SumFacts) -> float:
        """The standard deviation of a silo's noise."""
        if facts.noise is None:
            return 0.0
        return facts.noise.std * math.sqrt(share_variance(facts.silos, self.drop_outs, self.colluding))

    def _bits(self, facts: SumFacts) -> int:
        return ring_bits(self.grid.steps(facts.largest), math.sqrt(facts.silos) * self._share(facts))


def check_drop_outs(drop_outs: int, colluding: int, silos: int) -> None:
    """Refuse (UserError) numbers with which a server could open single silos."""
    if 2 * drop_outs + colluding >= silos:
        problem = (
            f"2 x drop_outs + colluding must be less than the number of silos (got 2 x {drop_outs} + {colluding} for"
            f" {silos} silos): otherwise the server could read single silos"
        )
        fix = f"use at most {max(0, (silos - 1 - colluding) // 2)} drop-outs, or fewer colluding silos"
        raise UserError("out-of-range", "exchange.drop_outs", problem, fix)


@dataclass(frozen=True)
class MaskedTerms(Terms):
    """The terms of a masked sum.

    run        a name that no other run has
    silos      who takes part, by names of the roster
    numbers    how many numbers every vector has
    bits       sums are taken in Z_2^bits; a whole number of bytes
    largest    no entry of a silo's vector is larger, in steps of the grid
    share      standard deviation of each silo's noise, in steps of the grid
    threshold  how many silos must stay to the end; as many together can open one that did not

    A server that, with c silos on its side, tells two stories about who has survived needs 2 threshold - c silos to
    believe it; with 2 threshold > silos + c there are not enough.
    """

    numbers: int
    bits: int
    largest: int
    share: float
    threshold: int

    def __post_init__(self) -> None:
        self.check_names()
        if not 2 <= len(self.silos) < 2 * self.threshold or self.threshold > len(self.silos):
            reason = f"a threshold of {self.threshold} for {len(self.silos)} silos: more than half must stay"
            raise Refused("bad-terms", reason)
        if self.bits % 8 or not 8 <= self.bits <= 64:
            raise Refused("bad-terms", f"sums in whole bytes, up to 64 bits, not {self.bits} bits")

    @property
    def ring(self) -> PowerOfTwo:
        return PowerOfTwo(self.numbers, self.bits)

    @property
    def longest(self) -> int:
        return of_a_round(self)

    def index(self, silo: str) -> int:
        """A silo's number as a holder of shares, from 1."""
        return self.silos.index(silo) + 1


def of_a_round(terms: Any) -> int:
    """No message of a round has more bytes: a vector, or what is said of or to each silo."""
    return int(terms.ring.size + terms.of_each_silo(_PER_SILO))


class MaskRing(Protocol):
    """The group in which vectors are masked and added up.

    size  bytes of a masked vector
    """

    @property
    def size(self) -> int: ...

    def masked(self, vector: Any, plus: Sequence[MaskStream], minus: Sequence[MaskStream]) -> Any:
        """A vector plus the masks of some streams, minus those of others."""

    def added(self, vectors: Iterable[Any]) -> Any: ...

    def to_bytes(self, vector: Any) -> bytes: ...

    def from_bytes(self, data: bytes, sender: str) -> Any: ...


class PowerOfTwo(NamedTuple):
    """Vectors of ``numbers`` elements of Z_2^bits."""

    numbers: int
    bits: int

    @property
    def size(self) -> int:
        return self.numbers * self.bits // 8

    def masked(self, vector: np.ndarray, plus: Sequence[MaskStream], minus: Sequence[MaskStream]) -> np.ndarray:
        return masked(vector, plus, minus, self.bits)

    def added(self, vectors: Iterable[np.ndarray]) -> np.ndarray:
        total = np.zeros(self.numbers, np.uint64)
        for vector in vectors:
            total += vector
        return total

    def to_bytes(self, vector: np.ndarray) -> bytes:
        return to_bytes(vector, self.bits)

    def from_bytes(self, data: bytes, sender: str) -> np.ndarray:
        return from_bytes(data, self.bits)

    def signed(self, elements: np.ndarray) -> Integers:
        shift = np.int64(64 - self.bits)
        return np.asarray((elements << np.uint64(shift)).view(np.int64) >> shift)


class _Secrets(NamedTuple):
    """What a silo keeps to itself in a round: the key to which shares are sealed, the key of its pairwise masks, and
    the secret of its own mask."""

    sealing: SealingKey
    pairs: KeyPair
    own: Secret


class MaskedSilo(SiloRole):
    """One silo.

    phase        answers                               with
    keys         (begins)                              two public keys
    shares       the keys of all silos                 its secrets in shares, each sealed for one peer
    vectors      the peers' shares                     its vector with noise, under all masks
    survivors    whose vectors have arrived            a signature on that list
    unmasking    the signatures of the others          of each peer one share: of its own mask if it has survived,
                                                       of its pairwise masks if not, never both
    """

    releases = (VECTORS,)
    to_everyone: ClassVar[tuple[str, ...]] = (KEYS, SURVIVORS)

    terms: Any  # MaskedTerms, or others terms with a ring, a threshold and an index

    def __init__(self, terms: Any, keys: Keys, grid: Grid, protocol: str = PROTOCOL) -> None:
        super().__init__(protocol, terms, keys, grid)
        self._handlers = {
            SHARES: self._share,
            VECTORS: self._mask,
            SURVIVORS: self._agree,
            UNMASKING: self._unmask,
        }
        self._secrets: _Secrets | None = None
        self._keys: dict[str, TwoKeys] = {}
        self._shares: dict[str, Share] = {}
        self._survivors: list[str] = []
        self._forget()

    def begin(self, number: int, contribution: Integers, noise: Stream, preface: bytes = b"") -> bytes:
        """Start a round with this silo's vector ``[numbers]``."""
        terms = self.terms
        check_vector(contribution, terms.numbers, terms.largest)
        drawn = discrete_gaussian(Fraction(terms.share), terms.numbers, noise)
        return self._begin(number, (contribution + drawn).view(np.uint64))

    def _begin(self, number: int, vector: Any) -> bytes:
        """Start a round with a vector of the ring that has its noise in it."""
        self._post.begin(number)
        self._forget()
        self._vector = vector
        self._secrets = _Secrets(SealingKey(), KeyPair(), Secret.random())
        self._phase = SHARES
        return self._written(KEYS, self._secrets.sealing.public + self._secrets.pairs.public)

    def _share(self, content: bytes) -> bytes:
        """Both secrets in shares for all silos that have sent keys, and a fingerprint of one of them."""
        signed = self._listed(content)
        if self.name not in signed:
            raise Refused("wrong-parties", "left us out of the list of keys", SERVER)
        ours = self._secrets
        assert ours is not None
        self._keys = self._post.read_keys(KEYS, signed, (ours.sealing.public, ours.pairs.public))
        with ours.pairs.secret() as pairs:
            holders = [self.terms.index(peer) for peer in self._keys]
            shares = dict(zip(self._keys, split([pairs, ours.own], self.terms.threshold, holders), strict=True))
        self._shares = {self.name: shares.pop(self.name)}
        sealed = {
            peer: self._post.write_sealed(peer, "share", share.to_bytes(), self._keys[peer][0])
            for peer, share in shares.items()
        }
        self._phase = VECTORS
        return join([fingerprint_of(ours.own), join_named(sealed)])

    def _mask(self, content: bytes) -> bytes:
        """The vector under our own mask and one with every peer who has sent shares; our secrets have done their work,
        and only shares of them are left."""
        sealed, ours = self._listed(content, but_us=True), self._secrets
        assert ours is not None
        for peer, message in sealed.items():
            if peer not in self._keys:
                raise Refused("unknown-party", f"shares of {peer}, who has sent no keys", SERVER)
            share = Share.from_bytes(self._post.read_sealed(peer, "share", message, ours.sealing), peer)
            if share.index != self.terms.index(self.name) or len(share.values) != 2:
                raise Refused("mismatch", "a share that is not for us", peer)
            self._shares[peer] = share
        plus = [MaskStream(ours.own, self._post.place(self.name, self.name, "own mask"))]
        minus: list[MaskStream] = []
        for peer in sealed:
            mask = ours.pairs.mask(self._keys[peer][1], self._post.place(self.name, peer, "pair mask"))
            (plus if self.name < peer else minus).append(mask)
        hidden = self.terms.ring.masked(self._vector, plus, minus)
        self._forget_secrets()
        self._phase = SURVIVORS
        return bytes(self.terms.ring.to_bytes(hidden))

    def _agree(self, content: bytes) -> bytes:
        """Sign who has survived; from here on the list is fixed."""
        survivors = list(self._listed(content))
        if not set(survivors) <= set(self._shares) or self.name not in survivors:
            raise Refused("wrong-parties", "a list of survivors with strangers, or without us", SERVER)
        self._survivors = survivors
        self._phase = UNMASKING
        return join_named(dict.fromkeys(survivors, b""))

    def _unmask(self, content: bytes) -> bytes:
        """One share of every peer: if enough others have signed the same list of survivors."""
        signed = self._listed(content)
        ours = join_named(dict.fromkeys(self._survivors, b""))
        for peer, message in signed.items():
            if peer not in self._survivors:
                raise Refused("unknown-party", f"a signature of {peer}, who has not survived", SERVER)
            if self._post.read(peer, SURVIVORS, message, to_everyone=True) != ours:
                raise Refused("equivocation", "was told of other survivors than we: the server tells two stories", peer)
        shown = {}
        for peer, share in self._shares.items():
            kind, value = (OF_OWN, share.values[1]) if peer in self._survivors else (OF_PAIRS, share.values[0])
            shown[peer] = kind + Share(share.index, (value,)).to_bytes()
        self._forget()
        return join_named(shown)

    def _listed(self, content: bytes, *, but_us: bool = False) -> dict[str, bytes]:
        """A list of the server's, which must have enough names on it."""
        parts = named_parts(content, SERVER, self.terms.silos)
        if but_us and self.name in parts:
            raise Refused("wrong-parties", "our own shares among those of the others", SERVER)
        if len(parts) + but_us < self.terms.threshold:
            raise TooFew(f"{self.terms.threshold} silos are required, and {len(parts) + but_us} are left", SERVER)
        return parts

    def _forget_secrets(self) -> None:
        if self._secrets is not None:
            self._secrets.own.wipe()
        self._secrets, self._vector = None, np.zeros(0, np.uint64)

    def _forget(self) -> None:
        self._forget_secrets()
        self._keys, self._shares, self._survivors = {}, {}, []


class MaskedServer(ServerRole):
    """After the last phase ``total`` is the sum over ``survivors``; after a round that failed it is None."""

    to_everyone: ClassVar[tuple[str, ...]] = (KEYS, SURVIVORS)

    terms: Any  # as those of MaskedSilo

    def __init__(self, terms: Any, keys: Keys, grid: Grid, protocol: str = PROTOCOL) -> None:
        super().__init__(protocol, terms, keys, grid)
        self.survivors: tuple[str, ...] = ()
        self._sharers: tuple[str, ...] = ()
        self._forget()

    @property
    def least(self) -> int:
        return self.terms.threshold

    def begin(self, number: int, stream: Stream | None = None, preface: bytes = b"") -> None:
        self._begin(number, KEYS)
        self._forget()
        self.survivors = ()

    def _read(self, phase: str, sender: str, content: bytes) -> None:
        """Check and keep what a message holds."""
        if phase == SHARES:
            fingerprint, shares = parted(content, sender, 2)
            sealed = named_parts(shares, sender, self._there)
            if set(sealed) != set(self._there) - {sender} or len(fingerprint) != 32:
                raise Refused("wrong-parties", "shares for others than those who are there", sender)
            self._fingerprints[sender], self._sealed[sender] = fingerprint, sealed
        elif phase == KEYS:
            self._keys[sender] = two_keys(content, sender)[1]
        elif phase == VECTORS:
            if len(content) != self.terms.ring.size:
                reason = f"a vector of {len(content)} bytes where {self.terms.ring.size} are due"
                raise Refused("wrong-length", reason, sender)
            self.terms.ring.from_bytes(content, sender)  # refused now, the silo counts as one that dropped out
            self._vectors[sender] = content
        elif phase == UNMASKING:
            self._shown[sender] = self._read_shares(sender, content)

    def _read_shares(self, sender: str, content: bytes) -> dict[str, Share]:
        shown = {}
        for peer, data in named_parts(content, sender, self._sharers).items():
            kind = OF_OWN if peer in self.survivors else OF_PAIRS
            share = Share.from_bytes(data[1:], sender)
            if data[:1] != kind or share.index != self.terms.index(sender) or len(share.values) != 1:
                raise BadShares("bad-shares", f"a share of {peer} that is not the one due", sender)
            shown[peer] = share
        if set(shown) != set(self._sharers):
            raise BadShares("wrong-parties", "not the shares of all silos", sender)
        return shown

    def _next(self, phase: str) -> tuple[str | None, dict[str, bytes]]:
        self._there = tuple(sorted(self._inbox))
        if phase == UNMASKING:
            self.total = self._opened_sum(self._sum())
            return None, {}
        following = PHASES[PHASES.index(phase) + 1]
        if phase == SHARES:
            self._sharers = self._there
            return following, {
                silo: join_named({peer: self._sealed[peer][silo] for peer in self._there if peer != silo})
                for silo in self._there
            }
        told = self._inbox
        if phase == VECTORS:
            self.survivors, told = self._there, dict.fromkeys(self._there, b"")
        return following, dict.fromkeys(self._there, join_named(told))

    def _opened_sum(self, elements: Any) -> Any:
        """The sum that these elements of the ring are."""
        return self.terms.ring.signed(elements)

    def _sum(self) -> Any:
        """The survivors' vectors, less their own masks and what the others have left of their pairwise masks."""
        ring = self.terms.ring
        total = ring.added(ring.from_bytes(self._vectors[silo], silo) for silo in self.survivors)
        plus: list[MaskStream] = []
        minus: list[MaskStream] = []
        for silo in self.survivors:
            with self._secret_of(silo) as own:
                if fingerprint_of(own) != self._fingerprints[silo]:
                    raise BadShares("bad-shares", f"the shares do not give the secret of {silo}")
                minus.append(MaskStream(own, self._post.place(silo, silo, "own mask")))
        for silo in self._sharers:
            if silo not in self.survivors:
                for name, stream in self._left_behind(silo):
                    (minus if name < silo else plus).append(stream)
        return ring.masked(total, plus, minus)

    def _left_behind(self, silo: str) -> Iterator[tuple[str, MaskStream]]:
        """The masks that survivors have in common with one who has sent shares, but no vector."""
        with self._secret_of(silo) as secret:
            pairs = KeyPair(secret)
        if pairs.public != self._keys[silo]:
            raise BadShares("bad-shares", f"the shares do not give the key of {silo}")
        for name in self.survivors:
            yield name, pairs.mask(self._keys[name], self._post.place(silo, name, "pair mask"))

    def _secret_of(self, silo: str) -> Secret:
        """The secret that the shares of one silo give."""
        return combine([shares[silo] for shares in self._shown.values()], self.terms.threshold)[0]

    def _end(self) -> None:
        super()._end()
        self._forget()

    def _forget(self) -> None:
        self._sharers = ()
        self._keys: dict[str, bytes] = {}
        self._fingerprints: dict[str, bytes] = {}
        self._sealed: dict[str, dict[str, bytes]] = {}
        self._vectors: dict[str, bytes] = {}
        self._shown: dict[str, dict[str, Share]] = {}


def fingerprint_of(secret: Secret) -> bytes:
    """By which the server knows that it has put an own mask's secret together rightly; says nothing about it."""
    return hashlib.sha256(b"tacit-masked-own" + bytes(secret.expose())).digest()


def to_bytes(vector: np.ndarray, bits: int) -> bytes:
    """Elements of Z_2^bits, little endian, in bits / 8 bytes each."""
    wide = vector.astype("<u8", copy=False).view(np.uint8).reshape(-1, 8)
    return np.ascontiguousarray(wide[:, : bits // 8]).tobytes()


def from_bytes(data: bytes, bits: int) -> np.ndarray:
    size = bits // 8
    wide = np.zeros((len(data) // size, 8), np.uint8)
    wide[:, :size] = np.frombuffer(data, np.uint8).reshape(-1, size)
    return wide.view("<u8").reshape(-1).astype(np.uint64, copy=False)
