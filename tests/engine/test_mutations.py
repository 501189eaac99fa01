"""Messages of parties of the federation that say anything: signed by the right key, for the right place, with another
content. Whatever it is, the receiver refuses it or goes on, and raises nothing else."""

from __future__ import annotations

import json
import random
import struct
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from copy import copy, deepcopy
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import pytest

from tacit.crypto import Identity, Refused, Secret
from tacit.engine.learner import WrongTree, packed, unpacked
from tacit.exchange.post import SERVER, join, join_named, named_parts, parted, read_numbers, read_sums
from tacit.families.shuffle.protocol import ANALYZER
from tacit.families.weighting import lattice_server
from tacit.families.weighting.paillier import SecretKey
from tacit.federation.carrier.envelope import Call, Reply, SiloMetrics
from tacit.federation.protocol.agreement import Greeting, RoundsDone, read_hello
from tacit.federation.protocol.messages import Desk, Message, read_counts
from tacit.federation.protocol.sides import CoordinatorSide, RoundFailed, drive
from tacit.federation.site.policy import Head
from tests.engine.federated import Parties, loaded, planned
from tests.short_keys import shortened

PAID = {"status": "paid", "noise_multiplier": 5.0}
BOUNDED = {"age": {"low": 0, "high": 100}, "pressure": {"low": 60, "high": 200}}
# every exchange, and between them every phase that a federation has
PLANS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "plain": ("uldp-avg", "plain", {"evaluation": PAID}),
    "disclosed": ("uldp-avg", "plain", {"method": {"weights": "records", "disclose_counts": True}}),
    "masked": ("uldp-avg", "masked", {"evaluation": PAID, "exchange": {"drop_outs": 1}}),
    "standardized": ("uldp-avg", "masked", {"data": {"standardize": "paid", "numeric": BOUNDED}}),
    "weighted": ("uldp-avg", "weighted", {"exchange": {"drop_outs": 1, "slots": 6}}),
    "paillier": ("uldp-avg", "weighted", {"exchange": shortened("weighted")}),
    "shuffled": ("ss-simple", "shuffled", {}),
    "pairwise": ("dp-fedavg", "pairwise", {}),
    "kept": ("scaffold", "plain", {}),
}
_ODD: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 2**31, 2**63, 10**40, 1e308, "", "\x00", "x" * 5000, [], {}, [[]], {"a": {}}),
)


def mutated(content: bytes, rng: random.Random) -> bytes:
    """Another content: of the same structure where it has one, or of none."""
    kinds = [_cut, _grown, _flipped, _replaced, _numbers]
    if content[:1] in (b"{", b"["):
        kinds += [_json] * 4
    if _is_parted(content):
        kinds += [_parts] * 4
    changed = rng.choice(kinds)(content, rng)
    return changed if changed != content else content + b"\x00"


def _cut(content: bytes, rng: random.Random) -> bytes:
    start, end = sorted((rng.randint(0, len(content)), rng.randint(0, len(content))))
    return rng.choice((content[:start], content[end:], content[start:end], b""))


def _grown(content: bytes, rng: random.Random) -> bytes:
    return rng.choice((content + rng.randbytes(rng.randint(1, 64)), content * 2, content + bytes(1 << 17)))


def _flipped(content: bytes, rng: random.Random) -> bytes:
    out = bytearray(content or b"\x00")
    for _ in range(rng.randint(1, 4)):
        out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


def _replaced(content: bytes, rng: random.Random) -> bytes:
    return rng.choice((bytes(len(content)), b"\xff" * len(content), rng.randbytes(len(content)), b"[" * 60_000))


def _numbers(content: bytes, rng: random.Random) -> bytes:
    """Some entry of a vector is another one."""
    kinds = ("<f", (float("nan"), float("inf"), 3e38)), ("<d", (float("nan"), -1e300)), ("<q", (-1, 2**62))
    form, odd = rng.choice(kinds)
    size = struct.calcsize(form)
    if len(content) < size:
        return b""
    place = rng.randrange(len(content) // size) * size
    return content[:place] + struct.pack(form, rng.choice(odd)) + content[place + size :]


def _json(content: bytes, rng: random.Random) -> bytes:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return b"{}"

    def spoilt(value: Any) -> Any:
        if isinstance(value, dict) and value and rng.random() < 0.8:
            key = rng.choice(list(value))
            rest = {other: one for other, one in value.items() if other != key}
            return rng.choice((rest, {**rest, key: spoilt(value[key])}, {**value, "more": 1}))
        if isinstance(value, list) and value and rng.random() < 0.8:
            k = rng.randrange(len(value))
            return rng.choice((value[:k], [*value[:k], spoilt(value[k]), *value[k + 1 :]], value * 3))
        return rng.choice(_ODD)

    return json.dumps(spoilt(value)).encode()


def _is_parted(content: bytes) -> bool:
    try:
        return len(parted(content, "")) > 0
    except Refused:
        return False


def _parts(content: bytes, rng: random.Random) -> bytes:
    parts = parted(content, "")
    k = rng.randrange(len(parts))
    other = mutated(parts[k], rng)
    changes = (
        [*parts[:k], other, *parts[k + 1 :]],
        parts[:k] + parts[k + 1 :],
        [*parts, other],
        parts[::-1],
        [*parts[: k + 1], *parts[k:]],
    )
    return join(rng.choice(changes))


class Liar:
    """Signs something else once: the ``number``-th message of one ``purpose``."""

    def __init__(self, honest: Identity, lie: Lie) -> None:
        self._honest, self._lie = honest, lie

    def __getattr__(self, name: str) -> Any:
        return getattr(self._honest, name)

    def sign(self, context: Any, content: bytes) -> bytes:
        return self._honest.sign(context, self._lie(context.purpose, content))


class Lie:
    """Which message is another one; ``said`` counts what was asked to be signed, by purpose."""

    def __init__(self, purpose: str = "", number: int = 0, rng: random.Random | None = None) -> None:
        self._purpose, self._number, self._rng = purpose, number, rng
        self.said: Counter[str] = Counter()

    def __call__(self, purpose: str, content: bytes) -> bytes:
        self.said[purpose] += 1
        if self._rng is None or (purpose, self.said[purpose]) != (self._purpose, self._number):
            return content
        return mutated(content, self._rng)


def run(plan: Any, federation: Any, who: str, lie: Lie, monkeypatch: Any) -> None:
    """A run in which ``who`` tells a lie; what is raised but refusals ends the test."""
    with monkeypatch.context() as patch, suppress(RoundFailed, Refused):
        if who != PEOPLE:
            Parties(plan, federation, liars={who: lambda honest: Liar(honest, lie)}).run()
            return
        parties, sign = Parties(plan, federation), Identity.sign
        others = [parties.coordinator._keys.identity, *(silo._keys.identity for silo in parties.silos.values())]

        def of_people(self: Identity, context: Any, content: bytes) -> bytes:
            return sign(self, context, content if self in others else lie(context.purpose, content))

        patch.setattr(Identity, "sign", of_people)
        parties.run()


def check(name: str, who: str, each: int, seed: int, experiment: Any, visits: Any, monkeypatch: Any) -> int:
    """``each`` lies about each of the purposes for which ``who`` signs in this plan; how many in all."""
    method, exchange, sections = PLANS[name]
    plan = planned(experiment, method, exchange, train={"rounds": 1}, **sections)
    federation, honest = loaded(plan, visits), Lie()
    run(plan, federation, who, honest, monkeypatch)
    assert honest.said
    rng = random.Random(f"{name} {who} {seed}")
    for purpose, times in honest.said.items():
        for _ in range(each):
            began = time.monotonic()
            run(plan, federation, who, Lie(purpose, rng.randint(1, times), rng), monkeypatch)
            assert time.monotonic() - began < 120
    return each * len(honest.said)


PEOPLE = "people"
CASES = [
    (name, who) for name in PLANS for who in ("south", SERVER, *((ANALYZER, PEOPLE) if name == "shuffled" else ()))
]


@pytest.fixture(autouse=True)
def one_key(monkeypatch):
    """Messages to one coordinator are replayed to another one, which must have the same keys."""
    made = SecretKey.generate
    keys: dict[int, SecretKey] = {}
    monkeypatch.setattr(SecretKey, "generate", lambda bits, **more: keys.setdefault(bits, made(bits, **more)))
    of_lattices = cache(lattice_server.RingSecretKey)
    monkeypatch.setattr(lattice_server, "RingSecretKey", of_lattices)


@pytest.mark.filterwarnings("ignore::tacit.families.weighting.paillier.WeakKeyWarning")
@pytest.mark.parametrize(("name", "who"), CASES)
def test_whatever_a_party_signs_is_refused_or_taken(name, who, experiment, visits, monkeypatch):
    assert check(name, who, 2 if name in ("weighted", "paillier") else 6, 0, experiment, visits, monkeypatch) > 0


class Recorded:
    """An honest run, and what its parties do with other contents in the place of each of its messages.

    A place is filled once, and some handlers forget their secrets with a message that they refuse. So every lie meets a
    receiver in the state of that moment: a copy of the silo or the analyzer, or a coordinator that has been given the
    answers so far. Lies are signed by the key of the honest message, for the same place.
    """

    def __init__(self, plan: Any, federation: Any, each: int, seed: str, monkeypatch: Any) -> None:
        self._plan, self._each, self._rng = plan, each, random.Random(seed)
        self.refused: Counter[tuple[str, str, str]] = Counter()  # by sender, receiver and purpose
        self.taken: Counter[tuple[str, str, str]] = Counter()
        self._sign, self._signed = Identity.sign, {}
        monkeypatch.setattr(Identity, "sign", lambda *args: self._and_remember(*args))
        monkeypatch.setattr(Secret, "__deepcopy__", lambda secret, memo: Secret(bytes(secret.expose())), raising=False)
        self._parties = Parties(plan, federation)
        self._answers: list[dict[str, bytes | None]] = []
        drive(self._parties.coordinator, self._carried)
        for step in range(len(self._answers)):
            for sender in {"south", ANALYZER} & self._answers[step].keys():
                self._lie_to_coordinator(step, sender)

    def _and_remember(self, identity: Identity, context: Any, content: bytes) -> bytes:
        signed = self._sign(identity, context, content)
        self._signed[signed] = identity, context, content
        return signed

    def _lie(self, signed: bytes) -> tuple[bytes, str]:
        """Another content under a valid signature, and for which purpose."""
        identity, context, content = self._signed[signed]
        return self._sign(identity, context, mutated(content, self._rng)), context.purpose

    def _met(self, sender: str, receiver: str, purpose: str, receive: Callable[[], Any]) -> None:
        """Whatever is raised but a refusal ends the test."""
        began = time.monotonic()
        try:
            receive()
            self.taken[sender, receiver, purpose] += 1
        except (Refused, RoundFailed):
            self.refused[sender, receiver, purpose] += 1
        assert time.monotonic() - began < 120

    # -- the server lies to a silo, or to the analyzer

    def _carried(self, told: dict[str, bytes]) -> dict[str, bytes | None]:
        for receiver in {"south", ANALYZER} & told.keys():
            honest = Message.from_bytes(told[receiver], "", 1 << 40)
            for _ in range(self._each):
                lie, purpose = self._lie(honest.content)
                party, message = self._copy(receiver), replace(honest, content=lie).to_bytes()
                self._met(SERVER, receiver, purpose, partial(party.handle, message))
        answers = {party: self._parties._handler(party).handle(message) for party, message in told.items()}
        self._answers.append(dict(answers))
        return dict(answers)

    def _copy(self, receiver: str) -> Any:
        party = self._parties._handler(receiver)
        shared = [vars(party).get(name) for name in ("plan", "_keys", "_shard", "_made", "_unpaid")]
        memo = {id(one): one for one in shared if one is not None}
        if (silos := vars(party).get("_silos")) is not None:
            memo[id(silos)] = copy(silos)
        return deepcopy(party, memo)

    # -- a silo, its people or the analyzer lie to the coordinator

    def _lie_to_coordinator(self, step: int, sender: str) -> None:
        honest = Message.from_bytes(self._answers[step][sender] or b"", "", 1 << 40)
        for _ in range(self._each):
            who, content = sender, honest.content
            if content in self._signed:
                content, purpose = self._lie(content)
            else:  # a list of what people have signed, each for herself
                who, parts = PEOPLE, parted(content, "")
                place = self._rng.randrange(1, len(parts), 2)
                parts[place], purpose = self._lie(parts[place])
                content = join(parts)
            answers = {**self._answers[step], sender: replace(honest, content=content).to_bytes()}
            told = [*self._answers[:step], answers, *self._answers[step + 1 :]]
            self._met(who, SERVER, purpose, partial(self._replayed, told))

    def _replayed(self, answers: list[dict[str, bytes | None]]) -> None:
        first = self._parties.coordinator
        again = CoordinatorSide(self._plan, first.names, first._keys)
        again._desk = Desk(first._desk.run, SERVER, first._keys.identity, first._keys.roster)
        refusals: list[Any] = again.refusals
        left = iter(answers)
        drive(again, lambda told: next(left))
        if refusals:  # it went on without
            raise Refused(refusals[0].code, refusals[0].reason)

    def check_honest(self) -> None:
        """What was recorded is taken to its end: lies do not fail for another reason."""
        self._replayed(self._answers)


# lies in the place of each message. Ciphertexts take seconds
MANY = {"weighted": 60, "paillier": 60}


@pytest.mark.filterwarnings("ignore::tacit.families.weighting.paillier.WeakKeyWarning")
@pytest.mark.parametrize("many", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["few", "20,000"])
@pytest.mark.parametrize("name", PLANS)
def test_whatever_is_signed_for_the_place_of_a_message_is_refused_or_taken(name, many, experiment, visits, monkeypatch):
    method, exchange, sections = PLANS[name]
    plan = planned(experiment, method, exchange, train={"rounds": 1}, **sections)
    each = MANY.get(name, 320) if many else 3
    run = Recorded(plan, loaded(plan, visits), each, name, monkeypatch)
    run.check_honest()
    met = run.refused + run.taken
    print(f"{name}: {met.total()} lies, {run.refused.total()} refused")
    for case, count in met.items():
        print("  ", *case, count, run.refused[case])
    assert set(met.values()) <= {each * k for k in range(1, 20)}
    assert run.refused.total() > met.total() / 3


FORM = {"shape": [3], "dtype": "float32", "label_shape": [1], "label_dtype": "int32", "kind": "binary"}
HELLO = {"form": {**FORM, "classes": ["0", "1"], "columns": "ab"}, "drawn": "ab" * 32, "records": 3, "plan": "cd"}
REPLY = Reply(b"answer", (), "0" * 16, Head(3, "a" * 64), 1.5, ("1" * 16,)).to_bytes()
TREE = {"w": np.ones((2, 3), np.float32), "b": np.zeros(3, np.float32)}
# by name: what reads bytes of others, and bytes that it takes
READERS: dict[str, tuple[Callable[[bytes], Any], bytes]] = {
    "hello": (lambda data: read_hello(data, "south", "cd"), json.dumps(HELLO).encode()),
    "greeting": (lambda data: Greeting.read(data, "server"), b'{"silos": ["north", "south"], "plan": "cd"}'),
    "progress": (lambda data: RoundsDone.read(data, "server"), b'{"done": 3}'),
    "metrics": (
        lambda data: SiloMetrics.read(data, "south"),
        b'{"records": 3, "metrics": {"accuracy": 0.5, "auc": null}}',
    ),
    "counts": (lambda data: read_counts(data, "south"), np.arange(1, 11, dtype="<i8").tobytes()),
    "sums": (lambda data: read_sums(data, 5, "south"), np.arange(5, dtype="<f8").tobytes()),
    "numbers": (lambda data: read_numbers(data, 5, "south"), np.arange(5, dtype="<f4").tobytes()),
    "message": (lambda data: Message.from_bytes(data, "south", 1 << 16), Message("run", 1, "work", b"x").to_bytes()),
    "parts": (lambda data: named_parts(data, "south", ["a", "b"]), join_named({"a": b"1", "b": b"2"})),
    "tree": (lambda data: unpacked(data, TREE), packed(TREE)),
    "reply": (lambda data: Reply.from_bytes(data, "south"), REPLY),
    "call": (Call.from_bytes, Call({"0" * 16: Head(3, "a" * 64)}).to_bytes()),
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("count", [300, pytest.param(20_000, marks=pytest.mark.slow)])
def test_whatever_bytes_are_read_nothing_but_a_refusal_is_raised(name, count):
    read, good = READERS[name]
    read(good)
    rng, refused = random.Random(name), 0
    for _ in range(count):
        data = mutated(good, rng)
        for _ in range(rng.randint(0, 2)):
            data = mutated(data, rng)
        try:
            read(data)
        except (Refused, WrongTree):
            refused += 1
    assert refused > count / 3
