"""The silo's side of a federation."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np

from tacit.crypto import EVERYONE, Refused
from tacit.data import Federation, Records
from tacit.data.holdout_and_caps import within_caps
from tacit.data.invalid_rows import FINEST
from tacit.engine.charges import check_goes_on, events, once_events
from tacit.engine.evaluate import constants_query, masked_sum, metric_values, metrics_query
from tacit.engine.kernel import outputs
from tacit.engine.learner import Learner, WrongTree, is_finite, learner, unpacked
from tacit.engine.simulate import LocalSilos, noise_keys, sum_noise
from tacit.exchange import Keys, SiloRole
from tacit.exchange.post import SERVER, OutOfTurn, named_parts, parted, read_sums, write_sums
from tacit.federation.protocol.agreement import (
    DRAWN_BYTES,
    Form,
    agreed_facts,
    check_federated,
    check_silos,
    column_bounds,
    common_randomness,
    discloses_counts,
    in_their_places,
    longest_counts,
    mark,
    read_hello,
    run_mark,
    tell_counts,
    told_counts,
)
from tacit.federation.protocol.keys import SiloKeys
from tacit.federation.protocol.memory import SiloMemory
from tacit.federation.protocol.messages import (
    AROUND,
    BEGIN,
    CONSTANTS,
    EXCHANGE,
    HELLO,
    METRICS,
    OPEN,
    REFUSED,
    STATISTICS,
    TOTALS,
    UNPAID,
    WORK,
    Desk,
    Message,
    read_json,
    write_json,
)
from tacit.models import Params
from tacit.planning.plan import Plan
from tacit.privacy import Event, Nothing, Randomness, Stream, Unprotected
from tacit.privacy.mechanisms.noisy_queries import Means, Moments
from tacit.privacy.proofs.noisy_silo_sums import noisy_sum

# What the server signs once for all of its recipients.
_TO_EVERYONE = (STATISTICS, WORK, METRICS)

# (mechanism, round, events by place): called before anything that it is about leaves; raises what forbids it.
BeforeRelease = Callable[[str, int, Mapping[str, Event]], None]


def allow(mechanism: str, number: int, released: Mapping[str, Event]) -> None:
    """A party without a ledger."""


class SiloSide:
    """Everything that one silo does: bytes in, bytes out. Owns its records, its keys and what its method keeps.

    ``shard`` holds this silo's records, as the only silo; subjects have the keys that they have in all silos. Records
    beyond the plan's cap are left out here, whatever was loaded.

    ``before_release(mechanism, round, events)`` is called before an answer leaves that shows something about records;
    what it raises, ``handle`` raises, and nothing leaves. ``events`` are those of ``engine.charges.events`` for this
    silo's own plan, empty where it promises nothing (a ledger line without events counts as unprotected). In a round
    ``mechanism`` is the method's name (``plan.promise.people(round)`` and ``plan.method.claim.joint`` say what else a
    line of the ledger needs); ``"counts"`` in round 0 is what a plan discloses about numbers of records. It is called
    with the first message that depends on records: a plain update, a masked vector, encrypted sums, sealed reports.

    ``memory`` is a folder of the silo's own for what its method keeps between rounds (control variates, a model of its
    own): without one, such a run cannot be gone on with after the silo was stopped. Most methods keep nothing.
    """

    def __init__(
        self,
        plan: Plan,
        name: str,
        shard: Federation,
        keys: SiloKeys,
        *,
        before_release: BeforeRelease = allow,
        memory: Path | None = None,
    ) -> None:
        check_federated(plan)
        self.plan, self.name = plan, name
        self._shard, self._keys, self._before_release = _capped(shard, plan.records_kept), keys, before_release
        self._unpaid = shard if plan.statistics is not None else None
        self._form = Form.of(shard)
        self._randomness = Randomness.from_seed(plan.experiment.seed)
        self._drawn = secrets.token_bytes(DRAWN_BYTES)
        self._mark = mark(plan)
        self._memory = SiloMemory(memory, self._mark)
        self._desk: Desk | None = None
        self._handlers = {
            HELLO: self._hello,
            BEGIN: self._begin,
            TOTALS: self._totals,
            STATISTICS: self._statistics,
            CONSTANTS: self._constants,
            OPEN: self._open,
            WORK: self._work,
            EXCHANGE: self._exchange,
            METRICS: self._metrics,
        }
        self._next: tuple[str, ...] = (HELLO,)
        self._most = AROUND
        self._silos: LocalSilos | None = None
        self._role: SiloRole | None = None

    # -- messages

    def handle(self, message: bytes) -> bytes:
        """The answer to a message of the coordinator's; Refused where it is not as it should be."""
        read = Message.from_bytes(message, SERVER, self._most)
        if read.phase not in self._next:
            raise OutOfTurn(f"a message for {read.phase} where {' or '.join(self._next) or 'nothing'} is due", SERVER)
        if read.phase == HELLO:
            self._desk = Desk(read.run, self.name, self._keys.identity, self._keys.roster)
        desk = self._here
        if read.run != desk.run:
            raise Refused("wrong-run", "a message of another run", SERVER)
        if read.phase in (WORK, METRICS):  # they begin a round, if the server has signed them
            desk = desk.later(read.round)
        content = read.check(desk.run, desk.number, read.phase, SERVER)
        if read.phase != EXCHANGE:  # which are signed by their own protocol
            content = desk.read(SERVER, read.phase, content, to_everyone=read.phase in _TO_EVERYONE)
        self._desk = desk
        return self._handlers[read.phase](content)

    def refusal(self, reason: str) -> bytes:
        """What to send in place of an answer: that this silo will not take part, and a reason fit for others' eyes."""
        return self._here.write(SERVER, REFUSED, reason.encode())

    def to_evaluate(self, message: bytes) -> Params:
        """The model whose metrics without noise the coordinator asks for; Refused unless it is signed for
        this run and round."""
        read, desk = Message.from_bytes(message, SERVER, self._most), self._here
        content = read.check(desk.run, desk.number, UNPAID, SERVER)
        return self._model(desk.read(SERVER, UNPAID, content, to_everyone=True))

    @property
    def _here(self) -> Desk:
        if self._desk is None:
            raise OutOfTurn("no hello message has arrived", SERVER)
        return self._desk

    @property
    def silos(self) -> LocalSilos:
        """This silo at work, after setup: what it keeps, its model where the method is personal."""
        if self._silos is None:
            raise OutOfTurn("setup has not ended", SERVER)
        return self._silos

    @property
    def role(self) -> SiloRole:
        """This silo's side of the exchange that is going on."""
        if self._role is None:
            raise OutOfTurn("setup has not ended", SERVER)
        return self._role

    @property
    def _party(self) -> Keys:
        return Keys(self.name, self._keys.identity, self._keys.roster)

    @property
    def place(self) -> int:
        """This silo's number among all."""
        return self._names.index(self.name)

    # -- setup

    def _hello(self, content: bytes) -> bytes:
        told = read_json(content, SERVER, {"silos": list, "plan": str})
        names = [str(name) for name in told["silos"]]
        check_silos(self.plan, names, self._keys.roster, SERVER)
        if self.name not in names:
            raise Refused("wrong-parties", "a list of silos without us", SERVER)
        if told["plan"] != self._mark:
            raise Refused("plan-mismatch", "plan mismatch: its plan hash differs from ours", SERVER)
        self._names = tuple(names)
        records = 0
        if not self.plan.method.private:
            self._before_release("counts", 0, {})
            records = len(self._shard.train)
        form = self._form.as_dict()
        answer = {"form": form, "drawn": self._drawn.hex(), "records": records, "plan": self._mark}
        self._told = write_json(answer)
        self._next = (BEGIN,)
        made = learner(self.plan.experiment.model, self._shard.labels, self._form.shape, Randomness.from_seed(0))
        self._most = AROUND + len(names) * (AROUND + len(self._told)) + 2 * _bytes_of((made.params, made.frozen))
        self._made = made
        return self._here.write(EVERYONE, HELLO, self._told)

    def _begin(self, content: bytes) -> bytes:
        told = parted(content, SERVER, 3)
        done = read_json(told[0], SERVER, {"done": int})["done"]
        signed = named_parts(told[1], SERVER, self._names)
        if set(signed) != set(self._names):
            raise Refused("incomplete", "what only some of the silos have told", SERVER)
        heard = {peer: self._here.read(peer, HELLO, part, to_everyone=True) for peer, part in signed.items()}
        if heard[self.name] != self._told:
            raise Refused("mismatch", "says that we have told what we have not", SERVER)
        answers = {peer: read_hello(part, peer, self._mark) for peer, part in heard.items()}
        self._run = run_mark(self._here.run, heard)
        drawn = {peer: answer.drawn for peer, answer in answers.items()}
        self._common = common_randomness(self.plan, self._keys.common, self._here.run, drawn)
        self._facts = agreed_facts(self.plan, self._names, {peer: answer.records for peer, answer in answers.items()})
        self._frozen = _tree(told[2], self._made.frozen)
        if not 0 <= done <= self.plan.rounds:
            raise Refused("out-of-range", f"{done} rounds done of {self.plan.rounds}", SERVER)
        if done:
            check_goes_on(self.plan)
        self._done = done
        self._placed = self._among_all(self._shard)
        if not discloses_counts(self.plan):
            self._go_on(None)
            return self._here.write(SERVER, BEGIN, b"")
        shown = {place: event if isinstance(event, Unprotected) else Nothing() for place, event in self._events.items()}
        self._before_release("counts", 0, shown)
        self._most += len(self._names) * (AROUND + longest_counts(self.plan))
        self._next = (TOTALS,)
        people, counts = np.unique(self._placed.train.subject, return_counts=True)
        self._counted = self._common.lots(people, "counts").view(np.int64)  # who is counted in this run, by rising key
        order = np.argsort(self._counted)
        self._told = tell_counts(self._run, self._counted[order], counts[order])
        return self._here.write(EVERYONE, BEGIN, self._told)

    def _totals(self, content: bytes) -> bytes:
        """Each subject's records in all silos: added up here, from what silos have signed for this start of the run. A
        server that could tell totals would make people with records in m silos weigh up to m."""
        signed = named_parts(content, SERVER, self._names)
        if set(signed) != set(self._names):
            raise Refused("incomplete", "the counts of only some of the silos", SERVER)
        told = {peer: self._here.read(peer, BEGIN, part, to_everyone=True) for peer, part in signed.items()}
        if told[self.name] != self._told:
            raise Refused("mismatch", "says that we have told what we have not", SERVER)
        totals = np.zeros(len(self._counted), np.int64)
        for peer, part in told.items():
            names, counts = told_counts(part, self._run, peer)
            _, ours, theirs = np.intersect1d(self._counted, names, assume_unique=True, return_indices=True)
            totals[ours] += counts[theirs]
        self._go_on(totals)
        return self._here.write(SERVER, TOTALS, b"")

    def _among_all(self, shard: Federation) -> Federation:
        """Our records in their place among those of all silos."""
        if self.plan.method.info.gathers == "places":
            shard = in_their_places(shard, self.place, len(self._names), self.plan.promise.facts.subjects or 1)
        return shard.among(self._names, self.place)

    def _go_on(self, totals: np.ndarray | None) -> None:
        """To the first round; or to constants, where the plan pays for them."""
        if self._unpaid is None:
            self._ready(totals)
        else:
            self._of_all, self._next = totals, (STATISTICS, CONSTANTS)

    def _statistics(self, content: bytes) -> bytes:
        """Our part of the sums that constants come from, under the noise that the plan pays for."""
        assert self._unpaid is not None
        assert self._unpaid.unpaid is not None, "a silo loads what has still to be paid for"
        train, columns = self._unpaid.train, self._unpaid.unpaid
        query = constants_query(self.plan, columns.low, columns.high)
        noise = self._randomness.stream("statistics", self.place)
        self._leaving = "statistics", 0
        return self._part(STATISTICS, query, columns.values(), train, noise, (CONSTANTS,))

    def _constants(self, content: bytes) -> bytes:
        """Our columns under constants that all silos get: public by now, whatever their origin. Not any constants: a
        scale so small that a number overflows under it would tell, by our failing, that there is such a number."""
        assert self._unpaid is not None
        low, high = np.array(column_bounds(self.plan))
        told = read_sums(content, 2 * len(low), SERVER)
        means, scales = told.reshape(2, len(low))
        if not ((low <= means) & (means <= high) & (FINEST * (high - low) <= scales) & (scales <= high - low)).all():
            raise Refused("out-of-range", "constants beyond the declared bounds of their columns", SERVER)
        standardized = self._unpaid.standardized(means.tolist(), scales.tolist())
        self._placed = self._among_all(_capped(standardized, self.plan.records_kept))
        self._ready(self._of_all)
        return self._here.write(SERVER, CONSTANTS, b"")

    def _ready(self, totals: np.ndarray | None) -> None:
        """Everything is known: set up the work, and the exchange."""
        plan, facts = self.plan, self._facts
        made = Learner(self._made.objective, self._made.params, self._frozen)
        self._silos = silos = LocalSilos(
            plan,
            facts,
            self._placed,
            made,
            self._randomness,
            noise=sum_noise(plan, facts, "shares"),
            here=(self.place,),
            common=self._common,
            totals=totals,
        )
        if not self._done:
            self._memory.forget()
            self._remember(0)
        elif self._kept is not None:
            self._kept = self._memory.recall(self._done, self._kept)
        self._template = plan.method.server.broadcast(
            plan.method.server.init(plan.server_step, made.params, facts.silos)
        )
        self._most = AROUND + 2 * _bytes_of((self._template, made.frozen))
        exchange = plan.exchange
        terms = exchange.terms(self._run, self._names, silos.numbers(self._template), silos.sum_facts())
        (members,) = silos.work.members() or (None,)
        self._role = exchange.silo(terms, self._party, members)
        self._most += self._role.longest
        self._next = (OPEN,) if exchange.opens else (WORK, METRICS)

    @property
    def _kept(self) -> Any:
        """What this silo's method keeps; None where that is nothing."""
        own = jax.tree.map(lambda leaf: leaf[0], self.silos.states)
        return own if jax.tree.leaves(own) else None

    @_kept.setter
    def _kept(self, own: Any) -> None:
        self.silos.states = jax.tree.map(lambda leaf: leaf[None], own)

    def _remember(self, number: int) -> None:
        if self._kept is not None:
            self._memory.keep(number, self._kept)

    def _open(self, content: bytes) -> bytes:
        self._next = (EXCHANGE, WORK)
        return self._sent(OPEN, self.role.open(), self.role.signs_opening)

    # -- rounds

    def _work(self, content: bytes) -> bytes:
        """A round's local work; the answer is what it came to, or the beginning of an exchange about it."""
        number, silos = self._here.number, self.silos
        model, preface = parted(content, SERVER, 2)
        broadcast = _tree(model, self._template)
        if not is_finite(broadcast):
            raise Refused("out-of-range", "a model that is not finite", SERVER)
        if not self._done < number <= self.plan.rounds:
            raise Refused("mismatch", f"round {number} where {self._done} of {self.plan.rounds} are done", SERVER)
        drawn = silos.work.draw(number)
        self._next = (WORK, METRICS)  # what was going on is over, whatever becomes of this
        self._leaving = self.plan.method.name, number
        part, states, not_finite = self._contribution(number, drawn, broadcast)
        silos.done(states, not_finite)
        self._remember(number)
        first = self.role.begin(number, part, self._randomness.stream("noise", number, self.place), preface)
        answer = self._sent(WORK, first, self.role.signs)
        self._next = (EXCHANGE, WORK, METRICS)
        return answer

    def _contribution(self, number: int, drawn: Any, broadcast: Any) -> tuple[Any, Any, Any]:
        """What this silo hands to the exchange, what it keeps, and how much was not finite."""
        silos = self.silos
        if self.plan.exchange.compiled:
            worked = silos.work.do(drawn, silos.given(broadcast))
            vector = silos.kernels.sent(worked.totals, self._noise_keys(number))
            return vector, worked.states, sum(worked.not_finite)
        found = silos.contributed(drawn, broadcast, self.role.form)
        return found.parts[0], found.states, found.not_finite

    def _sent(self, phase: str, content: bytes, is_signed: bool) -> bytes:
        """A message of the exchange, after the ledger line that it may need."""
        if self.role.shows:
            self._release()
        return self._here.framed(phase, content) if is_signed else self._here.write(SERVER, phase, content)

    def _metrics(self, content: bytes) -> bytes:
        """Metrics of a model on those who are held out here, under the noise that the plan pays for: after the last
        round, once. The answer is this silo's part of a sum, or the beginning of a masked sum of its own."""
        plan, desk = self.plan, self._here
        if plan.evaluation is None:
            raise Refused("not-planned", "asks for metrics that the plan does not pay for", SERVER)
        if desk.number != plan.rounds + 1:
            raise Refused("mismatch", f"asks for metrics as if round {desk.number} were the one after the last", SERVER)
        made, test = self.silos.learner, self.silos.federation.test
        model = self._model(content)
        values = metric_values(plan, outputs(made.objective, model, test.features), test)
        noise = self._randomness.stream("evaluation", plan.rounds, self.place)
        self._leaving = "evaluation", plan.rounds
        return self._part(METRICS, metrics_query(plan), values, test, noise, ())

    def _part(
        self,
        phase: str,
        query: Means | Moments,
        values: np.ndarray,
        records: Records,
        noise: Stream,
        then: tuple[str, ...],
    ) -> bytes:
        """Our part of a sum that is paid for, or the beginning of a masked sum of its own; ``then`` is due after it."""
        plan, desk, masked = self.plan, self._here, self.plan.exchange.masking
        self._next = then
        part = query.parts(values, records.subject, np.zeros(len(records), int), 1)[0]
        if masked is not None:
            self._next = (EXCHANGE, *then)
            asked = masked_sum(plan, query)
            terms = masked.terms(f"{self._run}/{phase}", self._names, query.numbers, asked)
            self._most = max(self._most, AROUND + terms.longest)
            self._role = masked.silo(terms, self._party, None)
            return self._sent(phase, self._role.begin(desk.number, masked.grid.truncated(part), noise), True)
        self._release()
        share = query.sigma / math.sqrt(len(self._names))
        return desk.write(SERVER, phase, write_sums(noisy_sum(part[None], share, [noise])))

    def _model(self, content: bytes) -> Params:
        """A whole model."""
        made = self.silos.learner
        model: Params = _tree(content, {**made.params, **made.frozen})
        if not is_finite(model):
            raise Refused("out-of-range", "a model that is not finite", SERVER)
        return model

    def _exchange(self, content: bytes) -> bytes:
        """The next message of an exchange; whatever is wrong with it ends the round for this silo."""
        return self._sent(EXCHANGE, self.role.receive(content), True)

    def _release(self) -> None:
        """What was worked out last is about to leave."""
        mechanism, number = self._leaving
        once = next((once for once in self.plan.promise.once if once.mechanism == mechanism), None)
        self._before_release(mechanism, number, self._events if once is None else once_events(self.plan.promise, once))

    @cached_property
    def _events(self) -> dict[str, Event]:
        """What one round releases; nothing can be said of a method that promises nothing."""
        return events(self.plan.promise) if self.plan.method.private else {}

    def _noise_keys(self, number: int) -> Any:
        found = noise_keys(self.silos.noise, number, self._randomness, [self.place])
        return (found[0][:, 0], found[1]) if found else ()


def _capped(shard: Federation, most: int | None) -> Federation:
    """With at most so many records of a subject: the first ones, as its silo has them."""
    train = shard.train.grouped()
    if most is not None:
        train = train.take(within_caps(train.subject, train.silo, records=most))
    return replace(shard, train=train)


def _tree(data: bytes, template: Any) -> Any:
    try:
        return unpacked(data, template)
    except WrongTree as unfit:
        raise Refused("malformed", f"a message that {unfit}", SERVER) from None


def _bytes_of(tree: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
