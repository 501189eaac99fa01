"""The third party's side of a federation: the analyzer, which opens what the server has mixed, and adds it up.

It is run by an organisation that does not share what it sees with the server: together they would know every subject's
reports. It holds no records and learns every dimension's reports in random order, without names.
"""

from __future__ import annotations

from tacit.crypto import Refused
from tacit.exchange import Keys, ThirdRole
from tacit.exchange.post import SERVER, OutOfTurn, named_parts
from tacit.federation.protocol.agreement import (
    agreed_facts,
    check_federated,
    check_silos,
    mark,
    read_hello,
    run_mark,
)
from tacit.federation.protocol.keys import ServerKeys
from tacit.federation.protocol.messages import (
    AROUND,
    BEGIN,
    EXCHANGE,
    HELLO,
    WORK,
    Desk,
    Message,
    read_json,
)
from tacit.planning.plan import Plan, sum_facts


class AnalyzerSide:
    """Everything that the analyzer does: bytes in, bytes out. The coordinator calls it ``analyzer``."""

    def __init__(self, plan: Plan, keys: ServerKeys) -> None:
        check_federated(plan)
        third = plan.exchange.third_party
        if third is None:
            raise ValueError(f"the {plan.exchange.name} exchange has no third party")
        self.plan, self._keys = plan, Keys(third, keys.identity, keys.roster)
        self._handlers = {HELLO: self._hello, BEGIN: self._begin, WORK: self._key, EXCHANGE: self._sums}
        self._next: tuple[str, ...] = (HELLO,)
        self._most = AROUND
        self._desk: Desk | None = None
        self._role: ThirdRole

    def handle(self, message: bytes) -> bytes:
        """The answer to a message of the coordinator's; Refused where it is not as it should be."""
        read = Message.from_bytes(message, SERVER, self._most)
        if read.phase not in self._next:
            raise OutOfTurn(f"a message for {read.phase} where {' or '.join(self._next)} is due", SERVER)
        if self._desk is None or read.phase == HELLO:
            self._desk = Desk(read.run, *self._keys)
        desk = self._desk
        if read.phase == WORK:  # which begins a round, if the server has signed it
            desk = desk.later(read.round)
        content = desk.read(SERVER, read.phase, read.check(desk.run, desk.number, read.phase, SERVER))
        self._desk = desk
        return self._handlers[read.phase](desk, content)

    def _hello(self, desk: Desk, content: bytes) -> bytes:
        told = read_json(content, SERVER, {"silos": list, "plan": str})
        self._names = [str(name) for name in told["silos"]]
        check_silos(self.plan, self._names, self._keys.roster, SERVER)
        if told["plan"] != mark(self.plan):
            raise Refused("plan-mismatch", "plan mismatch: its plan hash differs from ours", SERVER)
        self._next, self._most = (BEGIN,), (1 + len(self._names)) * AROUND
        return desk.write(SERVER, HELLO, b"")

    def _begin(self, desk: Desk, content: bytes) -> bytes:
        """What all silos have told, by which this run is known; and the public terms, which the plan says."""
        signed = named_parts(content, SERVER, self._names)
        if set(signed) != set(self._names):
            raise Refused("incomplete", "what only some of the silos have told", SERVER)
        heard = {silo: desk.read(silo, HELLO, part, to_everyone=True) for silo, part in signed.items()}
        records = {silo: read_hello(part, silo, mark(self.plan)).records for silo, part in heard.items()}
        facts = sum_facts(self.plan.method, agreed_facts(self.plan, self._names, records))
        exchange, numbers = self.plan.exchange, 0 if facts.reports is None else facts.reports.dimensions
        terms = exchange.terms(run_mark(desk.run, heard), self._names, numbers, facts)
        self._role = exchange.third(terms, self._keys)
        self._next, self._most = (WORK,), AROUND + self._role.longest
        return desk.write(SERVER, BEGIN, b"")

    def _key(self, desk: Desk, content: bytes) -> bytes:
        """The key of a round, for everyone."""
        self._next = (EXCHANGE, WORK)
        return desk.framed(WORK, self._role.begin(desk.number))

    def _sums(self, desk: Desk, content: bytes) -> bytes:
        """Every dimension's sum."""
        self._next = (WORK,)
        return desk.write(SERVER, EXCHANGE, self._role.receive(content))
