"""Signed messages between silos and the server, and how their parts are written as bytes.

Both exchanges that hide single silos speak through a :class:`Post`: every message is signed by its sender for one place
(protocol, run, round, sender, recipient, phase), and the recipient says for which place it must be good. So a
message that was altered or cut on the way, belongs to another phase, round or run, comes a second time, or is signed by
another party does not open, and the error names who sent it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tacit.crypto import EVERYONE, Context, Identity, Refused, Roster, SealingKey, seal
from tacit.crypto.crypto_errors import CodedRefusal
from tacit.crypto.mask_streams import KEY_BYTES
from tacit.exchange.sums import LARGEST_STEPS, beyond

SERVER = "server"
_LENGTH_BYTES = 8
TwoKeys = tuple[bytes, bytes]  # public keys: to seal for, and of pairs


class TooFew(CodedRefusal):
    """Fewer silos are left than the threshold asks for: the round ends, and nothing of it is released."""

    code = "too-few"


class OutOfTurn(CodedRefusal):
    """A message or a call that this phase of the round does not have."""

    code = "out-of-turn"


class Post:
    """The mail of one party in one round."""

    def __init__(self, protocol: str, run: str, name: str, identity: Identity, identities: Mapping[str, bytes]) -> None:
        self.name = name
        self._protocol, self._run, self._identity, self._identities = protocol, run, identity, identities
        self._number = -1
        self._roster = Roster(identities)

    def begin(self, number: int) -> None:
        """The next round: numbers only rise, so that nothing of an earlier round, or attempt, is good in this one."""
        if number <= self._number:
            raise OutOfTurn(f"round {number} after round {self._number}", self.name)
        self._number, self._roster = number, Roster(self._identities)

    def place(self, sender: str, recipient: str, purpose: str) -> Context:
        return Context(self._protocol, self._run, self._number, sender, recipient, purpose)

    def write(self, recipient: str, purpose: str, content: bytes) -> bytes:
        """``content`` signed for one recipient (or EVERYONE) and purpose."""
        return self._identity.sign(self.place(self.name, recipient, purpose), content)

    def read(self, sender: str, purpose: str, message: bytes, *, to_everyone: bool = False) -> bytes:
        """The content of ``sender``'s message to us (or to everyone); refused if it is anything else."""
        recipient = EVERYONE if to_everyone else self.name
        return self._roster.open(self.place(sender, recipient, purpose), message)

    def write_sealed(self, recipient: str, purpose: str, content: bytes, key: bytes) -> bytes:
        """``content`` that only the holder of ``key`` opens, signed."""
        return self.write(recipient, purpose, seal(content, key, self.place(self.name, recipient, purpose)))

    def read_sealed(self, sender: str, purpose: str, message: bytes, key: SealingKey) -> bytes:
        """The content of a signed message that is sealed for ``key``."""
        return key.open(self.read(sender, purpose, message), self.place(sender, self.name, purpose))

    def read_keys(self, phase: str, signed: Mapping[str, bytes], ours: TwoKeys) -> dict[str, TwoKeys]:
        """The public keys of each silo on a list that the server passes on; ours must be as we sent them."""
        read = {silo: self.read(silo, phase, message, to_everyone=True) for silo, message in signed.items()}
        keys = {silo: two_keys(content, silo) for silo, content in read.items()}
        if keys[self.name] != ours:
            raise Refused("mismatch", "sent us other keys than our own", SERVER)
        return keys


@dataclass(frozen=True)
class Terms:
    """What all parties of a sum agree on: a name that no other run has, and who takes part, by names of the roster."""

    run: str
    silos: tuple[str, ...]

    @property
    def place(self) -> str:
        """The run, with a hash of the terms: who goes by other terms signs for another place."""
        return f"{self.run}/{hashlib.sha256(repr(self).encode()).hexdigest()[:32]}"

    def check_names(self) -> None:
        """Refuse silos without names of their own."""
        if len(set(self.silos)) != len(self.silos) or {SERVER, EVERYONE, ""} & set(self.silos):
            raise Refused("bad-terms", "silos need names of their own")

    def of_each_silo(self, most: int) -> int:
        """The most bytes of a list of all silos, with at most ``most`` next to the name of each."""
        return sum(most + 4 * len(name) for name in self.silos)


def two_keys(content: bytes, peer: str) -> TwoKeys:
    """The two public keys that a message holds."""
    if len(content) != 2 * KEY_BYTES:
        raise Refused("malformed", "a message without two keys", peer)
    return content[:KEY_BYTES], content[KEY_BYTES:]


def join(parts: Sequence[bytes]) -> bytes:
    """Parts of any length as one; :func:`parted` gives them back."""
    return b"".join(len(part).to_bytes(_LENGTH_BYTES, "big") + part for part in parts)


def parted(data: bytes, peer: str, count: int | None = None) -> list[bytes]:
    """The parts that :func:`join` joined (exactly ``count`` of them, where given)."""
    parts: list[bytes] = []
    start = 0
    while start < len(data) and (count is None or len(parts) <= count):
        size = int.from_bytes(data[start : start + _LENGTH_BYTES], "big")
        start += _LENGTH_BYTES
        if start + size > len(data):
            raise Refused("malformed", "a message that ends too early", peer)
        parts.append(data[start : start + size])
        start += size
    if count is not None and len(parts) != count:
        raise Refused("malformed", f"a message of {len(parts)} parts where {count} are due", peer)
    return parts


def join_named(parts: Mapping[str, bytes]) -> bytes:
    """Parts by name, in the order of the names: the same bytes from every writer."""
    return join([part for name in sorted(parts) for part in (name.encode(), parts[name])])


def named_parts(data: bytes, peer: str, known: Sequence[str]) -> dict[str, bytes]:
    """The parts that :func:`join_named` joined: names that are known, each once, in order."""
    parts = parted(data, peer)
    if len(parts) % 2:
        raise Refused("malformed", "a list of names and parts that does not come out even", peer)
    try:
        names = [name.decode() for name in parts[::2]]
    except UnicodeDecodeError:
        raise Refused("malformed", "a name that is no text", peer) from None
    if names != sorted(set(names)) or not set(names) <= set(known):
        raise Refused("unknown-party", "a list of names with strangers, doubles or in disorder", peer)
    return dict(zip(names, parts[1::2], strict=True))


def write_numbers(vector: np.ndarray) -> bytes:
    """A vector of single-precision numbers."""
    return np.ascontiguousarray(vector, "<f4").tobytes()


def read_numbers(data: bytes, count: int, peer: str) -> np.ndarray:
    """``count`` finite numbers."""
    return _finite(data, "<f4", count, peer)


def write_steps(steps: np.ndarray) -> bytes:
    """A vector of integers: steps of the grid of a sum."""
    return np.ascontiguousarray(steps, "<i8").tobytes()


def read_steps(data: bytes, count: int, peer: str) -> np.ndarray:
    """``count`` integers, none so large that a sum over silos could overflow."""
    if len(data) != 8 * count:
        raise Refused("wrong-length", f"{len(data)} bytes where {count} integers are due", peer)
    steps = np.frombuffer(data, "<i8").astype(np.int64)
    if beyond(steps, LARGEST_STEPS):
        raise Refused("out-of-range", "integers beyond the range of a sum", peer)
    return steps


def write_sums(sums: np.ndarray) -> bytes:
    """A vector of double-precision numbers."""
    return np.ascontiguousarray(sums, "<f8").tobytes()


def read_sums(data: bytes, count: int, peer: str) -> np.ndarray:
    """``count`` finite numbers, in double precision."""
    return _finite(data, "<f8", count, peer)


def _finite(data: bytes, kind: str, count: int, peer: str) -> np.ndarray:
    if len(data) != np.dtype(kind).itemsize * count:
        raise Refused("wrong-length", f"{len(data)} bytes where {count} numbers are due", peer)
    vector = np.frombuffer(data, kind)
    if not np.isfinite(vector).all():
        raise Refused("out-of-range", "numbers that are not finite", peer)
    return vector
