"""The third party's side of a federation: the analyzer, which opens what the server has mixed, and adds it up.

It is run by an organisation that does not share what it sees with the server: together they would know every subject's
reports. It holds no records and learns every dimension's reports in random order, without names.
"""

from __future__ import annotations

from tacit.exchange import ThirdRole
from tacit.exchange.post import SERVER
from tacit.federation.protocol.agreement import agreed_facts, read_hello, run_mark
from tacit.federation.protocol.messages import AROUND
from tacit.federation.protocol.party import Party, ServerKeys
from tacit.planning.plan import Plan, sum_facts


class AnalyzerSide(Party):
    """Everything that the analyzer does. The coordinator calls it ``analyzer``."""

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
        """The answers of all silos to hello, from which the name of this run follows; and the public terms of the
        plan."""
        hellos = self._from_silos("hello", content)
        records = {silo: read_hello(part, silo, self._mark).records for silo, part in hellos.items()}
        facts = sum_facts(self.plan.method, agreed_facts(self.plan, self._names, records))
        exchange, numbers = self.plan.exchange, 0 if facts.reports is None else facts.reports.dimensions
        terms = exchange.terms(run_mark(self._here.run, hellos), self._names, numbers, facts)
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
