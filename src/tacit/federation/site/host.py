"""The processes of a silo and of the analyzer, apart from what carries their bytes.

A :class:`SiloHost` is called to a run, asks its :class:`~tacit.federation.site.policy.Guard`, loads its table and
answers messages. Errors are written into the silo's own log; what leaves is the name of a rule, or that it failed. An
:class:`AnalyzerHost` does the same without a table, a policy or a ledger: it holds no records.
"""

from __future__ import annotations

import json
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Generic, TypeVar

from tacit.crypto import Refused
from tacit.data import Federation
from tacit.engine.evaluate import score
from tacit.engine.kernel import outputs
from tacit.errors import TacitError, in_file
from tacit.exchange.post import SERVER, OutOfTurn
from tacit.federation.carrier.envelope import CALL, EVALUATE, FAILED, MESSAGE, ONE, Call, Reply, calls
from tacit.federation.carrier.processes import party_log, settings
from tacit.federation.kits import RUNS, Kit, read_secret
from tacit.federation.protocol.agreement import check_federated
from tacit.federation.protocol.sides import AnalyzerSide, ServerKeys, SiloKeys, SiloSide
from tacit.federation.request import SILO_COUNT, Request, Sealed
from tacit.federation.site.ledgers import registered, remember
from tacit.federation.site.models import FILE, Models, PackedLimits, accepted
from tacit.federation.site.policy import Guard, Head, Policy, Refusal, Rule
from tacit.federation.site.retention import at_work, expire_at_silo
from tacit.federation.site.shard import load_shard, read_silo_data
from tacit.models.packed_model import LIMITS
from tacit.planning.plan import Plan
from tacit.planning.settings import read_section

PLACES = "places"  # in a silo's kit: locks for the runs that it works on at the same time

Side = TypeVar("Side", SiloSide, AnalyzerSide)


class Host(ABC, Generic[Side]):
    """A party in one run that the server sends messages to."""

    def __init__(self, kit: Kit) -> None:
        self.kit, self._log = kit, party_log(kit)
        self._lock = threading.Lock()
        self._side: Side | None = None
        self.admitted: Plan | None = None
        self._has_ended = False
        self._asked = ""
        self._messages, self._seconds = 0, 0.0

    def call(self, read: Callable[[], Sealed], data: bytes) -> bytes:
        """Take part in the run of the request that ``read`` returns, or name the rules that forbid it."""
        return self._replied(CALL, lambda: self._call(read, data))

    def message(self, data: bytes) -> bytes:
        """Answer a message of the run."""
        return self._replied(MESSAGE, lambda: self._called.handle(data))

    def evaluate(self, data: bytes) -> bytes:
        """Metrics of a model on held-out records, if the policy allows them."""
        return self._replied(EVALUATE, lambda: self._evaluate(data))

    def close(self) -> None:
        """The run has ended."""
        with self._lock:
            if self._side is not None:
                self._log.info("ended   after %d messages and %.2f s of work", self._messages, self._seconds)
            self._side, self._has_ended = None, True
            self._end()

    def _check_requester(self, requester: str) -> None:
        """Refusal where this party does not work for the requester."""

    def _models(self) -> Models:
        """The models of others that this party accepts."""
        with _refusing("policy"):
            return models_of(self.kit)

    @abstractmethod
    def _taken_part(self, request: Request, seen: Mapping[str, Head]) -> Side:
        """This party's side of the requested run; Refusal where it does not take part."""

    @abstractmethod
    def _evaluate(self, data: bytes) -> bytes: ...

    def _end(self) -> None:
        """Release what the run needed."""

    def _enclosed(self, what: str, content: bytes | None, rules: Sequence[Rule]) -> Reply:
        """What leaves."""
        return Reply(content, tuple(rules))

    @property
    def _called(self) -> Side:
        if self._has_ended:
            raise OutOfTurn("a message after the end of the run", SERVER)
        if self._side is None:
            raise Refusal("request", "a message before any run was admitted")
        return self._side

    def _call(self, read: Callable[[], Sealed], data: bytes) -> bytes:
        """Checks in the order of their cost: signatures, requester, form and counts, plan, policy; last, the table."""
        if self._asked:
            raise Refusal("request", "a second call in one run")
        with _refusing("request"):
            sealed = read()
        seen = Call.from_bytes(calls(self.kit, self.kit.name, sealed).read(SERVER, CALL, data)).seen
        self._asked = f" to run {sealed.run} (attempt {sealed.attempt}) of {sealed.requester}"
        self._check_requester(sealed.requester)
        with _refusing("request"):
            name = sealed.model_name
        if problem := self._models().problem(name, sealed.model):
            raise Refusal("models", problem)
        with _refusing("request", {SILO_COUNT: "silos"}):
            request = sealed.opened(len(self.kit.silos), is_accepted=True)
            check_federated(request.plan)
        plan = request.plan
        self._log.info("asked  %s: %s, %s, %d rounds", self._asked, plan.label, plan.exchange.name, plan.rounds)
        self._side = self._taken_part(request, seen)
        self.admitted = plan
        self._log.info("admitted run %s", request.run)
        return b""

    def _replied(self, what: str, do: Callable[[], bytes]) -> bytes:
        """What ``do`` answers, or the rules that forbid it, in an envelope; all else about it goes into our log."""
        with self._lock:
            began = time.perf_counter()
            content: bytes | None = None
            rules: Sequence[Rule] = ()
            try:
                content = do()
            except Refusal as refusal:
                self._log.warning("refused %s%s: %s", ONE[what], self._asked, refusal)
                rules = refusal.rules
            except Refused as error:
                self._log.warning("refused %s of the server%s: %s", ONE[what], self._asked, error)
                rules = ("message",)
            except Exception:
                self._log.exception("failed  at %s%s", ONE[what], self._asked)
                rules = (FAILED,)
            self._messages += 1
            self._seconds += time.perf_counter() - began
            return self._enclosed(what, content, rules).to_bytes()


class AnalyzerHost(Host[AnalyzerSide]):
    """The analyzer in one run."""

    def _taken_part(self, request: Request, seen: Mapping[str, Head]) -> AnalyzerSide:
        if request.plan.exchange.third_party is None:
            raise Refusal("request", f"the {request.plan.exchange.name} exchange has no analyzer")
        return AnalyzerSide(request.plan, ServerKeys(self.kit.identity(), self.kit.roster()))

    def _evaluate(self, data: bytes) -> bytes:
        raise Refusal("metrics", "the analyzer has no records")


class SiloHost(Host[SiloSide]):
    """One silo in one run."""

    def __init__(self, kit: Kit) -> None:
        super().__init__(kit)
        self._guard: Guard | None = None
        self._dataset, self._requester = "", ""
        self._recounts: tuple[str, ...] = ()
        self._evaluations = 0
        self._held_out: int | None = None
        self._memory = ExitStack()

    def _end(self) -> None:
        self._memory.close()
        with suppress(OSError):
            expire_at_silo(self.kit.ours / RUNS)
        if self._guard is not None:
            with suppress(OSError):  # a full disk; the server remembers the state of the ledger, too
                remember(self.kit, self._dataset, self._guard.head)
            self._guard.__exit__(None, None, None)
        self._guard = None

    def _check_requester(self, requester: str) -> None:
        with _refusing("policy"):
            self._policy = read_section(settings(self.kit)[1], Policy, "POLICY.toml")
        self._policy.check_requester(requester)

    def _models(self) -> Models:
        return accepted(self._policy.models)

    def _taken_part(self, request: Request, seen: Mapping[str, Head]) -> SiloSide:
        plan, self._requester = request.plan, request.requester
        with _refusing("data"):
            options = read_silo_data(settings(self.kit)[0])
        with _refusing("ledger"):
            self._dataset, before, self._recounts = registered(self.kit, options)
        self._guard = guard = Guard(self._policy, self.kit.name, Path(options.ledger or ""), self.kit.ours / PLACES)
        common = self.kit.pseudonyms()
        if options.pseudonyms is not None:
            with _refusing("data"), in_file(options.file):
                common = read_secret(Path(options.pseudonyms), "pseudonyms")
        shards: list[Federation] = []

        def records() -> int:
            with _refusing("data"):
                loaded = load_shard(plan, self.kit.name, options, common)
            shards.append(loaded.federation)
            self._held_out = loaded.held_out
            for column, rows in loaded.left_out.items():
                words = "left out %d of %d rows: %s is missing in them, or not as the experiment declares it"
                self._log.warning(words, rows, loaded.rows, column)
            return loaded.rows

        guard.admit(request, self.kit.silos, seen.get(self._dataset) or seen.get(before or ""), records)
        keys = SiloKeys(self.kit.identity(), self.kit.roster(), common)
        memory = self.kit.ours / RUNS / request.run
        self._memory.enter_context(at_work(memory))
        return SiloSide(plan, self.kit.name, shards[0], keys, before_release=self._release, memory=memory)

    def _release(self, mechanism: str, number: int, events: Mapping[str, Any]) -> None:
        assert self._guard is not None
        self._guard.before_release(mechanism, number, events)
        where = f"round {number}, after {self._seconds:.3f} s of work: line {self._guard.head.lines} of the ledger"
        self._log.info("release %s, %s", mechanism, where)

    def _evaluate(self, data: bytes) -> bytes:
        side = self._called
        assert self._guard is not None
        policy, held_out = self._guard.policy, self._held_out
        rules = (
            (not policy.metrics, "the policy does not allow metrics without noise"),
            (side.plan.evaluation is not None, "the plan has metrics with noise"),
            (held_out is None, "the data file has no [hold_out]"),
            # of the table, whether the rows fit the experiment or not
            ((held_out or 0) < policy.least_records, f"{held_out} rows are held out, fewer than least_records"),
            (self._evaluations > side.plan.rounds, f"all {self._evaluations} models of the plan were evaluated"),
        )
        for is_broken, reason in rules:
            if is_broken:
                raise Refusal("metrics", reason)
        model, silos = side.to_evaluate(data), side.silos
        self._evaluations += 1
        made, test = silos.learner, silos.federation.test
        found = outputs(made.objective, model, test.features)
        scores = score(made.task, found, test, silos.federation.silo_names, False)
        return json.dumps({"records": self._held_out, "metrics": scores.overall}).encode()

    def _enclosed(self, what: str, content: bytes | None, rules: Sequence[Rule]) -> Reply:
        head = None if self._guard is None else self._guard.head
        left = self._guard.left(self._requester) if self._guard is not None and what == CALL else None
        return Reply(content, tuple(rules), self._dataset, head, left, self._recounts if what == CALL else ())


def models_of(kit: Kit) -> Models:
    """What a server or analyzer accepts: packed models within the limits of all parties (it holds no records), and what
    its file ``MODELS.toml`` names."""
    file = kit.path / FILE
    found = read_section(file, Models, FILE) if file.is_file() else Models()
    return found.model_copy(update={"packed": found.packed or _UNLIMITED})


_UNLIMITED = PackedLimits(most_operations=LIMITS.operations, most_memory=LIMITS.memory)


@contextmanager
def _refusing(rule: Rule, others: Mapping[str, Rule] = {}) -> Iterator[None]:
    """An error within forbids the run by that rule, or by the one that ``others`` has for its field."""
    try:
        yield
    except TacitError as error:
        raise Refusal(others.get(error.field, rule), str(error)) from None
