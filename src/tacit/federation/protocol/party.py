"""The parties that the coordinator sends messages to: what they have in common, and the analyzer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from tacit.crypto import Identity, Refused, Secret
from tacit.exchange import Keys, ThirdRole
from tacit.exchange.post import SERVER, OutOfTurn, named_parts
from tacit.federation.protocol import agreement
from tacit.federation.protocol.messages import AROUND, Desk, Message, Phase
from tacit.planning.plan import Plan, sum_facts


@dataclass(frozen=True)
class ServerKeys:
    """What the coordinator or the analyzer brings: its ``identity``, and the ``roster`` of the public identities of all
    parties (the server's name is ``server``)."""

    identity: Identity
    roster: Mapping[str, bytes]


@dataclass(frozen=True)
class SiloKeys(ServerKeys):
    """What a silo brings: also a secret of 32 bytes that all silos have in ``common`` and the server has not."""

    common: Secret


class Party:
    """Bytes in, bytes out. The method ``_PHASE`` answers a message of a phase, if ``_next`` names that phase."""

    _to_everyone: ClassVar[tuple[Phase, ...]] = ()  # what the server signs once for all of its recipients
    _signed_apart: ClassVar[tuple[Phase, ...]] = ()  # what is signed by the protocol of the exchange

    def __init__(self, plan: Plan, name: str, keys: ServerKeys) -> None:
        agreement.check_federated(plan)
        self.plan, self.name, self._mark = plan, name, agreement.mark(plan)
        self._keys, self._party = keys, Keys(name, keys.identity, keys.roster)
        self._desk: Desk | None = None
        self._names: tuple[str, ...] = ()
        self._next: tuple[Phase, ...] = ("hello",)
        self._most = AROUND

    def handle(self, message: bytes) -> bytes:
        """The answer to a message of the coordinator; Refused where it is not the one that is due."""
        read = Message.from_bytes(message, SERVER, self._most)
        if read.phase not in self._next:
            raise OutOfTurn(f"a message for {read.phase} where {' or '.join(self._next) or 'nothing'} is due", SERVER)
        if read.phase == "hello":
            self._desk = Desk(read.run, *self._party)
        desk = self._here
        if read.run != desk.run:
            raise Refused("wrong-run", "a message of another run", SERVER)
        if read.phase in ("work", "metrics"):  # they begin a round, if the server has signed them
            desk = desk.later(read.round)
        content = read.check(desk.run, desk.number, read.phase, SERVER)
        if read.phase not in self._signed_apart:
            content = desk.read(SERVER, read.phase, content, to_everyone=read.phase in self._to_everyone)
        self._desk = desk
        answer: Callable[[bytes], bytes] = getattr(self, f"_{read.phase}")
        return answer(content)

    @property
    def _here(self) -> Desk:
        if self._desk is None:
            raise OutOfTurn("no hello message has arrived", SERVER)
        return self._desk

    def _greeted(self, content: bytes) -> None:
        """Read who takes part, and check that the server has our plan."""
        told = agreement.Greeting.read(content, SERVER)
        agreement.check_silos(self.plan, told.silos, self._party.roster, SERVER)
        if told.plan != self._mark:
            raise agreement.plan_mismatch(SERVER)
        self._names = told.silos

    def _from_silos(self, phase: Phase, data: bytes) -> dict[str, bytes]:
        """What every silo has signed for everyone in a phase, in a list from the server."""
        signed = named_parts(data, SERVER, self._names)
        if set(signed) != set(self._names):
            raise Refused("incomplete", f"a list of {phase} messages without those of all silos", SERVER)
        return {peer: self._here.read(peer, phase, part, to_everyone=True) for peer, part in signed.items()}


class AnalyzerSide(Party):
    """The third party of a shuffled exchange, called ``analyzer``: it opens what the server has mixed, and adds it up.

    It is run by an organisation that does not share what it sees with the server: together they would know every
    subject's reports. It holds no records and learns every dimension's reports in random order, without names.
    """

    def __init__(self, plan: Plan, keys: ServerKeys) -> None:
        if plan.exchange.third_party is None:
            raise ValueError(f"the {plan.exchange.name} exchange has no third party")
        super().__init__(plan, plan.exchange.third_party, keys)
        self._role: ThirdRole

    def _hello(self, content: bytes) -> bytes:
        self._greeted(content)
        self._next, self._most = ("begin",), (1 + len(self._names)) * AROUND
        return self._here.write(SERVER, "hello", b"")

    def _begin(self, content: bytes) -> bytes:
        """The answers of all silos to hello, from which the name of this run follows."""
        told = self._from_silos("hello", content)
        hellos = {silo: agreement.read_hello(part, silo, self._mark) for silo, part in told.items()}
        facts = sum_facts(self.plan.method, agreement.agreed_facts(self.plan, hellos))
        exchange, numbers = self.plan.exchange, 0 if facts.reports is None else facts.reports.dimensions
        terms = exchange.terms(agreement.run_mark(self._here.run, told), self._names, numbers, facts)
        self._role = exchange.third(terms, self._party)
        self._next, self._most = ("work",), AROUND + self._role.longest
        return self._here.write(SERVER, "begin", b"")

    def _work(self, content: bytes) -> bytes:
        """The key of a round, for everyone."""
        self._next = ("exchange", "work")
        return self._here.framed("work", self._role.begin(self._here.number))

    def _exchange(self, content: bytes) -> bytes:
        """Every dimension's sum."""
        self._next = ("work",)
        return self._here.write(SERVER, "exchange", self._role.receive(content))
